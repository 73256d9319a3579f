"""Commands that take an app of the library: `hourbell worker shop.tasks:app`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import click

from hourbell.cli.exit_codes import USAGE
from hourbell.compose import Running, app_worker
from hourbell.errors import HourbellError
from hourbell.sdk.app import App
from hourbell.sdk.running import WorkerOptions, import_tasks, load_app, unserved
from hourbell.settings import Settings


def loaded_app(target: str) -> App:
    """The app that a target names, with all its tasks; on an error, exit with code 2."""
    try:
        app = load_app(target)
        import_tasks(app)
    except HourbellError as error:
        click.echo(f"hourbell: {error.message}", err=True)
        sys.exit(USAGE)
    except Exception:
        # The user's own error, with the user's own traceback.
        traceback.print_exc()
        click.echo(f"hourbell: cannot import {target}; see the traceback above.", err=True)
        sys.exit(USAGE)
    return app


@asynccontextmanager
async def worker_process(
    app: App, options: WorkerOptions, settings: Settings
) -> AsyncIterator[Running]:
    """Run a worker of an app on the app's database."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        assert app._opened is not None
        yield await stack.enter_async_context(app_worker(app._opened.database.dsn, app, options))


def worker_greeting(app: App, options: WorkerOptions) -> str:
    queues = options.queues_of(app)
    lines = [
        f"Worker for app {app.name!r} is up: queues {', '.join(queues)}, "
        f"concurrency {options.concurrency}.",
        *(f"  {name}" for name in sorted(app.tasks)),
    ]
    warning = unserved(app, queues)
    return "\n".join([*lines, *([f"Warning: {warning}"] if warning else [])])
