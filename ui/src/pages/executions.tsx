// All executions, with a view of failures in one click.
import { Link, useLocation } from "wouter";

import { now } from "../api/client";
import { useApi, useMe, useTick } from "../api/hooks";
import type { Execution, Page, Queue, Tenant } from "../api/types";
import { useSettings } from "../lib/settings";
import { startOfDay, zoneFor, zoneName } from "../lib/time";
import { changed, useParams } from "../lib/url";
import { EXECUTION_STATUSES, REASON_NAMES, statusWord } from "../lib/words";
import { Button, Empty, Muted, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Chips, Segments, Select } from "../parts/fields";
import { Pager } from "../parts/pager";
import { Table, TableFooter, type Column } from "../parts/table";
import { Views } from "../parts/views";
import { runColumns } from "./job";

const VIEWS: { id: string; text: string; status: string }[] = [
  { id: "all", text: "All", status: "" },
  { id: "live", text: "Live", status: "QUEUED,RUNNING,AWAITING,RETRYING" },
  { id: "failed", text: "Failed", status: "FAILED" },
  { id: "skipped", text: "Skipped", status: "SKIPPED" },
];

/** The current minute: a bound that moved with every render would cause a new query each time. */
export function useMinute(): number {
  useTick(10_000);
  return Math.floor(now() / 60_000) * 60_000;
}

/** The bounds of a named period. */
export function boundsOf(time: string, at: number, zone: string): { from?: string; to?: string } {
  const iso = (ms: number) => new Date(ms).toISOString();
  const today = startOfDay(at, zone);
  switch (time) {
    case "15m":
      return { from: iso(at - 900_000) };
    case "1h":
      return { from: iso(at - 3_600_000) };
    case "today":
      return { from: iso(today) };
    case "yesterday":
      return { from: iso(startOfDay(today - 1, zone)), to: iso(today) };
    case "7d":
      return { from: iso(at - 7 * 86_400_000) };
  }
  return {};
}

const FILTERS = ["status", "reason", "tenant_id", "queue", "job_id", "label", "worker"] as const;
const NAMES: Record<string, string> = { status: "status", reason: "reason", tenant_id: "tenant", queue: "queue", job_id: "job", label: "label" };

