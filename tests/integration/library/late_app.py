"""An app whose tasks come from modules that only workers import."""

from hourbell import App, Retry

app = App("late", retry=Retry.never(), imports=["integration.library.late_wiring"])
