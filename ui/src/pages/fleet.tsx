// Processes: the leader, the workers, and whether their clocks and versions agree.
import { Crown } from "lucide-react";
import type { ReactNode } from "react";
import { Link } from "wouter";

import { now } from "../api/client";
import { useApi, useTick } from "../api/hooks";
import type { Node, Overview, Page, Worker, WorkerDetail } from "../api/types";
import { duration, group, rough, signed } from "../lib/time";
import { changed, useParams } from "../lib/url";
import { counted, plural } from "../lib/words";
import { Code, Empty, Lead, Meter, Note, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Segments } from "../parts/fields";
import { Pager } from "../parts/pager";
import { Badge } from "../parts/status";
import { Table, TableFooter, type Column } from "../parts/table";
import s from "./pages.module.css";
import { Counts } from "./tenants";

export function Fleet() {
  const [params] = useParams();
  const state = ["alive", "lost", "all"].includes(params.get("state") ?? "") ? (params.get("state") as string) : "alive";
  const overview = useApi<Overview>("/api/v1/overview", { window: "1h" });
  const nodes = useApi<{ items: Node[] }>("/api/v1/nodes", undefined, { everySeconds: 5 });
  const workers = useApi<Page<Worker>>("/api/v1/workers", { state, page_size: 100, page_token: params.get("after") }, { everySeconds: 5, keep: true });
  useTick(1000);
  const leader = overview.data?.leader;
  const versions = new Set((nodes.data?.items ?? []).filter((node) => node.alive).map((node) => node.version));
  const zones = new Set((nodes.data?.items ?? []).filter((node) => node.alive).map((node) => node.tzdata));
  return (
    <>
      <PageHead title="Fleet" />
      <div className={s.stack}>
        <Panel title="Leader">
          <Reading of={overview} what="state of the leader" rows={2}>
            {() =>
              leader ? (
                <p>
                  <Crown size={16} aria-hidden style={{ verticalAlign: "-3px", marginRight: 6 }} />
                  <b>{leader.name ?? leader.node_id}</b>, epoch {group(leader.epoch)}
                  {leader.since ? `, leading for ${rough(now() - Date.parse(leader.since))}` : ""}
                  {leader.renewed_at ? `, renewed ${duration(Math.max(0, now() - Date.parse(leader.renewed_at)))} ago` : ""}. Leader changes in 24 h: {leader.changes_in_24h}.
                  {!leader.present && <b> Its lease has expired: no further runs are planned. Reads and claims still work.</b>}
                </p>
              ) : (
                <Empty action={<Code label="Command" text="hourbell scheduler" />}>There has been no leader yet. Start a scheduler:</Empty>
              )
            }
          </Reading>
        </Panel>
        {versions.size > 1 && <Note>Different versions are running: {[...versions].join(", ")}. That is normal during an upgrade.</Note>}
        {zones.size > 1 && <Note>Processes have different time zone data: {[...zones].join(", ")}. Update the older ones.</Note>}
        <Panel title="Processes" flush>
          <Reading of={nodes} what="list of processes" rows={3}>
            {({ items }) => (items.length ? <Table label="Processes" columns={nodeColumns()} rows={items} keyOf={(node) => node.node_id} /> : <Empty>Your key cannot see processes.</Empty>)}
          </Reading>
        </Panel>
        <Panel title="Workers" actions={<Segments label="State" current={state} items={[{ id: "alive", text: "Alive" }, { id: "lost", text: "Lost" }, { id: "all", text: "All" }].map((each) => ({ ...each, href: changed("/fleet", new URLSearchParams(), { state: each.id === "alive" ? null : each.id }) }))} />} flush>
          <Reading of={workers} what="list of workers" rows={4}>
            {(page) =>
              page.items.length ? (
                <>
                  <Table label="Workers" columns={workerColumns()} rows={page.items} keyOf={(worker) => worker.session_id} open={(worker) => `/fleet/${worker.session_id}`} />
                  <Pager page={page} size={100} noun="worker" />
                  <TableFooter>An HTTP worker that has not run anything yet is listed only while one of its claims is waiting.</TableFooter>
                </>
              ) : state === "alive" ? (
                <Empty action={<Code label="Command" text="hourbell worker" />}>No workers are alive. Start one:</Empty>
              ) : (
                <Empty>No workers were lost recently.</Empty>
              )
            }
          </Reading>
        </Panel>
      </div>
    </>
  );
}

function nodeColumns(): Column<Node>[] {
  return [
    {
      id: "name",
      title: "Process",
      first: true,
      cell: (node) => (
        <b>
          {node.name} {node.leads && <Crown size={14} aria-label="leader" role="img" style={{ verticalAlign: "-2px" }} />}
        </b>
      ),
    },
    { id: "roles", title: "Roles", cell: (node) => node.roles.join(", ") },
    { id: "version", title: "Version", cell: (node) => node.version },
    { id: "tzdata", title: "Zone data", cell: (node) => node.tzdata },
    { id: "clock", title: "Clock", kind: "number", cell: (node) => (node.clock_drift_ms === null ? "–" : <span style={{ color: Math.abs(node.clock_drift_ms) > 500 ? "var(--failed)" : undefined }}>{signed(node.clock_drift_ms)}</span>) },
    { id: "pool", title: "Connections", kind: "number", cell: (node) => `${node.connections.in_use} of ${node.connections.size}` },
    { id: "for", title: "Up for", kind: "number", cell: (node) => rough(now() - Date.parse(node.started_at)) },
    { id: "seen", title: "Seen", kind: "nowrap", cell: (node) => (node.alive ? <Time at={node.seen_at} mode="relative" /> : <b>gone, {rough(now() - Date.parse(node.seen_at))} ago</b>) },
  ];
}

