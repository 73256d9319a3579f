// All jobs: search, filters, actions on one or many.
import { useEffect, useState } from "react";
import { Link, useLocation } from "wouter";

import { now } from "../api/client";
import { useApi, useCan, useMe } from "../api/hooks";
import type { Job, JobTotal, Page, Queue, Tenant } from "../api/types";
import { change, useSettings } from "../lib/settings";
import { changed, useParams } from "../lib/url";
import { actionWords, canBePaused, hasEnded, JOB_STATUSES, SCHEDULE_STATUSES, scheduleWords, statusWord } from "../lib/words";
import { Button, ButtonLink, Can, Empty, Muted, PageHead, Panel, Reading, Short, styles as parts, Time } from "../parts/basics";
import { Chips, Select, Tabs } from "../parts/fields";
import { Dialog, Menu } from "../parts/overlays";
import { Pager } from "../parts/pager";
import { LastRuns } from "../parts/spark";
import { Status } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { Views } from "../parts/views";
import { CopyDefinition, DeleteJob, PauseJob, PauseMany, ResumeJob, RunJob } from "./job-acts";
import s from "./pages.module.css";

export const FILTERS = ["status", "late", "type", "tenant_id", "queue", "label", "name_prefix", "q"] as const;
const NAMES: Record<string, string> = { status: "status", late: "late", type: "type", tenant_id: "tenant", queue: "queue", label: "label", name_prefix: "name begins with", q: "search" };
const FIRST_COLUMNS = ["name", "schedule", "action", "next", "last", "state"];
const ONCE_COLUMNS = ["name", "action", "next", "state", "updated"];
const KINDS = [
  { id: "", text: "All jobs" },
  { id: "RECURRING", text: "Schedules" },
  { id: "ONE_TIME", text: "One-time jobs" },
];

type Act = { what: "run" | "pause" | "resume" | "delete" | "copy"; job: Job; selected?: boolean };

