// The user's preferences, stored in the browser; the server does not know them.
import { useSyncExternalStore } from "react";

import type { ClockSetting } from "./time";

export interface Settings {
  theme: "system" | "light" | "dark";
  clock: ClockSetting;
  density: "cosy" | "compact";
  shortcuts: boolean;
  live: boolean;
  columns: Record<string, string[]>;
  views: Record<string, { name: string; query: string }[]>;
}

const KEY = "hourbell.settings";
const DEFAULTS: Settings = { theme: "system", clock: "utc", density: "cosy", shortcuts: true, live: true, columns: {}, views: {} };

let current: Settings = read();
const listeners = new Set<() => void>();

function read(): Settings {
  try {
    return { ...DEFAULTS, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Settings>) };
  } catch {
    return DEFAULTS;
  }
}

export function settings(): Settings {
  return current;
}

export function change(part: Partial<Settings>): void {
  current = { ...current, ...part };
  try {
    localStorage.setItem(KEY, JSON.stringify(current));
  } catch {
    // Storage is disabled: the preference lasts until the page is closed.
  }
  apply();
  for (const listener of listeners) listener();
}

export function useSettings(): Settings {
  return useSyncExternalStore(subscribe, settings);
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function isDark(): boolean {
  return document.documentElement.dataset.theme === "dark";
}

/** Expose the preferences to the styles. */
export function apply(): void {
  const root = document.documentElement;
  const dark = current.theme === "dark" || (current.theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "dark" : "light";
  root.dataset.density = current.density;
}

/** Follow the system's theme, and changes in other tabs. */
export function watch(): void {
  apply();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    current = { ...current }; // a new object, so that whatever depends on the theme is redrawn
    apply();
    for (const listener of listeners) listener();
  });
  addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    current = read();
    apply();
    for (const listener of listeners) listener();
  });
}
