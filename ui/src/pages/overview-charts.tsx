import { useMemo } from "react";

import type { Overview } from "../api/types";
import { duration, group } from "../lib/time";
import { compact, Series, type Line } from "../parts/series";
import s from "./pages.module.css";

export function Charts({ overview }: { overview: Overview }) {
  const { bucket_seconds: bucket } = overview;
  // The last bucket is incomplete: next to whole ones it would look like a drop.
  const series = useMemo(() => overview.series.slice(0, -1), [overview.series]);
  const times = useMemo(() => series.map((each) => Date.parse(each.at) / 1000), [series]);
  const perMinute = 60 / bucket;
  const counts = useMemo<Line[]>(
    () => [
      { name: "Started", token: "--mark-running", values: series.map((each) => each.started * perMinute) },
      { name: "Succeeded", token: "--mark-succeeded", dash: [6, 3], values: series.map((each) => (each.succeeded === null ? null : each.succeeded * perMinute)) },
      { name: "Failed", token: "--mark-failed", dash: [2, 3], values: series.map((each) => (each.failed === null ? null : each.failed * perMinute)) },
    ],
    [series, perMinute],
  );
  const lateness = useMemo<Line[]>(
    () => [
      { name: "p50", token: "--mark-running", values: series.map((each) => each.lateness_ms?.p50 ?? null) },
      { name: "p95", token: "--mark-late", dash: [6, 3], values: series.map((each) => each.lateness_ms?.p95 ?? null) },
      { name: "p99", token: "--mark-failed", dash: [2, 3], values: series.map((each) => each.lateness_ms?.p99 ?? null) },
    ],
    [series],
  );
  const { started, succeeded, failed } = overview.totals;
  const late = overview.lateness_ms;
  return (
    <div className={s.two}>
      <Series title="Executions per minute" times={times} lines={counts} unit={compact} sentence={`${group(started)} started, ${group(succeeded ?? 0)} succeeded, ${group(failed ?? 0)} failed attempts in the last ${overview.window}.`} />
      <Series
        title="Lateness (log scale)"
        times={times}
        lines={lateness}
        log
        unit={(value) => duration(value)}
        sentence={late ? `Half started within ${duration(late.p50)}, 99 of 100 within ${duration(late.p99)}${overview.sampled ? " (from a sample)" : ""}.` : "Nothing started in this period."}
      />
    </div>
  );
}
