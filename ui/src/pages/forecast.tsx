// Will tonight be all right? The load per minute, its herds, and the effect of jitter.
import { useEffect, useMemo, useRef, useState } from "react";
import { Link } from "wouter";

import { now } from "../api/client";
import { useApi, useMe } from "../api/hooks";
import type { Forecast, ForecastMinute, Herd, Page, Tenant } from "../api/types";
import { delayWords, hourRows, isCounted, loadWith, nextCell, shadeOf, shades, shadeWords, type Cell, type Row } from "../lib/forecast";
import { useSettings } from "../lib/settings";
import { absolute, group, localZone, relative, rough, timeOfDay, zoneFor, zoneName } from "../lib/time";
import { changed, useParams } from "../lib/url";
import { plural } from "../lib/words";
import { Button, Empty, Lead, Muted, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Segments, Select } from "../parts/fields";
import { Table, TableFooter, type Column } from "../parts/table";
import s from "./pages.module.css";

export function ForecastPage() {
  const [params, setParams] = useParams();
  const me = useMe();
  const hours = ["6", "12", "24", "48"].includes(params.get("hours") ?? "") ? (params.get("hours") as string) : "24";
  const read = useApi<Forecast>("/api/v1/forecast", { hours, tenant_id: params.get("tenant_id") }, { everySeconds: 60, keep: true });
  const tenants = useApi<Page<Tenant>>("/api/v1/tenants", { page_size: 200 }, { enabled: !me?.tenant_id });
  return (
    <>
      <PageHead title="Forecast" />
      <div className={parts.filters}>
        <Segments label="How far" current={hours} items={["6", "12", "24", "48"].map((id) => ({ id, text: `${id} h`, href: changed("/forecast", new URLSearchParams(params), { hours: id === "24" ? null : id }) }))} />
        {!me?.tenant_id && <Select label="Tenant" value={params.get("tenant_id") ?? ""} onChange={(tenant_id) => setParams({ tenant_id })} options={[["", "All tenants"], ...(tenants.data?.items ?? []).map((each): [string, string] => [each.tenant_id, each.tenant_id])]} />}
      </div>
      <Reading of={read} what="forecast" rows={14}>
        {(forecast) => (forecast.minutes.length ? <Content forecast={forecast} hours={hours} /> : <Panel flush label="Forecast"><Empty>Nothing is due in the next {hours} hours.</Empty></Panel>)}
      </Reading>
    </>
  );
}

