"""The command `hourbell`: parse, call one operation, render.

Each command has its own module, which is imported when the command is called, so that `hourbell
next` does not have to load a web server.
"""

import importlib

import click

from hourbell import __version__

COMMANDS = {
    "api": "hourbell.cli.roles:api_command",
    "keys": "hourbell.cli.keys:keys_command",
    "migrate": "hourbell.cli.migrate:migrate_command",
    "next": "hourbell.cli.next:next_command",
    "scheduler": "hourbell.cli.roles:scheduler_command",
    "secrets": "hourbell.cli.secrets:secrets_command",
    "up": "hourbell.cli.up:up_command",
    "worker": "hourbell.cli.roles:worker_command",
}


class _CommandsOnDemand(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=_CommandsOnDemand, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hourbell")
def main() -> None:
    """A distributed job scheduler: cron, but distributed, reliable and scalable."""
