import type { QueryClient } from "@tanstack/react-query";
import { expect, test, vi } from "vitest";

import { connect, isConcerned } from "./live";

test("a change of one job refreshes what shows it, and a change of anything all but what does not follow from it", () => {
  const paths = ["/api/v1/jobs/job_a", "/api/v1/jobs/job_b/executions", "/api/v1/jobs", "/api/v1/operations", "/api/v1/me", "/api/v1/forecast", "/api/v1/operations/preview", "live"];
  expect(paths.filter((path) => isConcerned(path, false, ["job_a"]))).toEqual(["/api/v1/jobs/job_a", "/api/v1/operations"]);
  expect(paths.filter((path) => isConcerned(path, true, []))).toEqual(paths.slice(0, 4));
});

test("what was read before a stream is open is read again, after an interruption too", () => {
  vi.useFakeTimers();
  const opened: Stream[] = [];
  class Stream {
    onopen?: () => void;
    onerror?: () => void;
    constructor() {
      opened.push(this);
    }
    addEventListener() {}
    close() {}
  }
  vi.stubGlobal("EventSource", Stream);
  vi.stubGlobal("document", { hidden: false });
  const invalidateQueries = vi.fn();
  connect({ invalidateQueries } as unknown as QueryClient);
  opened[0]?.onopen?.();
  vi.advanceTimersByTime(5000);
  expect(invalidateQueries).toHaveBeenCalledTimes(1);
  opened[0]?.onerror?.();
  vi.advanceTimersByTime(60_000);
  expect(opened).toHaveLength(2);
  opened[1]?.onopen?.();
  vi.advanceTimersByTime(5000);
  expect(invalidateQueries).toHaveBeenCalledTimes(2);
  vi.unstubAllGlobals();
  vi.useRealTimers();
});
