"""What commands print: tables for people, JSON for machines. Data goes to stdout, messages to stderr.

Text from a server may contain anything. `plain` makes it safe for a terminal; every table and
field goes through it.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import click
import msgspec

T = TypeVar("T")

GAP = 2  # spaces between columns
_MIN_BAR, _MAX_BAR = 5, 40  # columns of a progress bar
_COLORS = {
    "SCHEDULED": "cyan",
    "QUEUED": "cyan",
    "RUNNING": "blue",
    "AWAITING": "blue",
    "SUCCEEDED": "green",
    "COMPLETED": "green",
    "RETRYING": "yellow",
    "PAUSED": "yellow",
    "SKIPPED": "yellow",
    "FAILED": "red",
    "ENDED": "bright_black",
    "DEAD": "red",
    "CANCELLED": "bright_black",
    "ok": "green",  # a passed check
    "warning": "yellow",
    "failure": "red",
}


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    title: str
    shrinks_to: int | None = None  # minimum width, if the terminal is too narrow
    optional: bool = False  # dropped, last one first, if shrinking is not enough
    right: bool = False  # right-aligned, for numbers


def say(text: str) -> None:
    """Print a message to the user that is not data."""
    click.echo(text, err=True)


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as `1 check` or `2 checks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Progress:
    """A progress line on stderr; nothing unless stderr is a terminal.

    Call `hide` before other output; leaving the block hides it too.
    """

    def __init__(self, label: str, total: int | None = None) -> None:
        self._label, self._total = label, total  # None: not known, so there is only a number
        self._shown = 0  # columns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()

    def show(self, done: int) -> None:
        """Show how much is done."""
        if sys.stderr.isatty():
            self.hide()
            line = progress_line(self._label, done, self._total, _width_of_stderr() - 1)
            click.echo(line, nl=False, err=True)
            self._shown = len(line)

    def hide(self) -> None:
        """Clear the line, if anything is shown."""
        if self._shown:
            click.echo(f"\r{' ' * self._shown}\r", nl=False, err=True)
            self._shown = 0


def progress_line(label: str, done: int, total: int | None, width: int) -> str:
    """A label, a bar and numbers, at most `width` wide; the bar is left out if it would be short."""
    if total is None:
        return f"{label}: {done:,}"[:width]
    numbers = f"{done:,} of {total:,}"
    widest = len(f"{total:,} of {total:,}")  # so that the bar keeps its width
    room = min(_MAX_BAR, width - len(label) - widest - 2 * GAP - len("[]"))
    if room < _MIN_BAR:
        return f"{label}: {numbers}"[:width]
    filled = room * done // total
    return f"{label}{' ' * GAP}[{'#' * filled}{' ' * (room - filled)}]{' ' * GAP}{numbers}"


def print_json(value: object) -> None:
    """Print a value for machines."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: object) -> None:
    """Print one value of a stream, on one line."""
    click.echo(msgspec.json.encode(value).decode())


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for people, as wide as its contents unless it goes to a terminal."""
    width = terminal_width() if sys.stdout.isatty() else None
    click.echo("\n".join(table_lines(columns, list(rows), width, uses_color())))


def print_list(
    as_json: bool,
    items: Sequence[T],
    columns: Sequence[Column],
    cells: Callable[[T], Sequence[str]],
    empty: str,
) -> None:
    """Print a list: JSON for machines; for people a table, or the sentence `empty`."""
    if as_json:
        print_json(items)
    elif not items:
        say(empty)
    else:
        print_table(columns, map(cells, items))


def print_fields(fields: Iterable[tuple[str, str | None]]) -> None:
    """Print the fields of one thing, one per line; fields without a value are left out."""
    given = [(name, value) for name, value in fields if value]
    width = max(len(name) for name, _ in given) + GAP
    for name, value in given:
        lines = [plain(line) for line in value.split("\n")]
        shown = f"\n{' ' * width}".join(lines)
        if len(lines) == 1 and value in _COLORS:
            shown = paint(shown, value, uses_color())
        click.echo(f"{name:{width}}{shown}")


def json_text(value: Any) -> str | None:
    """A JSON value as the value of a field: a text as it is, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def uses_color() -> bool:
    """Whether stdout is a terminal that shows colours, and the user has not disabled them."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def paint(text: str, word: str, color: bool) -> str:
    """A text in the colour of `word`, if that word has one."""
    if not color or word not in _COLORS:
        return text
    return click.style(text, fg=_COLORS[word])


def terminal_width() -> int:
    """The columns of the terminal of stdout."""
    return shutil.get_terminal_size().columns


def _width_of_stderr() -> int:
    """The columns of the terminal of stderr, also when stdout is a file."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        columns = 0
    return columns or terminal_width()


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, color: bool
) -> list[str]:
    """The lines of a table, at most `width` wide if possible."""
    cells = [[column.title for column in columns], *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    kept = range(len(columns)) if width is None else _fit(columns, widths, width)
    lines = []
    for number, row in enumerate(cells):
        shown = [
            _cell(row[index], widths[index], columns[index].right, color and number > 0)
            for index in kept
        ]
        lines.append((" " * GAP).join(shown).rstrip())
    return lines


def _fit(columns: Sequence[Column], widths: list[int], width: int) -> Sequence[int]:
    """The columns to show; shrinks `widths` where allowed."""
    kept = list(range(len(columns)))
    spare = [
        0 if column.shrinks_to is None else max(0, width - column.shrinks_to)
        for column, width in zip(columns, widths, strict=True)
    ]
    while True:
        too_much = sum(widths[index] for index in kept) + GAP * (len(kept) - 1) - width
        dispensable = [index for index in kept if columns[index].optional]
        if too_much <= sum(spare[index] for index in kept) or not dispensable:
            break
        kept.remove(dispensable[-1])
    while too_much > 0 and any(spare[index] for index in kept):
        widest = max((index for index in kept if spare[index]), key=lambda index: widths[index])
        widths[widest] -= 1
        spare[widest] -= 1
        too_much -= 1
    return kept


def _cell(text: str, width: int, right: bool, color: bool) -> str:
    short = shortened(text, width)
    space = " " * (width - display_width(short))
    painted = paint(short, text.partition(" ")[0].partition("(")[0], color)
    return space + painted if right else painted + space


def shortened(text: str, width: int) -> str:
    """A text at most `width` wide, with … in place of the rest."""
    if display_width(text) <= width:
        return text
    kept, used = "", 1
    for letter in text:
        used += display_width(letter)
        if used > width:
            break
        kept += letter
    return kept.rstrip() + "…"


def display_width(text: str) -> int:
    """How many terminal columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )


def plain(text: str) -> str:
    """The text without anything a terminal would interpret."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return " " if letter in "\n\t" else letter.encode("unicode_escape", "replace").decode()


def instant_text(instant: datetime | None) -> str:
    """An instant for people, in its own offset; empty if None."""
    if instant is None:
        return ""
    zone = "Z" if instant.utcoffset() == UTC.utcoffset(None) else f"{instant:%z}"
    return f"{instant:%Y-%m-%d %H:%M:%S}{zone[:3] + ':' + zone[3:] if len(zone) > 1 else zone}"


def milliseconds_text(milliseconds: int | None) -> str:
    """A duration for people; empty if None."""
    if milliseconds is None:
        return ""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