export function Jobs() {
  const [params, setParams] = useParams();
  const [, navigate] = useLocation();
  const { columns: chosen } = useSettings();
  const me = useMe();
  const can = useCan();
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [act, setAct] = useState<Act | null>(null);
  const [many, setMany] = useState<"pause" | "resume" | null>(null);
  const [choosing, setChoosing] = useState(false);
  const filter = Object.fromEntries(FILTERS.map((name) => [name, params.get(name)]));
  const filtered = FILTERS.some((name) => filter[name]);
  const read = useApi<Page<Job>>("/api/v1/jobs", { ...filter, page_size: 50, page_token: params.get("after"), last_outcomes: 20 }, { keep: true, hold: selected.size > 0 || act !== null || many !== null });
  const rows = read.data?.items ?? [];
  const total = useApi<JobTotal>("/api/v1/jobs", { ...filter, total: true, page_size: 1 }, { keep: true }).data?.total;
  const kind = filter.type ?? "";
  useEffect(() => setSelected(new Set()), [params]);
  const columns = all(me?.tenant_id ?? null, (job) => (
    <Menu
      label={`Actions for ${job.name}`}
      items={[
        { label: "Why?", href: `/jobs/${job.job_id}` },
        { label: "Run now…", act: () => setAct({ what: "run", job }), hidden: !can("run_job") || job.status === "CANCELLED" },
        { label: "Pause…", act: () => setAct({ what: "pause", job }), hidden: !can("pause_job") || !canBePaused(job) },
        { label: "Resume…", act: () => setAct({ what: "resume", job }), hidden: !can("resume_job") || job.status !== "PAUSED" },
        { label: "Edit", href: `/jobs/${job.job_id}/edit`, hidden: !can("update_job") || hasEnded(job) },
        { label: "Copy definition…", act: () => setAct({ what: "copy", job }) },
        { label: "Delete…", act: () => setAct({ what: "delete", job }), red: true, hidden: !can("delete_job") || job.status === "CANCELLED" },
      ]}
    />
  ));
  const wanted = chosen.jobs ?? [...(kind === "ONE_TIME" ? ONCE_COLUMNS : FIRST_COLUMNS), ...(me?.tenant_id ? [] : ["tenant"])];
  const shown = columns.filter((column) => column.kind === "menu" || column.id === "name" || wanted.includes(column.id));
  const someRows = rows.filter((job) => selected.has(job.job_id));

  return (
    <>
      <PageHead
        title="Jobs"
        actions={
          <>
            <Views list="jobs" path="/api/v1/jobs" query={filter} />
            <Button onClick={() => setChoosing(true)}>Columns</Button>
            <Can op="create_job">
              <ButtonLink kind="primary" href="/jobs/new">
                New job
              </ButtonLink>
            </Can>
          </>
        }
      />
      <Tabs label="Kind of job" current={kind} items={KINDS.map((each) => ({ ...each, href: changed("/jobs", new URLSearchParams(params), { type: each.id || null, status: null, late: null, after: null }) }))} />
      <Filters params={params} set={(change) => setParams({ ...change, after: null })} />
      <Chips
        chips={FILTERS.flatMap((name) => (filter[name] && name !== "type" ? [{ name: NAMES[name] ?? name, value: filter[name] as string, remove: () => setParams({ [name]: null, after: null }) }] : []))}
        clear={() => navigate("/jobs")}
      />
      <Panel flush label="Jobs">
        {(selected.size > 0 || (filtered && can("create_operation") && !filter.q && !filter.type && !filter.late && !(filter.status && hasEnded({ status: filter.status })) && rows.length > 0)) && (
          <div className={s.selection}>
            {selected.size > 0 ? (
              <>
                <b>{selected.size} selected</b>
                <Can op="pause_job">
                  <Button small onClick={() => setAct({ what: "pause", job: someRows[0] as Job, selected: true })} disabled={!someRows.some(canBePaused)}>
                    Pause…
                  </Button>
                </Can>
                <Can op="resume_job">
                  <Button small onClick={() => setAct({ what: "resume", job: someRows[0] as Job, selected: true })} disabled={!someRows.some((job) => job.status === "PAUSED")}>
                    Resume…
                  </Button>
                </Can>
                <Button small kind="quiet" onClick={() => setSelected(new Set())}>
                  Clear
                </Button>
              </>
            ) : (
              <>
                <span>All jobs matching this filter:</span>
                {filter.status !== "PAUSED" && (
                  <Button small onClick={() => setMany("pause")}>
                    Pause all…
                  </Button>
                )}
                {(!filter.status || filter.status === "PAUSED") && (
                  <Button small onClick={() => setMany("resume")}>
                    Resume all…
                  </Button>
                )}
              </>
            )}
          </div>
        )}
        <Reading of={read} what="list of jobs" rows={12}>
          {(page) =>
            page.items.length === 0 && !page.next_page_token ? (
              <Empty action={filtered ? <Button onClick={() => navigate("/jobs")}>Clear filters</Button> : <Can op="create_job"><ButtonLink kind="primary" href="/jobs/new">New job</ButtonLink></Can>}>{filtered ? "No jobs match." : "There are no jobs yet."}</Empty>
            ) : (
              <>
                <Table
                  label="Jobs"
                  columns={shown}
                  rows={page.items}
                  keyOf={(job) => job.job_id}
                  nameOf={(job) => job.name}
                  open={(job) => `/jobs/${job.job_id}`}
                  selected={can("pause_job") ? selected : undefined}
                  select={can("pause_job") ? setSelected : undefined}
                  act={(key, job) => {
                    if (key === "r" && can("run_job")) setAct({ what: "run", job });
                    else if (key === "p" && can("pause_job")) setAct({ what: job.status === "PAUSED" ? "resume" : "pause", job });
                    else if (key === "e" && can("update_job")) navigate(`/jobs/${job.job_id}/edit`);
                    else if (key === "w") navigate(`/jobs/${job.job_id}`);
                    else return false;
                    return true;
                  }}
                />
                <Pager page={page} size={50} noun="job" back={page.items.at(-1)?.created_at} total={total} />
              </>
            )
          }
        </Reading>
      </Panel>
      {act && <Acts act={act} jobs={act.selected ? someRows : [act.job]} close={() => setAct(null)} done={() => { setAct(null); setSelected(new Set()); }} />}
      {many && <PauseMany act={many} filter={filter} close={() => setMany(null)} />}
      {choosing && <Columns columns={columns.filter((column) => column.kind !== "menu" && column.id !== "name")} wanted={wanted} close={() => setChoosing(false)} />}
    </>
  );
}

