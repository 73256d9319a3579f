// One job: why it is or is not running, its past runs, and what comes next.
import { Pencil, Play, Pause } from "lucide-react";
import { useEffect, useState } from "react";
import { Link, useLocation } from "wouter";

import { now } from "../api/client";
import { useApi, useCan, useTick } from "../api/hooks";
import type { AuditEntry, Execution, Explanation, Job, NextRuns, Page } from "../api/types";
import { pretty } from "../lib/json";
import { useShortcuts } from "../lib/keys";
import { follow } from "../lib/live";
import { differences } from "../lib/patch";
import { useSettings } from "../lib/settings";
import { duration, knownZone, timeOfDay, zoneFor, zoneName } from "../lib/time";
import { useParams } from "../lib/url";
import { actionWords, DELIVERY_WORDS, hasEnded, MISFIRE_WORDS, operationWords, OVERLAP_WORDS, retryWords, scheduleWords, span, statusWord, waitWords } from "../lib/words";
import { Button, ButtonLink, Can, Code, CopyButton, Empty, Muted, Note, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Tabs } from "../parts/fields";
import { Menu } from "../parts/overlays";
import { Pager } from "../parts/pager";
import { Legend, RunsChart } from "../parts/spark";
import { Status } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { Why } from "../parts/why";
import { CopyDefinition, definitionOf, DeleteJob, PauseJob, ResumeJob, RunJob } from "./job-acts";
import s from "./pages.module.css";

export function JobPage({ id }: { id: string }) {
  const read = useApi<Job>(`/api/v1/jobs/${id}`, undefined, { exact: true });
  useEffect(() => follow(`job:${id}`), [id]);
  return (
    <Reading of={read} what="job" page="Job" rows={12}>
      {(job) => <Content job={job} />}
    </Reading>
  );
}

type Act = "run" | "pause" | "resume" | "delete" | "copy";

function Content({ job }: { job: Job }) {
  const [act, setAct] = useState<Act | null>(null);
  const [params] = useParams();
  const [, navigate] = useLocation();
  const can = useCan();
  const tab = ["definition", "versions", "audit"].includes(params.get("tab") ?? "") ? (params.get("tab") as string) : "runs";
  const path = `/jobs/${job.job_id}`;
  const ended = hasEnded(job);
  const zone = job.schedule.timezone;
  useShortcuts({
    r: () => can("run_job") && !ended && setAct("run"),
    p: () => can("pause_job") && !ended && setAct(job.status === "PAUSED" ? "resume" : "pause"),
    e: () => can("update_job") && !ended && navigate(`${path}/edit`),
  });
  const close = () => setAct(null);
  return (
    <>
      <PageHead
        title={job.name}
        beside={<Status status={job.status} />}
        actions={
          <>
            {!ended && (
              <>
                <Can op="run_job">
                  <Button onClick={() => setAct("run")}>
                    <Play size={14} aria-hidden /> Run now…
                  </Button>
                </Can>
                {job.status === "PAUSED" ? (
                  <Can op="resume_job">
                    <Button kind="primary" onClick={() => setAct("resume")}>
                      Resume…
                    </Button>
                  </Can>
                ) : (
                  <Can op="pause_job">
                    <Button onClick={() => setAct("pause")}>
                      <Pause size={14} aria-hidden /> Pause…
                    </Button>
                  </Can>
                )}
                <Can op="update_job">
                  <ButtonLink href={`${path}/edit`}>
                    <Pencil size={14} aria-hidden /> Edit
                  </ButtonLink>
                </Can>
              </>
            )}
            <Menu
              label="More actions"
              items={[
                { label: "Copy definition…", act: () => setAct("copy") },
                { label: "New job like this", href: `/jobs/new?like=${job.job_id}`, hidden: !can("create_job") },
                { label: "Executions", href: `/executions?job_id=${job.job_id}` },
                { label: "Dead letters", href: `/dead-letters?job_id=${job.job_id}&view=list&time=all` },
                { label: "Delete…", act: () => setAct("delete"), red: true, hidden: !can("delete_job") || job.status === "CANCELLED" },
              ]}
            />
          </>
        }
      />
      <p className={parts.lead}>
        <Link href={`/tenants/${encodeURIComponent(job.tenant_id)}`}>{job.tenant_id}</Link> · <Link href={`/queues/${encodeURIComponent(job.queue)}`}>{job.queue}</Link> · {statusWord(job.priority)} priority · version {job.version} · <code>{job.job_id}</code> <CopyButton text={job.job_id} icon label="Copy id" />
      </p>
      {job.problem && <Note>{job.problem}</Note>}
      {job.warnings.map((warning) => (
        <Note key={warning.code}>{warning.message}</Note>
      ))}
      <Why path={`/api/v1/jobs/${job.job_id}`} zone={zone} actions={(why) => <Fixes why={why} job={job} act={setAct} />} />
      {job.type === "RECURRING" && (
        <div className={s.wide}>
          <History job={job} />
          <Upcoming job={job} />
        </div>
      )}
      <Tabs
        label="About the job"
        current={tab}
        items={[
          { id: "runs", text: "Runs", href: path },
          { id: "definition", text: "Definition", href: `${path}?tab=definition` },
          { id: "versions", text: "Versions", href: `${path}?tab=versions` },
          { id: "audit", text: "Audit", href: `${path}?tab=audit` },
        ]}
      />
      {tab === "runs" && <Runs job={job} />}
      {tab === "definition" && <Definition job={job} />}
      {tab === "versions" && <Audit job={job} versions />}
      {tab === "audit" && <Audit job={job} />}
      {act === "run" && <RunJob job={job} close={close} />}
      {act === "pause" && <PauseJob jobs={[job]} close={close} />}
      {act === "resume" && <ResumeJob jobs={[job]} close={close} />}
      {act === "delete" && <DeleteJob job={job} close={close} />}
      {act === "copy" && <CopyDefinition job={job} close={close} />}
    </>
  );
}

