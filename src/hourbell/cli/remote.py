"""Shared by commands that call a server: options, the client, errors as exit codes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from typing import Any, NoReturn, ParamSpec, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from hourbell.cli.exit_codes import (
    CONFLICT,
    DENIED,
    NOT_FOUND,
    REFUSED,
    UNAVAILABLE,
    USAGE,
)
from hourbell.cli.output import plain, say
from hourbell.cli.servers import Server, choose_server, profile_names
from hourbell.client import (
    AccessDenied,
    ClientError,
    Conflict,
    Job,
    NotFound,
    ProblemError,
    SyncClient,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
)
from hourbell.model import errors
from hourbell.model.errors import ConfigurationError, HourbellError, UnknownId
from hourbell.model.ids import parse_job_id

P = ParamSpec("P")
T = TypeVar("T")

_RETRIES = 3  # fewer than in a program: a user is waiting for the answer
_MAX_NAMESAKES = 10
_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, NOT_FOUND),
    (AccessDenied, DENIED),
    (Conflict, CONFLICT),
    (Unavailable, UNAVAILABLE),
    (Unreachable, UNAVAILABLE),
    (UnexpectedAnswer, UNAVAILABLE),
    (ProblemError, REFUSED),
    # Of work directly on the database: the same codes as over the API.
    (errors.NotFound, NOT_FOUND),
    (errors.Conflict, CONFLICT),
    (errors.StoreUnavailable, UNAVAILABLE),
)


class Session(msgspec.Struct, frozen=True):
    """The context of a command: its client and its output format."""

    client: SyncClient
    as_json: bool


def fail(message: str, code: int) -> NoReturn:
    """Exit with an error message."""
    say(f"hourbell: {plain(message)}")
    sys.exit(code)


@contextmanager
def errors_as_exits(server: Server | None = None) -> Iterator[None]:
    """Report errors as a message, and exit with their code."""
    try:
        yield
    except HourbellError as error:
        fail(error.message, _code_of(error))
    except ClientError as error:
        fail(error.message + _what_to_do(error, server), _code_of(error))


def _code_of(error: Exception) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), USAGE)


def _what_to_do(error: ClientError, server: Server | None) -> str:
    if isinstance(error, Unreachable) and server is not None and not server.is_named:
        return " Start a server with `hourbell up`, or choose one with HOURBELL_URL or --profile."
    if isinstance(error, Unreachable):
        return " Check that the server is running and that the URL is correct."
    if error.code == "unauthenticated":
        return " Set HOURBELL_API_KEY, or choose a profile with --profile."
    return ""


def _complete_profile(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    try:
        names = profile_names(os.environ)
    except ConfigurationError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


profile_option = click.option(
    "--profile",
    help="Profile from ~/.config/hourbell/config.toml.",
    shell_complete=_complete_profile,
)

output_option = click.option(
    "--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True
)


def remote(command: Callable[..., None]) -> Callable[..., None]:
    """A command that calls a server, with the options `--profile` and `--output`."""

    def run(profile: str | None, output: str, **options: Any) -> None:
        with open_client(profile) as client:
            command(Session(client, output == "json"), **options)

    return profile_option(output_option(functools.wraps(command)(run)))


@contextmanager
def open_client(profile: str | None) -> Iterator[SyncClient]:
    """A client of the chosen server; errors exit the command."""
    with errors_as_exits():
        server = choose_server(os.environ, profile)
    with errors_as_exits(server), _client_of(server) as client:
        yield client


def _client_of(server: Server) -> AbstractContextManager[SyncClient]:
    if server.is_direct:
        # Imported here, because a command that calls a server does not need the engine.
        from hourbell.cli.direct import direct_client

        return direct_client(os.environ, _RETRIES)
    return SyncClient(server.url, server.api_key, retries=_RETRIES)


def limit_options(command: Callable[P, T]) -> Callable[P, T]:
    """The options `--limit` and `--all` of a list."""
    everything = click.option("--all", "everything", is_flag=True, help="No limit.")
    limit = click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
    return limit(everything(command))


def limited(items: Iterable[T], limit: int, everything: bool) -> list[T]:
    """The first items of a list; tells the user if there are more."""
    if everything:
        return list(items)
    found = list(islice(items, limit + 1))
    if len(found) > limit:
        say(f"There are more than {limit}. Use --limit or --all to see them.")
    return found[:limit]


def job_id_of(client: SyncClient, job: str) -> str:
    """The id of a job given by its id or its name.

    A name refers to the job that was put under it, or otherwise to the only job with that name.
    """
    with suppress(UnknownId):
        parse_job_id(job)
        return job
    with suppress(NotFound):
        return client.jobs.get_by_name(job).job_id
    same: list[Job] = []
    for found in client.jobs.each(name_prefix=job):
        if found.name == job:
            same.append(found)
        if len(same) > _MAX_NAMESAKES:
            break
    if not same:
        fail(f"There is no job named {job!r}. See `hourbell jobs list`.", NOT_FOUND)
    if len(same) > 1:
        ids = ", ".join(found.job_id for found in same[:_MAX_NAMESAKES])
        fail(f"Several jobs are named {job!r}. Give the id of one of them: {ids}.", USAGE)
    return same[0].job_id


def confirm(question: str, yes: bool) -> None:
    """Ask before an action that cannot be undone; `--yes` skips the question."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} Pass --yes to skip this question.", USAGE)
    if not click.confirm(question, err=True):
        fail("Nothing was changed.", REFUSED)