export function Executions() {
  const [params, setParams] = useParams();
  const [path, navigate] = useLocation();
  const { clock } = useSettings();
  const me = useMe();
  const zone = clock === "job" ? "UTC" : zoneFor(clock);
  const view = VIEWS.find((each) => each.id === params.get("view")) ?? VIEWS[0];
  const time = params.get("time") ?? "";
  const at = useMinute();
  const bounds = params.get("from") || params.get("to") ? { from: params.get("from") ?? undefined, to: params.get("to") ?? undefined } : boundsOf(time, at, zone);
  const status = params.get("status") ?? view?.status ?? "";
  const query = { status, reason: params.get("reason"), tenant_id: params.get("tenant_id"), queue: params.get("queue"), job_id: params.get("job_id"), label: params.get("label"), order: params.get("order") === "duration" ? "duration" : null, ...bounds };
  const read = useApi<Page<Execution>>("/api/v1/executions", { ...query, page_size: 50, page_token: params.get("after") }, { keep: true, hold: !!params.get("after") });
  const tenants = useApi<Page<Tenant>>("/api/v1/tenants", { page_size: 200 }, { enabled: !me?.tenant_id });
  const queues = useApi<Page<Queue>>("/api/v1/queues", { page_size: 200 });
  const set = (change: Record<string, string | null>) => setParams({ ...change, after: null });
  const chips = FILTERS.flatMap((name) => (params.get(name) ? [{ name: NAMES[name] ?? name, value: params.get(name) as string, remove: () => set({ [name]: null }) }] : []));
  // The server sorts the executions of one job by their times, but those of all jobs only by creation, for which it has an index.
  const longest = params.get("order") === "duration";
  const ordered = longest ? "took" : params.get("job_id") ? "scheduled" : "created";
  const columns: Column<Execution>[] = runColumns(zone);
  columns.splice(
    1,
    0,
    {
      id: "job",
      title: "Job",
      cell: (run) => (
        <Link className={parts.name} href={`/jobs/${run.job_id}`}>
          {run.job_name ?? run.job_id}
          {!me?.tenant_id && <span className={parts.sub}>{run.tenant_id}</span>}
        </Link>
      ),
    },
    { id: "created", title: "Created", kind: "nowrap", cell: (run) => <Time at={run.created_at} zone={zone} mode="short" /> },
  );
  const to = (change: Record<string, string | null>) => changed(path, new URLSearchParams(params), { after: null, ...change });
  return (
    <>
      <PageHead title="Executions" beside={<Muted>{longest ? "longest" : `latest ${ordered}`} first, times in {zone === "UTC" ? "UTC" : zoneName(now(), zone)}</Muted>} actions={<Views list="executions" path="/api/v1/executions" query={query} />} />
      <div className={parts.filters}>
        <Segments label="View" current={params.get("status") ? "" : (view?.id ?? "all")} items={VIEWS.map((each) => ({ id: each.id, text: each.text, href: to({ view: each.id === "all" ? null : each.id, status: null }) }))} />
        <span className={parts.labelled}>
          <Muted>Created</Muted>
          <Segments
            label="Created"
            current={time}
            items={[
              { id: "15m", text: "15 min" },
              { id: "1h", text: "1 h" },
              { id: "today", text: "Today" },
              { id: "yesterday", text: "Yesterday" },
              { id: "7d", text: "7 d" },
              { id: "", text: "Any time" },
            ].map((each) => ({ ...each, href: to({ time: each.id || null, from: null, to: null }) }))}
          />
        </span>
        <Select label="Order" value={longest ? "duration" : ""} onChange={(order) => set({ order: order || null })} options={[["", "Newest first"], ["duration", "Longest first"]]} />
        <Select label="Status" value={params.get("status") ?? ""} onChange={(status) => set({ status, view: null })} options={[["", "Any status"], ...EXECUTION_STATUSES.map((each): [string, string] => [each, statusWord(each)])]} />
        <Select label="Reason" value={params.get("reason") ?? ""} onChange={(reason) => set({ reason })} options={[["", "Any reason"], ...REASON_NAMES.map((each): [string, string] => [each, each.replaceAll("_", " ")])]} />
        {!me?.tenant_id && <Select label="Tenant" value={params.get("tenant_id") ?? ""} onChange={(tenant_id) => set({ tenant_id })} options={[["", "All tenants"], ...(tenants.data?.items ?? []).map((each): [string, string] => [each.tenant_id, each.tenant_id])]} />}
        <Select label="Queue" value={params.get("queue") ?? ""} onChange={(queue) => set({ queue })} options={[["", "All queues"], ...(queues.data?.items ?? []).map((each): [string, string] => [each.queue, each.queue])]} />
      </div>
      <Chips chips={chips} clear={() => navigate("/executions")} />
      <Panel flush label="Executions">
        <Reading of={read} what="list of executions" rows={12}>
          {(page) =>
            page.items.length === 0 && !page.next_page_token ? (
              <Empty action={time && time !== "7d" ? <Button onClick={() => set({ time: "7d" })}>Last 7 days</Button> : chips.length ? <Button onClick={() => navigate("/executions")}>Clear filters</Button> : undefined}>
                {time || bounds.from || bounds.to ? "No executions created in this period match." : chips.length || view ? "No executions match." : "Nothing has run yet."}
              </Empty>
            ) : (
              <>
                <Table label="Executions" columns={columns.map((column) => ({ ...column, newestFirst: column.id === ordered }))} rows={page.items} keyOf={(run) => run.execution_id + run.scheduled_for} open={(run) => `/executions/${run.execution_id}`} />
                {longest && <TableFooter>The longest of the newest 2,000 that match, or of fewer if few match. Running ones count as long as they have run.</TableFooter>}
                <Pager page={page} size={50} noun="execution" back={page.items.at(-1)?.created_at} />
              </>
            )
          }
        </Reading>
      </Panel>
    </>
  );
}
