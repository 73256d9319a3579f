"""Settings come from the environment, whole and checked."""

from pathlib import Path

import msgspec
import pytest

from hourbell import App
from hourbell.cli.servers import API_KEY_VARIABLE, PROFILE_VARIABLE, URL_VARIABLE, choose_server
from hourbell.model.errors import ConfigurationError
from hourbell.security.sealing import KeyRing
from hourbell.settings import Settings, from_environment, variable_name
from hourbell.testing.servers import URL_VARIABLE as TEST_DATABASE_VARIABLE

HOME = {"HOME": "/somewhere/ada"}


def test_without_variables_everything_has_a_default() -> None:
    assert from_environment(HOME) == Settings(data_dir=Path("/somewhere/ada/.local/share/hourbell"))


def test_every_variable_is_read() -> None:
    assert from_environment(
        {
            "HOURBELL_ADMIN_KEY": f"hb_{'k' * 43}",
            "HOURBELL_AUDIT_DAYS": "400",
            "HOURBELL_CA_FILE": "/etc/ours.pem",
            "HOURBELL_CREATE_ON_USE": "false",
            "HOURBELL_DATA_DIR": "/srv/hourbell",
            "HOURBELL_DATABASE_URL": "postgresql://ada:secret@db/hourbell",
            "HOURBELL_DEAD_LETTER_DAYS": "90",
            "HOURBELL_FAILPOINTS": "plan.after_open=kill",
            "HOURBELL_HORIZON_SECONDS": "120",
            "HOURBELL_HOST": "0.0.0.0",
            "HOURBELL_LEADER_LEASE_SECONDS": "5",
            "HOURBELL_LEASE_SECONDS": "30",
            "HOURBELL_LEDGER_DAYS": "14",
            "HOURBELL_LOG_LEVEL": "debug",
            "HOURBELL_POOL_SIZE": "20",
            "HOURBELL_PORT": "9090",
            "HOURBELL_WORKER_SLOTS": "7",
        }
    ) == Settings(
        admin_key=f"hb_{'k' * 43}",
        audit_days=400,
        ca_file=Path("/etc/ours.pem"),
        create_on_use=False,
        data_dir=Path("/srv/hourbell"),
        database_url="postgresql://ada:secret@db/hourbell",
        dead_letter_days=90,
        failpoints="plan.after_open=kill",
        horizon_seconds=120,
        host="0.0.0.0",
        leader_lease_seconds=5,
        lease_seconds=30,
        ledger_days=14,
        log_level="debug",
        pool_size=20,
        port=9090,
        worker_slots=7,
    )


def test_the_data_folder_follows_xdg_and_does_without_a_home() -> None:
    assert from_environment(HOME | {"XDG_DATA_HOME": "/xdg"}).data_dir == Path("/xdg/hourbell")
    assert from_environment({}).data_dir == Path("hourbell-data")


