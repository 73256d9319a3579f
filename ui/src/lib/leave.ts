// Leaving a form with changes asks first: on links and shortcuts here, on closing the tab in the browser.
import { useEffect } from "react";

let unsaved = false;

/** Whether the page may be left; asks if something is not saved. */
export function mayLeave(): boolean {
  if (unsaved && !confirm("Your changes are not saved. Leave the page?")) return false;
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