/** The one action that helps, if the caller may take it. */
function Fixes({ why, job, act }: { why: Explanation; job: Job; act: (what: Act) => void }) {
  const can = useCan();
  switch (why.code) {
    case "paused":
      return can("resume_job") ? (
        <Button small onClick={() => act("resume")}>
          Resume…
        </Button>
      ) : null;
    case "not_due":
      return can("run_job") ? (
        <Button small onClick={() => act("run")}>
          Run now…
        </Button>
      ) : null;
    case "overlap":
    case "concurrency_key":
      return can("update_job") ? (
        <ButtonLink small href={`/jobs/${job.job_id}/edit`}>
          Change the policy
        </ButtonLink>
      ) : null;
    case "no_worker":
    case "no_worker_for_task":
    case "queue_concurrency":
    case "queue_rate":
      return (
        <ButtonLink small href={`/queues/${encodeURIComponent(job.queue)}`}>
          Queue {job.queue}
        </ButtonLink>
      );
    case "tenant_concurrency":
    case "tenant_rate":
      return (
        <ButtonLink small href={`/tenants/${encodeURIComponent(job.tenant_id)}`}>
          Limits of {job.tenant_id}
        </ButtonLink>
      );
    case "dead":
    case "running":
    case "retrying":
      return why.execution_id ? (
        <ButtonLink small href={`/executions/${why.execution_id}`}>
          Open the run
        </ButtonLink>
      ) : null;
  }
  return null;
}

function useRuns(job: Job) {
  return useApi<Page<Execution>>(`/api/v1/jobs/${job.job_id}/executions`, { page_size: 100 });
}

function History({ job }: { job: Job }) {
  const runs = useRuns(job);
  return (
    <Panel title="Last runs" actions={<Muted>up: duration, down: lateness (log)</Muted>}>
      <Reading of={runs} what="history" rows={5}>
        {(page) => {
          const shown = page.items.filter((run) => run.status !== "SCHEDULED");
          return shown.length === 0 ? (
            <Empty>It has not run yet.{job.next_run_at ? " Its first run is in the list of next runs." : ""}</Empty>
          ) : (
            <>
              <RunsChart runs={shown} zone={job.schedule.timezone} />
              <Legend />
            </>
          );
        }}
      </Reading>
    </Panel>
  );
}

function Upcoming({ job }: { job: Job }) {
  const paused = job.status === "PAUSED" && job.type === "RECURRING";
  const known = job.next_run_at !== null || paused;
  const read = useApi<NextRuns>(`/api/v1/jobs/${job.job_id}/next-runs`, { count: 10 }, { everySeconds: 60, enabled: known });
  return (
    <Panel title={paused ? (job.paused?.until ? "Next 10 runs, after the pause" : "Next 10 runs, if it is resumed now") : "Next 10 runs"} actions={<Muted>{scheduleWords(job.schedule)}, {job.schedule.timezone}</Muted>}>
      {!known ? (
        <Empty>{job.status === "PAUSED" ? "No runs while it is paused." : "It has no further runs."}</Empty>
      ) : (
        <Reading of={read} what="next runs" rows={6}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty>It has no further runs.</Empty>
            ) : (
              <ol className={s.next}>
                {items.map((run) => (
                  <li key={run.scheduled_for}>
                    <Time at={run.scheduled_for} zone={job.schedule.timezone} mode="absolute" seconds={!/:00[+Z-]/.test(run.scheduled_for.slice(16))} />
                    <span className={s.side}>
                      <InItsZone at={run.scheduled_for} zone={job.schedule.timezone} />
                      <Time at={run.scheduled_for} mode="relative" />
                    </span>
                    {run.note && <span className={s.note}>{run.note}</span>}
                  </li>
                ))}
              </ol>
            )
          }
        </Reading>
      )}
    </Panel>
  );
}

