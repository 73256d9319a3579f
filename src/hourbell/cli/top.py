"""`hourbell top`: the overview of a cell in a terminal, over the API."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

import click

from hourbell.cli.exit_codes import TERMINATED
from hourbell.cli.output import (
    Column,
    counted,
    paint,
    plain,
    print_json,
    table_lines,
    uses_color,
)
from hourbell.cli.remote import Session, remote
from hourbell.cli.tenants import waiting_text
from hourbell.client.values import Bucket, Depth, Overview

_WIDTH_IN_A_PIPE = 100
_SIGNAL_SECONDS = 0.5  # a signal that arrives just before `select` does not interrupt it
_CLEAR = "\x1b[H\x1b[J"  # go to the first line, and clear everything below
_BLOCKS = " ▁▂▃▄▅▆▇█"
_HIGHER = ".:-=+*#%@"
_SEVERITIES = {"error": "failure", "warning": "warning", "info": "ok"}  # as in other commands


@click.command("top")
@click.option("--window", type=click.Choice(["15m", "1h", "6h", "24h"]), default="1h")
@click.option("--every", type=click.FloatRange(1, 3600), default=2.0, help="Seconds.")
@click.option("--once", is_flag=True, help="Print once and exit, as when piped.")
@remote
def top_command(session: Session, window: str, every: float, once: bool) -> None:
    """Show what is running, waiting or in trouble, refreshed until you press `q`."""
    if session.as_json:
        print_json(session.client.cell.overview(window=window))
        return
    if once or not sys.stdout.isatty():
        overview = session.client.cell.overview(window=window)
        click.echo("\n".join(top_lines(overview, _WIDTH_IN_A_PIPE, False, _can_show_blocks())))
        return
    with _keyboard() as is_left:
        while True:
            overview = session.client.cell.overview(window=window)
            size = shutil.get_terminal_size()
            lines = top_lines(overview, size.columns, uses_color(), _can_show_blocks())
            click.echo(_CLEAR + "\n".join(on_screen(lines, size.lines)))
            if is_left(every):
                return


@contextmanager
def _keyboard() -> Iterator[Callable[[float], bool]]:
    """A function that waits up to `seconds` for the key `q`, and returns whether it was pressed.

    Meanwhile the terminal delivers keys immediately and does not echo them. Its settings are
    restored however the command ends.
    """
    if not sys.stdin.isatty():
        yield _sleep
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # By default a terminated process does not clean up.
    ended_by = signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(TERMINATED))
    try:
        tty.setcbreak(terminal)
        yield partial(_is_left, terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, ended_by)


def _is_left(terminal: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        readable, _, _ = select.select([terminal], [], [], min(left, _SIGNAL_SECONDS))
        if readable:
            keys = os.read(terminal, 1024)
            if not keys or b"q" in keys:  # no bytes: the terminal is gone
                return True
    return False


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def top_lines(overview: Overview, width: int, color: bool, blocks: bool) -> list[str]:
    """The lines of the screen. None is too wide: a wrapped line would push the first ones off screen."""
    return [
        *(_cut(line, width) for line in _head(overview)),
        "",
        *(_cut(line, width) for line in _figures(overview, width, blocks)),
        *_depth(overview.depth, width, color),
        *(_cut(f"waiting for: {waiting_text(each)}", width) for each in overview.waiting_for),
        *_attention(overview, width, color),
    ]


def on_screen(lines: Sequence[str], height: int) -> list[str]:
    """The lines that fit on a terminal above its cursor; the last one says how many are left out."""
    room = max(height - 1, 1)
    if len(lines) <= room:
        return list(lines)
    return [*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _head(overview: Overview) -> Iterator[str]:
    leader, workers = overview.leader, overview.workers
    if leader is None or not leader.present:
        led = "no leader: nothing is planned"
    else:
        since = "" if leader.since is None else f" for {_span(overview.at - leader.since)}"
        name = leader.name or leader.node_id
        led = f"leader {plain(name)}, epoch {leader.epoch}{since}"
        led += f", planned {_span(leader.planned_until - overview.at)} ahead"
    whose = "" if overview.tenant_id is None else f"tenant {plain(overview.tenant_id)}, "
    yield f"hourbell  {_clock(overview.at)}  {whose}{led}"
    if workers is not None:
        lost = f", {workers.lost_in_1h:,} lost in 1 h" if workers.lost_in_1h else ""
        yield (
            f"{counted(workers.alive, 'worker')}{lost}, "
            f"{workers.running:,} of {workers.slots:,} slots in use"
        )


def _figures(overview: Overview, width: int, blocks: bool) -> Iterator[str]:
    totals, late = overview.totals, overview.lateness_ms
    parts = [f"started {totals.started:,} ({overview.started_per_minute:,.1f} per minute)"]
    for name in ("succeeded", "failed", "dead", "skipped"):
        value = getattr(totals, name)
        if value is not None:
            parts.append(f"{name} {value:,}")
    yield f"last {overview.window}:  " + "  ".join(parts)
    if late is not None:
        yield f"late:  p50 {_ms(late.p50)}  p95 {_ms(late.p95)}  p99 {_ms(late.p99)}"
    yield "started  " + _sparkline(overview.series, width - 9, blocks)
    peak = overview.peak
    if peak is not None:
        when = _span(peak.at - overview.at)
        whole = peak.complete_until >= overview.at + _AHEAD
        until = "" if whole else f"; counted until {_clock(peak.complete_until)}"
        yield (
            f"next 24 h:  busiest minute {_clock(peak.at)} (in {when}), "
            f"{peak.executions:,} due{until}"
        )
    elif not overview.peak_known:
        yield "next 24 h:  the forecast is being computed"
    more = "+" if overview.dead_today.at_least else ""
    yield f"dead letters today (UTC): {overview.dead_today.count:,}{more}"


def _depth(depth: Sequence[Depth], width: int, color: bool) -> Iterator[str]:
    if not depth:
        return
    columns = [Column("PRIORITY"), *(Column(name, right=True) for name in _COUNTS)]
    columns.append(Column("OLDEST", right=True))
    rows = [
        [
            each.priority,
            *(
                f"{getattr(each, name.lower()):,}{'+' if name.lower() in each.at_least else ''}"
                for name in _COUNTS
            ),
            "-" if each.oldest_seconds is None else _span(timedelta(seconds=each.oldest_seconds)),
        ]
        for each in depth
    ]
    yield ""
    yield from table_lines(columns, rows, width, color)


_COUNTS = ("READY", "PARKED", "RUNNING")
_AHEAD = timedelta(hours=24) - timedelta(minutes=5)  # a forecast is used for up to five minutes


def _attention(overview: Overview, width: int, color: bool) -> Iterator[str]:
    yield ""
    if not overview.attention:
        yield "Nothing needs attention."
        return
    yield f"Needs attention ({len(overview.attention)})"
    for item in overview.attention:
        level = f"{item.severity:8}"
        age = "" if item.since is None else f" ({_span(overview.at - item.since)})"
        tenant = item.refers_to.tenant_id if overview.tenant_id is None else None
        whose = "" if tenant is None else f" [{plain(tenant)}]"
        text = plain(item.message) + whose + age
        short = _cut(text, max(width - len(level) - 1, 20))
        yield f"{paint(level, _SEVERITIES.get(item.severity, ''), color)} {short}"


def _sparkline(series: Sequence[Bucket], width: int, blocks: bool) -> str:
    """The starts in the window, as many columns as fit; newest on the right.

    The last bucket has not ended, and a column of fewer buckets would look like a drop: columns
    are counted back from the last whole bucket, and buckets that do not fill a column are left out.
    """
    counts = [bucket.started for bucket in series[:-1]]
    room = max(width, 10)
    per_column = max(1, -(-len(counts) // room))
    first = len(counts) % per_column
    sums = [sum(counts[k : k + per_column]) for k in range(first, len(counts), per_column)]
    most = max(sums, default=0)
    marks = _BLOCKS if blocks else _HIGHER
    steps = len(marks) - 1
    # Any value above 0 is visible.
    return "".join(marks[-(-count * steps // most)] if most else marks[0] for count in sums)


def _can_show_blocks() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16")


def _clock(moment: datetime) -> str:
    return moment.strftime("%H:%M:%SZ")


def _ms(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:,.0f} ms"
    return _span(timedelta(milliseconds=milliseconds))


def _span(span: timedelta) -> str:
    seconds = max(span.total_seconds(), 0.0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"