function Acts({ act, jobs, close, done }: { act: Act; jobs: Job[]; close: () => void; done: () => void }) {
  switch (act.what) {
    case "run":
      return <RunJob job={act.job} close={close} />;
    case "pause":
      return <PauseJob jobs={jobs.filter(canBePaused)} close={close} done={done} />;
    case "resume":
      return <ResumeJob jobs={jobs.filter((job) => job.status === "PAUSED")} close={close} done={done} />;
    case "delete":
      return <DeleteJob job={act.job} close={close} />;
    case "copy":
      return <CopyDefinition job={act.job} close={close} />;
  }
}

/** The statuses that jobs of this kind can have, in words. */
function statusesOf(kind: string): [string, string][] {
  const words = JOB_STATUSES.filter((status) => (kind === "RECURRING" ? SCHEDULE_STATUSES.includes(status) : kind !== "ONE_TIME" || status !== "ENDED")).map((status): [string, string] => [status, statusWord(status)]);
  return kind === "RECURRING" ? words : [...words.slice(0, 2), ["LATE", "Late"], ...words.slice(2)];
}

function Filters({ params, set }: { params: URLSearchParams; set: (change: Record<string, string | null>) => void }) {
  const me = useMe();
  const tenants = useApi<Page<Tenant>>("/api/v1/tenants", { page_size: 200 }, { enabled: !me?.tenant_id });
  const queues = useApi<Page<Queue>>("/api/v1/queues", { page_size: 200 });
  const [text, setText] = useState(params.get("q") ?? "");
  const [label, setLabel] = useState(params.get("label") ?? "");
  const value = (key: string) => params.get(key) ?? "";
  // The address is the only state of the filter: chips and the back button change it, too.
  useEffect(() => setText(params.get("q") ?? ""), [params]);
  useEffect(() => setLabel(params.get("label") ?? ""), [params]);
  const withCurrent = (names: string[], current: string) => (current && !names.includes(current) ? [current, ...names] : names);
  return (
    <form
      className={parts.filters}
      role="search"
      aria-label="Filter jobs"
      onSubmit={(event) => {
        event.preventDefault();
        set({ q: text.trim() || null, label: label.trim() || null });
      }}
    >
      <input className={parts.input} aria-label="Search" placeholder="Name, task, host or label" value={text} onChange={(event) => setText(event.target.value)} onBlur={() => text.trim() !== value("q") && set({ q: text.trim() || null })} />
      <Select label="Status" value={value("late") ? "LATE" : value("status")} onChange={(status) => set(status === "LATE" ? { status: null, late: "true" } : { status, late: null })} options={[["", "Any status"], ...statusesOf(value("type"))]} />
      {!me?.tenant_id && <Select label="Tenant" value={value("tenant_id")} onChange={(tenant_id) => set({ tenant_id })} options={[["", "All tenants"], ...withCurrent((tenants.data?.items ?? []).map((tenant) => tenant.tenant_id), value("tenant_id")).map((each): [string, string] => [each, each])]} />}
      <Select label="Queue" value={value("queue")} onChange={(queue) => set({ queue })} options={[["", "All queues"], ...withCurrent((queues.data?.items ?? []).map((queue) => queue.queue), value("queue")).map((each): [string, string] => [each, each])]} />
      <input className={parts.input} aria-label="Label, as name:value" placeholder="team:billing" value={label} onChange={(event) => setLabel(event.target.value)} onBlur={() => label.trim() !== value("label") && set({ label: label.trim() || null })} />
      <button type="submit" className="visually-hidden">
        Filter
      </button>
    </form>
  );
}

