// The forecast as hourly rows, and the effect of jitter on herds. Pure functions.
import type { ForecastDelay } from "../api/types";
import { group, partsOf, rough, zoneName } from "./time";
import { plural } from "./words";

export interface Minute {
  at: string;
  executions: number;
}

export interface Row {
  label: string; // 02, or "02 again" after a clock change
  day: string;
  begins: number;
  cells: (number | null)[]; // 60 counts; null: not in the forecast
  known: boolean[];
}

const MINUTE = 60_000;

/** One row per clock hour; an hour that happens twice gets two rows. */
export function hourRows(minutes: Minute[], from: number, to: number, complete: number, zone: string): Row[] {
  const counts = new Map(minutes.map((minute) => [Math.floor(Date.parse(minute.at) / MINUTE), minute.executions]));
  const rows: Row[] = [];
  let row: Row | undefined;
  let hourOfRow = "";
  for (let at = Math.floor(from / MINUTE) * MINUTE; at < to; at += MINUTE) {
    const { hour, minute, weekday } = partsOf(at, zone);
    const key = `${weekday} ${hour} ${zoneName(at, zone)}`;
    if (!row || key !== hourOfRow) {
      const again = rows.some((each) => each.day === weekday && each.label === hour);
      row = { label: again ? `${hour} again` : hour, day: weekday, begins: at, cells: Array<number | null>(60).fill(null), known: Array<boolean>(60).fill(false) };
      hourOfRow = key;
      rows.push(row);
    }
    const index = Number(minute);
    row.cells[index] = counts.get(Math.floor(at / MINUTE)) ?? 0;
    row.known[index] = at < complete;
  }
  return rows;
}

/** Whether the count of a minute is known: after the forecast is complete, 0 may be anything. */
export function isCounted(row: Row, index: number): boolean {
  const value = row.cells[index] ?? null;
  return value !== null && (row.known[index] === true || value > 0);
}

export interface Cell {
  row: number;
  cell: number;
}

/** Where a key leads from a cell: to the next one in its direction whose count is known, or with Home, End and the page keys to the last one. */
export function nextCell(key: string, from: Cell, rows: Row[]): Cell | null {
  const between = (first: number, last: number) => Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
  const cells = (found: number[]) => found.map((cell) => ({ row: from.row, cell }));
  const lines = (found: number[]) => found.map((row) => ({ row, cell: from.cell }));
  const ways: Record<string, Cell[]> = {
    ArrowLeft: cells(between(0, from.cell - 1).reverse()),
    ArrowRight: cells(between(from.cell + 1, 59)),
    ArrowUp: lines(between(0, from.row - 1).reverse()),
    ArrowDown: lines(between(from.row + 1, rows.length - 1)),
    Home: cells(between(0, from.cell)),
    End: cells(between(from.cell, 59).reverse()),
    PageUp: lines(between(0, from.row)),
    PageDown: lines(between(from.row, rows.length - 1).reverse()),
  };
  if (!ways[key]) return null;
  return ways[key].find(({ row, cell }) => rows[row] !== undefined && isCounted(rows[row], cell)) ?? from;
}

const SHADES = 5;

/**
 * The least count of each shade, for the counts that are shown: equal steps if these are alike, else steps of equal ratio, so that minutes that
 * differ look different.
 */
export function shades(counts: number[]): number[] {
  const some = counts.filter((count) => count > 0).sort((a, b) => a - b);
  const low = some[Math.floor(some.length / 20)] ?? 1;
  const high = some.at(-1) ?? 1;
  const bounds = [1];
  for (let shade = 1; shade < SHADES; shade += 1) {
    const part = shade / SHADES;
    const bound = high / low < 20 ? low + (high - low) * part : low * (high / low) ** part;
    bounds.push(Math.max((bounds.at(-1) ?? 0) + 1, rounded(bound)));
  }
  return bounds;
}

/** Two digits are enough for a legend. */
function rounded(value: number): number {
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(value)) - 1);
  return Math.ceil(value / unit) * unit;
}

/** 0 for nothing, else 1 to 5. */
export function shadeOf(count: number, bounds: number[]): number {
  return bounds.filter((bound) => count >= bound).length;
}