/** The time in the rule's own zone, if the chosen clock differs. */
function InItsZone({ at, zone }: { at: string; zone?: string }) {
  const { clock } = useSettings();
  if (!zone || !knownZone(zone) || zoneFor(clock, zone) === zone) return null;
  const instant = Date.parse(at);
  return <>{timeOfDay(instant, zone, instant % 60_000 !== 0)} {zoneName(instant, zone)} · </>;
}

/** How long a run has run. */
function SoFar({ since }: { since: string }) {
  useTick(1000);
  return <Muted>{duration(Math.max(0, now() - Date.parse(since)))} so far</Muted>;
}

export function runColumns(zone?: string): Column<Execution>[] {
  return [
    {
      id: "status",
      title: "Status",
      first: true,
      kind: "nowrap",
      cell: (run) => (
        <Link href={`/executions/${run.execution_id}`}>
          <Status status={run.status} detail={run.reason?.replaceAll("_", " ") ?? waitWords(run.waiting_for)} />
        </Link>
      ),
    },
    { id: "scheduled", title: "Scheduled", kind: "nowrap", cell: (run) => <Time at={run.scheduled_for} zone={zone} mode="short" /> },
    { id: "started", title: "Started", kind: "nowrap", wide: true, cell: (run) => <Time at={run.started_at} zone={zone} mode="short" /> },
    { id: "late", title: "Late", kind: "number", cell: (run) => (run.lateness_ms === null ? "–" : duration(run.lateness_ms)) },
    { id: "took", title: "Took", kind: "number", cell: (run) => (run.started_at && (run.status === "RUNNING" || run.status === "AWAITING") ? <SoFar since={run.started_at} /> : run.duration_ms === null ? "–" : duration(run.duration_ms)) },
    { id: "attempts", title: "Attempts", kind: "number", wide: true, cell: (run) => run.attempt || "–" },
    { id: "error", title: "Error", kind: "cut", cell: (run) => (run.error || missedWords(run) ? <span title={run.error ?? undefined}>{firstLine(run.error) || missedWords(run)}</span> : null) },
  ];
}

export function firstLine(text: string | null): string {
  return text?.split("\n", 1)[0]?.slice(0, 200) ?? "";
}

function missedWords(run: Execution): string {
  return run.missed && run.missed > 1 ? `stands for ${run.missed} missed runs` : "";
}

function Runs({ job }: { job: Job }) {
  const [params] = useParams();
  const read = useApi<Page<Execution>>(`/api/v1/jobs/${job.job_id}/executions`, { page_size: 50, page_token: params.get("after") }, { keep: true });
  return (
    <Panel flush label="Runs">
      <Reading of={read} what="history" rows={8}>
        {(page) =>
          page.items.length === 0 ? (
            <Empty>It has not run yet.</Empty>
          ) : (
            <>
              <Table label="Runs" columns={runColumns(job.schedule.timezone)} rows={page.items} keyOf={(run) => run.execution_id + run.scheduled_for} />
              <Pager page={page} size={50} noun="run" />
            </>
          )
        }
      </Reading>
    </Panel>
  );
}

