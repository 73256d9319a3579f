// The settings of a tenant, a queue or a target.
import { useState } from "react";

import { useAct } from "../api/hooks";
import { span } from "../lib/words";
import { styles as parts } from "../parts/basics";
import { Field } from "../parts/fields";
import { Confirm, toast } from "../parts/overlays";
import s from "./pages.module.css";

export interface LimitsLike {
  max_concurrency?: number | null;
  rate_limit?: { per_second: number; burst?: number | null } | null;
}

export function limitWords(limits: LimitsLike): string {
  const words = [];
  if (typeof limits.max_concurrency === "number") words.push(limits.max_concurrency === 0 ? "stopped (0 at once)" : `${limits.max_concurrency} at once`);
  if (limits.rate_limit) words.push(`${limits.rate_limit.per_second} per second`);
  return words.join(", ") || "–";
}

type Setting = { name: string; label: string; hint?: string; seconds?: boolean };

export const TENANT_SETTINGS: Setting[] = [
  { name: "weight", label: "Weight", hint: "Its share of the workers while others are waiting, too." },
  { name: "max_concurrency", label: "At once", hint: "Empty for no limit; 0 stops it." },
  { name: "per_second", label: "Starts per second", hint: "Empty for no limit." },
  { name: "burst", label: "Burst" },
  { name: "max_jobs", label: "Maximum number of jobs" },
  { name: "ledger_days", label: "History in days" },
  { name: "dead_letter_days", label: "Dead letters in days" },
  { name: "audit_days", label: "Audit trail in days" },
];
export const QUEUE_SETTINGS: Setting[] = [...TENANT_SETTINGS.slice(1, 4), { name: "default_timeout_seconds", label: "Default timeout in seconds", seconds: true }];
export const TARGET_SETTINGS: Setting[] = TENANT_SETTINGS.slice(1, 4);

interface Props {
  title: string;
  name: string;
  path: string;
  settings: Setting[];
  current: LimitsLike & { version: number } & Record<string, unknown>;
  kept?: string[]; // settings that the form does not show and sends back unchanged
  close: () => void;
}

/** Edits all settings at once, because a PUT replaces all of them. */
export function EditLimits({ title, name, path, settings, current, kept = [], close }: Props) {
  const { act, busy, problem } = useAct();
  const flat: Record<string, unknown> = { ...current, per_second: current.rate_limit?.per_second, burst: current.rate_limit?.burst };
  const [values, setValues] = useState<Record<string, string>>(() => Object.fromEntries(settings.map((setting) => [setting.name, flat[setting.name] === null || flat[setting.name] === undefined ? "" : String(flat[setting.name])])));
  const number = (text: string) => (text.trim() === "" ? null : Number.isFinite(Number(text)) ? Number(text) : text);
  const stops = values.max_concurrency?.trim() === "0";
  async function save() {
    const { per_second, burst, ...rest } = Object.fromEntries(Object.entries(values).map(([key, text]) => [key, number(text)]));
    const body: Record<string, unknown> = { ...rest, rate_limit: per_second === null || per_second === undefined ? null : { per_second, ...(burst !== null && burst !== undefined ? { burst } : {}) } };
    for (const each of kept) body[each] = current[each];
    for (const [key, value] of Object.entries(body)) if (value === null) delete body[key];
    await act("PUT", path, { body, ifMatch: current.version });
    toast(`Settings of ${name} saved.`);
    close();
  }
  return (
    <Confirm title={title} verb="Save" danger={stops} typed={stops ? name : undefined} close={close} confirm={() => void save().catch(() => undefined)} busy={busy} problem={problem}>
      {stops && <p>With a limit of 0, nothing starts until the limit is raised.</p>}
      <div className={s.cols}>
        {settings.map((setting) => (
          <Field key={setting.name} label={setting.label} hint={setting.seconds && values[setting.name] ? span(Number(values[setting.name])) : setting.hint} error={problem?.errors.find((error) => error.path === setting.name || error.path === `rate_limit.${setting.name}`)?.message}>
            {(props) => <input {...props} className={parts.input} inputMode="decimal" value={values[setting.name] ?? ""} onChange={(event) => setValues({ ...values, [setting.name]: event.target.value })} />}
          </Field>
        ))}
      </div>
    </Confirm>
  );
}
