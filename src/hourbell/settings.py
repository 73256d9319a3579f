"""Settings from environment variables, read once and validated as a whole.

The struct is the list of settings: the field `worker_slots` is the variable
`HOURBELL_WORKER_SLOTS`. Its type and bounds define what is accepted, and its description is used in
error messages. `docs/configuration.md` has the table for users; a test keeps it in sync with this
struct.
"""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from hourbell import failpoints
from hourbell.environment import FILE_SUFFIX, PREFIX, hourbell_variables, value_of
from hourbell.model.errors import ConfigurationError
from hourbell.model.limits import MAX_DAYS
from hourbell.model.log_levels import parse_log_levels
from hourbell.model.policies import MAX_CRASHES
from hourbell.security.access import KEY_PREFIX
from hourbell.security.egress import Egress
from hourbell.security.sealing import KeyRing

# For the command line, when it calls a server, and for tests of users; server processes ignore them.
_NOT_SETTINGS = (
    "HOURBELL_API_KEY",
    "HOURBELL_API_KEY_FILE",
    "HOURBELL_PROFILE",
    "HOURBELL_TEST_DATABASE_URL",
    "HOURBELL_URL",
)
_SECRET = ("admin_key", "database_url")
ALL_QUEUES = "*"

AdminKey = Annotated[
    str,
    Meta(
        pattern=rf"^{KEY_PREFIX}[A-Za-z0-9_-]{{43}}$",
        description=f"{KEY_PREFIX} and 43 letters, digits, - or _",
    ),
]
Port = Annotated[int, Meta(ge=1, le=65535, description="a port number from 1 to 65535")]
LeaseSeconds = Annotated[int, Meta(ge=1, le=3600, description="whole seconds from 1 to 3600")]
HorizonSeconds = Annotated[int, Meta(ge=1, le=3600, description="whole seconds from 1 to 3600")]
Crashes = Annotated[
    int, Meta(ge=1, le=MAX_CRASHES, description=f"a number from 1 to {MAX_CRASHES}")
]
Days = Annotated[int, Meta(ge=1, le=MAX_DAYS, description=f"whole days from 1 to {MAX_DAYS}")]
Revision = Annotated[
    int, Meta(ge=0, le=2**63 - 1, description="a number that grows with each deploy, such as 41")
]
CriticalSlots = Annotated[int, Meta(ge=0, le=10_000, description="a number from 0 to 10000")]
Share = Annotated[float, Meta(ge=0, le=1, description="a share from 0 to 1")]
Queues = Annotated[
    str,
    Meta(
        pattern=r"^(\*|[A-Za-z0-9._:-]{1,64}(,[A-Za-z0-9._:-]{1,64}){0,49})$",
        description="a comma-separated list of queue names, or * for all",
    ),
]
PoolSize = Annotated[int, Meta(ge=2, le=1000, description="a number from 2 to 1000")]
Slots = Annotated[int, Meta(ge=1, le=10_000, description="a number from 1 to 10000")]
Switch = Annotated[bool, Meta(description="true or false")]
Host = Annotated[str, Meta(min_length=1, description="a host name or an address")]
CaFile = Annotated[Path, Meta(description="the path of a file with certificates")]
Folder = Annotated[Path, Meta(description="a path")]
DatabaseUrl = Annotated[
    str,
    Meta(pattern=r"^postgres(ql)?://", description="a URL that begins with postgresql://"),
]
LogLevel = Annotated[
    str, Meta(description="a level, such as info or info,worker=debug, or @ and a file name")
]
EgressAllow = Annotated[
    str, Meta(description="a comma-separated list of networks and host:port pairs")
]
SecretKeys = Annotated[str, Meta(description="name:key,name:key, each key 32 bytes in base64")]
Failpoints = Annotated[str, Meta(description="name=action;name=action")]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of this process."""

    admin_key: AdminKey | None = None  # created if there is no key yet
    audit_days: Days = 365  # how long audit entries are kept
    ca_file: CaFile | None = None  # CAs that webhooks trust in addition to the system's
    create_on_use: Switch = True  # whether jobs create the tenants and queues that they name
    data_dir: Folder  # of the embedded database
    database_url: DatabaseUrl | None = None  # None means the embedded one
    dead_letter_days: Days = 365  # how long dead letters are kept
    egress_allow: EgressAllow = ""  # targets that webhooks may call in addition to the internet
    failpoints: Failpoints = ""
    horizon_seconds: HorizonSeconds = 60  # how far ahead executions are planned
    host: Host = "127.0.0.1"
    leader_lease_seconds: LeaseSeconds = 10
    lease_seconds: LeaseSeconds = 15  # of a worker's session
    ledger_days: Days = 30  # how long ended executions are kept
    log_level: LogLevel = "info"  # for all components, and for single ones
    max_crashes: Crashes = 3  # worker crashes while it ran alone, until an execution is DEAD
    pool_size: PoolSize = 12  # the most connections of a pool; an API process has two pools
    port: Port = 8080
    revision: Revision | None = None  # of an app's code: the highest live revision wins
    secret_keys: SecretKeys = ""  # keys that encrypt secrets, the newest first
    worker_critical_slots: CriticalSlots = 5  # slots reserved for CRITICAL; leaves at least one
    worker_low_share: Share = 0.05  # share of claims that start with the lowest priority
    worker_queues: Queues = ALL_QUEUES
    worker_slots: Slots = 200


def _check_hosts(database_url: str) -> None:
    """Raise ConfigurationError for an invalid port; a URL may name several hosts, each with a port."""
    try:
        hosts = urlsplit(database_url).netloc.rpartition("@")[2].split(",")
    except ValueError as error:
        # Recent Pythons, and with them asyncpg, take brackets at the first host only.
        raise ConfigurationError(
            f"The URL cannot be read: {error}. If an IPv6 address comes after another host, write "
            f"the hosts after the name of the database: postgresql:///x?host=db:5432,[::1]:5432."
        ) from None
    for host in hosts:
        _, _, port = host.rpartition("]")[2].partition(":")  # [::1]:5432
        if port and not (port.isdecimal() and 0 < int(port) <= 65535):
            raise ConfigurationError(
                "The URL has a port that is not a number from 1 to 65535. In "
                "a password, write a colon, slash or @ as %3A, %2F or %40."
            )


_PARSERS: dict[str, Callable[[str], object]] = {
    "database_url": _check_hosts,
    "egress_allow": Egress.parse,
    "failpoints": failpoints.parse,
    # If the setting names a file, that is read when logs are configured.
    "log_level": lambda text: text.startswith("@") or parse_log_levels(text),
    "secret_keys": KeyRing.parse,
}


def from_environment(env: Mapping[str, str]) -> Settings:
    """The settings in this environment; raises ConfigurationError with all errors.

    An empty variable counts as not set. The value of NAME may be in the file that NAME_FILE names.
    """
    given = hourbell_variables(env)
    fields = {variable_name(field.name): field for field in msgspec.structs.fields(Settings)}
    known = {*fields, *(name + FILE_SUFFIX for name in fields), *_NOT_SETTINGS}
    values: dict[str, Any] = {"data_dir": _default_data_dir(env)}
    problems = [_unknown(name, list(fields)) for name in sorted(given.keys() - known)]
    for name, field in fields.items():
        try:
            value = value_of(name, given)
        except ConfigurationError as error:
            problems.append(error.message)
            continue
        if value is None:
            continue
        try:
            values[field.name] = msgspec.convert(
                value, field.type, strict=False, dec_hook=lambda kind, text: kind(text)
            )
        except msgspec.ValidationError:
            problems.append(_invalid(name, given.get(name), field))
    for field_name, parse in _PARSERS.items():
        try:
            parse(values.get(field_name, ""))
        except ConfigurationError as error:
            problems.append(f"{variable_name(field_name)}: {error.message}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return Settings(**values)


def variable_name(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.upper()


def _default_data_dir(env: Mapping[str, str]) -> Path:
    """The XDG data folder; without a home directory, a folder in the working directory."""
    if env.get("XDG_DATA_HOME"):
        return Path(env["XDG_DATA_HOME"]) / "hourbell"
    if env.get("HOME"):
        return Path(env["HOME"]) / ".local" / "share" / "hourbell"
    return Path("hourbell-data")


def _unknown(name: str, names: list[str]) -> str:
    # Compared without the prefix, which would make all names similar.
    endings = [known.removeprefix(PREFIX) for known in names]
    close = difflib.get_close_matches(name.removeprefix(PREFIX), endings, n=1)
    hint = f"Did you mean {PREFIX}{close[0]}?" if close else f"Settings: {', '.join(names)}."
    return f"{name} is not a setting. {hint}"


def _invalid(name: str, value: str | None, field: msgspec.structs.FieldInfo) -> str:
    """`value` is None if it is in a file."""
    # A URL may contain a password, and messages end up in logs.
    is_secret = value is None or field.name in _SECRET
    shown = "not shown here" if is_secret else ascii(str(value)[:100])
    return f"{name} must be {_expected(msgspec.inspect.type_info(field.type))}; it is {shown}."


def _expected(info: msgspec.inspect.Type) -> str:
    if isinstance(info, msgspec.inspect.UnionType):
        info = info.types[0]
    assert isinstance(info, msgspec.inspect.Metadata)
    assert info.extra_json_schema is not None
    return str(info.extra_json_schema["description"])
