"""`hourbell forecast`: chart the coming load, over the API."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, tzinfo

import click

from hourbell.cli.output import counted, instant_text, print_json, say, terminal_width
from hourbell.cli.remote import Session, remote
from hourbell.client import Forecast, ForecastDelay
from hourbell.timing.errors import UnknownZone
from hourbell.timing.zones import load_zone

MAX_ROWS = 25  # 24 hours plus the current one
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440)  # minutes per row
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
_WIDTH_IN_A_PIPE = 80

Row = tuple[datetime, int]  # when it begins, and how many executions are due in it


@click.command("forecast")
@click.option("--hours", type=click.IntRange(1, 168), default=24, show_default=True)
@click.option("--tenant", help="Only this tenant.")
@click.option("--timezone", default="UTC", show_default=True, help="IANA time zone name.")
@remote
def forecast_command(session: Session, hours: int, tenant: str | None, timezone: str) -> None:
    """Chart how many executions are due in the coming hours."""
    try:
        zone = load_zone(timezone)
    except UnknownZone as error:
        raise click.UsageError(str(error)) from None
    forecast = session.client.cell.forecast(hours=hours, tenant_id=tenant)
    if session.as_json:
        print_json(forecast)
        return
    total = sum(minute.executions for minute in forecast.minutes)
    if not total:
        say(f"Nothing is due in the next {'hour' if hours == 1 else f'{hours} hours'}.")
        return
    width = terminal_width() if sys.stdout.isatty() else _WIDTH_IN_A_PIPE
    click.echo("\n".join(chart_lines(forecast, zone, width, _blocks())))
    busiest = max(forecast.minutes, key=lambda minute: minute.executions)
    at = instant_text(busiest.at.astimezone(zone))
    say(f"{counted(total, 'execution')}; the busiest minute is {at} with {busiest.executions:,}.")
    for delay in forecast.delays:
        say(delay_line(delay, zone))
    if forecast.estimated:
        say(
            "This is an estimate: some schedules have too many jobs to count, or cannot be computed."
        )
    if forecast.complete_until < forecast.ends_at:
        say(f"Complete until {instant_text(forecast.complete_until.astimezone(zone))}.")


def delay_line(delay: ForecastDelay, zone: tzinfo) -> str:
    """Where executions will wait for a limit, and until when."""
    what = "the workers" if delay.name is None else f"the {delay.kind} {delay.name}"
    limits = [
        text
        for text in (
            None if delay.max_concurrency is None else f"{delay.max_concurrency} at once",
            None if delay.per_second is None else f"{delay.per_second:g} a second",
        )
        if text is not None
    ]
    due = instant_text(delay.begins_at.astimezone(zone))
    runs = (
        f"{counted(delay.executions, 'execution')} of about {delay.seconds:.0f} s, due from {due}"
    )
    if delay.last_start_at is None:
        return f"{runs}, wait for {what} ({' and '.join(limits)}), which start none."
    last = instant_text(delay.last_start_at.astimezone(zone))
    return f"{runs}, wait for {what} ({' and '.join(limits)}): the last starts at {last}."


def _blocks() -> bool:
    """Whether the output can show block characters."""
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16")


def chart_lines(forecast: Forecast, zone: tzinfo, width: int, blocks: bool) -> Iterator[str]:
    """One line per time span."""
    rows, step = _rows(forecast)
    most = max(count for _, count in rows)
    numbers = len(f"{most:,}")
    label = "%a %H:%M" if forecast.ends_at - forecast.begins_at > timedelta(days=1) else "%H:%M"
    room = max(10, width - len(rows[0][0].astimezone(zone).strftime(label)) - numbers - 4)
    yield f"Executions due in each {_span(step)}, times in {zone}"
    for at, count in rows:
        bar = _bar(count / most * room, blocks)
        yield f"{at.astimezone(zone).strftime(label)}  {count:{numbers},}  {bar}".rstrip()


def _rows(forecast: Forecast) -> tuple[Sequence[Row], int]:
    begins = forecast.begins_at.replace(second=0, microsecond=0)
    minutes = (forecast.ends_at - begins) / timedelta(minutes=1)
    step = next((step for step in _STEPS if minutes / step <= MAX_ROWS), _STEPS[-1])
    # Multiples of the step within the day, so that rows begin at round times.
    begins -= timedelta(minutes=(begins.hour * 60 + begins.minute) % step)
    rows: dict[int, int] = {}
    for minute in forecast.minutes:
        row = (minute.at - begins) // timedelta(minutes=step)
        rows[row] = rows.get(row, 0) + minute.executions
    last = (forecast.ends_at - begins - timedelta(microseconds=1)) // timedelta(minutes=step)
    count = max(last, *rows) + 1
    return [
        (begins + timedelta(minutes=step * row), rows.get(row, 0)) for row in range(count)
    ], step


def _span(minutes: int) -> str:
    if minutes < 60:
        return "minute" if minutes == 1 else f"{minutes} minutes"
    return "hour" if minutes == 60 else f"{minutes // 60} hours"


def _bar(length: float, blocks: bool) -> str:
    """A bar; any value above 0 is visible."""
    if not blocks:
        return "#" * max(round(length), 1 if length else 0)
    eighths = max(round(length * 8), 1 if length else 0)
    return _FULL * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
