"""Manifests: what an app declares in code, as its workers report it when they open their sessions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

MAX_SCHEDULES = 1_000  # per app
MAX_MANIFEST_BYTES = 1024 * 1024

_encode = msgspec.json.Encoder(order="deterministic").encode


class Manifest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The tasks and schedules of an app, as one version of its code declares them.

    It describes the whole app, whichever queues a worker serves. A schedule is the document of a
    recurring job without a name, as passed to `put_job`; it becomes the job `app:<app>/<key>`.
    """

    app: str
    revision: int | None = None  # the highest wins; None: the code that was first seen last
    tasks: Mapping[str, Any] = {}  # by name: what the code declares about them
    schedules: Mapping[str, Mapping[str, Any]] = {}  # by key: documents

    def __post_init__(self) -> None:
        if len(self.schedules) > MAX_SCHEDULES:
            raise ValueError(
                f"App {self.app} declares {len(self.schedules)} schedules; the maximum is"
                f" {MAX_SCHEDULES}. Create the jobs through the API instead."
            )
        if len(self.body) > MAX_MANIFEST_BYTES:
            raise ValueError(
                f"The manifest of app {self.app} has {len(self.body)} bytes; the maximum is"
                f" {MAX_MANIFEST_BYTES}."
            )

    @cached_property
    def body(self) -> str:
        """The stored form: each schedule with the digest of its declaration."""
        schedules = {
            key: {"digest": _digest(_encode(document)), "document": document}
            for key, document in self.schedules.items()
        }
        return _encode({"tasks": self.tasks, "schedules": schedules}).decode()

    @cached_property
    def digest(self) -> str:
        """The digest of everything, including the revision."""
        return _digest(_encode([self.app, self.revision, self.body]))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
