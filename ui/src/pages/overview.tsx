// Is all well, and will tonight be all right?
import { useQuery } from "@tanstack/react-query";
import { AlertTriangle, CheckCircle2, Info, OctagonAlert } from "lucide-react";
import { lazy, Suspense } from "react";
import { Link } from "wouter";

import { now } from "../api/client";
import { useApi, useMe, useTick } from "../api/hooks";
import type { Attention, Depth, Job, Leader, Overview as OverviewData, Page, WaitingFor } from "../api/types";
import { useSettings } from "../lib/settings";
import { absolute, duration, group, relative, rough, signed, timeOfDay, zoneFor } from "../lib/time";
import { currentRate } from "../lib/rate";
import { changed, useParams } from "../lib/url";
import { counted, plural, statusWord } from "../lib/words";
import { Backlog } from "../parts/backlog";
import { ButtonLink, Code, Loading, Meter, Muted, PageHead, Panel, Reading, Time, Told } from "../parts/basics";
import { Segments } from "../parts/fields";
import { Bars } from "../parts/spark";
import s from "./pages.module.css";

const Charts = lazy(() => import("./overview-charts").then((part) => ({ default: part.Charts })));

const WINDOWS = ["15m", "1h", "6h", "24h"];

interface Live {
  at: string;
  depth: Depth[];
  waiting_for: WaitingFor[];
  workers: OverviewData["workers"];
  leader: Leader | null;
}

export function Overview() {
  const [params] = useParams();
  const window = WINDOWS.includes(params.get("window") ?? "") ? (params.get("window") as string) : "1h";
  const read = useApi<OverviewData>("/api/v1/overview", { window }, { keep: true, everySeconds: 10 });
  return (
    <>
      <PageHead title="Overview" />
      <Reading of={read} what="overview" rows={12}>
        {(overview) => <Content overview={overview} window={window} />}
      </Reading>
    </>
  );
}

function Content({ overview, window }: { overview: OverviewData; window: string }) {
  const last = useQuery<Live>({ queryKey: ["live"], enabled: false }).data;
  // After the stream has broken, what it said last is older than what is read every few seconds.
  const live = last && Date.parse(last.at) > Date.parse(overview.at) ? last : undefined;
  const { clock } = useSettings();
  const depth = live?.depth.length ? live.depth : overview.depth;
  const waiting = live?.waiting_for ?? overview.waiting_for;
  const leader = live?.leader ?? overview.leader;
  const workers = live?.workers ?? overview.workers;
  const cell = overview.tenant_id === null;
  return (
    <div className={s.stack}>
      <NeedsAttention items={overview.attention} overview={overview} />
      <Tonight peak={overview.peak} known={overview.peak_known} clockZone={zoneFor(clock)} />
      <Figures overview={overview} window={window} />
      {cell && (
        <Panel
          title="Throughput and lateness"
          actions={<Segments label="Window" current={window} items={WINDOWS.map((id) => ({ id, text: id, href: changed("/", new URLSearchParams(), { window: id === "1h" ? null : id }) }))} />}
          flush
        >
          <Suspense fallback={<Loading rows={7} />}>
            <Charts overview={overview} />
          </Suspense>
        </Panel>
      )}
      {!cell && waiting.length > 0 && (
        <Panel title="Waiting for">
          <Backlog waiting={waiting} />
        </Panel>
      )}
      {cell && (
        <div className={s.wide}>
          <DepthPanel depth={depth} waiting={waiting} />
          <CellPanel leader={leader} workers={workers} failures={overview.failures} window={window} />
        </div>
      )}
    </div>
  );
}

function Figures({ overview, window }: { overview: OverviewData; window: string }) {
  const late = overview.lateness_ms;
  const { started, failed } = overview.totals;
  const share = failed !== null && started ? (failed / started) * 100 : null;
  return (
    <div className={s.figures}>
      <Link className={s.figure} href="/executions">
        <span>Started per minute</span>
        <b>{group(Math.round(currentRate(overview.series, overview.bucket_seconds)))}</b>
      </Link>
      <div className={s.figure}>
        <span>Lateness p50, {window}</span>
        <b>{late ? duration(late.p50) : "–"}</b>
      </div>
      <div className={s.figure}>
        <span>Lateness p95, {window}</span>
        <b>{late ? duration(late.p95) : "–"}</b>
      </div>
      <div className={s.figure}>
        <span>Lateness p99, {window}</span>
        <b>{late ? duration(late.p99) : "–"}</b>
      </div>
      <Link className={s.figure} href="/executions?view=failed">
        <span title="Failed attempts">Failed, {window}</span>
        <b>
          {failed === null ? "–" : group(failed)} {share !== null && <small>{share >= 0.05 || share === 0 ? share.toFixed(1) : "<0.1"}%</small>}
        </b>
      </Link>
      <Link className={s.figure} href="/dead-letters">
        <span>Dead today</span>
        <b>{counted(overview.dead_today.count, overview.dead_today.at_least)}</b>
      </Link>
    </div>
  );
}

