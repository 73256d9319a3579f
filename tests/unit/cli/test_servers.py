"""Which server a command calls: URL and key come from one place, so that a key is never sent to another server."""

from pathlib import Path

import msgspec
import pytest

from hourbell.cli.servers import Server, choose_server

LOCAL = Server("http://127.0.0.1:8080", "hb_environment", is_named=False)
LOCAL_KEYLESS = Server("http://127.0.0.1:8080", None, is_named=False)
BY_URL = Server("https://url.example", "hb_environment", is_named=True)
_PROFILES = """
[profiles.default]
url = "https://default.example"
api_key = "hb_default"

[profiles.staging]
url = "https://staging.example"
api_key = "hb_staging"

[profiles.keyless]
url = "https://keyless.example"
"""
DEFAULT = Server("https://default.example", "hb_default", is_named=True)
STAGING = Server("https://staging.example", "hb_staging", is_named=True)
KEYLESS = Server("https://keyless.example", None, is_named=True)
DATABASE = {"HOURBELL_DATABASE_URL": "postgresql://db/hourbell"}
URL = {"HOURBELL_URL": "https://url.example"}
KEY = {"HOURBELL_API_KEY": "hb_environment"}


def env_in(folder: Path, config: str | None, env: dict[str, str]) -> dict[str, str]:
    """An environment whose configuration file has these profiles."""
    if config is not None:
        (folder / "hourbell").mkdir()
        (folder / "hourbell" / "config.toml").write_text(config)
    return {"HOME": "/nonexistent", "XDG_CONFIG_HOME": str(folder)} | env


@pytest.mark.parametrize(
    ("profile", "env", "expected"),
    [
        ("staging", URL | KEY | DATABASE, STAGING),
        ("staging", {"HOURBELL_PROFILE": "default"}, STAGING),
        ("keyless", KEY, KEYLESS),
        ("keyless", URL | KEY, KEYLESS),
        (None, URL | KEY, BY_URL),
        (None, URL, Server("https://url.example", None, is_named=True)),
        (None, URL | KEY | DATABASE | {"HOURBELL_PROFILE": "staging"}, BY_URL),
        (None, KEY, LOCAL),
        (None, KEY | DATABASE | {"HOURBELL_PROFILE": "staging"}, LOCAL),
        (None, {"HOURBELL_PROFILE": "staging"}, STAGING),
        (None, {"HOURBELL_PROFILE": "staging"} | DATABASE, STAGING),
        (None, {"HOURBELL_PROFILE": "keyless"}, KEYLESS),
        (None, {"HOURBELL_PROFILE": "", "HOURBELL_URL": "", "HOURBELL_API_KEY": ""}, DEFAULT),
        (None, {}, DEFAULT),
        (None, DATABASE, DEFAULT),
    ],
)
def test_the_first_source_that_is_set_gives_both_url_and_key(
    profile: str | None, env: dict[str, str], expected: Server, tmp_path: Path
) -> None:
    assert choose_server(env_in(tmp_path, _PROFILES, env), profile) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, LOCAL_KEYLESS),
        (DATABASE, msgspec.structs.replace(LOCAL_KEYLESS, is_direct=True)),
        (DATABASE | KEY, LOCAL),
        (DATABASE | URL, Server("https://url.example", None, is_named=True)),
        ({"HOURBELL_HOST": "::", "HOURBELL_PORT": "9"}, Server("http://127.0.0.1:9", None, False)),
        ({"HOURBELL_HOST": "::1"}, Server("http://[::1]:8080", None, False)),
    ],
)
def test_without_profiles_it_is_the_database_or_the_local_server(
    env: dict[str, str], expected: Server, tmp_path: Path
) -> None:
    assert choose_server(env_in(tmp_path, None, env), None) == expected
