import { expect, test } from "vitest";

import { csvOf } from "./csv";
import { exactJson } from "./json";

test("rows become lines, with quotes where they are needed and no formulas", () => {
  const rows = exactJson('[{"name": "a, \\"b\\"", "count": 12345678901234567890}, {"name": "=1+1", "labels": {"team": "x"}, "late": -4, "error": null}]') as Record<string, unknown>[];
  expect(csvOf(rows)).toBe('name,count,labels,late,error\r\n"a, ""b""",12345678901234567890,,,\r\n\'=1+1,,"{ ""team"": ""x"" }",-4,\r\n');
});
