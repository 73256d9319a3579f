// Actions on jobs; each asks first.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useLocation } from "wouter";

import { call, type ApiProblem } from "../api/client";
import { useAct, useApi, useCan } from "../api/hooks";
import type { Execution, Job, Operation, OperationPreview, Page } from "../api/types";
import { pretty, yaml } from "../lib/json";
import { counted, LIVE, plural } from "../lib/words";
import { Button, Code, styles as parts } from "../parts/basics";
import { Field, Select } from "../parts/fields";
import { Confirm, Dialog, toast } from "../parts/overlays";

export function RunJob({ job, close }: { job: Job; close: () => void }) {
  const { act, busy, problem } = useAct();
  const live = useApi<Page<Execution>>(`/api/v1/jobs/${job.job_id}/executions`, { status: LIVE.filter((each) => each !== "SCHEDULED").join(","), page_size: 1 });
  const running = (live.data?.items.length ?? 0) > 0;
  async function run() {
    const made = (await act("POST", `/api/v1/jobs/${job.job_id}/run`)) as { execution_ids: string[] };
    toast(`Run of ${job.name} requested.`, { href: `/executions/${made.execution_ids[0]}` });
    close();
  }
  return (
    <Confirm title={`Run ${job.name} now?`} verb="Run now" close={close} confirm={() => void run().catch(() => undefined)} busy={busy} problem={problem}>
      <p>
        Starts one extra run, in addition to its schedule, with the current definition.
        {running ? " A run of this job is already live: both may run at the same time." : ""}
        {job.status === "PAUSED" ? " The job is paused, but this run will start anyway." : ""}
      </p>
    </Confirm>
  );
}

/** The instant in a datetime-local field, which is in this computer's time zone. */
export function instantOf(text: string): string | null {
  return text ? new Date(text).toISOString() : null;
}

export function PauseJob({ jobs, close, done }: { jobs: Job[]; close: () => void; done?: () => void }) {
  const { act, busy, problem } = useAct();
  const [reason, setReason] = useState("");
  const [until, setUntil] = useState("");
  const what = jobs.length === 1 ? (jobs[0]?.name ?? "") : plural(jobs.length, "job");
  async function pause() {
    const body = { ...(reason.trim() ? { reason: reason.trim() } : {}), ...(until ? { until: instantOf(until) } : {}) };
    for (const job of jobs) await act("POST", `/api/v1/jobs/${job.job_id}/pause`, { body });
    const undo = () => {
      for (const job of jobs) void act("POST", `/api/v1/jobs/${job.job_id}/resume`).catch(() => undefined);
    };
    toast(`${what} paused.`, { undo });
    (done ?? close)();
  }
  return (
    <Confirm title={`Pause ${what}?`} verb={jobs.length === 1 ? "Pause" : `Pause ${jobs.length}`} close={close} confirm={() => void pause().catch(() => undefined)} busy={busy} problem={problem}>
      <p>No further runs start. Runs that fall due in the meantime are not made up; a run that has already started is not stopped.</p>
      <PauseFields reason={reason} setReason={setReason} until={until} setUntil={setUntil} />
    </Confirm>
  );
}

function PauseFields({ reason, setReason, until, setUntil }: { reason: string; setReason: (text: string) => void; until: string; setUntil: (text: string) => void }) {
  return (
    <>
      <Field label="Reason" hint="Shown with the job and in the audit trail.">
        {(props) => <input {...props} className={parts.input} maxLength={500} placeholder="Partner is down, ticket 812" value={reason} onChange={(event) => setReason(event.target.value)} />}
      </Field>
      <Field label="Resume at (optional)" hint="In this computer’s time zone. If empty, the job stays paused until someone resumes it.">
        {(props) => <input {...props} className={parts.input} type="datetime-local" value={until} onChange={(event) => setUntil(event.target.value)} />}
      </Field>
    </>
  );
}

export function ResumeJob({ jobs, close, done }: { jobs: Job[]; close: () => void; done?: () => void }) {
  const { act, busy, problem } = useAct();
  const what = jobs.length === 1 ? (jobs[0]?.name ?? "") : plural(jobs.length, "job");
  async function resume() {
    for (const job of jobs) await act("POST", `/api/v1/jobs/${job.job_id}/resume`);
    toast(`${what} resumed.`);
    (done ?? close)();
  }
  return (
    <Confirm title={`Resume ${what}?`} verb={jobs.length === 1 ? "Resume" : `Resume ${jobs.length}`} close={close} confirm={() => void resume().catch(() => undefined)} busy={busy} problem={problem}>
      <p>The schedule continues with the next run. Runs that were due during the pause are not made up.</p>
    </Confirm>
  );
}

export function DeleteJob({ job, close }: { job: Job; close: () => void }) {
  const { act, busy, problem } = useAct();
  const [running, setRunning] = useState("finish");
  const [copying, setCopying] = useState(false);
  const [, navigate] = useLocation();
  async function remove() {
    await act("DELETE", `/api/v1/jobs/${job.job_id}`, { query: { running }, ifMatch: job.version });
    toast(`${job.name} deleted.`);
    close();
    navigate("/jobs");
  }
  if (copying) return <CopyDefinition job={job} close={() => setCopying(false)} />;
  return (
    <Confirm title={`Delete ${job.name}?`} verb="Delete job" danger typed={job.name} close={close} confirm={() => void remove().catch(() => undefined)} busy={busy} problem={problem}>
      <p>No further runs start. This cannot be undone, but the history and audit trail are kept. You can copy the definition first.</p>
      <div>
        <Button small onClick={() => setCopying(true)}>
          Copy definition…
        </Button>
      </div>
      <Field label="Runs that have started">{(props) => <Select {...props} value={running} onChange={setRunning} options={[["finish", "let them finish"], ["cancel", "cancel them"]]} />}</Field>
    </Confirm>
  );
}

