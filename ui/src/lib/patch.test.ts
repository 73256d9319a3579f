import { expect, test } from "vitest";

import { exactJson } from "./json";
import { differences, patchOf } from "./patch";

const BEFORE = {
  name: "a",
  type: "RECURRING",
  tenant_id: "acme",
  schedule: { cron: "0 2 * * *", timezone: "UTC", dst_gap: "skip", jitter_seconds: 60, max_runs: 3 },
  action: { type: "WEBHOOK", url: "https://a.example", method: "POST", headers: { A: "1", B: "2" }, body: { a: 1, b: 2 }, signing_secret: "s" },
  labels: { team: "x", old: "y" },
  deadline_seconds: 60,
};

test("a patch names what differs, and resets what was removed", () => {
  expect(patchOf(BEFORE, structuredClone(BEFORE))).toEqual({});
  const { deadline_seconds: _, ...rest } = BEFORE;
  const { signing_secret: __, ...action } = BEFORE.action;
  expect(
    patchOf(BEFORE, {
      ...rest,
      name: "b",
      schedule: { cron: "0 2 * * *", timezone: "UTC", dst_gap: "skip" },
      action: { ...action, headers: { A: "1" }, body: { a: 1 } },
      labels: { team: "z" },
    }),
  ).toEqual({
    name: "b",
    schedule: { jitter_seconds: null, max_runs: null },
    action: { headers: { B: null }, body: { a: 1 }, signing_secret: null },
    labels: { team: "z", old: null },
    deadline_seconds: null,
  });
});

test("another kind of schedule or action is sent whole", () => {
  const schedule = { every_seconds: 60, timezone: "UTC" };
  const action = { type: "TASK", name: "t", payload: null };
  expect(patchOf(BEFORE, { ...BEFORE, schedule, action })).toEqual({ schedule, action });
});

test("numbers beyond the precision of JavaScript are compared and sent with all digits", () => {
  const body = (text: string) => ({ ...BEFORE, action: { ...BEFORE.action, body: exactJson(text) } });
  const [one, other] = [body('{"id": 12345678901234567890}'), body('{"id": 12345678901234567891}')];
  expect(patchOf(one, body('{"id": 12345678901234567890}'))).toEqual({});
  expect(JSON.stringify(patchOf(one, other))).toBe('{"action":{"body":{"id":12345678901234567891}}}');
});

test("documents differ in single fields, also in an object that only one of them has", () => {
  const pause = { reason: "partner is down", until: null };
  expect(differences({ status: "SCHEDULED", timeout: 300 }, { status: "PAUSED", timeout: 300, pause })).toEqual([
    ["status", "SCHEDULED", "PAUSED"],
    ["pause.reason", undefined, "partner is down"],
  ]);
  expect(differences({ pause, labels: ["a"] }, { pause: null, labels: ["a", "b"] })).toEqual([
    ["pause.reason", "partner is down", undefined],
    ["labels", ["a"], ["a", "b"]],
  ]);
  expect(differences({ every: 9, cron: null }, { every: null, cron: null })).toEqual([["every", 9, undefined]]);
});
