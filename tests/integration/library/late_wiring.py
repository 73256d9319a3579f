"""Makes the set a part of the app. Nothing but `App(imports=…)` names this module."""

from integration.library.late_app import app
from integration.library.late_tasks import tasks

app.include(tasks)