function Content({ forecast, hours }: { forecast: Forecast; hours: string }) {
  const [params, setParams] = useParams();
  const opened = Math.floor(Date.parse(params.get("minute") ?? "") / 60_000) * 60_000;
  const { clock } = useSettings();
  const zone = clock === "job" ? localZone : zoneFor(clock);
  const capacity = forecast.capacity_per_minute.executions;
  const { herds, herd_moments: moments } = forecast;
  const [jitter, setJitter] = useState(120);
  const current = useMemo(() => loadWith(0, forecast.minutes, moments, capacity), [forecast, moments, capacity]);
  const spread = useMemo(() => loadWith(jitter, forecast.minutes, moments, capacity), [jitter, forecast, moments, capacity]);
  const complete = Date.parse(forecast.complete_until);
  const rows = useMemo(() => hourRows(forecast.minutes, Date.parse(forecast.begins_at), Date.parse(forecast.ends_at), complete, zone), [forecast, complete, zone]);
  const at = current.peakMinuteAt;
  const bounds = useMemo(() => shades(forecast.minutes.map((minute) => minute.executions)), [forecast]);
  return (
    <div className={s.stack}>
      <p className={s.sentence}>
        <b>
          Busiest minute: {absolute(at, zone, now(), false)} ({relative(at, now())}), {plural(current.peakMinute, "run")}.
        </b>{" "}
        {verdict(forecast, current.peakMinute, current.longestWait)}
      </p>
      {forecast.delays.length > 0 && (
        <Panel title="Where runs will wait">
          <ul className={s.stack}>
            {forecast.delays.slice(0, MOST_DELAYS).map((delay) => (
              <li key={`${delay.kind} ${delay.name ?? ""}`}>{delayWords(delay, (at) => absolute(Date.parse(at), zone, now(), false))}</li>
            ))}
          </ul>
        </Panel>
      )}
      <Panel title={`Runs due per minute, next ${hours} h`} actions={<Muted>{zone === "UTC" ? "UTC" : `${zone}, ${zoneName(now(), zone)}`}</Muted>}>
        <HeatMap
          rows={rows}
          capacity={capacity}
          zone={zone}
          peak={at}
          bounds={bounds}
          herds={herds}
          open={(minute) => {
            setParams({ minute: new Date(minute).toISOString() });
            showOpened();
          }}
        />
        <Scale bounds={bounds} capacity={capacity} />
        <Muted>Click a minute, or press Enter on it, to see its jobs.</Muted>
      </Panel>
      {!Number.isNaN(opened) && <MinuteJobs at={opened} count={countAt(forecast, opened)} zone={zone} tenant={params.get("tenant_id")} close={() => setParams({ minute: null })} />}
      <Panel title="What would jitter do?">
        {moments.length === 0 ? (
          <Muted>{herds.length === 0 ? "No two jobs are due at the same moment, so jitter would make no difference." : "Jobs that are due at the same moment are due so often that jitter would make no difference."}</Muted>
        ) : (
          <div className={s.stack}>
            <label className={s.range}>
              <span>Spread each herd over</span>
              <input type="range" min={0} max={600} step={10} value={jitter} onChange={(event) => setJitter(Number(event.target.value))} />
              <b>{jitter} s</b>
            </label>
            <table className={s.plain} style={{ maxWidth: 720 }}>
              <thead>
                <tr>
                  <th scope="col">Jitter</th>
                  <th scope="col">Busiest minute</th>
                  <th scope="col">Busiest second</th>
                  {capacity !== null && <th scope="col">Minutes above capacity</th>}
                  {capacity !== null && <th scope="col">Longest wait</th>}
                </tr>
              </thead>
              <tbody>
                {[
                  { name: "current", load: current },
                  { name: `${jitter} s`, load: spread },
                ].map(({ name, load }) => (
                  <tr key={name}>
                    <td>{name}</td>
                    <td>
                      {group(load.peakMinute)} ({timeOfDay(load.peakMinuteAt, zone, false)})
                    </td>
                    <td>{load.peakSecond === null ? "–" : group(load.peakSecond)}</td>
                    {load.minutesAbove !== null && <td>{group(load.minutesAbove)}</td>}
                    {load.longestWait !== null && <td>{rough(load.longestWait * 1000)}</td>}
                  </tr>
                ))}
              </tbody>
            </table>
            <Muted>Computed on this page from every moment a herd is due. Jitter delays each job by its own fixed time; set it in the job’s schedule, or write H for the minute.</Muted>
          </div>
        )}
      </Panel>
      {herds.length > 0 && (
        <Panel title="Herds: jobs due at the same moment" flush>
          <Herds herds={herds} />
        </Panel>
      )}
      <Lead>
        Complete until {absolute(complete, zone, now(), false)}. {forecast.estimated ? "Some schedules have too many jobs to count and are estimated. " : ""}
        How long runs take is what the last runs of the same schedule, or else of their queue, took. Not known in advance, and not included: limits by number of runs, overlaps, runs on request, and what waits already.
      </Lead>
    </div>
  );
}

const MOST_DELAYS = 8;

/** Whether runs will start on time, as far as that is known. */
function verdict(forecast: Forecast, peak: number, longestWait: number | null): string {
  const { executions: capacity, reason } = forecast.capacity_per_minute;
  if (forecast.delays.length > 0) return "Not all will start on time.";
  if (capacity !== null && peak > capacity) return `The most this installation has run in a minute is ${group(capacity)}. If that is its limit, the last of them will start about ${rough((longestWait ?? 0) * 1000)} late.`;
  if (forecast.untimed > 0) return `How long ${plural(forecast.untimed, "run")} will take is not known, because nothing like them has run yet: whether all start on time cannot be said.`;
  if (capacity === null) return `The capacity of this installation is not known yet. ${reason ?? ""}`;
  return `This installation has run up to ${group(capacity)} in a minute, and no limit is in the way: all should start on time.`;
}

function Scale({ bounds, capacity }: { bounds: number[]; capacity: number | null }) {
  return (
    <ul className={s.scale} aria-label="Scale">
      {shadeWords(bounds).map((word, index) => (
        <li key={word}>
          <i style={{ background: `var(--heat-${index})` }} />
          {word}
        </li>
      ))}
      {capacity !== null && (
        <li>
          <i style={{ background: "repeating-linear-gradient(135deg, var(--bg) 0 2px, var(--heat-4) 2px 5px)" }} />
          above {group(capacity)} a minute
        </li>
      )}
    </ul>
  );
}

