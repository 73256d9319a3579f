"""`hourbell next`: preview the runs of a rule. Needs no server and no job."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from hourbell.cli.params import Instant
from hourbell.model.errors import UnknownId
from hourbell.model.ids import parse_job_id
from hourbell.model.instants import format_instant
from hourbell.model.schedules import DstGap, DstOverlap
from hourbell.timing.cron import caution_about, resolve_hash
from hourbell.timing.errors import TimingError
from hourbell.timing.forecast import MAX_COUNT, NextRun, next_runs
from hourbell.timing.intervals import is_interval

_EXAMPLE_JOB = 0  # its values replace H if no job is given


class _JobId(click.ParamType[int]):
    name = "job_id"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_job_id(value)
        except UnknownId as error:
            self.fail(error.message, param, ctx)


def _now() -> datetime:
    # At a terminal "now" is the local clock, and no scheduling decision depends on it.
    return datetime.now(UTC)  # noqa: TID251


@click.command("next")
@click.argument("rule")
@click.option("--timezone", default="UTC", show_default=True, help="IANA time zone name.")
@click.option(
    "--from",
    "from_",
    type=Instant(),
    help="Start time in RFC 3339, such as 2027-03-13T12:00:00Z. [now]",
)
@click.option("--count", type=click.IntRange(1, MAX_COUNT), default=5, show_default=True)
@click.option(
    "--dst-gap",
    type=click.Choice(["run_after", "skip"]),
    default="run_after",
    show_default=True,
    help="For a fixed time in a DST gap: run after the gap, or skip it.",
)
@click.option(
    "--dst-overlap",
    type=click.Choice(["once", "twice"]),
    default="once",
    show_default=True,
    help="For a fixed time that occurs twice: run once, the first time, or both times.",
)
@click.option(
    "--job",
    "job_id",
    type=_JobId(),
    help="Id of the job whose values replace H. [default: an example]",
)
@click.option(
    "--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def next_command(
    rule: str,
    timezone: str,
    from_: datetime | None,
    count: int,
    dst_gap: DstGap,
    dst_overlap: DstOverlap,
    job_id: int | None,
    output: str,
) -> None:
    """Show the next runs of RULE: a cron rule of 5 or 6 fields, or a macro such as @daily."""
    try:
        resolved = rule if is_interval(rule) else resolve_hash(rule, job_id or _EXAMPLE_JOB)
        runs = next_runs(resolved, timezone, from_ or _now(), count, dst_gap, dst_overlap)
    except TimingError as error:
        raise click.UsageError(str(error)) from None
    if resolved != rule and job_id is None:
        click.echo(f"H depends on the job; with an example id the rule is {resolved}", err=True)
    caution = caution_about(rule)
    if caution is not None:
        click.echo(f"Warning: {caution}", err=True)
    click.echo(_json(runs) if output == "json" else _table(runs))


def _cells(run: NextRun) -> tuple[str, str, str]:
    zone = run.local.tzinfo
    assert zone is not None
    return format_instant(run.utc), format_instant(run.local, zone), run.note


def _json(runs: Sequence[NextRun]) -> str:
    rows = [dict(zip(("utc", "local", "note"), _cells(run), strict=True)) for run in runs]
    return msgspec.json.format(msgspec.json.encode(rows), indent=2).decode()


def _table(runs: Sequence[NextRun]) -> str:
    rows = [("UTC", "LOCAL", "NOTE"), *map(_cells, runs)]
    utc_width, local_width, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        f"{utc:{utc_width}}  {local:{local_width}}  {note}".rstrip() for utc, local, note in rows
    )
