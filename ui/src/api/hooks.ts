// Reading and writing from components.
import { useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { createContext, useCallback, useContext, useEffect, useRef, useState, useSyncExternalStore } from "react";

import { settings, useSettings } from "../lib/settings";
import { useStream } from "../lib/live";
import { ApiProblem, call, get, newKey, type Call, type Query } from "./client";
import type { Me } from "./types";

export type Read<T> = UseQueryResult<T, ApiProblem>;

interface ReadOptions {
  enabled?: boolean;
  everySeconds?: number; // while nothing announces changes
  hold?: boolean; // keep what is shown: rows are selected, or a dialog is open
  exact?: boolean;
  keep?: boolean; // show the previous response while the next one loads
}

/** Read a path of the API; the response is refreshed while the page is live. */
export function useApi<T>(path: string, query?: Query, options: ReadOptions = {}): Read<T> {
  const { live } = useSettings();
  const stream = useStream();
  const seconds = options.everySeconds ?? (stream === "open" ? 30 : 10);
  return useQuery<T, ApiProblem>({
    // An exact response contains values of another type, so it is never shared with one that is not.
    queryKey: options.exact ? [path, query ?? {}, "exact"] : [path, query ?? {}],
    queryFn: ({ signal }) => get<T>(path, query, { signal, exact: options.exact }),
    meta: { hold: options.hold ?? false },
    enabled: options.enabled ?? true,
    refetchInterval: live && !options.hold ? seconds * 1000 : false,
    refetchOnWindowFocus: () => settings().live && !options.hold,
    placeholderData: options.keep ? (previous) => previous : undefined,
  });
}

/** Whether a failed read is worth retrying automatically. */
export function worthRepeating(count: number, error: unknown): boolean {
  return error instanceof ApiProblem && (error.status === 0 || error.status >= 500) && count < 2;
}

export interface Acting {
  // `before`: what must have happened before everything is read again
  act: (method: string, path: string, options?: Call, before?: (value: unknown) => Promise<unknown>) => Promise<unknown>;
  busy: boolean;
  problem: ApiProblem | null;
  reset: () => void;
}

/** A write. Its idempotency key is kept until it has succeeded, so a repeat after a lost response does nothing twice. */
export function useAct(): Acting {
  const client = useQueryClient();
  const key = useRef<{ what: string; key: string } | null>(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<ApiProblem | null>(null);
  const act = useCallback(
    async (method: string, path: string, options: Call = {}, before?: (value: unknown) => Promise<unknown>) => {
      const what = `${method} ${path} ${JSON.stringify(options.body) ?? ""}`;
      if (key.current?.what !== what) key.current = { what, key: newKey() };
      setBusy(true);
      setProblem(null);
      try {
        const { value } = await call(method, path, { key: key.current.key, ...options });
        key.current = null;
        await before?.(value);
        void client.invalidateQueries();
        return value;
      } catch (error) {
        const found = error instanceof ApiProblem ? error : new ApiProblem(0, "Failed", String(error), "failed");
        if (found.status === 401) void client.invalidateQueries({ queryKey: ["/api/v1/me"] });
        setProblem(found);
        throw found;
      } finally {
        setBusy(false);
      }
    },
    [client],
  );
  return { act, busy, problem, reset: () => setProblem(null) };
}

let pageIsHeld = false;

/** Whether the sign-in page must not replace the present one, which is about to show a key that is shown only once. */
export function isPageHeld(): boolean {
  return pageIsHeld;
}

export function holdPage(hold: boolean): void {
  pageIsHeld = hold;
}

export const MeContext = createContext<Me | null>(null);

export function useMe(): Me | null {
  return useContext(MeContext);
}

/** Whether the caller may do this; takes an operation id from the OpenAPI document. */
export function useCan(): (operation: string) => boolean {
  const me = useMe();
  return useCallback((operation) => me?.operations.includes(operation) ?? false, [me]);
}

interface Ticker {
  count: number;
  listeners: Set<() => void>;
  timer?: ReturnType<typeof setInterval>;
}

const tickers = new Map<number, Ticker>();

function tickerOf(ms: number): Ticker {
  const found = tickers.get(ms) ?? { count: 0, listeners: new Set<() => void>() };
  tickers.set(ms, found);
  return found;
}

/** Rerenders at this interval in milliseconds; one timer for all parts of the page. */
export function useTick(ms = 1000): number {
  const subscribe = useCallback(
    (listener: () => void) => {
      const ticker = tickerOf(ms);
      ticker.listeners.add(listener);
      ticker.timer ??= setInterval(() => {
        ticker.count += 1;
        for (const each of ticker.listeners) each();
      }, ms);
      return () => {
        ticker.listeners.delete(listener);
        if (ticker.listeners.size) return;
        clearInterval(ticker.timer);
        ticker.timer = undefined;
      };
    },
    [ms],
  );
  return useSyncExternalStore(subscribe, () => tickerOf(ms).count);
}

/** A debounced value. */
export function useSettled<T>(value: T, ms = 250): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
