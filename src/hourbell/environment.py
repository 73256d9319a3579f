"""The `HOURBELL_` variables of an environment: those that were set for Hourbell, or that name a file.

The value of a variable may be in a file, as secrets of Docker and Kubernetes are:
`HOURBELL_DATABASE_URL_FILE=/run/secrets/database-url`.

In Kubernetes a container gets variables for every Service of its namespace. Those of a Service
whose name begins with `hourbell` look like settings: `HOURBELL_PORT=tcp://10.0.0.1:8080`,
`HOURBELL_API_SERVICE_HOST=10.0.0.2`. They are left out here, and only here.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hourbell.model.errors import ConfigurationError

PREFIX = "HOURBELL_"
FILE_SUFFIX = "_FILE"
_MAX_FILE_BYTES = 64 * 1024
# What the kubelet sets for the Services `hourbell` and `hourbell-…`.
_OF_A_SERVICE = re.compile(r"HOURBELL(_\w+)?_SERVICE_(HOST|PORT(_\w+)?)")
_OF_A_PORT = re.compile(r"HOURBELL(_\w+)?_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_PORT = re.compile(r"HOURBELL(_\w+)?_PORT")
_PORT_URL = re.compile(r"(tcp|udp|sctp)://")  # unlike the value of our own HOURBELL_PORT


def hourbell_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with our prefix, without those that Kubernetes adds and those without a value."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(PREFIX) and value and not _is_injected(name, value)
    }


def value_of(name: str, given: Mapping[str, str]) -> str | None:
    """The value of a variable, which may be in a file; raises ConfigurationError."""
    named = given.get(name + FILE_SUFFIX)
    if named is None:
        return given.get(name)
    if name in given:
        raise ConfigurationError(
            f"{name} and {name}{FILE_SUFFIX} are both set. Keep one of them: the value, or the file "
            f"that contains it."
        )
    return _read(f"{name}{FILE_SUFFIX}", Path(named))


def switch_of(name: str, given: Mapping[str, str], default: bool) -> bool:
    """The value of a variable that is true or false."""
    value = value_of(name, given)
    if value is None:
        return default
    try:
        return msgspec.convert(value, bool, strict=False)
    except msgspec.ValidationError:
        raise ConfigurationError(f"{name} must be true or false; it is {value!r}.") from None


def _read(variable: str, file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ConfigurationError(f"{variable}: {file} is larger than {_MAX_FILE_BYTES} bytes.")
        value = content.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{variable}: cannot read {file}: {reason}.") from error
    if not value:
        raise ConfigurationError(f"{variable}: {file} is empty.")
    return value


def _is_injected(name: str, value: str) -> bool:
    if _OF_A_SERVICE.fullmatch(name) or _OF_A_PORT.fullmatch(name):
        return True
    return _PORT.fullmatch(name) is not None and _PORT_URL.match(value) is not None