// A forecast that the server has read is used for so long.
const PEAK_AGE = 5 * 60_000;

const ICONS = { error: OctagonAlert, warning: AlertTriangle, info: Info };

function NeedsAttention({ items, overview }: { items: Attention[]; overview: OverviewData }) {
  const jobs = useApi<Page<Job>>("/api/v1/jobs", { page_size: 1 });
  if (jobs.data && jobs.data.items.length === 0 && items.length === 0) return <FirstSteps workers={overview.workers?.alive ?? 0} />;
  if (!items.length) return <AllIsWell overview={overview} />;
  return (
    <section aria-labelledby="attention">
      <div className={s.entryHead} style={{ marginBottom: 8 }}>
        <h2 id="attention">Needs attention</h2>
        <Muted>{items.length}</Muted>
      </div>
      <ul className={s.attention}>
        {items.map((item, index) => {
          const Icon = ICONS[item.severity];
          const way = wayOf(item);
          return (
            <li key={index} data-severity={item.severity}>
              <Icon size={18} aria-label={item.severity} role="img" />
              <p>
                <Told text={item.refers_to.kind === "dead_letters" && item.refers_to.id ? item.message.replace(item.refers_to.id, item.refers_to.id.replaceAll("_", " ")) : item.message} />
                {overview.tenant_id === null && item.refers_to.tenant_id && <Muted> · {item.refers_to.tenant_id}</Muted>}
              </p>
              <span className={s.since}>{item.since && <Time at={item.since} mode="relative" />}</span>
              {way && (
                <ButtonLink small href={way.href}>
                  {way.text}
                </ButtonLink>
              )}
            </li>
          );
        })}
      </ul>
    </section>
  );
}

/** The link of an item, and its text. */
export function wayOf(item: Attention): { href: string; text: string } | null {
  const { kind, id } = item.refers_to;
  switch (kind) {
    case "job":
      return { href: `/jobs/${id}`, text: "Why?" };
    case "execution":
      return { href: `/executions/${id}`, text: "Why?" };
    case "queue":
      return { href: `/queues/${encodeURIComponent(id ?? "")}`, text: "Queue" };
    case "target":
      return { href: "/targets", text: "Target" };
    case "tenant":
      return { href: `/tenants/${encodeURIComponent(id ?? "")}`, text: "Tenant" };
    case "monitor":
      return { href: "/monitors", text: "Monitor" };
    case "dead_letters":
      return { href: changed("/dead-letters", new URLSearchParams({ time: "7d" }), { reason: id }), text: "Dead letters" };
    case "node":
    case "worker":
    case "cell":
      return { href: "/fleet", text: "Fleet" };
  }
  return null;
}

function AllIsWell({ overview }: { overview: OverviewData }) {
  return (
    <div className={s.well}>
      <CheckCircle2 size={20} aria-hidden />
      <p>
        All is well. {overview.workers ? `${plural(overview.workers.alive, "worker")} alive, ` : ""}
        {counted(overview.dead_today.count, overview.dead_today.at_least)} dead today.
      </p>
    </div>
  );
}

function FirstSteps({ workers }: { workers: number }) {
  const can = useMe()?.operations.includes("create_job");
  return (
    <Panel title="Three steps to a first run">
      <ol className={s.steps}>
        <li>
          <strong>{workers ? "A worker is running" : "Start a worker"}</strong>
          {workers ? <Muted>{plural(workers, "worker")} alive, nothing to do.</Muted> : <Code label="Command" text="hourbell worker" />}
        </li>
        <li>
          <strong>Create a job</strong>
          <span>{can ? <ButtonLink kind="primary" href="/jobs/new">New job</ButtonLink> : <Muted>Your key is read-only. A producer key can create jobs.</Muted>}</span>
        </li>
        <li>
          <strong>Watch it run</strong>
          <Muted>
            It appears under <Link href="/executions">Executions</Link> when it is due.
          </Muted>
        </li>
      </ol>
    </Panel>
  );
}