const STATE = ["job_id", "status", "version", "next_run_at", "created_at", "updated_at", "warnings", "problem", "schedule_words", "paused", "last_outcomes"];

/** The document that would create this job. */
export function definitionOf(job: Job): Record<string, unknown> {
  return Object.fromEntries(Object.entries(job).filter(([name, value]) => !STATE.includes(name) && value !== null && !(Array.isArray(value) && value.length === 0)));
}

/** The definition as JSON, YAML, curl or Python. */
export function renderings(definition: Record<string, unknown>): Record<string, string> {
  const json = pretty(definition);
  const quoted = json.replaceAll("'", "'\\''");
  return {
    JSON: json,
    YAML: yaml(definition),
    curl: `curl -s ${location.origin}/api/v1/jobs \\\n  -H 'Authorization: Bearer '"$HOURBELL_API_KEY" \\\n  -H 'Idempotency-Key: '"$(uuidgen)" \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'`,
    Python: `import json\nfrom hourbell.client import SyncClient\n\nwith SyncClient("${location.origin}") as client:\n    client.jobs.create(json.loads(r"""${json.replaceAll('"""', '\\"\\"\\"')}"""))`,
  };
}

export function CopyDefinition({ job, close }: { job: Job; close: () => void }) {
  const [form, setForm] = useState("JSON");
  const texts = renderings(definitionOf(job));
  return (
    <Dialog title={`Definition of ${job.name}`} close={close}>
      <div className={parts.segments} role="group" aria-label="Form">
        {Object.keys(texts).map((name) => (
          <button key={name} type="button" aria-pressed={form === name} onClick={() => setForm(name)}>
            {name}
          </button>
        ))}
      </div>
      <Code label="Definition" text={texts[form] ?? ""} />
      <div className={parts.dialogActions}>
        <Button onClick={close}>Close</Button>
      </div>
    </Dialog>
  );
}

/** Pause or resume all jobs that match a filter; the server does it, whether or not this page stays open. */
export function PauseMany({ act, filter, close }: { act: "pause" | "resume"; filter: Record<string, string | null | undefined>; close: () => void }) {
  const can = useCan();
  const [, navigate] = useLocation();
  const [reason, setReason] = useState("");
  const [until, setUntil] = useState("");
  const { act: send, busy, problem } = useAct();
  const wanted = Object.fromEntries(["tenant_id", "queue", "label", "name_prefix"].flatMap((name) => (filter[name] ? [[name, filter[name]]] : [])));
  const asked = usePreview(act, wanted, can("preview_operation"));
  const preview = asked.data;
  const total = preview?.total ?? null;
  const words = Object.entries(wanted).map(([name, value]) => `${name.replace("_id", "").replace("_", " ")} ${value}`).join(", ") || "every job";
  const typed = act === "pause" && (total === null || total > 100) ? (wanted.tenant_id ?? "everything") : undefined;
  const count = total === null ? "all" : preview?.at_least ? `${counted(total, true)} jobs` : plural(total, "job");
  async function begin() {
    const body = { act, filter: wanted, ...(reason.trim() && act === "pause" ? { reason: reason.trim() } : {}), ...(until && act === "pause" ? { until: instantOf(until) } : {}) };
    const begun = (await send("POST", "/api/v1/operations", { body })) as Operation;
    close();
    navigate(`/operations/${begun.operation_id}`);
  }
  const verb = act === "pause" ? "Pause" : "Resume";
  return (
    <Confirm title={`${verb} ${count}: ${words}?`} verb={`${verb} ${count}`} danger={act === "pause"} typed={typed} close={close} confirm={() => void begin().catch(() => undefined)} waiting={can("preview_operation") && !preview} busy={busy} problem={problem ?? asked.error}>
      {preview && <p>{preview.words}</p>}
      {act === "pause" ? (
        <>
          <p>No further runs of these jobs start. Jobs created later are not paused. You can resume everything this operation paused with one click.</p>
          <PauseFields reason={reason} setReason={setReason} until={until} setUntil={setUntil} />
        </>
      ) : (
        <p>Those that are paused continue with their next run.</p>
      )}
    </Confirm>
  );
}

/** How many items an action would affect, counted by the server. */
export function usePreview(act: string, filter: Record<string, unknown>, enabled: boolean) {
  return usePost<OperationPreview>("/api/v1/operations/preview", { act, filter }, enabled);
}

/** A POST that changes nothing. */
export function usePost<T>(path: string, body: unknown, enabled: boolean, keep = false) {
  return useQuery<T, ApiProblem>({
    queryKey: [path, body],
    queryFn: async ({ signal }) => (await call<T>("POST", path, { body, signal })).value,
    enabled,
    retry: false,
    refetchOnWindowFocus: false,
    placeholderData: keep ? (previous) => previous : undefined,
  });
}
