"""`manage.py hourbell worker`: run the tasks of a Django project."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from hourbell.cli.apps import worker_greeting, worker_process
from hourbell.cli.params import queue_names
from hourbell.cli.process import run_process
from hourbell.contrib.django.backend import HourbellBackend, task_backends
from hourbell.errors import ConfigurationError
from hourbell.sdk.running import WorkerOptions, import_tasks, queues_of


class Command(BaseCommand):
    help = "Run the tasks of this project until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        worker = parser.add_subparsers(required=True).add_parser(
            "worker", help="Run the tasks of all apps that have a `tasks` module."
        )
        worker.add_argument(
            "--backend", default="default", help="A backend name in settings.TASKS."
        )
        worker.add_argument(
            "--queues", type=_queues, help="Comma-separated. Default: those of the backend."
        )
        worker.add_argument("--concurrency", type=int, default=50)
        worker.add_argument(
            "--drain",
            type=float,
            default=25.0,
            help="Seconds to let running tasks finish on shutdown.",
        )
        worker.add_argument("--name", help="Name shown with executions.")
        worker.add_argument("--no-scheduler", action="store_true", help="Never become the leader.")

    def handle(self, *args: Any, **given: Any) -> None:
        backend = _backend(given["backend"])
        try:
            app = backend.app
            backend.import_tasks()
            import_tasks(app)
            options = WorkerOptions(
                queues=given["queues"] or sorted({*backend.queues, *queues_of(app)}),
                concurrency=given["concurrency"],
                drain_seconds=given["drain"],
                name=given["name"],
                scheduler=not given["no_scheduler"],
            )
        except ConfigurationError as error:
            raise CommandError(str(error)) from error
        run_process(
            partial(worker_process, app, options),
            lambda settings, parts: worker_greeting(app, options),
        )


def _backend(alias: str) -> HourbellBackend:
    if alias not in task_backends.settings:
        names = ", ".join(task_backends.settings)
        raise CommandError(f"settings.TASKS has no backend {alias!r}. It has: {names}.")
    backend = task_backends[alias]
    if not isinstance(backend, HourbellBackend):
        raise CommandError(
            f"The task backend {alias!r} is a {type(backend).__name__}. This worker runs tasks of "
            f"hourbell.contrib.django.HourbellBackend: name one with --backend."
        )
    return backend


def _queues(text: str) -> tuple[str, ...]:
    try:
        return queue_names(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
