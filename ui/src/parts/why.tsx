// The answer to "why did it not run?": one sentence, what holds it, until when, and what to do.
import { CalendarX2, CircleAlert, CircleHelp, Clock, Flag, Hourglass, Layers2, Pause, Play, Gauge, RotateCw, ServerOff, Skull, Zap, type LucideIcon } from "lucide-react";
import type { ReactNode } from "react";
import { Link } from "wouter";

import { now } from "../api/client";
import { useApi, useTick } from "../api/hooks";
import type { Explanation } from "../api/types";
import { relative } from "../lib/time";
import { counted, reasonSentence } from "../lib/words";
import { Failure, Loading, Time, Told } from "./basics";
import { Status } from "./status";
import s from "./why.module.css";

const ICONS: Record<string, LucideIcon> = {
  not_due: Clock,
  snoozed: Clock,
  retrying: RotateCw,
  paused: Pause,
  overlap: Layers2,
  concurrency_key: Layers2,
  no_worker: ServerOff,
  no_worker_for_task: ServerOff,
  worker_slot: Hourglass,
  quarantine: ServerOff,
  circuit_open: Zap,
  no_secret_keys: Zap,
  payload_mismatch: ServerOff,
  unreadable: ServerOff,
  admission: Play,
  admission_failed: CircleAlert,
  running: Play,
  awaiting_completion: Hourglass,
  cancelling: Play,
  unknown_timezone: CalendarX2,
  invalid_schedule: CalendarX2,
  dead: Skull,
  ended: Flag,
};

function iconOf(code: string): LucideIcon {
  return ICONS[code] ?? (/_(concurrency|rate)$/.test(code) ? Gauge : CircleHelp);
}

const CALM = new Set(["not_due", "running", "awaiting_completion", "admission", "ended", "snoozed"]);

export function Why({ path, zone, actions }: { path: string; zone?: string; actions?: (explanation: Explanation) => ReactNode }) {
  const read = useApi<Explanation>(`${path}/explain`);
  return (
    <section className={s.why} aria-labelledby="why" data-tone={read.data && !CALM.has(read.data.code) ? (read.data.code === "dead" ? "bad" : "held") : "calm"}>
      <h2 id="why">Why?</h2>
      {read.data ? <Answer explanation={read.data} zone={zone} actions={actions?.(read.data)} /> : read.error ? <Failure problem={read.error} what="explanation" again={() => void read.refetch()} /> : <Loading rows={2} />}
    </section>
  );
}

function Answer({ explanation, zone, actions }: { explanation: Explanation; zone?: string; actions?: ReactNode }) {
  useTick(1000);
  const Icon = iconOf(explanation.code);
  const { holder, last_due: due } = explanation;
  const held = holder?.execution_id ?? explanation.blocked_by?.execution_id;
  return (
    <>
      <div className={s.row}>
        <Icon size={20} aria-hidden />
        <div className={s.text}>
          <p className={s.sentence}>
            {explanation.paused ? <PausedBy pause={explanation.paused} zone={zone} /> : <Told text={forPeople(explanation.message)} zone={zone} />}
            {explanation.until && Date.parse(explanation.until) > now() && (
              <>
                {" "}
                <b>{capitalUntil(explanation.code)} {relative(Date.parse(explanation.until), now())}</b> (<Time at={explanation.until} zone={zone} mode="absolute" />
                ).
              </>
            )}
          </p>
          <p className={s.facts}>
            <code>{explanation.code}</code>
            {explanation.since && (
              <span>
                {/^(dead|ended)$/.test(explanation.code) ? "" : "began "}
                <Time at={explanation.since} zone={zone} mode="relative" />
              </span>
            )}
            {explanation.attempt ? (
              <span>
                attempt {explanation.attempt}
                {explanation.max_attempts ? ` of ${explanation.max_attempts}` : ""}
              </span>
            ) : null}
            {held && (
              <span>
                held by <Link href={`/executions/${held}`}>{held}</Link>
                {holder?.worker ? ` on worker ${holder.worker}` : ""}
              </span>
            )}
            {explanation.expected_at && Date.parse(explanation.expected_at) > now() && (
              <span>
                usually ends <Time at={explanation.expected_at} zone={zone} mode="relative" />
              </span>
            )}
            {typeof holder?.limit === "number" && (
              <span>
                {counted(holder.in_use)} of {counted(holder.limit)} in use
              </span>
            )}
          </p>
          {actions && <div className={s.actions}>{actions}</div>}
        </div>
      </div>
      {due && (
        <div className={s.row}>
          <span className={s.badge}>
            <Status status={due.status} detail={due.reason?.replaceAll("_", " ")} />
          </span>
          <div className={s.text}>
            <p>
              Its last run, <Time at={due.scheduled_for} zone={zone} mode="absolute" seconds={false} />, did not succeed. <Told text={forPeople(due.message || reasonSentence(due.reason))} zone={zone} /> <Link href={`/executions/${due.execution_id}`}>Open that run</Link>
            </p>
          </div>
        </div>
      )}
    </>
  );
}

/** Without the suggested command, where it is a button here. */
function forPeople(message: string): string {
  return message.replace(/ (?:Replay|Resume) it with `[^`]*`\./, "");
}

/** The times in the message, in the chosen clock. */
function PausedBy({ pause, zone }: { pause: NonNullable<Explanation["paused"]>; zone?: string }) {
  return (
    <>
      It was paused by {pause.by}, <Time at={pause.at} zone={zone} mode="absolute" seconds={false} />
      {pause.reason ? `: “${pause.reason}”.` : ", without a reason."} {pause.until ? "" : "It stays paused until it is resumed."}
    </>
  );
}

function capitalUntil(code: string): string {
  if (code === "not_due") return "It runs";
  if (code === "retrying") return "It is retried";
  if (code === "running") return "Its lease ends";
  if (code === "paused") return "It resumes";
  return "This ends";
}
