// Asks before leaving a form with unsaved changes: here for links and shortcuts, in the browser for closing the tab.
import { useEffect } from "react";

let unsaved = false;

/** Whether the page may be left; asks if there are unsaved changes. */
export function mayLeave(): boolean {
  if (unsaved && !confirm("You have unsaved changes. Leave the page?")) return false;
  unsaved = false;
  return true;
}

/** Everything is saved: the next navigation does not ask. */
export function saved(): void {
  unsaved = false;
}

/** Ask before the page is left, as long as it has changes. */
export function useUnsaved(dirty: boolean): void {
  useEffect(() => {
    unsaved = dirty;
    function ask(event: BeforeUnloadEvent) {
      if (unsaved) event.preventDefault();
    }
    addEventListener("beforeunload", ask);
    return () => {
      unsaved = false;
      removeEventListener("beforeunload", ask);
    };
  }, [dirty]);
}