function all(tenant: string | null, menu: (job: Job) => React.ReactNode): Column<Job>[] {
  const columns: Column<Job>[] = [
    {
      id: "name",
      title: "Name",
      first: true,
      order: (job) => job.name,
      cell: (job) => (
        <Link className={parts.name} href={`/jobs/${job.job_id}`}>
          {job.name}
          {job.problem && <span className={parts.sub} title={job.problem}>cannot be read by this version</span>}
        </Link>
      ),
    },
    { id: "id", title: "Id", kind: "nowrap", cell: (job) => <code>{job.job_id}</code> },
    { id: "tenant", title: "Tenant", order: (job) => job.tenant_id, cell: (job) => <Short text={job.tenant_id} /> },
    { id: "queue", title: "Queue", order: (job) => job.queue, cell: (job) => <Short text={job.queue} /> },
    { id: "priority", title: "Priority", cell: (job) => statusWord(job.priority) },
    { id: "type", title: "Type", cell: (job) => (job.type === "RECURRING" ? "Recurring" : "One-time") },
    {
      id: "schedule",
      title: "Schedule",
      kind: "nowrap",
      cell: (job) => (
        <span title={job.schedule_words ?? job.schedule.cron}>
          {scheduleWords(job.schedule)}
          {job.schedule.cron !== undefined && job.schedule.timezone !== "UTC" && <span className={parts.sub}>{job.schedule.timezone}</span>}
        </span>
      ),
    },
    { id: "cron", title: "Rule", kind: "nowrap", cell: (job) => (job.schedule.cron ? <code>{job.schedule.cron}</code> : "–") },
    { id: "zone", title: "Zone", cell: (job) => job.schedule.timezone },
    { id: "action", title: "Action", wide: true, cell: (job) => <span className={parts.clip} title={job.action.url}>{actionWords(job.action)}</span> },
    {
      id: "next",
      title: "Next run",
      kind: "nowrap",
      order: (job) => (job.next_run_at ? Date.parse(job.next_run_at) : Infinity),
      cell: (job) =>
        job.next_run_at ? (
          <span>
            {Date.parse(job.next_run_at) < now() && "due "}
            <Time at={job.next_run_at} zone={job.schedule.timezone} mode="relative" />
            <span className={parts.sub}>
              <Time at={job.next_run_at} zone={job.schedule.timezone} mode="absolute" seconds={false} />
            </span>
          </span>
        ) : (
          <Muted>–</Muted>
        ),
    },
    { id: "last", title: "Last 20 runs", cell: (job) => (job.last_outcomes ? <LastRuns outcomes={job.last_outcomes} /> : <Muted>–</Muted>) },
    {
      id: "state",
      title: "State",
      order: (job) => JOB_STATUSES.indexOf(job.status),
      cell: (job) => (
        <span>
          <Status status={job.status} />
          {job.paused && (
            <span className={parts.sub}>
              {job.paused.reason ? `“${job.paused.reason}”` : ""} {job.paused.by ? `by ${job.paused.by}` : ""} <Time at={job.paused.at} mode="relative" />
            </span>
          )}
        </span>
      ),
    },
    { id: "labels", title: "Labels", cell: (job) => Object.entries(job.labels ?? {}).map(([name, value]) => `${name}:${value}`).join(" ") || "–" },
    { id: "version", title: "Version", kind: "number", cell: (job) => job.version },
    { id: "created", title: "Created", kind: "nowrap", order: (job) => Date.parse(job.created_at), cell: (job) => <Time at={job.created_at} /> },
    { id: "updated", title: "Updated", kind: "nowrap", order: (job) => Date.parse(job.updated_at), cell: (job) => <Time at={job.updated_at} /> },
    { id: "menu", title: "Actions", kind: "menu", cell: menu },
  ];
  return tenant === null ? columns : columns.filter((column) => column.id !== "tenant");
}

function Columns({ columns, wanted, close }: { columns: Column<Job>[]; wanted: string[]; close: () => void }) {
  const { columns: chosen } = useSettings();
  const set = (jobs: string[]) => change({ columns: { ...chosen, jobs } });
  return (
    <Dialog title="Columns" close={close}>
      <div className={parts.checks}>
        {columns.map((column) => (
          <label key={column.id}>
            <input type="checkbox" checked={wanted.includes(column.id)} onChange={(event) => set(event.target.checked ? [...wanted, column.id] : wanted.filter((id) => id !== column.id))} />
            {column.title}
          </label>
        ))}
      </div>
      <div className={parts.dialogActions}>
        <Button
          onClick={() => {
            const { jobs: _, ...rest } = chosen;
            change({ columns: rest });
          }}
        >
          Reset
        </Button>
        <Button kind="primary" onClick={close}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}
