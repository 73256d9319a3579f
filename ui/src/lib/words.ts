// Statuses, reasons, schedules and settings in words.
import { duration, group } from "./time";

export type StatusName =
  | "SCHEDULED"
  | "QUEUED"
  | "RUNNING"
  | "AWAITING"
  | "RETRYING"
  | "SUCCEEDED"
  | "FAILED"
  | "DEAD"
  | "CANCELLED"
  | "SKIPPED"
  | "SUPERSEDED"
  | "PAUSED"
  | "COMPLETED"
  | "ENDED";

export const LIVE: StatusName[] = ["SCHEDULED", "QUEUED", "RUNNING", "AWAITING", "RETRYING"];
export const FATES: StatusName[] = ["SUCCEEDED", "DEAD", "CANCELLED", "SKIPPED", "SUPERSEDED"];
export const EXECUTION_STATUSES: StatusName[] = [...LIVE, ...FATES];
/** A one-time job is in the status of its execution; only a schedule can be ENDED. */
export const JOB_STATUSES: StatusName[] = [...LIVE, "PAUSED", "COMPLETED", "FAILED", "SKIPPED", "ENDED", "CANCELLED"];

export const SCHEDULE_STATUSES: StatusName[] = ["SCHEDULED", "PAUSED", "ENDED", "CANCELLED"];

export function hasEnded(job: { status: string }): boolean {
  return ["COMPLETED", "FAILED", "SKIPPED", "ENDED", "CANCELLED"].includes(job.status);
}

/** Whether a pause may succeed: a one-time job that has been admitted meanwhile answers that it is underway. */
export function canBePaused(job: { status: string }): boolean {
  return ["SCHEDULED", "QUEUED", "RETRYING"].includes(job.status);
}

export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function statusWord(status: string): string {
  return capital(status.toLowerCase());
}

const REASONS: Record<string, string> = {
  overlap: "An earlier run was still live, and the overlap policy does not allow a second one.",
  replaced: "A later run became due before it had started and replaced it, as the overlap policy says.",
  start_deadline: "It could not start within its start deadline.",
  calendar: "Its date is in a calendar that the schedule excludes.",
  misfire: "No scheduler was running at its time, and the misfire policy does not make it up.",
  max_runs: "The job had already started its maximum number of runs.",
  deadline: "Its deadline for all attempts passed.",
  retries_exhausted: "Every attempt failed, and no retries were left.",
  non_retryable: "This kind of failure is not retried.",
  snoozed: "It was snoozed too often, or beyond its deadline.",
  lost: "Its worker was lost, and at-most-once jobs do not run again. It may or may not have run.",
  crashed: "It crashed its worker too often.",
  cancelled: "It was cancelled by a user or by a later run.",
  updated: "The job was changed before it was claimed.",
  paused: "The job was paused before it was claimed.",
  deleted: "The job was deleted before it was claimed.",
};

export function reasonSentence(reason: string | null | undefined): string {
  return reason ? (REASONS[reason] ?? "") : "";
}

export const REASON_NAMES = Object.keys(REASONS);

export interface ScheduleLike {
  cron?: string;
  timezone?: string;
  every_seconds?: number;
  at?: string;
}

const DAYS: Record<string, string> = {
  "0": "Sun",
  "1": "Mon",
  "2": "Tue",
  "3": "Wed",
  "4": "Thu",
  "5": "Fri",
  "6": "Sat",
  "7": "Sun",
  SUN: "Sun",
  MON: "Mon",
  TUE: "Tue",
  WED: "Wed",
  THU: "Thu",
  FRI: "Fri",
  SAT: "Sat",
};

/** A simple schedule in a few words, otherwise the rule itself. */
export function scheduleWords(schedule: ScheduleLike): string {
  if (schedule.every_seconds !== undefined) return `every ${duration(schedule.every_seconds * 1000).replace(/\.0 s$/, " s")}`;
  if (schedule.cron !== undefined) return cronWords(schedule.cron) ?? schedule.cron;
  return "once";
}

