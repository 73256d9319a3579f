// Keyboard shortcuts.
import { useEffect } from "react";

import { settings } from "./settings";

/** Whether a key press belongs to a field rather than the page. */
export function typing(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement | null;
  return !!target && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) && (target as HTMLInputElement).type !== "checkbox";
}

/** Single keys, and pairs such as "g j". They are ignored while typing and while a dialog is open. */
export function useShortcuts(shortcuts: Record<string, () => unknown>): void {
  useEffect(() => {
    let before = "";
    let forget: ReturnType<typeof setTimeout> | undefined;
    function pressed(event: KeyboardEvent) {
      if (!settings().shortcuts || typing(event) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const pair = shortcuts[`${before} ${event.key}`];
      const single = before ? undefined : shortcuts[event.key];
      clearTimeout(forget);
      before = "";
      if (pair ?? single) {
        event.preventDefault();
        (pair ?? single)?.();
      } else if (Object.keys(shortcuts).some((key) => key.startsWith(`${event.key} `))) {
        before = event.key;
        forget = setTimeout(() => (before = ""), 1000);
      }
    }
    document.addEventListener("keydown", pressed);
    return () => {
      clearTimeout(forget);
      document.removeEventListener("keydown", pressed);
    };
  });
}