def test_a_variable_set_to_nothing_counts_as_not_set() -> None:
    assert from_environment(HOME | {"HOURBELL_PORT": ""}).port == 8080


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("HOURBELL_PORT", "http", "HOURBELL_PORT must be a port number from 1 to 65535; it is 'ht"),
        ("HOURBELL_PORT", "0", "it is '0'"),
        ("HOURBELL_CREATE_ON_USE", "no", "must be true or false; it is 'no'"),
        ("HOURBELL_POOL_SIZE", "1", "must be a number from 2 to 1000; it is '1'"),
        ("HOURBELL_LEASE_SECONDS", "1.5", "must be whole seconds from 1 to 3600; it is '1.5'"),
        ("HOURBELL_LOG_LEVEL", "loud", "'loud' is not a log level"),
        ("HOURBELL_LOG_LEVEL", "info,wroker=debug", "Did you mean worker?"),
        ("HOURBELL_WORKER_SLOTS", "-1", "must be a number from 1 to 10000"),
        ("HOURBELL_WORKER_QUEUES", "default,", "must be a comma-separated list of queue names"),
        ("HOURBELL_WORKER_SLOT", "1", "is not a setting. Did you mean HOURBELL_WORKER_SLOTS?"),
        ("HOURBELL_WORKER_PORT", "9090", "is not a setting. Did you mean HOURBELL_WORKER_"),
        ("HOURBELL_SERVICE_SLOTS", "7", "is not a setting. Did you mean HOURBELL_WORKER_SLOTS?"),
        ("HOURBELL_PORT", "http://0.0.0.0:8080", "it is 'http://0.0.0.0:8080'"),
        ("HOURBELL_PORTS", "tcp://10.0.0.1:8080", "is not a setting. Did you mean HOURBELL_PORT?"),
        (
            "HOURBELL_ZZZ",
            "1",
            "is not a setting. Settings: HOURBELL_ADMIN_KEY, HOURBELL_AUDIT_DAYS",
        ),
        ("HOURBELL_DATABASE_URL", "postgresql://db:70000/x", "a port that is not a number from 1"),
        ("HOURBELL_DATABASE_URL", "postgresql://a,b:x/y", "a port that is not a number from 1"),
        (
            "HOURBELL_DATABASE_URL",
            "postgresql://ada:a/b@db/x",
            "In a password, write a colon, slash or @ as %3A",
        ),
        ("HOURBELL_DATABASE_URL", "postgresql://[::1/x", "cannot be read: Invalid IPv6 URL. If an"),
        ("HOURBELL_FAILPOINTS", "plan.never=kill", "There is no failpoint 'plan.never'"),
    ],
)
def test_refuses_what_cannot_be_right(name: str, value: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        from_environment(HOME | {name: value})
    assert name in refused.value.message
    assert complaint in refused.value.message


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        from_environment(HOME | {"HOURBELL_PORT": "x", "HOURBELL_WORKER_SLOTS": "y"})
    assert "HOURBELL_PORT" in refused.value.message
    assert "HOURBELL_WORKER_SLOTS" in refused.value.message


def test_a_wrong_url_is_not_repeated_because_of_its_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        from_environment(HOME | {"HOURBELL_DATABASE_URL": "mysql://ada:secret@db"})
    assert "HOURBELL_DATABASE_URL must be a URL that begins with postgresql://" in str(
        refused.value
    )
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///x?host=/run",
        "postgres://[::1]:2,a:1,c/x",
        "postgresql://ada@/x?host=a:1,[::1]:2,c",
        "postgresql://ada:a%3Ab@db:5432/x",
    ],
)
def test_urls_of_sockets_and_of_several_hosts_are_taken(url: str) -> None:
    assert from_environment(HOME | {"HOURBELL_DATABASE_URL": url}).database_url == url


def test_the_variables_of_kubernetes_services_named_hourbell_are_ignored() -> None:
    injected = {}
    for service in ("HOURBELL", "HOURBELL_API", "HOURBELL_WORKER_METRICS_V2"):
        injected |= service_variables(service, "10.96.0.7", 8080)
    assert from_environment(HOME | injected) == from_environment(HOME)
    assert from_environment(HOME | injected | {"HOURBELL_PORT": "9090"}).port == 9090


def test_a_command_finds_the_local_server_beside_a_service_named_hourbell() -> None:
    found = choose_server(HOME | service_variables("HOURBELL", "10.96.0.7", 8080), None)
    assert found.url == "http://127.0.0.1:8080"


def service_variables(name: str, address: str, port: int) -> dict[str, str]:
    """What the kubelet sets in each container beside a Service; for its ports `http` and `events`."""
    events = port + 1
    return {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": str(port),
        f"{name}_SERVICE_PORT_HTTP": str(port),
        f"{name}_SERVICE_PORT_EVENTS": str(events),
        f"{name}_PORT": f"tcp://{address}:{port}",
        f"{name}_PORT_{port}_TCP": f"tcp://{address}:{port}",
        f"{name}_PORT_{port}_TCP_PROTO": "tcp",
        f"{name}_PORT_{port}_TCP_PORT": str(port),
        f"{name}_PORT_{port}_TCP_ADDR": address,
        f"{name}_PORT_{events}_UDP": f"udp://{address}:{events}",
        f"{name}_PORT_{events}_UDP_PROTO": "udp",
        f"{name}_PORT_{events}_UDP_PORT": str(events),
        f"{name}_PORT_{events}_UDP_ADDR": address,
    }


