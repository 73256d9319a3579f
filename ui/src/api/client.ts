// API calls: one place for errors, idempotency keys and the server's clock.
import { exactJson } from "../lib/json";

export interface FieldError {
  path: string;
  code: string;
  message: string;
}

/** A response other than 2xx, or none at all (status 0). */
export class ApiProblem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly code: string,
    readonly errors: FieldError[] = [],
    readonly retryAfterSeconds: number | null = null,
  ) {
    super(detail || title);
  }
}

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;

export interface Call {
  query?: Query;
  body?: unknown;
  key?: string; // the Idempotency-Key of a write
  ifMatch?: number; // the version that the change was made for
  exact?: boolean; // keep numbers that JavaScript would round
  signal?: AbortSignal;
  contentType?: string;
}

export interface Answer<T> {
  value: T;
  status: number;
  version: number | null;
}

const TOLERATED_MS = 1000;
let offsetMs = 0;

/** The server's time; the clock of this machine may be wrong. */
export function now(): number {
  return Date.now() + offsetMs;
}

export function clockOffset(): number {
  return offsetMs;
}

function noteDate(header: string | null, asked: number): void {
  const at = header ? Date.parse(header) : NaN;
  if (Number.isNaN(at)) return;
  // The server wrote it, in whole seconds, at some time since the request was sent: only what lies outside that span is a real difference.
  const [early, late] = [asked - (at + 1000), at - Date.now()];
  offsetMs = early > TOLERATED_MS ? -early : late > TOLERATED_MS ? late : 0;
}

export function pathWith(path: string, query: Query = {}): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) {
      if (value.length) params.set(name, value.join(","));
    } else if (value !== null && value !== undefined && value !== "") {
      params.set(name, String(value));
    }
  }
  const text = params.toString();
  return text ? `${path}?${text}` : path;
}

/** A key that makes a write safe to repeat. Not crypto.randomUUID: that needs HTTPS. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function call<T>(method: string, path: string, options: Call = {}): Promise<Answer<T>> {
  const headers: Record<string, string> = { Accept: "application/json", "X-Hourbell-Client": "dashboard" };
  if (options.body !== undefined) headers["Content-Type"] = options.contentType ?? "application/json";
  if (options.key) headers["Idempotency-Key"] = options.key;
  if (options.ifMatch !== undefined) headers["If-Match"] = `"${options.ifMatch}"`;
  const asked = Date.now();
  let response: Response;
  let text: string;
  try {
    response = await fetch(pathWith(path, options.query), {
      method,
      headers,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      credentials: "same-origin",
      cache: "no-store",
      signal: options.signal ?? null,
    });
    text = await response.text();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiProblem(0, "No response", "The server does not respond. It may be restarting, or the network may be down.", "no_answer");
  }
  noteDate(response.headers.get("Date"), asked);
  if (!response.ok) throw problemOf(response, text);
  const tag = response.headers.get("ETag");
  return {
    value: (options.exact ? exactJson(text) : text ? JSON.parse(text) : null) as T,
    status: response.status,
    version: tag ? Number(tag.replaceAll('"', "")) : null,
  };
}

function problemOf(response: Response, text: string): ApiProblem {
  const wait = Number(response.headers.get("Retry-After"));
  const retry = Number.isFinite(wait) && wait > 0 ? wait : null;
  try {
    const found = JSON.parse(text) as Partial<ApiProblem>;
    return new ApiProblem(
      response.status,
      found.title ?? `Status ${response.status}`,
      found.detail ?? "",
      found.code ?? "unknown",
      found.errors ?? [],
      retry,
    );
  } catch {
    return new ApiProblem(response.status, `Status ${response.status}`, "The response is not from Hourbell. A proxy may be in between.", "unknown", [], retry);
  }
}

export async function get<T>(path: string, query?: Query, options: Call = {}): Promise<T> {
  return (await call<T>("GET", path, { ...options, query })).value;
}