function countAt(forecast: Forecast, minute: number): number {
  return forecast.minutes.find((each) => Date.parse(each.at) === minute)?.executions ?? 0;
}

const OPENED = "opened-minute";
const BELOW_BAR = 64; // the bar stays at the top of the window

/** Scrolls to the open minute, if there is one. */
function showOpened(): void {
  const panel = document.getElementById(OPENED);
  // For a list above the viewport, the nearest edge would be its end.
  panel?.scrollIntoView({ block: panel.getBoundingClientRect().top < BELOW_BAR ? "start" : "nearest" });
}

/** The jobs of one minute. */
function MinuteJobs({ at, count, zone, tenant, close }: { at: number; count: number; zone: string; tenant: string | null; close: () => void }) {
  const read = useApi<ForecastMinute>("/api/v1/forecast/minute", { at: new Date(at).toISOString(), tenant_id: tenant }, { keep: true });
  const me = useMe();
  const ofTenant = Boolean(tenant || me?.tenant_id);
  useEffect(showOpened, [at]);
  type Due = ForecastMinute["items"][number];
  const columns: Column<Due>[] = [
    {
      id: "job",
      title: "Job",
      first: true,
      cell: (due) => (
        <Link className={parts.name} href={due.execution_id ? `/executions/${due.execution_id}` : `/jobs/${due.job_id}`}>
          {due.job_name ?? due.job_id}
        </Link>
      ),
    },
    { id: "tenant", title: "Tenant", cell: (due) => due.tenant_id },
    { id: "at", title: "Due", kind: "nowrap", cell: (due) => <Time at={due.at} zone={zone} mode="short" /> },
    { id: "planned", title: "Planned", cell: (due) => (due.execution_id ? "yes" : "not yet") },
  ];
  return (
    <div id={OPENED} style={{ scrollMarginTop: BELOW_BAR }}>
      <Panel title={`Due at ${absolute(at, zone, now(), false)}`} actions={<Button small onClick={close}>Close</Button>} flush>
        <Reading of={read} what="jobs of this minute" rows={4}>
          {(minute) =>
            minute.items.length === 0 ? (
              <Empty>{!minute.more ? "Nothing is due in this minute." : ofTenant ? "There are too many jobs to look up this minute. Try again closer to it." : "Too many schedules are due before this minute to look it up. Choose a tenant, or try again closer to it."}</Empty>
            ) : (
              <>
                <Table label="Jobs of this minute" columns={columns} rows={minute.items} keyOf={(due) => `${due.job_id} ${due.at} ${due.execution_id ?? ""}`} />
                <TableFooter>{listedWords(minute, count)}</TableFooter>
              </>
            )
          }
        </Reading>
      </Panel>
    </div>
  );
}

function listedWords({ items, more }: ForecastMinute, count: number): string {
  const listed = items.length;
  if (!more) return `${plural(listed, "run")}.`;
  // The count may be too low, or unknown.
  return count > listed ? `The first ${group(listed)} of ${plural(count, "run")}.` : `The first ${group(listed)}; there are more.`;
}