const STATES: Record<string, [string, string]> = { alive: ["Alive", "succeeded"], expired: ["No heartbeat", "retrying"], lost: ["Lost", "failed"], stopped: ["Stopped", "cancelled"] };

function State({ worker }: { worker: Worker }) {
  const [word, colour] = STATES[worker.state] ?? [worker.state, "cancelled"];
  return <Badge text={worker.quarantine ? `${word}, in quarantine` : word} colour={colour} />;
}

export function workerColumns(): Column<Worker>[] {
  return [
    {
      id: "worker",
      title: "Worker",
      first: true,
      cell: (worker) => (
        <Link className={parts.name} href={`/fleet/${worker.session_id}`}>
          {worker.worker_id ?? worker.session_id}
        </Link>
      ),
    },
    { id: "state", title: "State", kind: "nowrap", cell: (worker) => <State worker={worker} /> },
    { id: "queues", title: "Queues", cell: (worker) => (worker.ended_at ? "–" : worker.queues === null ? "all" : worker.queues.join(", ")) },
    {
      id: "slots",
      title: "Slots",
      cell: (worker) =>
        worker.slots === null ? (
          "–"
        ) : (
          <div style={{ minWidth: 120 }}>
            <Meter of={worker.slots} part={worker.running ?? 0} label={`Slots of ${worker.worker_id ?? worker.session_id}`} />
            <span className={parts.sub}>
              {counted(worker.running, worker.at_least.includes("running"))} of {group(worker.slots)}
            </span>
          </div>
        ),
    },
    { id: "for", title: "Up for", kind: "number", cell: (worker) => (worker.started_at ? rough(now() - Date.parse(worker.started_at)) : "–") },
    { id: "heartbeat", title: "Heartbeat", kind: "nowrap", cell: (worker) => (worker.renewed_at ? <Time at={worker.renewed_at} mode="relative" /> : <Time at={worker.ended_at} mode="relative" />) },
    { id: "lease", title: "Lease ends", kind: "nowrap", cell: (worker) => (worker.expires_at ? <Time at={worker.expires_at} mode="relative" /> : worker.returned !== null ? `${plural(worker.returned, "run")} returned` : "–") },
  ];
}

export function WorkerPage({ id }: { id: string }) {
  const read = useApi<WorkerDetail>(`/api/v1/workers/${id}`, undefined, { everySeconds: 5 });
  useTick(1000);
  type Held = WorkerDetail["executions"][number];
  const columns: Column<Held>[] = [
    { id: "job", title: "Job", first: true, cell: (run) => <Link className={parts.name} href={`/executions/${run.execution_id}`}>{run.job_name ?? run.job_id}</Link> },
    { id: "tenant", title: "Tenant", cell: (run) => run.tenant_id },
    { id: "attempt", title: "Attempt", kind: "number", cell: (run) => run.attempt },
    { id: "for", title: "Running for", kind: "number", cell: (run) => duration(Math.max(0, now() - Date.parse(run.claimed_at))) },
    { id: "timeout", title: "Timeout", kind: "number", cell: (run) => (run.timeout_seconds ? duration(run.timeout_seconds * 1000) : "–") },
    { id: "progress", title: "Progress", kind: "cut", cell: (run) => (run.progress === null || run.progress === undefined ? "" : JSON.stringify(run.progress)) },
  ];
  return (
    <Reading of={read} what="worker" page="Worker" rows={6}>
      {(worker) => (
        <>
          <PageHead title={worker.worker_id ?? worker.session_id} beside={<State worker={worker} />} />
          <Lead>
            {worker.ended_at ? (
              <>
                {worker.state === "lost" ? "Its lease expired" : "It stopped"} <Time at={worker.ended_at} mode="relative" />
                {worker.returned ? `; ${plural(worker.returned, "run")} went back to the queue` : ""}. Which queues and tasks it served is not kept.
              </>
            ) : (
              <>
                Serves {worker.queues === null ? "all queues" : worker.queues.join(", ")}; runs {worker.tasks === null ? "all tasks" : worker.tasks.join(", ")}.
              </>
            )}{" "}
            <code>{worker.session_id}</code>
          </Lead>
          <div className={s.stack}>
            <Counts
              items={[
                ...(worker.ended_at
                  ? ([["Ended", <Time at={worker.ended_at} mode="relative" />, null]] as [string, ReactNode, null][])
                  : ([
                      ["Running", counted(worker.running, worker.at_least.includes("running")), null],
                      ["Slots", worker.slots === null ? "–" : group(worker.slots), null],
                      ["Up for", worker.started_at ? rough(now() - Date.parse(worker.started_at)) : "–", null],
                      ["Heartbeat", <Time at={worker.renewed_at} mode="relative" />, null],
                    ] as [string, ReactNode, null][])),
              ]}
            />
            {!worker.ended_at && <Panel title="Running now" flush>
              {worker.executions.length ? <Table label="Executions" columns={columns} rows={worker.executions} keyOf={(run) => run.execution_id} /> : <Empty>Nothing right now.</Empty>}
            </Panel>}
          </div>
        </>
      )}
    </Reading>
  );
}
