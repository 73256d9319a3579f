// Create or edit a job. The server explains the schedule before anything is saved.
import { AlertTriangle, Clock } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { useLocation } from "wouter";

import { ApiProblem, now } from "../api/client";
import { useAct, useApi, useCan, useMe, useSettled } from "../api/hooks";
import type { Job, Page, Preview, Queue, Schedule, Secret, Tenant } from "../api/types";
import { cronOf, UNIT_SECONDS, WHEN, whenOf, type Kind, type When } from "../lib/cron";
import { exactJson, pretty } from "../lib/json";
import { saved as allSaved, useUnsaved } from "../lib/leave";
import { patchOf } from "../lib/patch";
import { absolute, knownZone, localZone, relative } from "../lib/time";
import { useParams } from "../lib/url";
import { DELIVERY_WORDS, MISFIRE_WORDS, OVERLAP_WORDS, PRIORITIES, statusWord } from "../lib/words";
import { Button, Code, Empty, Failure, Loading, Muted, PageHead, Panel, Reading, styles as parts } from "../parts/basics";
import { Field, Select } from "../parts/fields";
import { Dialog, toast } from "../parts/overlays";
import { definitionOf, renderings, usePost } from "./job-acts";
import s from "./pages.module.css";

export interface Form {
  name: string;
  tenant: string;
  queue: string;
  priority: string;
  when: When;
  timezone: string;
  dst_gap: string;
  dst_overlap: string;
  jitter: string;
  starts: string;
  ends: string;
  maxRuns: string;
  action: "WEBHOOK" | "TASK";
  method: string;
  url: string;
  headers: string;
  body: string;
  signing: string;
  task: string;
  payload: string;
  retries: string;
  backoff: string;
  firstDelay: string;
  maxDelay: string;
  timeout: string;
  deadline: string;
  startDeadline: string;
  overlap: string;
  misfire: string;
  delivery: string;
  concurrencyKey: string;
  concurrencyLimit: string;
  uniqueKey: string;
  labels: string;
}

const EMPTY: Form = {
  name: "",
  tenant: "",
  queue: "",
  priority: "MEDIUM",
  when: WHEN,
  timezone: localZone,
  dst_gap: "run_after",
  dst_overlap: "once",
  jitter: "",
  starts: "",
  ends: "",
  maxRuns: "",
  action: "WEBHOOK",
  method: "POST",
  url: "",
  headers: "",
  body: "",
  signing: "",
  task: "",
  payload: "",
  retries: "",
  backoff: "EXPONENTIAL_WITH_JITTER",
  firstDelay: "",
  maxDelay: "",
  timeout: "",
  deadline: "",
  startDeadline: "",
  overlap: "allow",
  misfire: "latest",
  delivery: "at_least_once",
  concurrencyKey: "",
  concurrencyLimit: "",
  uniqueKey: "",
  labels: "",
};

export function JobForm({ job: id }: { job?: string }) {
  const [params] = useParams();
  const source = id ?? params.get("like");
  const read = useApi<Job>(`/api/v1/jobs/${source}`, undefined, { enabled: !!source, hold: true, exact: true });
  const allowed = useCan()(id ? "update_job" : "create_job");
  const title = id ? "Edit job" : "New job";
  // A version that arrives during editing must not replace what was typed.
  const dirty = useRef(false);
  const base = useRef<Job>(undefined);
  const [, again] = useState(0);
  if (!dirty.current) base.current = read.data;
  const began = base.current;
  if (!allowed) {
    return (
      <>
        <PageHead title={title} />
        <Empty>Your key may not {id ? "change" : "create"} jobs. A key with the role producer can.</Empty>
      </>
    );
  }
  if (!source) return <Editor dirty={dirty} initial={{ ...EMPTY, tenant: params.get("tenant_id") ?? "" }} />;
  function restart() {
    dirty.current = false;
    again((count) => count + 1);
  }
  return (
    <Reading of={read} what="job" page={title} rows={12}>
      {(job) => <Editor key={(began ?? job).version} dirty={dirty} restart={restart} job={id ? (began ?? job) : undefined} initial={{ ...formOf(began ?? job), ...(id ? {} : { name: `${job.name}-copy`, uniqueKey: "" }) }} />}
    </Reading>
  );
}