/** A grid with one tab stop; arrow keys move, and the line above describes the cell. */
function HeatMap({ rows, capacity, zone, peak, bounds, herds, open }: { rows: Row[]; capacity: number | null; zone: string; peak: number; bounds: number[]; herds: Herd[]; open: (minute: number) => void }) {
  const start = useMemo(() => {
    const row = Math.max(0, rows.findIndex((each) => peak >= each.begins && peak < each.begins + 3_600_000 && each.cells.some((_, index) => minuteAt(each, index) === peak)));
    const cells = rows[row]?.cells ?? [];
    const cell = cells.findIndex((_, index) => rows[row] !== undefined && minuteAt(rows[row], index) === peak);
    return { row, cell: Math.max(0, cell) };
  }, [rows, peak]);
  const [moved, setMoved] = useState<Cell | null>(null);
  const current = moved ?? start;
  const table = useRef<HTMLTableElement>(null);
  useEffect(() => setMoved(null), [rows.length, zone]);

  function move(event: React.KeyboardEvent) {
    const next = nextCell(event.key, current, rows);
    if (!next) return;
    event.preventDefault();
    setMoved(next);
    table.current?.querySelector<HTMLElement>(`[data-cell="${next.row}-${next.cell}"]`)?.focus();
  }

  const shown = rows[current.row];
  const count = shown?.cells[current.cell] ?? null;
  const at = shown ? minuteAt(shown, current.cell) : null;
  const herd = at === null ? undefined : herds.find((each) => Math.floor(Date.parse(each.at) / 60_000) * 60_000 === at);
  return (
    <>
      <p className={s.cellText} aria-live="polite">
        {at !== null && (
          <>
            <b>{absolute(at, zone, now(), false)}</b>
            {zone !== "UTC" && ` (${timeOfDay(at, "UTC", false)} UTC)`}: {count === null ? "not in the forecast" : plural(count, "run")}
            {capacity !== null && count !== null && count > capacity ? ", more than it has ever run in a minute" : ""}
            {herd ? `. Largest herd: ${herd.words}` : ""}
          </>
        )}
      </p>
      <div className={s.heatBox} tabIndex={-1}>
        <table ref={table} className={s.heat} role="grid" aria-label="Runs due per minute" onKeyDown={move}>
          <thead>
            <tr>
              <th scope="col">
                <span className="visually-hidden">Hour</span>
              </th>
              {[0, 15, 30, 45].map((minute) => (
                <th key={minute} scope="col" colSpan={15}>
                  :{String(minute).padStart(2, "0")}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row, rowIndex) => (
              <tr key={row.begins}>
                <th scope="row">{rowIndex === 0 || rows[rowIndex - 1]?.day !== row.day ? `${row.day} ${row.label}` : row.label}</th>
                {row.cells.map((value, index) => (
                  <td key={index}>
                    {value === null ? (
                      <span data-none="true" />
                    ) : !isCounted(row, index) ? (
                      <span data-unknown="true" />
                    ) : (
                      <button
                        type="button"
                        data-cell={`${rowIndex}-${index}`}
                        data-bin={shadeOf(value, bounds)}
                        data-above={capacity !== null && value > capacity}
                        tabIndex={rowIndex === current.row && index === current.cell ? 0 : -1}
                        aria-label={`${timeOfDay(minuteAt(row, index), zone, false)}, ${value}`}
                        onFocus={() => setMoved({ row: rowIndex, cell: index })}
                        onMouseEnter={() => setMoved({ row: rowIndex, cell: index })}
                        onClick={() => {
                          setMoved({ row: rowIndex, cell: index });
                          open(minuteAt(row, index));
                        }}
                      />
                    )}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** The instant of a cell: rows may begin within their hour. */
function minuteAt(row: Row, index: number): number {
  const first = row.cells.findIndex((cell) => cell !== null);
  return row.begins + (index - Math.max(0, first)) * 60_000;
}

function tenantNames(herd: Herd): string {
  return herd.tenants.join(", ");
}

function Herds({ herds }: { herds: Herd[] }) {
  const [params] = useParams();
  const columns: Column<Herd>[] = [
    { id: "at", title: "At", first: true, kind: "nowrap", cell: (herd) => <Time at={herd.at} zone={herd.timezone} mode="absolute" /> },
    { id: "executions", title: "Runs", kind: "number", cell: (herd) => <b>{group(herd.executions)}</b> },
    { id: "rule", title: "Rule", kind: "nowrap", cell: (herd) => (herd.rule.startsWith("@every") ? herd.words.replace(/\.$/, "") : <code title={herd.words}>{herd.rule}</code>) },
    { id: "zone", title: "Zone", cell: (herd) => herd.timezone },
    { id: "jobs", title: "Jobs", kind: "number", cell: (herd) => group(herd.jobs) },
    { id: "tenants", title: "Tenants", cell: tenantNames },
    { id: "open", title: "Jobs of it", cell: (herd) => <Link href={changed("/forecast", new URLSearchParams(params), { minute: `${herd.at.slice(0, 17)}00Z` })} onClick={showOpened}>Jobs</Link>, unlabelled: true },
  ];
  return <Table label="Herds" columns={columns} rows={herds.slice(0, 20)} keyOf={(herd) => `${herd.at} ${herd.rule} ${herd.timezone}`} />;
}
