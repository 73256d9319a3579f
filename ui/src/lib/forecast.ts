// The forecast as hourly rows, and the effect of jitter on herds. Pure functions.
import { partsOf, zoneName } from "./time";

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

/** 0, 1–9, 10–99, 100–999, 1,000–9,999, 10,000 and more */
export function bin(count: number): number {
  return count <= 0 ? 0 : Math.min(5, Math.floor(Math.log10(count)) + 1);
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
