import {
  AlertCircle,
  Ban,
  CheckCircle2,
  CircleDashed,
  Clock,
  Diamond,
  FastForward,
  Flag,
  Hourglass,
  Pause,
  Play,
  RotateCw,
  Skull,
  type LucideIcon,
} from "lucide-react";

import { statusWord } from "../lib/words";
import s from "./parts.module.css";

const ICONS: Record<string, LucideIcon> = {
  SCHEDULED: Clock,
  QUEUED: CircleDashed,
  RUNNING: Play,
  AWAITING: Hourglass,
  RETRYING: RotateCw,
  SUCCEEDED: CheckCircle2,
  COMPLETED: CheckCircle2,
  ENDED: Flag,
  FAILED: AlertCircle,
  DEAD: Skull,
  CANCELLED: Ban,
  SKIPPED: Diamond,
  SUPERSEDED: FastForward,
  PAUSED: Pause,
};

/** A status as an icon and a word, never only as a colour. */
export function Status({ status, detail }: { status: string; detail?: string | null }) {
  const Icon = ICONS[status] ?? Clock;
  const colour = ({ COMPLETED: "succeeded", ENDED: "cancelled" } as Record<string, string>)[status] ?? status.toLowerCase();
  const word = detail ? `${statusWord(status)}: ${detail}` : statusWord(status);
  return (
    <span className={s.status} style={{ "--ink": `var(--${colour})`, "--fill": `var(--${colour}-fill)` } as React.CSSProperties} title={word}>
      <Icon size={13} strokeWidth={2.25} aria-hidden />
      <span>{word}</span>
    </span>
  );
}

/** A word in a matching colour. */
export function Badge({ text, colour }: { text: string; colour: string }) {
  return (
    <span className={s.status} style={{ "--ink": `var(--${colour})`, "--fill": `var(--${colour}-fill)`, paddingLeft: 8 } as React.CSSProperties}>
      <span>{text}</span>
    </span>
  );
}
