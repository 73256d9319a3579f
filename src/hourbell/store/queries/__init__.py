"""Statements by name, from the `.sql` files in this folder.

Each statement is preceded by `-- name: …` and a line that says its purpose.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_HEADING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def queries(file: str) -> dict[str, str]:
    """The statements of one file."""
    text = resources.files(__package__).joinpath(f"{file}.sql").read_text("utf-8")
    parts = _HEADING.split(text)[1:]
    return dict(zip(parts[::2], (body.strip() for body in parts[1::2]), strict=True))
