"""Parameter types shared by several commands."""

from __future__ import annotations

from datetime import datetime

import click

from hourbell.model.instants import InvalidInstant, parse_instant


class Instant(click.ParamType[datetime]):
    """An instant in RFC 3339."""

    name = "instant"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(value)
        except InvalidInstant as error:
            self.fail(str(error), param, ctx)
