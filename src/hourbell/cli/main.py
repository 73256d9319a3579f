"""The command `hourbell`: parse, call one operation, render.

Each command has its own module, imported when the command is called, so that `hourbell next`
does not load a web server.
"""

import errno
import gc
import importlib
import os
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from hourbell import __version__
from hourbell.cli.exit_codes import INTERRUPTED, REFUSED

# Each command with its module and its line of help, so that listing the commands imports none.
COMMANDS = {
    "api": ("hourbell.cli.roles:api_command", "Serve the API."),
    "apply": ("hourbell.cli.apply:apply_command", "Make jobs match a file."),
    "bench": ("hourbell.cli.bench:bench_command", "Measure this installation."),
    "calendars": ("hourbell.cli.calendars:calendars_command", "Set dates that schedules exclude."),
    "completion": ("hourbell.cli.completion:completion_command", "Print a completion script."),
    "dlq": ("hourbell.cli.dlq:dlq_command", "List, replay and purge dead letters."),
    "doctor": ("hourbell.cli.doctor:doctor_command", "Check a cell and suggest fixes."),
    "executions": (
        "hourbell.cli.executions:executions_command",
        "List, show, cancel, retry and follow executions.",
    ),
    "forecast": ("hourbell.cli.forecast:forecast_command", "Chart the coming load."),
    "groups": ("hourbell.cli.groups:groups_command", "Call back when many executions have ended."),
    "import": ("hourbell.cli.imports:import_command", "Import jobs from other schedulers."),
    "jobs": ("hourbell.cli.jobs:jobs_command", "Create, list, change, run and explain jobs."),
    "monitors": (
        "hourbell.cli.monitors:monitors_command",
        "Be called when a job does not succeed in time.",
    ),
    "keys": ("hourbell.cli.keys:keys_command", "Create, list and revoke API keys."),
    "migrate": ("hourbell.cli.migrate:migrate_command", "Upgrade the database to this version."),
    "next": ("hourbell.cli.next:next_command", "Preview the runs of a cron rule."),
    "operations": (
        "hourbell.cli.operations:operations_command",
        "Follow and stop bulk operations.",
    ),
    "queues": ("hourbell.cli.tenants:queues_command", "List queues and set their limits."),
    "scheduler": ("hourbell.cli.roles:scheduler_command", "Run the scheduler."),
    "secrets": ("hourbell.cli.secrets:secrets_command", "Set, list and delete secrets."),
    "tasks": (
        "hourbell.cli.tasks:tasks_command",
        "List tasks and hosts with their runs and what waits.",
    ),
    "tenants": ("hourbell.cli.tenants:tenants_command", "List tenants and set their limits."),
    "top": ("hourbell.cli.top:top_command", "Show what is running, waiting or in trouble."),
    "up": ("hourbell.cli.up:up_command", "Run everything in one process."),
    "worker": ("hourbell.cli.roles:worker_command", "Run executions."),
}


_MAY_LOAD_AN_APP = ("up", "worker")


class _CommandsOnDemand(click.Group):
    def main(self, *args: Any, **extra: Any) -> Any:
        has_stdout = sys.stdout is not None
        _open_closed_streams()
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if error.errno != errno.ENOSPC and (has_stdout or error.errno != errno.EBADF):
                raise
            # Python would write the rest again when it exits.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            click.echo(f"hourbell: {error.filename or 'The output'}: {error.strerror}.", err=True)
            sys.exit(REFUSED)

    def invoke(self, ctx: click.Context) -> Any:
        # By default click exits with 1, which means that a request was refused or a check failed.
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except click.Abort:  # Ctrl-C or Ctrl-D at a question, whose line has not ended
            click.echo(err=True)
            sys.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # structlog and Litestar import these if they are installed, for features that Hourbell does not use: half of what
        # a role imports. A user's program that is loaded into this process may use them.
        if args[0] not in _MAY_LOAD_AN_APP or args[1:] == []:
            for name in ("rich", "pydantic"):
                sys.modules.setdefault(name, None)  # type: ignore[arg-type]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        gc.disable()  # nothing imported now is garbage
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        finally:
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name, help=COMMANDS[name][1]) for name in found]


def _open_closed_streams() -> None:
    """Without this a socket could get the number of a stream that the caller has closed: `>&-`.

    Every write to such a stdout fails (EBADF), because the caller would not get the output. Messages are discarded.
    """
    for name, mode, access in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, access), mode))  # noqa: SIM115


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from hourbell.cli.commit import commit  # which other commands do not need

        click.echo(f"hourbell {__version__} (commit {commit()})")
        ctx.exit()


@click.group(cls=_CommandsOnDemand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and its commit.",
)
def main() -> None:
    """A distributed job scheduler: cron, but distributed, reliable and scalable."""
