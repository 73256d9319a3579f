import { expect, test } from "vitest";

import { cronOf, WHEN, whenOf } from "./cron";
import { delayWords, hourRows, isCounted, loadWith, nextCell, shadeOf, shades, shadeWords } from "./forecast";
import { exactJson, pretty, yaml } from "./json";
import { currentRate } from "./rate";
import { absolute, duration, relative, rough, signed, startOfDay, zoneName } from "./time";
import { changed, decoded } from "./url";
import { cronWords, retryWords, scheduleWords } from "./words";

const NOV_17 = Date.parse("2026-11-17T13:03:12Z");

test("a duration has the unit that fits", () => {
  expect([0.2, 4, 1234, 30_000, 250_000, 7_500_000, 270_000_000].map(duration)).toEqual(["0 ms", "4 ms", "1.2 s", "30.0 s", "4 min 10 s", "2 h 5 min", "3 d 3 h"]);
  expect([12_000, 180_000, 39_600_000, 200_000_000].map(rough)).toEqual(["12 s", "3 min", "11 h", "2 d"]);
  expect(relative(NOV_17 + 39_600_000, NOV_17)).toBe("in 11 h");
  expect(relative(NOV_17 - 5000, NOV_17)).toBe("5 s ago");
  expect([3, -120, 0.4, -0.4, -0].map(signed)).toEqual(["+3 ms", "−120 ms", "0 ms", "0 ms", "0 ms"]);
});

test("an instant is written with its zone, also on both sides of a clock change", () => {
  expect(absolute(NOV_17, "Europe/Berlin", NOV_17)).toBe("Tue 17 Nov 14:03:12 CET");
  expect(absolute(Date.parse("2027-10-31T00:30:00Z"), "Europe/Berlin", NOV_17, false)).toBe("Sun 31 Oct 2027 02:30 CEST");
  expect(absolute(Date.parse("2027-10-31T01:30:00Z"), "Europe/Berlin", NOV_17, false)).toBe("Sun 31 Oct 2027 02:30 CET");
  expect(zoneName(NOV_17, "America/New_York")).toBe("EST");
});

test("a day begins at midnight of its zone, also when the clocks change on it", () => {
  const berlin = (text: string) => new Date(startOfDay(Date.parse(text), "Europe/Berlin")).toISOString();
  expect(berlin("2026-11-17T13:03:12Z")).toBe("2026-11-16T23:00:00.000Z");
  expect(berlin("2027-03-28T12:00:00Z")).toBe("2027-03-27T23:00:00.000Z");
  expect(berlin("2027-10-31T12:00:00Z")).toBe("2027-10-30T22:00:00.000Z");
});

test("simple rules are told in words, others are left as they are", () => {
  expect(["30 2 * * *", "*/5 * * * *", "0 * * * *", "0 9 * * 1-5", "0 6 1 * *", "@daily"].map((rule) => cronWords(rule))).toEqual(["daily 02:30", "every 5 min", "hourly", "Mon–Fri 09:00", "monthly on day 1, 06:00", "daily 00:00"]);
  expect(["H 2 * * *", "*/7 * * * *", "0 0 2 * * *", "0 9 * * 1#2", "0 0 1 1 *"].map((rule) => cronWords(rule))).toEqual([null, null, null, null, null]);
  expect(scheduleWords({ every_seconds: 90 })).toBe("every 1 min 30 s");
  expect(scheduleWords({ cron: "H 2 * * *" })).toBe("H 2 * * *");
});

test("the choices of the form and a rule are translated into each other", () => {
  for (const cron of ["30 2 * * *", "0 9 * * 1,3,5", "15 6 1 * *"]) expect(cronOf(whenOf({ cron }))).toBe(cron);
  expect(whenOf({ cron: "*/5 * * * *" }).kind).toBe("cron");
  expect(whenOf({ cron: "0 9 1 * 1" }).kind).toBe("cron"); // day of the month or of the week: not what the form can say
  expect(whenOf({ every_seconds: 7200 })).toMatchObject({ kind: "every", amount: "2", unit: "hours" });
  expect(cronOf({ ...WHEN, kind: "once" })).toBeNull();
});

test("numbers that JavaScript would round keep their digits", () => {
  const text = '{"id":12345678901234567890,"price":1.10,"small":1}';
  const value = exactJson(text) as { id: unknown; small: unknown };
  const tells = "rawJSON" in JSON; // without it the source of a number is not known either
  if (tells) expect(pretty(value)).toContain("12345678901234567890");
  expect(value.small).toBe(1);
});

test("YAML quotes what it would read as something else", () => {
  expect(yaml({ name: "a: b", on: "yes", list: [1, { x: "2" }], empty: {} })).toBe('name: "a: b"\n"on": "yes"\nlist:\n  - 1\n  -\n    x: "2"\nempty: {}');
});

test("a retry policy is told in a sentence", () => {
  expect(retryWords({ max_retries: 3, backoff: "EXPONENTIAL", initial_delay_seconds: 30, max_delay_seconds: 3600 })).toBe("A failed run is retried up to 3 times, after 30 s, doubling each time, at most 1 h.");
  expect(retryWords({ max_retries: 0 })).toBe("A failed run is not retried.");
});

test("an address keeps what was typed, and one that cannot be decoded breaks nothing", () => {
  expect(changed("/jobs", new URLSearchParams("after=x"), { after: null, name_prefix: "100% a&b" })).toBe("/jobs?name_prefix=100%25+a%26b");
  expect(["a%2Fb", "50%", "plain"].map(decoded)).toEqual(["a/b", "50%", "plain"]);
});