function text(value: unknown): string {
  return value === null || value === undefined ? "" : String(value);
}

/** The form of an existing job. */
export function formOf(job: Job): Form {
  const { schedule, action, retry_policy: retry } = job;
  const json = (value: unknown) => (value === null || value === undefined ? "" : pretty(value));
  return {
    name: job.name,
    tenant: job.tenant_id,
    queue: job.queue,
    priority: job.priority,
    when: whenOf(schedule),
    timezone: schedule.timezone,
    dst_gap: schedule.dst_gap ?? "run_after",
    dst_overlap: schedule.dst_overlap ?? "once",
    jitter: schedule.jitter_seconds ? String(schedule.jitter_seconds) : "",
    starts: text(schedule.starts_at),
    ends: text(schedule.ends_at),
    maxRuns: text(schedule.max_runs),
    action: action.type === "TASK" ? "TASK" : "WEBHOOK",
    method: action.method ?? "POST",
    url: action.url ?? "",
    headers: Object.entries(action.headers ?? {}).map(([name, value]) => `${name}: ${value}`).join("\n"),
    body: json(action.body),
    signing: action.signing_secret ?? "",
    task: action.name ?? "",
    payload: json(action.payload),
    retries: text(retry.max_retries),
    backoff: retry.backoff ?? EMPTY.backoff,
    firstDelay: text((retry as { initial_delay_seconds?: number }).initial_delay_seconds),
    maxDelay: text((retry as { max_delay_seconds?: number }).max_delay_seconds),
    timeout: text(job.timeout_seconds),
    deadline: text(job.deadline_seconds),
    startDeadline: text(job.start_deadline_seconds),
    overlap: job.overlap_policy ?? "allow",
    misfire: job.misfire_policy ?? "latest",
    delivery: job.delivery,
    concurrencyKey: text(job.concurrency_key),
    concurrencyLimit: job.concurrency_key ? text(job.concurrency_limit) : "",
    uniqueKey: text(job.unique_key),
    labels: Object.entries(job.labels ?? {}).map(([name, value]) => `${name}: ${value}`).join("\n"),
  };
}

export function scheduleOf(form: Form): Record<string, unknown> {
  const { when } = form;
  if (when.kind === "once") return { at: when.at, timezone: form.timezone };
  const window = { ...(form.starts && { starts_at: form.starts }), ...(form.ends && { ends_at: form.ends }), ...(form.maxRuns && { max_runs: number(form.maxRuns) }) };
  const jitter = form.jitter ? { jitter_seconds: number(form.jitter) } : {};
  if (when.kind === "every") return { every_seconds: number(when.amount, UNIT_SECONDS[when.unit]), timezone: form.timezone, ...jitter, ...window };
  return { cron: cronOf(when), timezone: form.timezone, dst_gap: form.dst_gap, dst_overlap: form.dst_overlap, ...jitter, ...window };
}

/** A number if it is one; otherwise the text, which the server rejects with a reason. */
function number(value: string, times = 1): number | string {
  const found = Number(value);
  return value.trim() && Number.isFinite(found) ? found * times : value;
}

