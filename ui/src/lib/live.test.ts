import { expect, test } from "vitest";

import { isConcerned } from "./live";

test("a change of one job refreshes what shows it, and a change of anything all but what does not follow from it", () => {
  const paths = ["/api/v1/jobs/job_a", "/api/v1/jobs/job_b/executions", "/api/v1/jobs", "/api/v1/operations", "/api/v1/me", "/api/v1/forecast", "/api/v1/operations/preview", "live"];
  expect(paths.filter((path) => isConcerned(path, false, ["job_a"]))).toEqual(["/api/v1/jobs/job_a", "/api/v1/operations"]);
  expect(paths.filter((path) => isConcerned(path, true, []))).toEqual(paths.slice(0, 4));
});
