"""Hourbell for Django: a backend for Django's Tasks, and `manage.py hourbell worker`.

    INSTALLED_APPS = […, "hourbell.contrib.django"]
    TASKS = {"default": {"BACKEND": "hourbell.contrib.django.HourbellBackend"}}

With Django 6 the tasks are those of `django.tasks`; with older versions, those of the backport
`django_tasks`. Both have the same contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hourbell.contrib.django.backend import HourbellBackend as HourbellBackend


def __getattr__(name: str) -> Any:
    # Imported on first use: Django imports this package while it loads its apps, which is too early.
    if name == "HourbellBackend":
        from hourbell.contrib.django.backend import HourbellBackend

        return HourbellBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
