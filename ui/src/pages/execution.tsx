// One execution: why it is in its state, every attempt, and the outcome.
import { AlertCircle, CalendarClock, CheckCircle2, CircleDashed, Ban, Play } from "lucide-react";
import { useState } from "react";
import { Link } from "wouter";

import { now } from "../api/client";
import { useAct, useApi, useCan } from "../api/hooks";
import type { Attempt, DeadLetter, Execution, Job } from "../api/types";
import { pretty } from "../lib/json";
import { useShortcuts } from "../lib/keys";
import { duration, rough } from "../lib/time";
import { FATES, plural, reasonSentence } from "../lib/words";
import { Button, Code, CopyButton, Meter, Muted, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Confirm, Dialog, toast } from "../parts/overlays";
import { Status } from "../parts/status";
import { Why } from "../parts/why";
import s from "./pages.module.css";

export function ExecutionPage({ id }: { id: string }) {
  const read = useApi<Execution>(`/api/v1/executions/${id}`, undefined, { exact: true });
  return (
    <Reading of={read} what="execution" page="Run" rows={12}>
      {(execution) => <Content execution={execution} />}
    </Reading>
  );
}

type Act = "replay" | "retry" | "cancel" | "json";

function Content({ execution }: { execution: Execution }) {
  const [act, setAct] = useState<Act | null>(null);
  const can = useCan();
  const job = useApi<Job>(`/api/v1/jobs/${execution.job_id}`, undefined, { everySeconds: 60 }).data;
  const letter = useApi<DeadLetter>(`/api/v1/dead-letters/${execution.execution_id}`, undefined, { enabled: execution.status === "DEAD", exact: true }).data;
  const zone = job?.schedule.timezone;
  const live = !FATES.includes(execution.status as never);
  const replay = execution.status === "DEAD" && can("replay_dead_letter");
  const retry = execution.status === "RETRYING" && can("retry_execution");
  const cancel = live && can("cancel_execution");
  useShortcuts({ r: () => (replay ? setAct("replay") : retry ? setAct("retry") : undefined) });
  const name = execution.job_name ?? execution.job_id;
  return (
    <>
      <PageHead
        title={`Run of ${name}`}
        beside={<Status status={execution.status} detail={execution.reason?.replaceAll("_", " ")} />}
        actions={
          <>
            {replay && (
              <Button kind="primary" onClick={() => setAct("replay")}>
                Replay…
              </Button>
            )}
            {retry && <Button onClick={() => setAct("retry")}>Retry now…</Button>}
            {cancel && <Button onClick={() => setAct("cancel")}>Cancel…</Button>}
            <Button onClick={() => setAct("json")}>JSON</Button>
          </>
        }
      />
      <p className={parts.lead}>
        <Link href={`/jobs/${execution.job_id}`}>Job</Link> · <Link href={`/tenants/${encodeURIComponent(execution.tenant_id)}`}>{execution.tenant_id}</Link> {execution.queue && <>· <Link href={`/queues/${encodeURIComponent(execution.queue)}`}>{execution.queue}</Link> </>}· <code>{execution.execution_id}</code> <CopyButton text={execution.execution_id} icon label="Copy id" />
      </p>
      <Why path={`/api/v1/executions/${execution.execution_id}`} zone={zone} />
      <div className={s.wide}>
        <Panel title={execution.attempts.length ? plural(execution.attempts.length, "attempt") : "No attempts yet"}>
          <Line execution={execution} zone={zone} job={job} />
        </Panel>
        <div className={s.stack}>
          <Panel title="About this run">
            <dl className={parts.facts}>
              <dt>Scheduled for</dt>
              <dd>
                <Time at={execution.scheduled_for} zone={zone} mode="absolute" />
              </dd>
              <dt>Origin</dt>
              <dd>{execution.origin.replaceAll("_", " ")}</dd>
              <dt>Planned</dt>
              <dd>
                <Time at={execution.created_at} zone={zone} mode="absolute" />
              </dd>
              <dt>Late</dt>
              <dd>{execution.lateness_ms === null ? "–" : duration(execution.lateness_ms)}</dd>
              <dt>Took</dt>
              <dd>{execution.duration_ms === null ? "–" : `${duration(execution.duration_ms)} (last attempt)`}</dd>
              <dt>Ended</dt>
              <dd>
                <Time at={execution.finished_at} zone={zone} mode="absolute" />
              </dd>
              {execution.reason && (
                <>
                  <dt>Reason</dt>
                  <dd>
                    <code>{execution.reason}</code> {reasonSentence(execution.reason)}
                  </dd>
                </>
              )}
              {execution.worker_id && (
                <>
                  <dt>Worker</dt>
                  <dd>{execution.worker_id}</dd>
                </>
              )}
              {execution.fence_token !== null && (
                <>
                  <dt>Fence</dt>
                  <dd>{String(execution.fence_token)}</dd>
                </>
              )}
              {execution.missed !== null && execution.missed > 1 && (
                <>
                  <dt>Stands for</dt>
                  <dd>
                    {execution.missed} missed runs, through <Time at={execution.missed_through} zone={zone} mode="absolute" />
                  </dd>
                </>
              )}
            </dl>
          </Panel>
          {execution.progress !== null && execution.progress !== undefined && (
            <Panel title="Progress">
              <Progress value={execution.progress} />
            </Panel>
          )}
          {execution.result !== null && execution.result !== undefined && (
            <Panel title="Result">
              <Code label="Result" text={pretty(execution.result)} />
            </Panel>
          )}
          {letter?.fingerprint && (
            <Panel title="The same error">
              <Link href={`/dead-letters?view=list&time=7d&fingerprint=${letter.fingerprint}`}>Other dead letters with this error</Link>
            </Panel>
          )}
          {letter?.job ? (
            <details className={s.disclosure}>
              <summary>The job as it was</summary>
              <div>
                <Code label="The job as it was" text={pretty(letter.job)} />
              </div>
            </details>
          ) : null}
        </div>
      </div>
      {act === "json" && (
        <Dialog title="The execution as JSON" close={() => setAct(null)}>
          <Code label="Execution" text={pretty(execution)} />
          <div className={parts.dialogActions}>
            <Button onClick={() => setAct(null)}>Close</Button>
          </div>
        </Dialog>
      )}
      {act && act !== "json" && <Ask act={act} execution={execution} close={() => setAct(null)} />}
    </>
  );
}

