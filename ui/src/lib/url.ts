// The page's query string is the only state of filters.
import { useCallback, useMemo } from "react";
import { useLocation } from "wouter";
import { useSearch } from "wouter/use-browser-location"; // that of wouter itself decodes the query before it is parsed

export type Change = Record<string, string | null | undefined>;

/** The page's query, and a function that changes some of its parameters. */
export function useParams(): [URLSearchParams, (change: Change, push?: boolean) => void] {
  const search = useSearch();
  const [path, navigate] = useLocation();
  const params = useMemo(() => new URLSearchParams(search), [search]);
  const change = useCallback(
    (change: Change, push = false) => navigate(changed(path, new URLSearchParams(search), change), { replace: !push }),
    [path, search, navigate],
  );
  return [params, change];
}

export function changed(path: string, params: URLSearchParams, change: Change): string {
  for (const [name, value] of Object.entries(change)) {
    if (value === null || value === undefined || value === "") params.delete(name);
    else params.set(name, value);
  }
  const text = params.toString();
  return text ? `${path}?${text}` : path;
}

/** A segment of the path. The router has already decoded it, except for characters that separate segments. */
export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