/** 0, 1–11, 12–24, …, 60 and more */
export function shadeWords(bounds: number[]): string[] {
  const words = bounds.map((bound, index) => {
    const next = bounds[index + 1];
    if (next === undefined) return `${group(bound)} and more`;
    return next === bound + 1 ? group(bound) : `${group(bound)}–${group(next - 1)}`;
  });
  return ["0", ...words];
}

/** Where runs wait for a limit, in a sentence. */
export function delayWords(delay: ForecastDelay, time: (at: string) => string): string {
  const runs = `${plural(delay.executions, "run")} of about ${rough(delay.seconds * 1000)}`;
  const due = `${delay.executions === 1 ? "is" : "are"} due from ${time(delay.begins_at)}`;
  const least = `${plural(delay.executions, "run")} ${due}`;
  if (delay.kind === "workers" && delay.max_concurrency === 0) return `No worker is running now: ${least}, and nothing starts until there is one.`;
  const what = delay.kind === "workers" ? "All workers together run" : `The ${delay.kind} ${delay.name} ${delay.max_concurrency === null ? "starts" : "runs"}`;
  const limits = [delay.max_concurrency === null ? "" : `${group(delay.max_concurrency)} at once`, delay.per_second === null ? "" : `${delay.max_concurrency === null ? "" : "and starts "}${delay.per_second} a second`];
  const head = `${what} ${limits.filter(Boolean).join(" ")}`;
  if (delay.max_concurrency === 0) return `${head}: ${least}, and none of them starts.`;
  if (delay.last_start_at === null) return `${head}: ${least}, and the last does not start within a month.`;
  return `${head}: ${runs} ${due}, so the last starts at ${time(delay.last_start_at)}.`;
}

export interface Load {
  peakMinute: number;
  peakMinuteAt: number;
  peakSecond: number | null; // null: not known without herds
  minutesAbove: number | null; // null: the capacity is not known
  longestWait: number | null; // seconds
}

/**
* The load if each herd were spread evenly over `jitter` seconds from every moment it is due. Runs outside of herds stay in their minute. The wait
 * is that of a queue that serves capacity / 60 per second.
 */
export function loadWith(jitter: number, minutes: Minute[], moments: Minute[], capacity: number | null): Load {
  const seconds = new Map<number, number>();
  const rest = new Map<number, number>();
  for (const minute of minutes) rest.set(Math.floor(Date.parse(minute.at) / MINUTE), minute.executions);
  for (const herd of moments) {
    const at = Math.floor(Date.parse(herd.at) / 1000);
    const minute = Math.floor(at / 60);
    rest.set(minute, Math.max(0, (rest.get(minute) ?? 0) - herd.executions));
    const slots = Math.max(1, jitter);
    for (let slot = 0; slot < slots; slot += 1) seconds.set(at + slot, (seconds.get(at + slot) ?? 0) + herd.executions / slots);
  }
  for (const [minute, count] of rest) {
    // Their position within the minute is unknown, so they are spread evenly.
    if (count) for (let second = 0; second < 60; second += 1) seconds.set(minute * 60 + second, (seconds.get(minute * 60 + second) ?? 0) + count / 60);
  }
  const perMinute = new Map<number, number>();
  let peakSecond = 0;
  for (const [second, count] of seconds) {
    const minute = Math.floor(second / 60);
    perMinute.set(minute, (perMinute.get(minute) ?? 0) + count);
    peakSecond = Math.max(peakSecond, count);
  }
  let [peakMinute, peakMinuteAt] = [0, 0];
  for (const [minute, count] of perMinute) if (count > peakMinute + 0.5) [peakMinute, peakMinuteAt] = [count, minute * MINUTE];
  return {
    peakMinute: Math.round(peakMinute),
    peakMinuteAt,
    peakSecond: moments.length ? Math.ceil(peakSecond - 1e-6) : null,
    minutesAbove: capacity === null ? null : [...perMinute.values()].filter((count) => count > capacity + 0.5).length,
    longestWait: capacity === null ? null : longestWait(seconds, capacity / 60),
  };
}

function longestWait(seconds: Map<number, number>, perSecond: number): number {
  let waiting = 0;
  let last = 0;
  let longest = 0;
  for (const second of [...seconds.keys()].sort((a, b) => a - b)) {
    waiting = Math.max(0, waiting - (second - last) * perSecond) + (seconds.get(second) ?? 0);
    last = second;
    longest = Math.max(longest, (waiting - perSecond) / perSecond);
  }
  return Math.round(Math.max(0, longest));
}
