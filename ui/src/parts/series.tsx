// Time series on a canvas, with a sentence and a table as alternatives for people who cannot see it.
import { useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { now } from "../api/client";
import { isDark, useSettings } from "../lib/settings";
import { group, timeOfDay, zoneFor } from "../lib/time";
import { Button, styles as parts } from "./basics";
import s from "./series.module.css";

export interface Line {
  name: string;
  token: string; // the colour, as a custom property
  dash?: number[];
  values: (number | null)[];
}

interface Props {
  title: string;
  sentence: string;
  times: number[]; // seconds since 1970
  lines: Line[];
  log?: boolean;
  unit: (value: number) => string;
}

// The axis of few counts has whole numbers.
const FEW = 4;

export function Series({ title, sentence, times, lines, log, unit }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const { clock } = useSettings();
  const dark = isDark();
  const [table, setTable] = useState(false);
  const zone = zoneFor(clock);
  const data = useMemo(
    // A log scale has no zero.
    () => [times, ...lines.map((line) => (log ? line.values.map((value) => (value === null ? null : Math.max(value, 0.5))) : line.values))] as uPlot.AlignedData,
    [times, lines, log],
  );
  const shape = lines.map((line) => line.name).join();

  useEffect(() => {
    const element = box.current;
    if (!element || table) return;
    const style = getComputedStyle(document.documentElement);
    const token = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: token("--muted"), grid: { stroke: token("--line"), width: 1 }, ticks: { show: false }, font: `11px ${token("--font")}` };
    const options: uPlot.Options = {
      width: element.clientWidth,
      height: 180,
      padding: [8, 18, 0, 0], // half of the last time is beyond the last minute
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true }, y: log ? { distr: 3, log: 10 } : { range: (_plot, _low, high) => [0, Math.max(high * 1.1, FEW)] } },
      axes: [
        { ...axis, size: 26, values: (_plot, values) => values.map((value) => timeOfDay(value * 1000, zone, false)) },
        { ...axis, size: 68, values: (_plot, values) => values.map((value) => (value === null ? "" : unit(value))) },
      ],
      series: [
        {},
        ...lines.map((line) => ({ label: line.name, stroke: token(line.token), width: 2, dash: line.dash, spanGaps: false, points: { show: true, size: 5, filter: alone } })),
      ],
      hooks: { setCursor: [(at) => show(at)] },
    };
    const made = new uPlot(options, data, element);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: 180 }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
    // The data is set below, so that a refresh does not rebuild the chart.
  }, [dark, zone, table, log, shape]);

  useEffect(() => plot.current?.setData(data), [data]);

  const [at, setAt] = useState<number | null>(null);
  function show(chart: uPlot) {
    setAt(chart.cursor.idx ?? null);
  }

  return (
    <figure className={s.series}>
      <figcaption className={s.head}>
        <h3>{title}</h3>
        <Button small kind="quiet" aria-pressed={table} onClick={() => setTable(!table)}>
          {table ? "Chart" : "Table"}
        </Button>
      </figcaption>
      <p className={s.sentence}>{sentence}</p>
      {table ? (
        <div className={s.tableBox} tabIndex={0} role="region" aria-label={`${title}, as a table`}>
          <table className={parts.table}>
            <thead>
              <tr>
                <th scope="col">Time</th>
                {lines.map((line) => (
                  <th key={line.name} scope="col" className={parts.number}>
                    {line.name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {times.map((time, index) => (
                <tr key={time}>
                  <td>{timeOfDay(time * 1000, zone, false)}</td>
                  {lines.map((line) => (
                    <td key={line.name} className={parts.number}>
                      {line.values[index] === null || line.values[index] === undefined ? "–" : unit(line.values[index] as number)}
                    </td>
                  ))}
                </tr>
              )).reverse()}
            </tbody>
          </table>
        </div>
      ) : (
        <div ref={box} className={s.box} role="img" aria-label={`${title}: ${sentence}`} />
      )}
      <ul className={s.legend}>
        {lines.map((line) => (
          <li key={line.name}>
            <svg width={16} height={8} aria-hidden>
              <path d="M0 4H16" stroke={`var(${line.token})`} strokeWidth={2.5} strokeDasharray={line.dash?.map((part) => part / 1.5).join(" ")} />
            </svg>
            {line.name}
            <b>{at !== null && line.values[at] !== null && line.values[at] !== undefined ? unit(line.values[at]) : ""}</b>
          </li>
        ))}
        <li className={s.when}>{at !== null && times[at] !== undefined ? timeOfDay(times[at] * 1000, zone, false) : `until ${timeOfDay(now(), zone, false)}`}</li>
      </ul>
    </figure>
  );
}

/** Isolated points, which would be invisible without a mark. */
function alone(chart: uPlot, series: number): number[] {
  const values = chart.data[series] ?? [];
  const there = (index: number) => values[index] !== null && values[index] !== undefined;
  return Array.from(values.keys()).filter((index) => there(index) && !there(index - 1) && !there(index + 1));
}

export function compact(value: number): string {
  if (value >= 1_000_000) return `${(value / 1_000_000).toFixed(value >= 10_000_000 ? 0 : 1)}M`;
  if (value >= 10_000) return `${Math.round(value / 1000)}k`;
  return Number.isInteger(value) ? group(value) : value.toFixed(1);
}
