// Tasks, and the hosts that webhooks call: how their runs went, what waits, and which workers run them.
import { Link } from "wouter";

import { useApi } from "../api/hooks";
import type { TaskFigures, Tasks as TaskList } from "../api/types";
import { duration, group } from "../lib/time";
import { changed, useParams } from "../lib/url";
import { counted, plural } from "../lib/words";
import { Empty, Lead, Muted, Note, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Segments } from "../parts/fields";
import { Bars } from "../parts/spark";
import { Table, TableFooter, type Column } from "../parts/table";
import s from "./pages.module.css";

const WINDOWS = ["15m", "1h", "6h", "24h"];
const ORDERS = [
  { id: "runs", text: "Runs" },
  { id: "failures", text: "Failures" },
  { id: "p50", text: "p50" },
  { id: "p95", text: "p95" },
  { id: "max", text: "Longest" },
  { id: "waiting", text: "Waiting" },
  { id: "workers", text: "Workers" },
  { id: "name", text: "Name" },
];

export function Tasks() {
  const [params] = useParams();
  const window = WINDOWS.find((each) => each === params.get("window")) ?? "1h";
  const order = ORDERS.find((each) => each.id === params.get("order"))?.id ?? "runs";
  // A day is merged from the counts of all its minutes.
  const read = useApi<TaskList>("/api/v1/tasks", { window, order }, { everySeconds: window === "24h" ? 60 : 10, keep: true });
  const to = (change: Record<string, string | null>) => changed("/tasks", new URLSearchParams(params), change);
  return (
    <>
      <PageHead title="Tasks" />
      <Lead>Tasks and the hosts that webhooks call, with the runs that ended in the window. A run is one attempt.</Lead>
      <div className={parts.filters}>
        <Segments label="Window" current={window} items={WINDOWS.map((each) => ({ id: each, text: each, href: to({ window: each === "1h" ? null : each }) }))} />
        <Segments label="Order" current={order} items={ORDERS.map((each) => ({ ...each, href: to({ order: each.id === "runs" ? null : each.id }) }))} />
      </div>
      <div className={s.stack}>
        {read.data?.sampled && <Note>More than 5,000 executions ended in some minutes. The figures of these minutes are estimates from a sample, in which a task with few runs may be missing.</Note>}
        <Panel flush label="Tasks">
          <Reading of={read} what="list of tasks" rows={8}>
            {(list) =>
              list.items.length ? (
                <>
                  <Table label="Tasks" columns={columnsOf(list, order)} rows={list.items} keyOf={(item) => `${item.task ?? ""} ${item.host ?? ""}`} />
                  {(list.left_out > 0 || list.other_runs > 0) && (
                    <TableFooter>
                      {list.left_out > 0 && `${plural(list.left_out, "more task or host", "more tasks and hosts")} are not listed. `}
                      {list.other_runs > 0 && `${plural(list.other_runs, "run")} of less frequent tasks and hosts ${list.other_runs === 1 ? "is" : "are"} not counted by task.`}
                    </TableFooter>
                  )}
                </>
              ) : (
                <Empty>Nothing ran in this window, and nothing waits. A key of one tenant sees no tasks.</Empty>
              )
            }
          </Reading>
        </Panel>
      </div>
    </>
  );
}

function columnsOf(list: TaskList, order: string): Column<TaskFigures>[] {
  const took = (share: "p50" | "p95" | "max") => (item: TaskFigures) => (item.duration_ms ? duration(item.duration_ms[share]) : "–");
  const columns: Column<TaskFigures>[] = [
    {
      id: "name",
      title: "Task",
      first: true,
      cell: (item) => (
        <Link className={parts.name} href={`/jobs?q=${encodeURIComponent(item.task ?? item.host ?? "")}`}>
          {item.task ?? item.host}
          {item.host && <span className={parts.sub}>webhooks</span>}
        </Link>
      ),
    },
    { id: "trend", title: "Trend", cell: (item) => <Trend item={item} list={list} /> },
    { id: "runs", title: "Runs", kind: "number", cell: (item) => group(item.runs) },
    { id: "failures", title: "Failures", kind: "number", cell: (item) => (item.failures ? <b style={{ color: "var(--failed)" }}>{group(item.failures)}</b> : "0") },
    { id: "p50", title: "p50", kind: "number", cell: took("p50") },
    { id: "p95", title: "p95", kind: "number", cell: took("p95") },
    { id: "max", title: "Longest", kind: "number", cell: took("max") },
    { id: "waiting", title: "Waiting", kind: "number", cell: (item) => counted(item.waiting, list.at_least.includes("waiting")) },
    { id: "workers", title: "Workers", cell: (item) => <Workers item={item} /> },
    {
      id: "error",
      title: "Last error",
      kind: "cut",
      cell: (item) =>
        item.last_error ? (
          <>
            <Link href={`/executions/${item.last_error.execution_id}`} title={item.last_error.error ?? undefined}>
              {item.last_error.error?.split("\n")[0] || "no message"}
            </Link>
            <span className={parts.sub}>
              <Time at={item.last_error.minute} mode="relative" />
            </span>
          </>
        ) : (
          ""
        ),
    },
  ];
  return columns.map((column) => ({ ...column, newestFirst: column.id === order && order !== "name" }));
}

function Workers({ item }: { item: TaskFigures }) {
  if (!item.workers) return item.waiting ? <b style={{ color: "var(--failed)" }}>none</b> : <Muted>none</Muted>;
  const more = item.workers - item.first_workers.length;
  return (
    <>
      {item.first_workers.map((worker, index) => (
        <span key={worker.session_id}>
          {index > 0 && ", "}
          <Link href={`/fleet/${worker.session_id}`}>{worker.worker_id ?? worker.session_id}</Link>
        </span>
      ))}
      {more > 0 && ` and ${group(more)} more`}
    </>
  );
}

function Trend({ item, list }: { item: TaskFigures; list: TaskList }) {
  const minutes = list.bucket_seconds / 60;
  const begin = Date.parse(list.begin);
  return (
    <div className={s.trend}>
      <Bars
        values={item.trend}
        known={item.trend.length - 1}
        label={`Runs of ${item.task ?? item.host} in parts of ${plural(minutes, "minute")}: ${item.trend.join(", ")}`}
        labels={(index) => `${plural(item.trend[index] ?? 0, "run")} in ${plural(minutes, "minute")} from ${new Date(begin + index * list.bucket_seconds * 1000).toISOString().slice(11, 16)} UTC`}
      />
    </div>
  );
}
