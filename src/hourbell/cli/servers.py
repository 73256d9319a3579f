"""Which server a command calls, and with which API key.

URL and key always come from the same source, so that a key is never sent to a server it was not
meant for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hourbell.environment import hourbell_variables, value_of
from hourbell.model.errors import ConfigurationError

URL_VARIABLE, API_KEY_VARIABLE = "HOURBELL_URL", "HOURBELL_API_KEY"
PROFILE_VARIABLE, DATABASE_VARIABLE = "HOURBELL_PROFILE", "HOURBELL_DATABASE_URL"

_LOCAL_HOST, _LOCAL_PORT = "127.0.0.1", "8080"
_ANY_ADDRESS = ("0.0.0.0", "::")  # nosec B104
_DEFAULT_PROFILE = "default"


class Server(msgspec.Struct, frozen=True):
    """A server and the API key for it."""

    url: str
    api_key: str | None
    is_named: bool  # False: the local `hourbell up`, because no server was chosen
    is_direct: bool = False  # no server is called: this process works on HOURBELL_DATABASE_URL


class _Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    api_key: str | None = None


class _Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    profiles: dict[str, _Profile] = {}


def choose_server(env: Mapping[str, str], profile: str | None) -> Server:
    """The server of the profile, the environment or the default profile; otherwise the local one.

    If none is named and HOURBELL_DATABASE_URL is set, no server is called.
    """
    if profile is not None:
        return _from_profile(env, profile)
    given = hourbell_variables(env)
    url, key = given.get(URL_VARIABLE), value_of(API_KEY_VARIABLE, given)
    if url is not None:
        return Server(url, key, is_named=True)
    if key is None:
        if PROFILE_VARIABLE in given:
            return _from_profile(env, given[PROFILE_VARIABLE])
        if _DEFAULT_PROFILE in _read_config(env).profiles:
            return _from_profile(env, _DEFAULT_PROFILE)
    host = value_of("HOURBELL_HOST", given) or _LOCAL_HOST
    host = _LOCAL_HOST if host in _ANY_ADDRESS else host
    host = f"[{host}]" if ":" in host else host
    url = f"http://{host}:{value_of('HOURBELL_PORT', given) or _LOCAL_PORT}"
    is_direct = key is None and value_of(DATABASE_VARIABLE, given) is not None
    return Server(url, key, is_named=False, is_direct=is_direct)


def config_path(env: Mapping[str, str]) -> Path:
    """The file with the profiles."""
    folder = env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or ".") / ".config"
    return Path(folder) / "hourbell" / "config.toml"


def profile_names(env: Mapping[str, str]) -> list[str]:
    """The names of all profiles, for completion."""
    return sorted(_read_config(env).profiles)


def _from_profile(env: Mapping[str, str], name: str) -> Server:
    profiles = _read_config(env).profiles
    if name not in profiles:
        known = (
            f"Known profiles: {', '.join(sorted(profiles))}." if profiles else "It has no profiles."
        )
        raise ConfigurationError(f"There is no profile {name} in {config_path(env)}. {known}")
    return Server(profiles[name].url, profiles[name].api_key, is_named=True)


def _read_config(env: Mapping[str, str]) -> _Config:
    path = config_path(env)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return _Config()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read {path}: {error}.") from error
    try:
        return msgspec.convert(tomllib.loads(text), _Config)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(
            f"{path} is not valid: {error}. It must have tables [profiles.NAME] with url and api_key."
        ) from error
