"""Parameter types shared by several commands."""

from __future__ import annotations

from datetime import datetime

import click

from hourbell.model.instants import InvalidInstant, parse_instant, parse_instant_or_wall


class Instant(click.ParamType[datetime]):
    """An instant in RFC 3339."""

    name = "instant"
    _parse = staticmethod(parse_instant)

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return self._parse(value)
        except InvalidInstant as error:
            self.fail(str(error), param, ctx)


class InstantOrWall(Instant):
    """An instant, or without an offset the wall time of a zone that another option names."""

    _parse = staticmethod(parse_instant_or_wall)


def queue_names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list; raises ValueError if there are none."""
    names = tuple(name for each in text.split(",") if (name := each.strip()))
    if not names:
        raise ValueError("name a queue, such as mail,default")
    return names