test("an hour that happens twice has two rows, one that does not exist has none", () => {
  const back = hourRows([], Date.parse("2027-10-30T22:00:00Z"), Date.parse("2027-10-31T04:00:00Z"), Infinity, "Europe/Berlin");
  expect(back.map((row) => row.label)).toEqual(["00", "01", "02", "02 again", "03", "04"]);
  const forward = hourRows([], Date.parse("2027-03-27T23:00:00Z"), Date.parse("2027-03-28T03:00:00Z"), Infinity, "Europe/Berlin");
  expect(forward.map((row) => row.label)).toEqual(["00", "01", "03", "04"]);
});

test("shades show a difference whatever the size of the counts", () => {
  const shown = (counts: number[]) => counts.map((count) => shadeOf(count, shades(counts)));
  expect(shown([0, 1, 2, 3, 4, 5])).toEqual([0, 1, 2, 3, 4, 5]);
  expect(new Set(shown([600, 700, 800, 900, 1000])).size).toBe(5);
  expect(shown([1, 10, 100, 1000, 10_000])).toEqual([1, 2, 3, 4, 5]);
  expect(new Set(shown([7, 7, 7])).size).toBe(1);
  expect(shades([])).toEqual([1, 2, 3, 4, 5]);
  expect(shadeWords(shades([1, 60]))).toEqual(["0", "1–2", "3–5", "6–11", "12–26", "27 and more"]);
  expect(shadeWords([1, 2, 3, 4, 5])).toEqual(["0", "1", "2", "3", "4", "5 and more"]);
});

test("a delay is told in a sentence", () => {
  const time = (at: string) => at.slice(11, 16);
  const reports = { kind: "queue" as const, name: "reports", max_concurrency: 2, per_second: null, begins_at: "2026-11-18T02:00:00Z", executions: 25, seconds: 840, due_at: "2026-11-18T02:00:00Z", last_start_at: "2026-11-18T04:48:00Z" };
  expect(delayWords(reports, time)).toBe("The queue reports runs 2 at once: 25 runs of about 14 min are due from 02:00, so the last starts at 04:48.");
  const rate = { ...reports, kind: "tenant" as const, name: "acme", max_concurrency: null, per_second: 0.5 };
  expect(delayWords(rate, time)).toContain("The tenant acme starts 0.5 a second: 25 runs");
  expect(delayWords({ ...rate, max_concurrency: 2 }, time)).toContain("runs 2 at once and starts 0.5 a second: 25 runs");
  const none = { ...reports, kind: "workers" as const, name: null, max_concurrency: 0, last_start_at: null };
  expect(delayWords(none, time)).toBe("No worker is running now: 25 runs are due from 02:00, and nothing starts until there is one.");
});

test("jitter spreads a herd at each of its moments, not at the largest only", () => {
  const hourly = ["2026-11-18T02:00:00Z", "2026-11-18T03:00:00Z"].map((at) => ({ at, executions: 600 }));
  expect(loadWith(0, hourly, hourly, null)).toMatchObject({ peakMinute: 600, peakSecond: 600 });
  expect(loadWith(120, hourly, hourly, null)).toMatchObject({ peakMinute: 300, peakSecond: 5 });
});

test("jitter spreads a herd: lower peaks, a shorter wait, the same number of runs", () => {
  const minutes = [{ at: "2026-11-18T02:00:00Z", executions: 12_400 }];
  const herds = [{ at: "2026-11-18T02:00:00Z", executions: 12_400 }];
  const before = loadWith(0, minutes, herds, 9000);
  expect(before).toMatchObject({ peakMinute: 12_400, peakSecond: 12_400, minutesAbove: 1 });
  expect(before.longestWait).toBe(82); // 12,400 at 150 a second
  const after = loadWith(120, minutes, herds, 9000);
  expect(after).toMatchObject({ peakMinute: 6200, peakSecond: 104, minutesAbove: 0, longestWait: 0 });
});

test("the current rate is that of the last bucket that is over, whatever the window", () => {
  const started = (...counts: number[]) => counts.map((count) => ({ started: count }));
  expect(currentRate(started(0, 0, 118, 3), 60)).toBe(118);
  expect(currentRate(started(0, 590, 3), 300)).toBe(118);
  expect(currentRate(started(3), 60)).toBe(0);
});

test("keys lead only to minutes whose count is known", () => {
  const at = (time: string) => Date.parse(`2026-11-18T${time}:00Z`);
  // From 08:03 to 10:03, complete until 09:30; of the rest one minute has a run that is already planned.
  const rows = hourRows([{ at: "2026-11-18T10:01:00Z", executions: 1 }], at("08:03"), at("10:03"), at("09:30"), "UTC");
  expect([0, 3].map((cell) => isCounted(rows[0] as never, cell))).toEqual([false, true]);
  expect(isCounted(rows[1] as never, 45)).toBe(false);
  expect(nextCell("ArrowLeft", { row: 0, cell: 3 }, rows)).toEqual({ row: 0, cell: 3 });
  expect(nextCell("Home", { row: 0, cell: 30 }, rows)).toEqual({ row: 0, cell: 3 });
  expect(nextCell("End", { row: 1, cell: 0 }, rows)).toEqual({ row: 1, cell: 29 });
  expect(nextCell("ArrowDown", { row: 0, cell: 45 }, rows)).toEqual({ row: 0, cell: 45 });
  expect(nextCell("PageDown", { row: 0, cell: 1 }, rows)).toEqual({ row: 2, cell: 1 });
  expect(nextCell("a", { row: 0, cell: 3 }, rows)).toBeNull();
});
