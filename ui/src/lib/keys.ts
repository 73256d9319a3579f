// Keyboard shortcuts.
import { useEffect, useRef } from "react";

import { settings } from "./settings";

/** Whether a key press belongs to a field rather than the page. */
export function typing(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement | null;
  return !!target && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) && (target as HTMLInputElement).type !== "checkbox";
}

type Shortcuts = Record<string, () => unknown>;

/** Those of the frame and of the open page. */
const offered = new Set<{ current: Shortcuts }>();
let before = "";
let forget: ReturnType<typeof setTimeout> | undefined;

function pressed(event: KeyboardEvent) {
  if (!settings().shortcuts || typing(event) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const shortcuts: Shortcuts = Object.assign({}, ...[...offered].map((each) => each.current));
  const act = shortcuts[before ? `${before} ${event.key}` : event.key];
  clearTimeout(forget);
  before = "";
  if (act) {
    event.preventDefault();
    act();
  } else if (Object.keys(shortcuts).some((key) => key.startsWith(`${event.key} `))) {
    before = event.key;
    forget = setTimeout(() => (before = ""), 1000);
  }
}

/** Single keys, and pairs such as "g j". They are ignored while typing and while a dialog is open. */
export function useShortcuts(shortcuts: Shortcuts): void {
  const own = useRef(shortcuts);
  useEffect(() => {
    own.current = shortcuts;
  });
  useEffect(() => {
    offered.add(own);
    document.addEventListener("keydown", pressed); // once, however often it is added
    return () => {
      offered.delete(own);
      if (offered.size === 0) document.removeEventListener("keydown", pressed);
    };
  }, []);
}
