"""The Django app: `manage.py migrate` also prepares the database for Hourbell."""

from __future__ import annotations

import asyncio
from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate

from hourbell.contrib.django.databases import database_url
from hourbell.store.migrations import is_migrated, migrate


class HourbellConfig(AppConfig):
    name = "hourbell.contrib.django"
    label = "hourbell"

    def ready(self) -> None:
        post_migrate.connect(_migrate, sender=self)


def _migrate(*, using: str, verbosity: int = 1, **others: Any) -> None:
    """Migrate the `hourbell` schema in the databases of the backends, including test databases."""
    from hourbell.contrib.django.backend import HourbellBackend, task_backends

    ours = [one for one in task_backends.all() if isinstance(one, HourbellBackend)]
    if using not in {one.database for one in ours} or connections[using].vendor != "postgresql":
        return
    url = database_url(using)
    if asyncio.run(is_migrated(url)):
        return
    if verbosity:
        print(f"Migrating Hourbell in database {using!r}")  # noqa: T201 - as manage.py does
    asyncio.run(migrate(url))
