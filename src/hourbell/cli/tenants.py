"""`hourbell tenants` and `hourbell queues`: settings and counts, over the API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click
import msgspec

from hourbell.cli.output import Column, print_fields, print_json, print_list
from hourbell.cli.remote import Session, limit_options, limited, remote
from hourbell.client import Conflict, NotFound, Queue, RateLimit, RetryPolicy, Tenant
from hourbell.client.values import WaitingFor

F = TypeVar("F", bound=Callable[..., Any])
N = TypeVar("N", Tenant, Queue)

_MAX_TRIES = 10  # each further one means that another client has changed the settings

_TENANT_COLUMNS = (
    Column("TENANT"),
    Column("WEIGHT", right=True),
    Column("CONCURRENCY", right=True),
    Column("RATE", right=True),
    Column("MAX JOBS", right=True),
)
_QUEUE_COLUMNS = (
    Column("QUEUE"),
    Column("CONCURRENCY", right=True),
    Column("RATE", right=True),
    Column("DEFAULT TIMEOUT", right=True),
)

_LIMITS = (
    click.option("--max-concurrency", type=int, help="Maximum ready or running at once."),
    click.option("--rate", type=float, help="Starts per second."),
    click.option("--burst", type=int, help="Starts at once after an idle period; needs --rate."),
)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group("tenants")
def tenants_command() -> None:
    """List tenants and set their weight, limits, quota and retention."""


@tenants_command.command("list")
@limit_options
@remote
def list_tenants_command(session: Session, limit: int, everything: bool) -> None:
    """List tenants by name."""
    found = limited(session.client.tenants.each(), limit, everything)
    print_list(session.as_json, found, _TENANT_COLUMNS, _tenant_cells, "There are no tenants.")


def _tenant_cells(tenant: Tenant) -> Sequence[str]:
    return (
        tenant.tenant_id,
        _text(tenant.weight),
        _text(tenant.max_concurrency),
        _rate(tenant.rate_limit),
        _text(tenant.max_jobs),
    )


@tenants_command.command("get")
@click.argument("name")
@remote
def get_tenant_command(session: Session, name: str) -> None:
    """Show the settings and counts of a tenant."""
    _print(session, session.client.tenants.get(name))


@tenants_command.command("set")
@click.argument("name")
@_options(
    click.option("--weight", type=float, help="Share of the workers, relative to other tenants."),
    click.option("--max-jobs", type=int),
    *_LIMITS,
    click.option("--ledger-days", type=int),
    click.option("--dead-letter-days", type=int),
    click.option("--audit-days", type=int),
    click.option("--unset", multiple=True, help="Reset a setting to its default; repeatable."),
)
@remote
def set_tenant_command(session: Session, name: str, unset: tuple[str, ...], **options: Any) -> None:
    """Change settings of a tenant; other settings keep their values."""
    tenants = session.client.tenants
    _print(session, _set(tenants.get, tenants.set, name, options, unset))


@click.group("queues")
def queues_command() -> None:
    """List queues and set their limits and defaults."""


@queues_command.command("list")
@limit_options
@remote
def list_queues_command(session: Session, limit: int, everything: bool) -> None:
    """List queues by name."""
    found = limited(session.client.queues.each(), limit, everything)
    print_list(session.as_json, found, _QUEUE_COLUMNS, _queue_cells, "There are no queues.")


def _queue_cells(queue: Queue) -> Sequence[str]:
    return (
        queue.queue,
        _text(queue.max_concurrency),
        _rate(queue.rate_limit),
        _text(queue.default_timeout_seconds, " s"),
    )


@queues_command.command("get")
@click.argument("name")
@remote
def get_queue_command(session: Session, name: str) -> None:
    """Show the settings and counts of a queue."""
    _print(session, session.client.queues.get(name))


@queues_command.command("set")
@click.argument("name")
@_options(
    *_LIMITS,
    click.option("--default-timeout-seconds", type=int, help="Timeout of jobs that set none."),
    click.option("--unset", multiple=True, help="Reset a setting to its default; repeatable."),
)
@remote
def set_queue_command(session: Session, name: str, unset: tuple[str, ...], **options: Any) -> None:
    """Change settings of a queue; other settings keep their values."""
    queues = session.client.queues
    _print(session, _set(queues.get, queues.set, name, options, unset))


def _set(
    get: Callable[[str], N],
    put: Callable[..., N],
    name: str,
    options: Mapping[str, Any],
    unset: Iterable[str],
) -> N:
    """Change some settings: the API replaces all of them at once, if nothing else changed them."""
    for tries in range(1, _MAX_TRIES + 1):
        try:
            current = msgspec.structs.asdict(get(name))
        except NotFound:
            current = {}
        settings = _changed(current, options, unset)
        try:
            return put(name, settings, version=current.get("version", 0))
        except Conflict as error:
            if error.code != "precondition_failed" or tries == _MAX_TRIES:
                raise
    raise AssertionError("every attempt ends in an answer, an error or a retry")


def _changed(
    current: Mapping[str, Any], options: Mapping[str, Any], unset: Iterable[str]
) -> Mapping[str, Any]:
    """The settings after the change."""
    given = {name: value for name, value in options.items() if value is not None}
    removed = {name.lstrip("-").replace("-", "_") for name in unset}
    if not given and not removed:
        raise click.UsageError("Give a setting to change, or --unset.")
    rate, burst = given.pop("rate", None), given.pop("burst", None)
    if burst is not None and rate is None:
        raise click.UsageError("--burst needs --rate.")
    if rate is not None:
        given["rate_limit"] = RateLimit(per_second=rate, burst=burst)
    settings = {"rate_limit" if name == "rate" else name for name in options} - {"burst"}
    removed = {"rate_limit" if name == "rate" else name for name in removed}
    if removed - settings:
        known = ", ".join(sorted(settings))
        raise click.UsageError(
            f"--unset: unknown setting {min(removed - settings)}; choose one of {known}."
        )
    return {
        name: value
        for name, value in {**current, **given}.items()
        if value is not None
        and (name in settings or name == "default_retry_policy")
        and name not in removed
    }


def _print(session: Session, one: Tenant | Queue) -> None:
    if session.as_json:
        print_json(one)
        return
    fields: list[tuple[str, str | None]] = []
    for name, value in msgspec.structs.asdict(one).items():
        title = name.replace("_", " ").removesuffix(" id").capitalize()
        if isinstance(value, RateLimit):
            fields.append((title, _rate(value)))
        elif isinstance(value, RetryPolicy):
            fields.append((title, msgspec.json.encode(value).decode()))
        elif name == "counts":
            fields += _counts(value or {})
        elif name == "waiting_for":
            fields += [("Waiting for", waiting_text(each)) for each in value or ()]
        elif value is not None and name != "version":
            fields.append((title, f"{value:g}" if isinstance(value, float) else str(value)))
    print_fields(sorted(fields, key=lambda field: field[0] not in ("Tenant", "Queue")))


def waiting_text(waiting: WaitingFor) -> str:
    """How many executions wait for a reason."""
    return f"{waiting.count:,}{'+' if waiting.at_least else ''} {waiting.words}"


def _counts(counts: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    more = counts.get("at_least", ())
    for name, count in counts.items():
        if name != "at_least":
            title = name.replace("_", " ").capitalize()
            yield title, f"{count}{' or more' if name in more else ''}"


def _text(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:g}{unit}"


def _rate(limit: RateLimit | None) -> str:
    if limit is None:
        return "-"
    return f"{limit.per_second:g}/s" + (f", burst {limit.burst}" if limit.burst else "")
