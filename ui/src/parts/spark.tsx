// Small SVG charts: the last runs of a job, the load of a day, the history of runs.
import { useEffect, useId, useMemo, useRef, useState } from "react";
import { useLocation } from "wouter";

import { now } from "../api/client";
import type { Execution, Outcome } from "../api/types";
import { useSettings } from "../lib/settings";
import { absolute, duration, zoneFor } from "../lib/time";
import { LIVE, plural, statusWord } from "../lib/words";
import s from "./spark.module.css";

/** A shape for a status, so that colour is not needed to read it. */
function shapeOf(status: string): "bar" | "cross" | "diamond" | "ring" | "open" {
  if (status === "DEAD" || status === "FAILED") return "cross";
  if (status === "SKIPPED") return "diamond";
  if (status === "CANCELLED" || status === "SUPERSEDED") return "ring";
  return LIVE.includes(status as never) ? "open" : "bar";
}

function markOf(status: string): string {
  const name = { SUPERSEDED: "cancelled", SCHEDULED: "line", QUEUED: "running", AWAITING: "running" }[status] ?? status.toLowerCase();
  return `var(--mark-${name})`;
}

function Mark({ status, x, y, size }: { status: string; x: number; y: number; size: number }) {
  const colour = markOf(status);
  const half = size / 2;
  switch (shapeOf(status)) {
    case "cross":
      return <path d={`M${x - half} ${y - half}L${x + half} ${y + half}M${x + half} ${y - half}L${x - half} ${y + half}`} stroke={colour} strokeWidth={2} fill="none" />;
    case "diamond":
      return <path d={`M${x} ${y - half}L${x + half} ${y}L${x} ${y + half}L${x - half} ${y}Z`} fill="none" stroke={colour} strokeWidth={1.75} />;
    case "ring":
      return <circle cx={x} cy={y} r={half - 0.5} fill="none" stroke={colour} strokeWidth={1.75} />;
    case "open":
      return <rect x={x - half + 0.75} y={y - half + 0.75} width={size - 1.5} height={size - 1.5} rx={1} fill="none" stroke={colour} strokeWidth={1.5} />;
    default:
      return <rect x={x - half} y={y - half} width={size} height={size} rx={1} fill={colour} />;
  }
}

const STEP = 6;

/** The last runs, oldest first: filled is succeeded, a cross is dead, a diamond is skipped. */
export function LastRuns({ outcomes }: { outcomes: Outcome[] }) {
  const shown = outcomes.slice(0, 20).reverse();
  const counts = new Map<string, number>();
  for (const { status } of shown) counts.set(status, (counts.get(status) ?? 0) + 1);
  const words = [...counts].map(([status, count]) => `${count} ${statusWord(status).toLowerCase()}`).join(", ");
  if (!shown.length) return <span className={s.none}>No runs yet</span>;
  const label = `Last ${plural(shown.length, "run")}: ${words}`;
  return (
    <svg className={s.last} width={20 * STEP} height={14} viewBox={`0 0 ${20 * STEP} 14`} role="img" aria-label={label}>
      <title>{label}</title>
      {shown.map((outcome, index) => {
        const x = index * STEP + STEP / 2;
        return outcome.status === "SUCCEEDED" ? <rect key={outcome.execution_id} x={x - 2} y={2} width={4} height={10} rx={1} fill={markOf(outcome.status)} /> : <Mark key={outcome.execution_id} status={outcome.status} x={x} y={7} size={5} />;
      })}
    </svg>
  );
}

/** Counts as bars, such as the executions due per hour. Only the first `known` are complete; the others are pale. */
export function Bars({ values, known, label, labels }: { values: number[]; known: number; label: string; labels: (index: number) => string }) {
  const most = Math.max(1, ...values);
  const step = 100 / Math.max(1, values.length);
  return (
    <svg className={s.bars} viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label={label}>
      {values.map((value, index) => {
        const height = value ? Math.max(1.2, (value / most) * 38) : 0;
        return (
          <rect key={index} x={index * step + step * 0.12} y={40 - height} width={step * 0.76} height={height} fill={value === most ? "var(--heat-4)" : "var(--heat-3)"} opacity={index < known ? 1 : 0.4}>
            <title>{labels(index)}</title>
          </rect>
        );
      })}
      <path d="M0 39.8H100" stroke="var(--line-strong)" strokeWidth={0.4} vectorEffect="non-scaling-stroke" />
    </svg>
  );
}

const UP = 150;
const DOWN = 44;
const GAP = 10;
const WIDEST = 4000; // the line ends with the panel, however few runs there are

function logHeight(ms: number, most: number, size: number): number {
  if (ms <= 0) return 1;
  return Math.max(2, (Math.log10(1 + ms) / Math.log10(1 + Math.max(most, 10))) * size);
}