def test_variables_of_the_command_line_and_of_tests_are_no_settings_and_no_mistakes() -> None:
    variables = (URL_VARIABLE, API_KEY_VARIABLE, PROFILE_VARIABLE, TEST_DATABASE_VARIABLE)
    assert from_environment(HOME | dict.fromkeys(variables, "x")) == from_environment(HOME)


@pytest.mark.parametrize("field", msgspec.structs.fields(Settings), ids=lambda field: field.name)
def test_each_setting_can_be_in_a_file(tmp_path: Path, field: msgspec.structs.FieldInfo) -> None:
    value = VALUES.get(field.name, "7")
    (file := tmp_path / "value").write_text(f"{value}\n")
    name = variable_name(field.name)
    from_file = from_environment(HOME | {f"{name}_FILE": str(file)})
    assert from_file == from_environment(HOME | {name: value})
    assert from_file != from_environment(HOME)


VALUES = {
    "admin_key": f"hb_{'k' * 43}",
    "ca_file": "/etc/ours.pem",
    "create_on_use": "false",
    "data_dir": "/srv/hourbell",
    "database_url": "postgresql://ada:secret@db/hourbell",
    "egress_allow": "10.1.0.0/16",
    "failpoints": "plan.after_open=kill",
    "host": "0.0.0.0",
    "log_level": "debug",
    "secret_keys": KeyRing.generate(),
    "worker_low_share": "0.5",
    "worker_queues": "mail,reports",
}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read {file}: No such file or directory."),
        (b"", "{file} is empty."),
        (b"\n", "{file} is empty."),
        (b"\xff", "cannot read {file}: it is not UTF-8."),
        (b"x" * 70_000, "{file} is larger than 65536 bytes."),
    ],
)
def test_a_file_that_cannot_be_a_value_is_named(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        from_environment(HOME | {"HOURBELL_DATABASE_URL_FILE": str(file)})
    expected = f"HOURBELL_DATABASE_URL_FILE: {complaint.format(file=file)}"
    assert refused.value.message == expected


def test_a_file_and_a_value_are_refused_together(tmp_path: Path) -> None:
    (file := tmp_path / "port").write_text("9090")
    with pytest.raises(ConfigurationError, match="HOURBELL_PORT and HOURBELL_PORT_FILE are both"):
        from_environment(HOME | {"HOURBELL_PORT_FILE": str(file), "HOURBELL_PORT": "9091"})


def test_a_wrong_value_from_a_file_is_not_repeated(tmp_path: Path) -> None:
    (file := tmp_path / "port").write_text("secret")
    with pytest.raises(ConfigurationError) as refused:
        from_environment(HOME | {"HOURBELL_PORT_FILE": str(file)})
    assert refused.value.message == (
        "HOURBELL_PORT must be a port number from 1 to 65535; it is not shown here."
    )


def test_only_the_end_of_the_last_line_of_a_file_is_no_part_of_the_value(tmp_path: Path) -> None:
    (file := tmp_path / "url").write_text("postgresql://ada@db/x y \r\n")
    settings = from_environment(HOME | {"HOURBELL_DATABASE_URL_FILE": str(file)})
    assert settings.database_url == "postgresql://ada@db/x y "


def test_a_command_reads_its_key_from_a_file(tmp_path: Path) -> None:
    (file := tmp_path / "key").write_text("hb_1\n")
    env = HOME | {"HOURBELL_URL": "http://there", "HOURBELL_API_KEY_FILE": str(file)}
    assert choose_server(env, None).api_key == "hb_1"
    assert from_environment(env) == from_environment(HOME)


def test_an_app_reads_the_url_of_its_database_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "url").write_text("postgresql://ada@db/x\n")
    monkeypatch.delenv("HOURBELL_DATABASE_URL", raising=False)
    monkeypatch.setenv("HOURBELL_DATABASE_URL_FILE", str(file))
    assert App("shop").configured_url() == "postgresql://ada@db/x"