const ACTS = {
  replay: { title: "Replay this run?", verb: "Replay", path: (id: string) => `/api/v1/dead-letters/${id}/replay`, text: "It keeps its id and runs with the current definition of the job. Its retries and deadlines start over.", said: "The run is due again." },
  retry: { title: "Retry now?", verb: "Retry now", path: (id: string) => `/api/v1/executions/${id}/retry`, text: "Its next attempt starts now instead of at its planned time.", said: "The next attempt is due now." },
  cancel: { title: "Cancel this run?", verb: "Cancel the run", path: (id: string) => `/api/v1/executions/${id}/cancel`, text: "If it has started, its worker is asked to stop it, which may take a few seconds. What it has already done is not undone.", said: "Cancellation requested." },
};

function Ask({ act, execution, close }: { act: Exclude<Act, "json">; execution: Execution; close: () => void }) {
  const acting = useAct();
  const { title, verb, path, text, said } = ACTS[act];
  async function go() {
    await acting.act("POST", path(execution.execution_id));
    toast(said);
    close();
  }
  return (
    <Confirm title={title} verb={verb} danger={act === "cancel"} close={close} confirm={() => void go().catch(() => undefined)} busy={acting.busy} problem={acting.problem}>
      <p>{text}</p>
    </Confirm>
  );
}

const ICONS: Record<string, typeof Play> = { FAILED: AlertCircle, SUCCEEDED: CheckCircle2, RUNNING: Play, AWAITING: CircleDashed, CANCELLED: Ban };

function Line({ execution, zone, job }: { execution: Execution; zone?: string; job?: Job }) {
  const attempts = execution.attempts;
  return (
    <ol className={s.line}>
      <li>
        <CalendarClock size={20} aria-hidden />
        <div className={s.facts}>
          <strong>Due</strong>
          <Time at={execution.scheduled_for} zone={zone} mode="absolute" />
        </div>
        {execution.lateness_ms !== null && attempts.length > 0 && <span className={s.wait}>{duration(execution.lateness_ms)} until its first attempt</span>}
      </li>
      {attempts.map((attempt, index) => (
        <One key={`${attempt.attempt}-${attempt.fence_token}-${index}`} attempt={attempt} next={attempts[index + 1]} zone={zone} timeout={job?.timeout_seconds} />
      ))}
    </ol>
  );
}

function One({ attempt, next, zone, timeout }: { attempt: Attempt; next?: Attempt; zone?: string; timeout?: number }) {
  const Icon = ICONS[attempt.status] ?? CircleDashed;
  const began = Date.parse(attempt.started_at);
  const ended = attempt.finished_at ? Date.parse(attempt.finished_at) : null;
  return (
    <li data-status={attempt.status}>
      <Icon size={20} aria-hidden />
      <div className={s.facts}>
        <strong>Attempt {attempt.attempt}</strong>
        <Status status={attempt.status} detail={attempt.kind} />
        <Time at={attempt.started_at} zone={zone} mode="absolute" />
        <span>{ended !== null ? `took ${duration(ended - began)}` : `for ${rough(now() - began)}${timeout ? ` of ${rough(timeout * 1000)}` : ""}`}</span>
        {attempt.worker_id && <Muted>worker {attempt.worker_id}</Muted>}
        {attempt.fence_token !== null && <Muted>fence {String(attempt.fence_token)}</Muted>}
      </div>
      {attempt.error && <Code label={`Error of attempt ${attempt.attempt}`} text={attempt.error} />}
      {next && ended !== null && <span className={s.wait}>waits {duration(Math.max(0, Date.parse(next.started_at) - ended))}</span>}
    </li>
  );
}

function Progress({ value }: { value: unknown }) {
  const found = value as { current?: number; total?: number; percent?: number; message?: string } | null;
  const percent = typeof found?.percent === "number" ? found.percent : typeof found?.current === "number" && typeof found.total === "number" ? (100 * found.current) / found.total : null;
  return (
    <div className={s.stack}>
      {percent !== null && <Meter of={100} part={percent} label="Progress" />}
      <Code label="Progress" text={pretty(value)} />
    </div>
  );
}