function Definition({ job }: { job: Job }) {
  const { schedule } = job;
  const facts: [string, React.ReactNode][] = [
    ["When", <span key="when">{job.schedule_words ?? scheduleWords(schedule)} {schedule.cron && <code>{schedule.cron}</code>}</span>],
    ["Zone", schedule.timezone],
    ["What", actionWords(job.action)],
    ["Retries", retryWords(job.retry_policy)],
    ["Time limit", `${span(job.timeout_seconds)} per attempt${job.deadline_seconds ? `, ${span(job.deadline_seconds)} for all attempts` : ""}.`],
    ["Delivery", DELIVERY_WORDS[job.delivery] ?? job.delivery],
  ];
  if (job.overlap_policy) facts.push(["Overlap", `${job.overlap_policy}: ${OVERLAP_WORDS[job.overlap_policy] ?? ""}`]);
  if (job.misfire_policy) facts.push(["Missed runs", `${job.misfire_policy}: ${MISFIRE_WORDS[job.misfire_policy] ?? ""}`]);
  if (schedule.dst_gap && schedule.timezone !== "UTC") facts.push(["Clock changes", `${schedule.dst_gap === "skip" ? "A time that does not exist is skipped" : "A time that does not exist runs right after the gap"}; a time that occurs twice runs ${schedule.dst_overlap === "twice" ? "twice" : "once"}.`]);
  if (schedule.jitter_seconds) facts.push(["Jitter", `up to ${span(schedule.jitter_seconds)}`]);
  if (job.start_deadline_seconds) facts.push(["Start deadline", `If it cannot start within ${span(job.start_deadline_seconds)}, it is skipped.`]);
  if (job.concurrency_key) facts.push(["Concurrency key", `${job.concurrency_key}, at most ${job.concurrency_limit ?? 1} at once`]);
  if (job.unique_key) facts.push(["Unique key", job.unique_key]);
  const labels = Object.entries(job.labels ?? {});
  if (labels.length) facts.push(["Labels", labels.map(([name, value]) => `${name}:${value}`).join("  ")]);
  return (
    <div className={s.two}>
      <Panel title="In words">
        <dl className={parts.facts}>
          {facts.map(([name, value]) => (
            <div key={name} style={{ display: "contents" }}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </Panel>
      <Panel title="As JSON">
        <Code label="Definition" text={pretty(definitionOf(job))} />
      </Panel>
    </div>
  );
}

function Audit({ job, versions }: { job: Job; versions?: boolean }) {
  const [params] = useParams();
  const read = useApi<Page<AuditEntry>>(`/api/v1/jobs/${job.job_id}/audit`, { page_size: 50, page_token: params.get("after") }, { keep: true });
  return (
    <Panel flush label={versions ? "Versions" : "Audit trail"}>
      <Reading of={read} what="audit trail" rows={6}>
        {(page) => {
          const shown = versions ? page.items.filter((entry) => ["create", "update", "replace"].includes(entry.operation)) : page.items;
          return shown.length === 0 ? (
            <Empty>{versions ? "No changes of the definition are recorded." : "There are no entries."}</Empty>
          ) : (
            <>
              <AuditEntries entries={shown} zone={job.schedule.timezone} />
              <Pager page={page} size={50} noun="entry" many="entries" />
            </>
          );
        }}
      </Reading>
    </Panel>
  );
}

export function AuditEntries({ entries, zone, jobs }: { entries: AuditEntry[]; zone?: string; jobs?: boolean }) {
  return (
    <ol className={s.entries}>
      {entries.map((entry, index) => {
        const changes = entry.from && entry.to ? differences(entry.from, entry.to) : [];
        return (
          <li key={index}>
            <div className={s.entryHead}>
              <strong>{operationWords(entry.operation)}</strong>
              <span>by {entry.actor}</span>
              {jobs && entry.job_id && <Link href={`/jobs/${entry.job_id}`}>{nameOf(entry)}</Link>}
              <Configured entry={entry} />
              <Muted>
                <Time at={entry.at} zone={zone} mode="absolute" />
              </Muted>
            </div>
            {changes.length > 0 && (
              <dl className={s.diff}>
                {changes.map(([path, from, to]) => (
                  <div key={path} style={{ display: "contents" }}>
                    <dt>
                      <code>{path}</code>
                    </dt>
                    <dd>
                      {from !== undefined && <del>{short(from)}</del>} {to !== undefined && <ins>{short(to)}</ins>}
                    </dd>
                  </div>
                ))}
              </dl>
            )}
            {changes.length === 0 && entry.to !== null && entry.to !== undefined && (
              <details>
                <summary>Document</summary>
                <Code label="Document" text={pretty(entry.to)} />
              </details>
            )}
          </li>
        );
      })}
    </ol>
  );
}

/** The tenant, queue or target whose settings changed. */
function Configured({ entry }: { entry: AuditEntry }) {
  const { queue, host } = (entry.to ?? {}) as { queue?: string; host?: string };
  if (entry.operation === "configure_tenant") return <Link href={`/tenants/${encodeURIComponent(entry.tenant_id)}`}>{entry.tenant_id}</Link>;
  if (entry.operation === "configure_queue" && queue) return <Link href={`/queues/${encodeURIComponent(queue)}`}>{queue}</Link>;
  return entry.operation === "configure_target" && host ? <Link href="/targets">{host}</Link> : null;
}

/** The name of the changed job, if the entry has its document. */
function nameOf(entry: AuditEntry): string {
  const name = ((entry.to ?? entry.from) as { name?: unknown } | null)?.name;
  return typeof name === "string" ? name : (entry.job_id ?? "");
}

function short(value: unknown): string {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}