function pairs(value: string): Record<string, string> {
  return Object.fromEntries(
    value
      .split("\n")
      .filter((line) => line.trim())
      .map((line) => {
        const at = line.indexOf(":");
        return at < 0 ? [line.trim(), ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
      }),
  );
}

/** The document that the form describes, and the fields with invalid JSON. */
export function documentOf(form: Form): { document: Record<string, unknown>; errors: Record<string, string> } {
  const errors: Record<string, string> = {};
  const json = (value: string, path: string) => {
    if (!value.trim()) return null;
    try {
      return exactJson(value);
    } catch (error) {
      errors[path] = `is not valid JSON: ${(error as Error).message}`;
      return null;
    }
  };
  const recurring = form.when.kind !== "once";
  const action =
    form.action === "TASK"
      ? { type: "TASK", name: form.task, payload: json(form.payload, "action.payload") }
      : { type: "WEBHOOK", url: form.url, method: form.method, headers: pairs(form.headers), body: json(form.body, "action.body"), ...(form.signing && { signing_secret: form.signing }) };
  const formula = form.backoff !== "LIST";
  const retry = {
    ...(form.retries && { max_retries: number(form.retries) }),
    ...(formula && { backoff: form.backoff }),
    ...(formula && form.firstDelay && { initial_delay_seconds: number(form.firstDelay) }),
    ...(formula && form.maxDelay && { max_delay_seconds: number(form.maxDelay) }),
  };
  const document = {
    name: form.name,
    ...(form.tenant && { tenant_id: form.tenant }),
    ...(form.queue && { queue: form.queue }),
    priority: form.priority,
    type: recurring ? "RECURRING" : "ONE_TIME",
    schedule: scheduleOf(form),
    action,
    ...(form.delivery === "at_least_once" && formula && (form.retries || form.firstDelay || form.maxDelay || form.backoff !== EMPTY.backoff) ? { retry_policy: retry } : {}),
    ...(form.timeout && { timeout_seconds: number(form.timeout) }),
    ...(form.deadline && { deadline_seconds: number(form.deadline) }),
    ...(form.startDeadline && { start_deadline_seconds: number(form.startDeadline) }),
    ...(recurring && { overlap_policy: form.overlap, misfire_policy: form.misfire }),
    delivery: form.delivery,
    ...(form.concurrencyKey && { concurrency_key: form.concurrencyKey, ...(form.concurrencyLimit && { concurrency_limit: number(form.concurrencyLimit) }) }),
    ...(form.uniqueKey && { unique_key: form.uniqueKey }),
    labels: pairs(form.labels),
  };
  return { document, errors };
}

const KINDS: [Kind, string][] = [
  ["daily", "Daily"],
  ["weekly", "Weekly"],
  ["monthly", "Monthly"],
  ["every", "Every …"],
  ["once", "Once"],
  ["cron", "Cron rule"],
];
const DAYS: [string, string][] = [
  ["1", "Mon"],
  ["2", "Tue"],
  ["3", "Wed"],
  ["4", "Thu"],
  ["5", "Fri"],
  ["6", "Sat"],
  ["7", "Sun"],
];
const ZONES = (Intl as unknown as { supportedValuesOf?: (key: string) => string[] }).supportedValuesOf?.("timeZone") ?? ["UTC"];

function Editor({ initial: given, job, dirty: touched, restart }: { initial: Form; job?: Job; dirty: React.RefObject<boolean>; restart?: () => void }) {
  const [initial] = useState(given);
  const [form, setForm] = useState(initial);
  const [copying, setCopying] = useState(false);
  const [local, setLocal] = useState<Record<string, string>>({});
  const { act, busy, problem } = useAct();
  const [, navigate] = useLocation();
  const element = useRef<HTMLFormElement>(null);
  const me = useMe();
  const tenants = useApi<Page<Tenant>>("/api/v1/tenants", { page_size: 200 }, { enabled: !me?.tenant_id });
  const queues = useApi<Page<Queue>>("/api/v1/queues", { page_size: 200 });
  const secrets = useApi<Page<Secret>>("/api/v1/secrets", { page_size: 200, tenant_id: form.tenant || undefined }, { enabled: me?.operations.includes("list_secrets") ?? false });
  const dirty = form !== initial;

  useEffect(() => {
    touched.current = dirty;
  }, [touched, dirty]);

  useUnsaved(dirty);
  useEffect(() => {
    if (problem?.errors.length) element.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus();
  }, [problem]);

  const set = (part: Partial<Form>) => setForm((before) => ({ ...before, ...part }));
  const setWhen = (part: Partial<When>) => setForm((before) => ({ ...before, when: { ...before.when, ...part } }));
  const errorOf = (path: string) => local[path] ?? problem?.errors.find((error) => error.path === path || error.path.startsWith(`${path}.`))?.message ?? null;

  /** Save; on top of this version, if it differs from the one the form started with. */
  async function save(version?: number) {
    const { document, errors } = documentOf(form);
    setLocal(errors);
    if (Object.keys(errors).length) return;
    try {
      const saved = (job
        ? await act("PATCH", `/api/v1/jobs/${job.job_id}`, { body: patchOf(documentOf(initial).document, document), ifMatch: version ?? job.version, contentType: "application/merge-patch+json" })
        : await act("POST", "/api/v1/jobs", { body: document })) as Job;
      toast(job ? `${saved.name} saved.` : `${saved.name} created.`);
      allSaved();
      navigate(`/jobs/${saved.job_id}`);
    } catch {
      // The problem is shown above the form and next to its fields.
    }
  }

  const input = (name: keyof Form, label: string, options: { path?: string; hint?: React.ReactNode; placeholder?: string; numeric?: boolean; list?: string; rows?: number; disabled?: boolean } = {}) => (
    <Field label={label} hint={options.hint} error={options.path ? errorOf(options.path) : null}>
      {(props) =>
        options.rows ? (
          <textarea {...props} className={parts.input} rows={options.rows} placeholder={options.placeholder} spellCheck={false} value={form[name] as string} onChange={(event) => set({ [name]: event.target.value })} />
        ) : (
          <input {...props} className={parts.input} list={options.list} inputMode={options.numeric ? "numeric" : undefined} placeholder={options.placeholder} autoComplete="off" disabled={options.disabled} value={form[name] as string} onChange={(event) => set({ [name]: event.target.value })} />
        )
      }
    </Field>
  );

  return (
    <div className={s.formPage}>
      <PageHead title={job ? `Edit ${job.name}` : "New job"} actions={<Button onClick={() => setCopying(true)}>Copy as …</Button>} />
      {problem && <Problem problem={problem} job={job} take={restart} keep={(version) => void save(version)} />}
      <form ref={element} className={s.form} onSubmit={(event) => { event.preventDefault(); void save(); }} noValidate>
        <fieldset>
          <legend>Job</legend>
          {input("name", "Name", { path: "name", placeholder: "invoice-nightly" })}
          <div className={s.cols}>
            {!me?.tenant_id && input("tenant", "Tenant", { path: "tenant_id", placeholder: "default", list: "tenants", disabled: !!job })}
            {input("queue", "Queue", { path: "queue", placeholder: "default", list: "queues" })}
            <Field label="Priority" error={errorOf("priority")}>
              {(props) => <Select {...props} value={form.priority} onChange={(priority) => set({ priority })} options={PRIORITIES.map((each): [string, string] => [each, statusWord(each)])} />}
            </Field>
          </div>
          <datalist id="tenants">{tenants.data?.items.map((tenant) => <option key={tenant.tenant_id} value={tenant.tenant_id} />)}</datalist>
          <datalist id="queues">{queues.data?.items.map((queue) => <option key={queue.queue} value={queue.queue} />)}</datalist>
        </fieldset>

        <fieldset>
          <legend>When</legend>
          <div className={parts.segments} role="group" aria-label="Kind of schedule" style={{ justifySelf: "start", flexWrap: "wrap" }}>
            {KINDS.map(([kind, label]) => (
              <button key={kind} type="button" aria-pressed={form.when.kind === kind} disabled={!!job && (kind === "once") !== (job.type === "ONE_TIME")} onClick={() => setWhen({ kind, ...(kind === "cron" ? { cron: cronOf(form.when) ?? form.when.cron } : {}) })}>
                {label}
              </button>
            ))}
          </div>
          <div className={s.narrow}>
            {["daily", "weekly", "monthly"].includes(form.when.kind) && (
              <Field label="At" error={errorOf("schedule.cron")}>
                {(props) => <input {...props} className={parts.input} type="time" value={form.when.time} onChange={(event) => setWhen({ time: event.target.value })} />}
              </Field>
            )}
            {form.when.kind === "monthly" && (
              <Field label="Day of the month">{(props) => <input {...props} className={parts.input} inputMode="numeric" value={form.when.day} onChange={(event) => setWhen({ day: event.target.value })} />}</Field>
            )}
            {form.when.kind === "every" && (
              <>
                <Field label="Every" error={errorOf("schedule.every_seconds")}>
                  {(props) => <input {...props} className={parts.input} inputMode="numeric" value={form.when.amount} onChange={(event) => setWhen({ amount: event.target.value })} />}
                </Field>
                <Field label="Unit">{(props) => <Select {...props} value={form.when.unit} onChange={(unit) => setWhen({ unit: unit as When["unit"] })} options={["seconds", "minutes", "hours", "days"]} />}</Field>
              </>
            )}
            {form.when.kind === "once" && (
              <Field label="At" error={errorOf("schedule.at")} hint="In the time zone next to it.">
                {(props) => <input {...props} className={parts.input} type="datetime-local" value={form.when.at} onChange={(event) => setWhen({ at: event.target.value })} />}
              </Field>
            )}
            {form.when.kind === "cron" && (
              <Field label="Cron rule" error={errorOf("schedule.cron")} hint="minute hour day month weekday">
                {(props) => <input {...props} className={`${parts.input} ${parts.mono}`} spellCheck={false} value={form.when.cron} onChange={(event) => setWhen({ cron: event.target.value })} />}
              </Field>
            )}
            <Field label="Time zone" error={errorOf("schedule.timezone")}>
              {(props) => <input {...props} className={parts.input} list="zones" autoComplete="off" spellCheck={false} value={form.timezone} onChange={(event) => set({ timezone: event.target.value })} />}
            </Field>
            <datalist id="zones">{["UTC", ...ZONES.filter((zone) => zone !== "UTC")].map((zone) => <option key={zone} value={zone} />)}</datalist>
          </div>
          {form.when.kind === "weekly" && (
            <div className={parts.checks} role="group" aria-label="Days of the week">
              {DAYS.map(([day, label]) => (
                <label key={day}>
                  <input type="checkbox" checked={form.when.days.includes(day)} onChange={(event) => setWhen({ days: event.target.checked ? [...form.when.days, day] : form.when.days.filter((each) => each !== day) })} />
                  {label}
                </label>
              ))}
            </div>
          )}
          {form.when.kind !== "cron" && cronOf(form.when) && (
            <Muted>
              As a cron rule: <code>{cronOf(form.when)}</code>
            </Muted>
          )}
          <PreviewPanel form={form} job={job} said={problem?.errors.map((error) => error.message) ?? []} />
          {!["every", "once"].includes(form.when.kind) && (
            <div className={s.cols}>
              <Field label="When the clocks go forward">
                {(props) => <Select {...props} value={form.dst_gap} onChange={(dst_gap) => set({ dst_gap })} options={[["run_after", "run right after the gap"], ["skip", "skip a time that does not exist"]]} />}
              </Field>
              <Field label="When the clocks go back">
                {(props) => <Select {...props} value={form.dst_overlap} onChange={(dst_overlap) => set({ dst_overlap })} options={[["once", "run once, the first time"], ["twice", "run twice"]]} />}
              </Field>
              {input("jitter", "Jitter in seconds", { path: "schedule.jitter_seconds", numeric: true, placeholder: "0", hint: "Delays the job by a fixed time of up to this much, so that jobs do not all start at once." })}
            </div>
          )}
          {form.when.kind !== "once" && (
            <details>
              <summary>Start, end, number of runs</summary>
              <div className={s.cols} style={{ marginTop: 12 }}>
                {input("starts", "Starts at", { path: "schedule.starts_at", placeholder: "2027-01-01T00:00:00Z" })}
                {input("ends", "Ends at", { path: "schedule.ends_at", placeholder: "2027-12-31T23:59:59Z" })}
                {input("maxRuns", "Maximum number of runs", { path: "schedule.max_runs", numeric: true })}
              </div>
            </details>
          )}
        </fieldset>

        <fieldset>
          <legend>What</legend>
          <div className={parts.checks} role="radiogroup" aria-label="Kind of action">
            {(["WEBHOOK", "TASK"] as const).map((kind) => (
              <label key={kind}>
                <input type="radio" name="action" checked={form.action === kind} onChange={() => set({ action: kind })} />
                {kind === "WEBHOOK" ? "Webhook: an HTTP request" : "Task: a handler in your workers"}
              </label>
            ))}
          </div>
          {form.action === "WEBHOOK" ? (
            <>
              <div className={s.cols} style={{ gridTemplateColumns: "minmax(100px, 130px) minmax(0, 1fr)" }}>
                <Field label="Method">{(props) => <Select {...props} value={form.method} onChange={(method) => set({ method })} options={["POST", "GET", "PUT", "PATCH", "DELETE"]} />}</Field>
                {input("url", "URL", { path: "action.url", placeholder: "https://api.example.com/invoices" })}
              </div>
              <div className={s.cols}>
                {input("headers", "Headers", { path: "action.headers", rows: 3, placeholder: "X-Report: nightly", hint: "One per line. {{secret:name}} is filled in when the request is sent." })}
                {input("body", "Body (JSON)", { path: "action.body", rows: 3, placeholder: '{"kind": "nightly"}' })}
              </div>
              {(secrets.data?.items.length ?? 0) > 0 && (
                <Field label="Sign requests with" error={errorOf("action.signing_secret")}>
                  {(props) => <Select {...props} value={form.signing} onChange={(signing) => set({ signing })} options={[["", "webhook-signing, if it exists"], ...(secrets.data?.items ?? []).map((secret): [string, string] => [secret.name, secret.name])]} />}
                </Field>
              )}
            </>
          ) : (
            <div className={s.cols}>
              {input("task", "Task", { path: "action.name", placeholder: "shop.send_reminder" })}
              {input("payload", "Payload (JSON)", { path: "action.payload", rows: 3, placeholder: '{"cart_id": 8}' })}
            </div>
          )}
        </fieldset>

        <details className={s.disclosure}>
          <summary>Retries and time limits</summary>
          <div>
            <div className={s.cols}>
              {input("retries", "Retries", { path: "retry_policy.max_retries", numeric: true, placeholder: "3" })}
              <Field label="Delays">
                {(props) => (
                  <Select
                    {...props}
                    value={form.backoff}
                    onChange={(backoff) => set({ backoff })}
                    options={[["EXPONENTIAL_WITH_JITTER", "doubling, with jitter"], ["EXPONENTIAL", "doubling"], ["LINEAR", "growing evenly"], ["FIXED", "always the same"], ...(form.backoff === "LIST" ? [["LIST", "a list (kept unchanged)"] as [string, string]] : [])]}
                  />
                )}
              </Field>
              {input("firstDelay", "First delay in seconds", { path: "retry_policy.initial_delay_seconds", numeric: true, placeholder: "30" })}
              {input("maxDelay", "Longest delay in seconds", { path: "retry_policy.max_delay_seconds", numeric: true, placeholder: "3600" })}
            </div>
            <div className={s.cols}>
              {input("timeout", "Timeout per attempt in seconds", { path: "timeout_seconds", numeric: true })}
              {input("deadline", "Deadline for all attempts in seconds", { path: "deadline_seconds", numeric: true })}
            </div>
          </div>
        </details>

        <details className={s.disclosure}>
          <summary>Late runs, overlaps and lost workers</summary>
          <div>
            {form.when.kind !== "once" && (
              <div className={s.cols}>
                <Field label="Overlap" hint={OVERLAP_WORDS[form.overlap]}>
                  {(props) => <Select {...props} value={form.overlap} onChange={(overlap) => set({ overlap })} options={Object.keys(OVERLAP_WORDS)} />}
                </Field>
                <Field label="Missed runs" hint={MISFIRE_WORDS[form.misfire]}>
                  {(props) => <Select {...props} value={form.misfire} onChange={(misfire) => set({ misfire })} options={Object.keys(MISFIRE_WORDS)} />}
                </Field>
              </div>
            )}
            <div className={s.cols}>
              <Field label="Delivery" hint={DELIVERY_WORDS[form.delivery]}>
                {(props) => <Select {...props} value={form.delivery} onChange={(delivery) => set({ delivery })} options={[["at_least_once", "at least once"], ["at_most_once", "at most once"]]} />}
              </Field>
              {input("startDeadline", "Start deadline in seconds", { path: "start_deadline_seconds", numeric: true, hint: "A run that cannot start by then is skipped." })}
            </div>
          </div>
        </details>

        <details className={s.disclosure}>
          <summary>Concurrency, unique key, labels</summary>
          <div className={s.cols}>
            {input("concurrencyKey", "Concurrency key", { path: "concurrency_key", hint: "The tenant’s runs with the same key run one at a time." })}
            {input("concurrencyLimit", "Maximum at once", { path: "concurrency_limit", numeric: true, placeholder: "1" })}
            {input("uniqueKey", "Unique key", { path: "unique_key", disabled: !!job, hint: "Only one job with this key may be waiting or running." })}
            {input("labels", "Labels", { path: "labels", rows: 2, placeholder: "team: billing" })}
          </div>
        </details>

        <div className={s.sticky}>
          <Button onClick={() => navigate(job ? `/jobs/${job.job_id}` : "/jobs")}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={busy}>
            {busy ? "Saving …" : job ? "Save changes" : "Create job"}
          </Button>
        </div>
      </form>
      {copying && <CopyAs document={documentOf(form).document} close={() => setCopying(false)} />}
    </div>
  );
}

function CopyAs({ document, close }: { document: Record<string, unknown>; close: () => void }) {
  const texts = renderings(document);
  const [shown, setShown] = useState("JSON");
  return (
    <Dialog title="Job definition" close={close}>
      <div className={parts.segments} role="group" aria-label="Form">
        {Object.keys(texts).map((name) => (
          <button key={name} type="button" aria-pressed={shown === name} onClick={() => setShown(name)}>
            {name}
          </button>
        ))}
      </div>
      <Code label="Definition" text={texts[shown] ?? ""} />
      <div className={parts.dialogActions}>
        <Button onClick={close}>Close</Button>
      </div>
    </Dialog>
  );
}

/** A rejected form; after a concurrent change, both versions. */
function Problem({ problem, job, take, keep }: { problem: ApiProblem; job?: Job; take?: () => void; keep: (version: number) => void }) {
  const outdated = problem.status === 412 && !!job;
  const { data: current, refetch } = useApi<Job>(`/api/v1/jobs/${job?.job_id}`, undefined, { enabled: outdated, exact: true });
  // The form shares this response: only a separate read is sure to be newer.
  useEffect(() => {
    if (outdated) void refetch();
  }, [outdated, problem, refetch]);
  const newer = current && job && current.version > job.version ? current : undefined;
  if (problem.status !== 412 || !job) return <Failure problem={problem} />;
  return (
    <div className={parts.failure} role="alert">
      <strong>The job was changed while you were editing it</strong>
      <p>You began with version {job.version}; it is now version {newer?.version ?? "…"}. Nothing was saved yet. Your changes can be saved on top: fields that you did not change keep the values of the other version.</p>
      <div className={s.two} style={{ width: "100%" }}>
        <Code label="The version you started with" text={pretty(definitionOf(job))} />
        {newer ? <Code label="The current version" text={pretty(definitionOf(newer))} /> : <Loading rows={3} />}
      </div>
      <div className={parts.filters}>
        <Button small disabled={!newer} onClick={() => newer && keep(newer.version)}>
          Save my changes on top
        </Button>
        <Button small disabled={!newer} onClick={take}>
          Discard my changes
        </Button>
      </div>
    </div>
  );
}

/** The schedule explained: words, next runs and clock changes, all computed by the server. */
function PreviewPanel({ form, job, said }: { form: Form; job?: Job; said: string[] }) {
  const body = useMemo(() => ({ schedule: scheduleOf(form), count: 10, ...(job ? { job_id: job.job_id } : {}), ...(form.tenant ? { tenant_id: form.tenant } : {}) }), [form, job]);
  const settled = useSettled(JSON.stringify(body), 250);
  const ready = form.when.kind !== "once" || form.when.at !== "";
  const read = usePost<Preview>("/api/v1/schedules/preview", JSON.parse(settled) as { schedule: Schedule }, ready, true);
  if (!ready) return <Muted>Choose a time to see a preview.</Muted>;
  if (read.error?.status === 404) return <Muted>This server does not support previews yet.</Muted>;
  if (read.error) {
    const first = read.error.errors[0];
    if (first && said.includes(first.message)) return null; // shown next to its field
    return (
      <p className={parts.fieldError} role="status">
        {first ? first.message : read.error.detail}
      </p>
    );
  }
  if (!read.data) return <Loading rows={4} />;
  const preview = read.data;
  const zone = knownZone(preview.timezone) ? preview.timezone : "UTC";
  const at = now();
  return (
    <div className={read.isPlaceholderData ? parts.stale : undefined}>
      <p className={s.sentence} role="status">
        <b>{preview.words}</b>
      </p>
      {preview.hints.map((hint) => (
        <p key={hint.code} className={parts.hint}>
          {hint.message}
        </p>
      ))}
      <div className={s.two} style={{ marginTop: 12 }}>
        <Panel title="Next runs" actions={<Muted>{zone} · UTC</Muted>}>
          <ol className={s.next}>
            {preview.items.map((run, index) => (
              <li key={run.utc}>
                <time dateTime={run.utc}>{absolute(Date.parse(run.utc), zone, at, !run.utc.endsWith(":00Z"))}</time>
                <span className={s.side}>
                  {run.utc.slice(11, 16)}Z{index === 0 ? ` · ${relative(Date.parse(run.utc), at)}` : ""}
                </span>
                {run.note && <span className={s.note}>{run.note}</span>}
              </li>
            ))}
            {preview.items.length === 0 && <li>It never runs.</li>}
          </ol>
        </Panel>
        <Panel title="When the clocks change">
          {preview.clock_changes.length === 0 ? (
            <Muted>{form.when.kind === "once" ? "No effect on a single run." : "No clock changes in this zone within 13 months."}</Muted>
          ) : (
            <ul className={s.changes}>
              {preview.clock_changes.map((change) => (
                <li key={change.at} data-affected={change.affected}>
                  <strong>
                    {change.affected ? <AlertTriangle size={15} aria-hidden /> : <Clock size={15} aria-hidden />}
                    {absolute(Date.parse(change.at) + 12 * 3_600_000, zone, at, false).replace(/ \d\d:\d\d .*$/, "")}, {change.kind}
                  </strong>
                  <span>{change.note}</span>
                  {change.affected &&
                    change.runs.map((run) => (
                      <Muted key={run.utc}>
                        → {absolute(Date.parse(run.utc), zone, at, false)} ({run.utc.slice(11, 16)}Z)
                      </Muted>
                    ))}
                </li>
              ))}
            </ul>
          )}
        </Panel>
      </div>
    </div>
  );
}