/** daily 02:30, every 5 min, Mon–Fri 09:00, monthly on day 1, 06:00; null if it is not that simple */
export function cronWords(rule: string): string | null {
  const macros: Record<string, string> = { "@hourly": "hourly", "@daily": "daily 00:00", "@midnight": "daily 00:00", "@weekly": "Sun 00:00", "@monthly": "monthly on day 1, 00:00", "@yearly": "yearly on 1 Jan, 00:00", "@annually": "yearly on 1 Jan, 00:00" };
  const known = macros[rule.trim().toLowerCase()];
  if (known) return known;
  const fields = rule.trim().split(/\s+/);
  if (fields.length !== 5) return null;
  const [minute, hour, day, month, weekday] = fields as [string, string, string, string, string];
  if (month !== "*") return null;
  const everyDay = day === "*" && (weekday === "*" || weekday === "?");
  if (everyDay && minute === "*" && hour === "*") return "every minute";
  const step = /^(?:\*|0)\/(\d+)$/.exec(minute);
  if (everyDay && step && hour === "*" && 60 % Number(step[1]) === 0) return `every ${step[1]} min`;
  if (!/^\d{1,2}$/.test(minute)) return null;
  if (everyDay && hour === "*") return minute === "0" ? "hourly" : `hourly at :${minute.padStart(2, "0")}`;
  const hours = /^(?:\*|0)\/(\d+)$/.exec(hour);
  if (everyDay && hours && 24 % Number(hours[1]) === 0) return `every ${hours[1]} h at :${minute.padStart(2, "0")}`;
  if (!/^\d{1,2}$/.test(hour)) return null;
  const time = `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
  if (everyDay) return `daily ${time}`;
  if (weekday === "*" && /^\d{1,2}$/.test(day)) return `monthly on day ${day}, ${time}`;
  if (day !== "*") return null;
  const days = weekdays(weekday);
  return days && `${days} ${time}`;
}

function weekdays(field: string): string | null {
  const words: string[] = [];
  for (const item of field.toUpperCase().split(",")) {
    const [from, to, rest] = item.split("-");
    const first = DAYS[from ?? ""];
    const last = to === undefined ? undefined : DAYS[to];
    if (!first || rest !== undefined || (to !== undefined && !last)) return null;
    words.push(last ? `${first}–${last}` : first);
  }
  return words.join(", ");
}

export interface ActionLike {
  type: string;
  url?: string;
  method?: string;
  name?: string;
}

/** POST api.example.com, or the name of the task */
export function actionWords(action: ActionLike): string {
  if (action.type === "TASK") return action.name ?? "";
  return `${action.method ?? "POST"} ${hostOf(action.url ?? "")}`;
}

export function hostOf(url: string): string {
  const found = /^https?:\/\/([^/?#]+)/.exec(url);
  return found?.[1] ?? url;
}

export const PRIORITIES = ["CRITICAL", "HIGH", "MEDIUM", "LOW"];

export const OVERLAP_WORDS: Record<string, string> = {
  allow: "Both runs run at the same time.",
  forbid: "The new run is skipped while an earlier one is live.",
  replace: "The earlier run is cancelled, and the new one starts.",
  queue_one: "The new run waits for the earlier one; any further runs are skipped.",
};

export const MISFIRE_WORDS: Record<string, string> = {
  skip: "Runs missed while no scheduler was running are not made up.",
  latest: "A single run makes up for all missed runs.",
  all: "Every missed run is made up, within the catch-up window.",
};

export const DELIVERY_WORDS: Record<string, string> = {
  at_least_once: "If its worker is lost, the run starts again. It may run twice.",
  at_most_once: "If its worker is lost, the run does not start again. Failures are never retried.",
};

interface RetryLike {
  max_retries?: number | null;
  backoff?: string | null;
  initial_delay_seconds?: number | null;
  max_delay_seconds?: number | null;
  delays_seconds?: number[] | null;
}

export function retryWords(policy: RetryLike): string {
  const retries = policy.max_retries ?? 0;
  if (!retries) return "A failed run is not retried.";
  const times = retries === 1 ? "once" : `up to ${retries} times`;
  if (policy.delays_seconds?.length) return `A failed run is retried ${times}, after ${policy.delays_seconds.map((each) => span(each)).join(", ")}.`;
  const first = span(policy.initial_delay_seconds ?? 0);
  const most = span(policy.max_delay_seconds ?? 0);
  const growth: Record<string, string> = {
    FIXED: `after ${first} each`,
    LINEAR: `after ${first}, growing by ${first} each time, at most ${most}`,
    EXPONENTIAL: `after ${first}, doubling each time, at most ${most}`,
    EXPONENTIAL_WITH_JITTER: `after about ${first}, doubling each time, at most ${most}`,
  };
  return `A failed run is retried ${times}, ${growth[policy.backoff ?? ""] ?? `after ${first}`}.`;
}

/** Seconds without a fraction: 30 s, 2 min, 1 h */
export function span(seconds: number): string {
  return seconds < 60 ? `${seconds} s` : duration(seconds * 1000);
}

/** What an execution is waiting for, in a few words, by the code of the explanation. */
const WAITS: Record<string, string> = {
  paused: "paused",
  no_worker: "no worker for its queue",
  no_worker_for_task: "no worker for its task",
  admission: "about to be admitted",
  admission_failed: "the gate fails on it",
  worker_slot: "for a free worker",
  quarantine: "to run alone",
  overlap: "for an earlier run",
  concurrency_key: "for its concurrency key",
  queue_concurrency: "for its queue’s limit",
  tenant_concurrency: "for its tenant’s limit",
  target_concurrency: "for its target’s limit",
  queue_rate: "for its queue’s rate limit",
  tenant_rate: "for its tenant’s rate limit",
  target_rate: "for its target’s rate limit",
  circuit_open: "its target keeps failing",
  no_secret_keys: "no keys for its secrets",
  payload_mismatch: "for a worker that its arguments fit",
  unreadable: "for a worker that can read its job",
  snoozed: "snoozed",
};

/** Why an execution is waiting; empty if it is not, or if its status says so. */
export function waitWords(code: string | null | undefined): string {
  if (!code || code === "not_due" || code === "retrying") return "";
  return WAITS[code] ?? code.replaceAll("_", " ");
}

/** 10,000+ where counting stopped */
export function counted(number: number | null | undefined, atLeast = false): string {
  return number === null || number === undefined ? "–" : `${group(number)}${atLeast ? "+" : ""}`;
}

export function plural(number: number, one: string, many = `${one}s`): string {
  return `${group(number)} ${number === 1 ? one : many}`;
}

/** An audit operation in words. */
export function operationWords(operation: string): string {
  return capital(operation.replaceAll("_", " "));
}