function Tonight({ peak, known, clockZone }: { peak: OverviewData["peak"]; known: boolean; clockZone: string }) {
  useTick(30_000);
  if (!peak) {
    return (
      <Panel title="Next 24 hours" actions={<Link href="/forecast">Forecast</Link>}>
        <Muted>{known ? "Nothing is due in the next 24 hours." : "The forecast is being computed …"}</Muted>
      </Panel>
    );
  }
  const at = Date.parse(peak.at);
  const total = peak.hours.reduce((sum, count) => sum + count, 0);
  const begins = now();
  const complete = Date.parse(peak.complete_until);
  const whole = complete >= begins + peak.hours.length * 3_600_000 - PEAK_AGE;
  const label = (index: number) => `${timeOfDay(begins + index * 3_600_000, clockZone, false)} to ${timeOfDay(begins + (index + 1) * 3_600_000, clockZone, false)}: ${plural(peak.hours[index] ?? 0, "run")}`;
  return (
    <Panel title="Next 24 hours" actions={<Link href="/forecast">Forecast</Link>}>
      <div className={s.tonight}>
        <p>
          Busiest minute: <b>{absolute(at, clockZone, now(), false)}</b> ({relative(at, now())}), {plural(peak.executions, "run")}. {group(total)} in all.
          {peak.capacity_per_minute !== null && (peak.executions <= peak.capacity_per_minute ? ` It has done up to ${group(peak.capacity_per_minute)} in a minute, so all should start on time.` : ` The most it has done in a minute is ${group(peak.capacity_per_minute)}, so some may start late.`)}
          {peak.estimated ? " Some schedules are estimated." : ""}
          {!whole ? ` Counted in full until ${absolute(complete, clockZone, now(), false)}.` : ""}
        </p>
        <Bars values={peak.hours} known={whole ? peak.hours.length : Math.floor((complete - begins) / 3_600_000)} label={`Runs due in each of the next 24 hours: ${peak.hours.join(", ")}`} labels={label} />
        <div className={s.hours} aria-hidden>
          {[0, 6, 12, 18, 24].map((hour) => (
            <span key={hour}>{hour === 0 ? "now" : `+${hour} h`}</span>
          ))}
        </div>
      </div>
    </Panel>
  );
}

function DepthPanel({ depth, waiting }: { depth: Depth[]; waiting: WaitingFor[] }) {
  return (
    <Panel title="Depth by priority">
      <table className={s.plain}>
        <thead>
          <tr>
            <th scope="col">Priority</th>
            <th scope="col">Ready</th>
            <th scope="col">Parked</th>
            <th scope="col">Running</th>
            <th scope="col">Oldest</th>
          </tr>
        </thead>
        <tbody>
          {depth.map((row) => (
            <tr key={row.priority}>
              <td>{statusWord(row.priority)}</td>
              <td>{counted(row.ready, row.at_least.includes("ready"))}</td>
              <td>{counted(row.parked, row.at_least.includes("parked"))}</td>
              <td>{counted(row.running, row.at_least.includes("running"))}</td>
              <td>{row.oldest_seconds === null ? "–" : duration(row.oldest_seconds * 1000)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {waiting.length > 0 && (
        <>
          <h3 className={s.minor}>Waiting for</h3>
          <Backlog waiting={waiting} />
        </>
      )}
    </Panel>
  );
}

function CellPanel({ leader, workers, failures, window }: { leader: Leader | null; workers: OverviewData["workers"]; failures: OverviewData["failures"]; window: string }) {
  useTick(1000);
  return (
    <Panel title="Leader and workers" actions={<Link href="/fleet">Fleet</Link>}>
      <dl className={s.diff}>
        <dt>Leader</dt>
        <dd>
          {leader === null ? (
            "There has been none yet. Start hourbell scheduler."
          ) : leader.present ? (
            <>
              <b>{leader.name ?? "present"}</b>, epoch {leader.epoch}
              {leader.since ? `, for ${rough(now() - Date.parse(leader.since))}` : ""}
            </>
          ) : (
            <b>missing</b>
          )}
        </dd>
        {leader && (
          <>
            <dt>Planned until</dt>
            <dd>
              {leader.planned_until ? relative(Date.parse(leader.planned_until), now()) : "–"}
              {leader.planner_lag_seconds !== null && leader.planner_lag_seconds >= 1 ? `, ${duration(leader.planner_lag_seconds * 1000)} behind` : ""}
            </dd>
            <dt>Clock</dt>
            <dd>{leader.clock_drift_ms === null ? "–" : `${signed(leader.clock_drift_ms)} from the database`}</dd>
          </>
        )}
        {workers && (
          <>
            <dt>Workers</dt>
            <dd>
              {group(workers.alive)} alive{workers.lost_in_1h ? `, ${group(workers.lost_in_1h)} lost in 1 h` : ""}
            </dd>
            <dt>Slots</dt>
            <dd>
              <Meter of={workers.slots} part={workers.running} label="Slots in use" />
              {group(workers.running)} of {group(workers.slots)} in use
            </dd>
          </>
        )}
        <dt>Not succeeded, {window}</dt>
        <dd>
          {failures.length === 0
            ? "none"
            : failures.slice(0, 4).map((failure, index) => (
                <span key={failure.reason}>
                  {index > 0 && ", "}
                  <Link href={`/executions?reason=${encodeURIComponent(failure.reason)}`}>
                    {failure.reason.replaceAll("_", " ")} {group(failure.count)}
                  </Link>
                </span>
              ))}
        </dd>
      </dl>
    </Panel>
  );
}
