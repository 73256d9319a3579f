"""`hourbell completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_PROGRAM, _VARIABLE = "hourbell", "_HOURBELL_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print a completion script. For bash, add this to ~/.bashrc:

    \b
        eval "$(hourbell completion bash)"

    zsh: the same in ~/.zshrc. fish: hourbell completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.Command(_PROGRAM), {}, _PROGRAM, _VARIABLE).source())
