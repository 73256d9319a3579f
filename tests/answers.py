"""Answers of the servers that tests start."""

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def opened(request: str | urllib.request.Request, timeout: float) -> Iterator[Any]:
    """The answer to a request. An error is an answer too, and Python 3.14 warns of one that nobody closes."""
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        error.close()
        raise
