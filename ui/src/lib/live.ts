// The change stream. It carries no rows: changed data is read again, so that permissions are checked in one place.
import type { QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";

import { settings } from "./settings";

export type StreamState = "connecting" | "open" | "polling" | "paused";

interface Changed {
  topic: string;
  kinds: string[];
  count: number | null;
}

const HIDDEN_MS = 10_000; // a browser has six connections for all its tabs
const SETTLE_MS = 1000;

let state: StreamState = "connecting";
let source: EventSource | null = null;
let client: QueryClient | null = null;
let failures = 0;
let retry: ReturnType<typeof setTimeout> | undefined;
let hidden: ReturnType<typeof setTimeout> | undefined;
let pending: ReturnType<typeof setTimeout> | undefined;
let changedJobs = new Set<string>();
let changedAll = false; // more than these jobs
const listeners = new Set<() => void>();
const topics = new Map<string, number>([
  ["overview", 1],
  ["executions", 1],
]);

export function useStream(): StreamState {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => state,
  );
}

function become(next: StreamState): void {
  state = next;
  for (const listener of listeners) listener();
}

/** Start, or restart after a change of the settings or the session. */
export function connect(queries: QueryClient): void {
  client = queries;
  close();
  if (document.hidden) return; // it starts when the page is shown
  if (!settings().live) {
    become("paused");
    return;
  }
  become(failures > 2 ? "polling" : "connecting");
  source = new EventSource(`/api/v1/events?topics=${encodeURIComponent([...topics.keys()].slice(0, 20).join(","))}`);
  source.onopen = () => {
    failures = 0;
    become("open");
    refresh(null); // no event reports a change since the last read, or while there was no stream
  };
  source.onerror = () => {
    close();
    failures += 1;
    become(failures > 2 ? "polling" : "connecting");
    const seconds = Math.min(30, 2 ** Math.min(failures, 5)) * (0.8 + 0.4 * Math.random());
    retry = setTimeout(() => connect(queries), seconds * 1000);
  };
  source.addEventListener("overview", (event) => {
    const now = JSON.parse((event as MessageEvent<string>).data) as Record<string, unknown>;
    queries.setQueryData(["live"], now);
  });
  source.addEventListener("changed", (event) => {
    const changed = JSON.parse((event as MessageEvent<string>).data) as Changed;
    refresh(changed.topic.startsWith("job:") ? changed.topic.slice(4) : null);
  });
}

/** Stop the stream: the session has ended. */
export function disconnect(): void {
  client = null;
  failures = 0;
  close();
  become("connecting");
}

function close(): void {
  clearTimeout(retry);
  source?.close();
  source = null;
}

/** Refresh what is on the page, at most once a second: data of one job, or everything. */
function refresh(job: string | null): void {
  if (job === null) changedAll = true;
  else changedJobs.add(job);
  pending ??= setTimeout(() => {
    const [all, jobs] = [changedAll, [...changedJobs]];
    pending = undefined;
    changedAll = false;
    changedJobs = new Set();
    void client?.invalidateQueries({ predicate: (query) => !query.meta?.hold && isConcerned(String(query.queryKey[0]), all, jobs) });
  }, SETTLE_MS);
}

/** Whether a read is stale after a change to these jobs, or to anything. */
export function isConcerned(path: string, all: boolean, jobs: string[]): boolean {
  if (!path.startsWith("/api/v1/") || path.endsWith("/me") || /\/(forecast|preview)/.test(path)) return false;
  return all || path.includes("/operations") || jobs.some((job) => path.includes(job));
}

/** Subscribe to a topic until the returned function is called. */
export function follow(topic: string): () => void {
  topics.set(topic, (topics.get(topic) ?? 0) + 1);
  if (topics.get(topic) === 1 && client && settings().live) connect(client);
  return () => {
    const left = (topics.get(topic) ?? 1) - 1;
    if (left) topics.set(topic, left);
    else topics.delete(topic);
  };
}

/** A hidden page needs no stream. */
export function watchVisibility(): void {
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(close, HIDDEN_MS);
    else if (!source && client && settings().live) connect(client);
  });
}
