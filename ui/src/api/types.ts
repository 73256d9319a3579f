// The API responses that the pages read, generated from its OpenAPI document by `scripts/ui types`.
import type { components } from "./schema";

type S = components["schemas"];

export interface Page<T> {
  items: T[];
  next_page_token: string | null;
}

/** Schedules and actions come in several kinds; the pages check which fields are present. */
export interface Schedule {
  cron?: string;
  every_seconds?: number;
  at?: string;
  timezone: string;
  dst_gap?: string;
  dst_overlap?: string;
  jitter_seconds?: number;
  exclude?: string[];
  starts_at?: string | null;
  ends_at?: string | null;
  max_runs?: number | null;
}

export interface Action {
  type: string;
  url?: string;
  method?: string;
  headers?: Record<string, string>;
  body?: unknown;
  signing_secret?: string | null;
  name?: string;
  payload?: unknown;
}

export type Job = Omit<S["Job"], "schedule" | "action"> & { schedule: Schedule; action: Action };
export type JobTotal = S["JobPage"];
export type Outcome = NonNullable<S["Job"]["last_outcomes"]>[number];
export type Execution = S["Execution"];
export type Attempt = Execution["attempts"][number];
export type DeadLetter = S["DeadLetter"];
export type LetterGroups = S["DeadLetterGroups"];
export type LetterGroup = LetterGroups["items"][number];
export type Tenant = S["Tenant"];
export type Queue = S["Queue"];
export type Target = S["Target"];
export type Tasks = S["Tasks"];
export type TaskFigures = Tasks["items"][number];
export type Group = S["Group"];
export type Calendar = S["Calendar"];
export type Monitor = S["Monitor"];
export type Key = S["Key"];
export type MadeKey = S["MadeKey"];
export type Secret = S["Secret"];
export type AuditEntry = S["AuditEntry"];
export type NextRuns = S["NextRuns"];
export type Me = S["Me"];
export type Explanation = S["Explanation"];
export type Overview = S["Overview"];
export type Depth = Overview["depth"][number];
export type WaitingFor = Overview["waiting_for"][number];
export type Leader = NonNullable<Overview["leader"]>;
export type Attention = Overview["attention"][number];
export type Worker = S["Worker"];
export type WorkerDetail = S["WorkerWithExecutions"];
export type Node = S["Nodes"]["items"][number];
export type Circuit = S["Circuits"]["items"][number];
export type Preview = S["SchedulePreview"];
export type OperationPreview = S["OperationPreview"];
export type Operation = S["Operation"];
export type Forecast = S["Forecast"];
export type ForecastMinute = S["ForecastMinute"];
export type Herd = Forecast["herds"][number];
export type ForecastDelay = Forecast["delays"][number];
