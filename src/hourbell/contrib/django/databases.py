"""The databases of Django, for Hourbell's own connections."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from django.db import connections


def database_url(alias: str) -> str:
    """The URL of a database in settings.DATABASES; in a test, that of the test database."""
    given = connections[alias].settings_dict
    query = {
        "host": given["HOST"],
        "port": given["PORT"],
        "user": given["USER"],
        "password": given["PASSWORD"],
        **{name: value for name, value in given["OPTIONS"].items() if name.startswith("ssl")},
    }
    set_ones = {name: str(value) for name, value in query.items() if value}
    return f"postgresql:///{quote(given['NAME'], safe='')}?{urlencode(set_ones, quote_via=quote)}"
