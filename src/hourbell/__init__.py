"""Hourbell, a distributed job scheduler: cron, but distributed, reliable and scalable.

Read the packages in the order in which an execution passes through them:

    model     what there is: jobs, schedules, executions, errors (values, no I/O)
    timing    when something is due: cron rules, intervals, zones (pure functions)
    store     PostgreSQL: embedded or yours, its schema and its server-side functions
    engine    create → plan → admit → claim → settle → reap, one file per operation
    actions   what a run does: a task in this process, a webhook
    worker    the process that claims executions and runs them
    api, cli  the same operations over HTTP and in a terminal
    sdk       the library: apps and their tasks; its public names are those of this module
    client    the API from Python, for programs without a database
    contrib   integrations with frameworks: Django

Imports point upwards in this list and never back; only `compose` wires concrete classes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hourbell.errors import Cancel as Cancel
    from hourbell.errors import Dead as Dead
    from hourbell.errors import HourbellError as HourbellError
    from hourbell.errors import LeaseLost as LeaseLost
    from hourbell.errors import RetryAfter as RetryAfter
    from hourbell.errors import Snooze as Snooze
    from hourbell.model.policies import Priority as Priority
    from hourbell.sdk.app import App as App
    from hourbell.sdk.batches import AsyncBatchTask as AsyncBatchTask
    from hourbell.sdk.batches import Item as Item
    from hourbell.sdk.batches import SyncBatchTask as SyncBatchTask
    from hourbell.sdk.context import Completion as Completion
    from hourbell.sdk.context import Context as Context
    from hourbell.sdk.context import RunInfo as RunInfo
    from hourbell.sdk.context import SyncContext as SyncContext
    from hourbell.sdk.context import current as current
    from hourbell.sdk.groups import Group as Group
    from hourbell.sdk.groups import GroupView as GroupView
    from hourbell.sdk.jobs import Cancelled as Cancelled
    from hourbell.sdk.jobs import Job as Job
    from hourbell.sdk.jobs import JobView as JobView
    from hourbell.sdk.running import WorkerOptions as WorkerOptions
    from hourbell.sdk.signature import Codec as Codec
    from hourbell.sdk.tasks import AsyncTask as AsyncTask
    from hourbell.sdk.tasks import Call as Call
    from hourbell.sdk.tasks import SyncTask as SyncTask
    from hourbell.sdk.tasks import Task as Task
    from hourbell.sdk.tasksets import TaskSet as TaskSet
    from hourbell.sdk.values import NONE as NONE
    from hourbell.sdk.values import Options as Options
    from hourbell.sdk.values import Retry as Retry
    from hourbell.sdk.values import Schedule as Schedule
    from hourbell.sdk.values import Unique as Unique
    from hourbell.sdk.values import cron as cron
    from hourbell.sdk.values import every as every

__version__ = "0.1.0"

# The public names and their modules, imported on first use: `import hourbell` is fast,
# and a client of the library does not load a server.
_PUBLIC = {
    "App": "sdk.app",
    "AsyncBatchTask": "sdk.batches",
    "AsyncTask": "sdk.tasks",
    "Call": "sdk.tasks",
    "Cancel": "errors",
    "Cancelled": "sdk.jobs",
    "Codec": "sdk.signature",
    "Completion": "sdk.context",
    "Context": "sdk.context",
    "Dead": "errors",
    "Group": "sdk.groups",
    "GroupView": "sdk.groups",
    "HourbellError": "errors",
    "Item": "sdk.batches",
    "Job": "sdk.jobs",
    "JobView": "sdk.jobs",
    "LeaseLost": "errors",
    "NONE": "sdk.values",
    "Options": "sdk.values",
    "Priority": "model.policies",
    "Retry": "sdk.values",
    "RetryAfter": "errors",
    "RunInfo": "sdk.context",
    "Schedule": "sdk.values",
    "Snooze": "errors",
    "SyncBatchTask": "sdk.batches",
    "SyncContext": "sdk.context",
    "SyncTask": "sdk.tasks",
    "Task": "sdk.tasks",
    "TaskSet": "sdk.tasksets",
    "Unique": "sdk.values",
    "WorkerOptions": "sdk.running",
    "cron": "sdk.values",
    "current": "sdk.context",
    "every": "sdk.values",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hourbell' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hourbell.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *_PUBLIC))