/** Each run of a job: upwards how long it took, downwards how late it started, both on a log scale. */
export function RunsChart({ runs, zone }: { runs: Execution[]; zone: string }) {
  const { clock } = useSettings();
  const [, navigate] = useLocation();
  const [current, setCurrent] = useState(-1);
  const group = useRef<SVGSVGElement>(null);
  const id = useId();
  const shown = useMemo(() => runs.slice(0, 100).reverse(), [runs]);
  const longest = Math.max(0, ...shown.map((run) => run.duration_ms ?? 0));
  const latest = Math.max(0, ...shown.map((run) => run.lateness_ms ?? 0));
  const slot = shown.length > 60 ? 10 : shown.length > 30 ? 14 : 20;
  const width = Math.max(320, shown.length * slot + 8);
  const height = UP + GAP + DOWN + 4;
  const at = current >= 0 ? shown[current] : undefined;

  useEffect(() => {
    // The newest runs are at the right end.
    const box = group.current?.parentElement;
    if (box) box.scrollLeft = box.scrollWidth;
  }, [shown.length]);

  function text(run: Execution): string {
    const parts = [absolute(Date.parse(run.scheduled_for), zoneFor(clock, zone), now(), false), statusWord(run.status).toLowerCase()];
    if (run.reason) parts.push(run.reason.replaceAll("_", " "));
    if (run.duration_ms !== null) parts.push(`took ${duration(run.duration_ms)}`);
    if (run.lateness_ms !== null) parts.push(`started ${duration(run.lateness_ms)} late`);
    if (run.attempt > 1) parts.push(`${run.attempt} attempts`);
    return parts.join(", ");
  }

  function move(event: React.KeyboardEvent) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -shown.length, End: shown.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(shown.length - 1, (current < 0 ? shown.length - 1 : current) + step));
    setCurrent(next);
    group.current?.querySelectorAll<SVGElement>("a")[next]?.focus();
  }

  return (
    <figure className={s.runs}>
      <div className={s.scroll} tabIndex={-1}>
        <svg ref={group} width={width} height={height} viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="xMinYMin" role="group" aria-labelledby={id} onKeyDown={move}>
          <path d={`M0 ${UP + GAP / 2}H${WIDEST}`} stroke="var(--line-strong)" strokeWidth={1} />
          {shown.map((run, index) => {
            const x = index * slot + slot / 2 + 4;
            const ran = run.duration_ms !== null;
            const bar = ran ? logHeight(run.duration_ms ?? 0, longest, UP - 14) : 0;
            const late = run.lateness_ms !== null ? logHeight(run.lateness_ms, latest, DOWN) : 0;
            const focusable = index === (current < 0 ? shown.length - 1 : current);
            return (
              <a
                key={run.execution_id}
                href={`/executions/${run.execution_id}`}
                tabIndex={focusable ? 0 : -1}
                aria-label={text(run)}
                onFocus={() => setCurrent(index)}
                onMouseEnter={() => setCurrent(index)}
                onClick={(event) => {
                  if (event.metaKey || event.ctrlKey) return;
                  event.preventDefault();
                  navigate(`/executions/${run.execution_id}`);
                }}
              >
                <rect className={s.hit} x={x - slot / 2} y={0} width={slot} height={height} data-current={index === current} />
                {ran && <rect x={x - slot * 0.32} y={UP - bar} width={slot * 0.64} height={bar} rx={1.5} fill={markOf(run.status)} />}
                {run.attempt > 1 && run.status === "SUCCEEDED" && <circle cx={x} cy={UP - bar - 5} r={2.2} fill="var(--mark-retrying)" />}
                {run.status !== "SUCCEEDED" && <Mark status={run.status} x={x} y={Math.max(6, UP - bar - 7)} size={Math.min(9, slot - 2)} />}
                {late > 0 && <rect x={x - slot * 0.2} y={UP + GAP} width={slot * 0.4} height={late} rx={1} fill="var(--mark-late)" opacity={0.75} />}
              </a>
            );
          })}
        </svg>
      </div>
      <figcaption id={id} className={s.caption}>
        {at ? text(at) : summary(shown)}
      </figcaption>
    </figure>
  );
}

export function quantile(values: number[], share: number): number | null {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? null;
}

export function summary(runs: Execution[]): string {
  const took = runs.flatMap((run) => (run.duration_ms === null ? [] : [run.duration_ms]));
  const late = runs.flatMap((run) => (run.lateness_ms === null ? [] : [run.lateness_ms]));
  const count = (status: string) => runs.filter((run) => run.status === status).length;
  const parts = [plural(runs.length, "run")];
  const [p50, p95, late95] = [quantile(took, 0.5), quantile(took, 0.95), quantile(late, 0.95)];
  if (p50 !== null && p95 !== null) parts.push(`took p50 ${duration(p50)}, p95 ${duration(p95)}`);
  if (late95 !== null) parts.push(`late p95 ${duration(late95)}`);
  for (const status of ["SKIPPED", "DEAD", "CANCELLED"]) if (count(status)) parts.push(`${count(status)} ${status.toLowerCase()}`);
  return parts.join(" · ");
}

/** What the marks mean. */
export function Legend() {
  const items = ["SUCCEEDED", "DEAD", "SKIPPED", "CANCELLED", "RUNNING"];
  return (
    <ul className={s.legend} aria-label="Legend">
      {items.map((status) => (
        <li key={status}>
          <svg width={12} height={12} viewBox="0 0 12 12" aria-hidden>
            <Mark status={status} x={6} y={6} size={8} />
          </svg>
          {statusWord(status)}
        </li>
      ))}
      <li>
        <svg width={12} height={12} viewBox="0 0 12 12" aria-hidden>
          <circle cx={6} cy={6} r={2.6} fill="var(--mark-retrying)" />
        </svg>
        Retried
      </li>
      <li>
        <svg width={12} height={12} viewBox="0 0 12 12" aria-hidden>
          <rect x={4} y={1} width={4} height={10} fill="var(--mark-late)" opacity={0.75} />
        </svg>
        Late (downwards)
      </li>
    </ul>
  );
}

