"""`hourbell migrate`, `api`, `scheduler` and `worker`: processes of one role each, on one database."""

import asyncio
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import services
from conftest import DatabaseMaker, through_pgbouncer
from exposition import parsed
from hourbell.store.embedded import EmbeddedServer
from hourbell.store.function_set import connect
from hourbell.store.migrations import migrate
from integration.life.support import eventually
from ports import free_port

PATIENCE_SECONDS = 60.0
# For tests that stop nothing: a process that stalls for seconds would lose a short lease, and begin again.
LONG_LEASES = {"HOURBELL_LEASE_SECONDS": "30", "HOURBELL_LEADER_LEASE_SECONDS": "30"}


# For processes with many failures, each of which is a line: no test reads their output while they run, and a full pipe
# would stop them.
QUIET = {"HOURBELL_LOG_LEVEL": "error"}


def hourbell(
    command: str, dsn: str | None, port: int = 1, **settings: str
) -> subprocess.Popen[str]:
    environment = (
        os.environ
        | {
            "HOURBELL_PORT": str(port),
            "HOURBELL_LEASE_SECONDS": "2",
            "HOURBELL_LEADER_LEASE_SECONDS": "2",
            "HOURBELL_EGRESS_ALLOW": "127.0.0.0/8",
        }
        | settings
    )
    if dsn is not None:
        environment["HOURBELL_DATABASE_URL"] = dsn
    return subprocess.Popen(
        [sys.executable, "-m", "hourbell", *command.split()],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ask(
    port: int, path: str, body: object = None, key: str | None = None, idempotency: str = ""
) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": idempotency or path}
        | ({"Authorization": f"Bearer {key}"} if key else {}),
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def text_of(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


@contextlib.contextmanager
def running(
    dsn: str, *roles: str, **settings: str
) -> Iterator[dict[str, tuple[subprocess.Popen[str], int]]]:
    ports = {role: free_port() for role in roles}
    started = {role: (hourbell(role, dsn, port, **settings), port) for role, port in ports.items()}
    try:
        yield started
    finally:
        for process, _ in started.values():
            process.kill()
            process.communicate()


async def is_ready(port: int) -> bool:
    try:
        await asyncio.to_thread(ask, port, "/readyz")
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


@pytest.mark.timeout(180)
async def test_three_processes_are_a_system(postgres: str, new_database: DatabaseMaker) -> None:
    async with new_database(postgres) as dsn:
        with running(dsn, "api", "scheduler", "worker", **LONG_LEASES) as parts:
            for _, port in parts.values():
                await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
            api = parts["api"][1]
            job = {
                "name": "hello",
                "type": "ONE_TIME",
                "schedule": {"delay_seconds": 0},
                "action": {
                    "type": "WEBHOOK",
                    "url": f"http://127.0.0.1:{api}/livez",
                    "method": "GET",
                },
            }
            made = await asyncio.to_thread(ask, api, "/api/v1/jobs", job)

            async def has_succeeded() -> bool:
                path = f"/api/v1/jobs/{made['job_id']}/executions"
                found = await asyncio.to_thread(ask, api, path)
                return bool(found["items"][0]["status"] == "SUCCEEDED")

            await eventually(has_succeeded, PATIENCE_SECONDS)
            nodes = (await asyncio.to_thread(ask, api, "/api/v1/nodes"))["items"]
            assert sorted((node["roles"], node["leads"], node["alive"]) for node in nodes) == [
                (["api"], False, True),
                (["scheduler"], True, True),
                (["worker"], False, True),
            ]
            started = (await asyncio.to_thread(ask, api, "/api/v1/overview"))["totals"]["started"]
            assert started in (0, 1)  # counted by the leader, every 10 seconds
            assert await asyncio.to_thread(checks, parts["worker"][1]) == {
                "database": True,
                "migrated": True,
                "worker": True,
            }
            told = {
                role: parsed(await asyncio.to_thread(text_of, port, "/metrics"))
                for role, (_, port) in parts.items()
            }
            outcomes = "hourbell_outcomes_total"
            assert told["worker"][outcomes].total(status="SUCCEEDED") == 1
            assert told["api"][outcomes].total(status="SUCCEEDED") == 0
            # Once in all processes together.
            for name, role in {
                "hourbell_queue_workers": "scheduler",
                "hourbell_leading": "scheduler",
                "hourbell_worker_slots": "worker",
                "hourbell_circuits": "worker",
            }.items():
                assert [each for each in told if name in told[each]] == [role]
            for role, metrics in told.items():
                assert metrics["hourbell_info"].total(roles=role) == 1
                assert metrics["hourbell_database_up"].value() == 1
            for process, _ in parts.values():
                process.send_signal(signal.SIGTERM)
            for role, (process, _) in parts.items():
                said, _ = await asyncio.to_thread(process.communicate, timeout=60)
                assert process.returncode == 0, f"{role}: {said}"
                assert said.endswith("Stopped.\n")


async def test_migrate_prepares_a_database_and_may_be_repeated(
    postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute("drop schema hourbell cascade")
        await connection.close()
        refused = hourbell("scheduler", dsn)
        said, _ = await asyncio.to_thread(refused.communicate, timeout=60)
        assert refused.returncode == 2
        assert "Run `hourbell migrate` with this version once" in said
        for _ in range(2):
            done = hourbell("migrate", dsn)
            said, _ = await asyncio.to_thread(done.communicate, timeout=60)
            assert (done.returncode, said) == (0, "The database is up to date.\n")


@pytest.mark.parametrize("role", ["api", "scheduler", "worker", "migrate"])
def test_a_role_needs_a_database_that_others_share(role: str, tmp_path: Path) -> None:
    process = hourbell(role, None)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "HOURBELL_DATABASE_URL is not set" in said


@pytest.mark.parametrize(
    "command", ["worker", "worker examples.shop_reminder:app", "scheduler", "api", "up", "migrate"]
)
def test_a_database_that_is_not_there_is_told_as_such(command: str) -> None:
    port = free_port()
    process = hourbell(command, f"postgresql://nobody:secret@127.0.0.1:{port}/none")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Cannot use the database" in said
    assert f"none on 127.0.0.1:{port}: the connection was refused. " in said
    assert "HOURBELL_DATABASE_URL" in said
    for wrong in ("Traceback", "secret", "write"):
        assert wrong not in said


async def test_an_api_that_others_can_reach_starts_only_when_there_is_a_key(
    postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:
        port = free_port()
        refused = hourbell("api", dsn, port, HOURBELL_HOST="0.0.0.0")
        said, _ = await asyncio.to_thread(refused.communicate, timeout=60)
        assert refused.returncode == 2
        assert "hourbell keys create --first" in said

        made = hourbell("keys create --role admin --name me", dsn)
        said, _ = await asyncio.to_thread(made.communicate, timeout=60)
        assert made.returncode == 0
        key = said.splitlines()[-1]

        api = hourbell("api", dsn, port, HOURBELL_HOST="0.0.0.0")
        try:
            await says(port, database=True, migrated=True)
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                await asyncio.to_thread(ask, port, "/api/v1/jobs")
            refused.value.close()
            assert await asyncio.to_thread(ask, port, "/api/v1/jobs", None, key) == {
                "items": [],
                "next_page_token": None,
            }
        finally:
            api.terminate()
            await asyncio.to_thread(api.communicate, timeout=60)


async def test_keys_are_made_listed_and_revoked_at_the_terminal(
    postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:

        async def run(command: str) -> tuple[int, str]:
            process = hourbell(command, dsn)
            said, _ = await asyncio.to_thread(process.communicate, timeout=60)
            return process.returncode, said

        code, said = await run("keys create --role viewer --name first")
        assert (code, "first key must have" in said) == (5, True)
        await run("keys create --role admin --name root")
        code, said = await run("keys create --role viewer --name reader --tenant acme")
        assert code == 0
        _, listed = await run("keys list")
        head, *lines = listed.splitlines()
        assert head.split() == ["KEY", "ROLE", "TENANT", "CREATED", "REVOKED", "NAME"]
        assert {line.index("viewer" if "viewer" in line else "admin") for line in lines} == {
            head.index("ROLE")
        }
        (line,) = [line for line in lines if "reader" in line]
        assert line.split()[1:3] == ["viewer", "acme"]
        assert said.splitlines()[-1] not in listed
        key_id = line.split()[0]
        assert await run(f"keys revoke {key_id}") == (0, f"Revoked {key_id}.\n{key_id}\n")
        _, listed = await run("keys list --output json")
        reader, root = json.loads(listed)
        assert (reader["tenant_id"], root["tenant_id"]) == ("acme", None)
        assert (reader["revoked_at"] is None, root["revoked_at"] is None) == (False, True)
        code, said = await run("keys revoke key_nonsense")
        assert (code, "is not a key id" in said) == (3, True)
        code, said = await run("secrets rotate")
        assert (code, "HOURBELL_SECRET_KEYS" in said) == (2, True)
        code, said = await run("secrets new-key")
        assert code == 0
        rotate = hourbell("secrets rotate", dsn, HOURBELL_SECRET_KEYS=said.strip())
        said, _ = await asyncio.to_thread(rotate.communicate, timeout=60)
        assert said.startswith("Re-encrypted 0 secrets")


def checks(port: int) -> dict[str, bool]:
    """What /readyz says, ready or not; empty if nobody answers."""
    try:
        answer = ask(port, "/readyz")
    except urllib.error.HTTPError as error:
        with error:
            answer = json.load(error)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    found: dict[str, bool] = answer["checks"]
    return found


async def says(port: int, **expected: bool) -> None:
    async def does() -> bool:
        return expected.items() <= (await asyncio.to_thread(checks, port)).items()

    await eventually(does, PATIENCE_SECONDS)


@pytest.mark.timeout(180)
async def test_every_role_says_that_the_database_is_away_and_comes_back_with_it() -> None:
    with services.private_folder() as folder:
        server = EmbeddedServer(folder / "data", owner="tests")
        dsn = await asyncio.to_thread(server.start)
        try:
            await migrate(dsn)
            with running(dsn, "api", "scheduler", "worker") as parts:
                ports = {role: port for role, (_, port) in parts.items()}
                for port in ports.values():
                    await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
                await asyncio.to_thread(server.stop)
                await says(ports["api"], database=False)
                await says(ports["scheduler"], database=False, scheduler=False)
                await says(ports["worker"], database=False, worker=False)
                for port in ports.values():
                    assert not await is_ready(port)
                    alive = await asyncio.to_thread(ask, port, "/livez")
                    assert alive == {"status": "alive"}
                await asyncio.to_thread(server.start)
                for port in ports.values():
                    await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
                scheduler, _ = parts["scheduler"]
                scheduler.kill()
                assert scheduler.stdout is not None
                assert "lost leadership" in scheduler.stdout.read()
        finally:
            await asyncio.to_thread(server.stop)


@pytest.mark.timeout(180)
async def test_an_api_is_ready_though_nobody_leads(
    postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:
        with running(dsn, "api") as parts:
            api = parts["api"][1]
            await eventually(lambda: is_ready(api), PATIENCE_SECONDS)
            checks = (await asyncio.to_thread(ask, api, "/readyz"))["checks"]
            assert checks == {"database": True, "migrated": True}


@pytest.mark.timeout(180)
async def test_a_scheduler_that_makes_no_progress_is_not_ready(
    postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:
        with running(dsn, "scheduler") as parts:
            port = parts["scheduler"][1]
            await eventually(lambda: is_ready(port), PATIENCE_SECONDS)
            connection = await asyncpg.connect(dsn)
            async with connection.transaction():
                await connection.execute("lock table hourbell.fires in access exclusive mode")
                await says(port, database=True, leader=True, scheduler=False)
                assert not await is_ready(port)
            await connection.close()
            await eventually(lambda: is_ready(port), PATIENCE_SECONDS)


@pytest.mark.timeout(180)
async def test_a_notification_and_an_alert_arrive(
    postgres: str, new_database: DatabaseMaker
) -> None:
    heard: list[dict[str, Any]] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split("\r\n")[0])
        heard.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def heard_events(*events: str) -> None:
        async def has() -> bool:
            return {*events} <= {body["event"] for body in heard}

        await eventually(has, PATIENCE_SECONDS)

    listener = await asyncio.start_server(hear, "127.0.0.1", 0)
    here = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with listener, new_database(postgres) as dsn:
        with running(dsn, "api", "scheduler", "worker", **LONG_LEASES) as parts:
            for _, port in parts.values():
                await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
            api = parts["api"][1]
            job = {
                "name": "nightly",
                "type": "RECURRING",
                "schedule": {"every_seconds": 1},
                "action": {"type": "WEBHOOK", "url": f"http://127.0.0.1:{free_port()}/refused"},
                "retry_policy": {"max_retries": 0},
                "notifications": [{"on": ["dead_letter"], "url": here}],
            }
            made = await asyncio.to_thread(ask, api, "/api/v1/jobs", job)
            monitor = {"job_id": made["job_id"], "grace_seconds": 1, "url": here}
            await asyncio.to_thread(ask, api, "/api/v1/monitors", monitor)
            await heard_events("dead_letter", "missed")
            alerts = [body for body in heard if body["event"] == "missed"]
            assert [body["job_name"] for body in alerts] == ["nightly"]


MAILS = """
from hourbell import App

app = App("mails", pool_size=2)


@app.task
async def send() -> None: ...
"""
WORKER = "worker mails:app --name mail-1"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pooler", [None, "pgbouncer"])
async def test_each_process_names_its_connections_and_has_no_more_than_its_settings_allow(
    postgres: str,
    new_database: DatabaseMaker,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    pooler: str | None,
) -> None:
    (tmp_path / "mails.py").write_text(MAILS)
    settings = LONG_LEASES | {
        "HOURBELL_POOL_SIZE": "2",
        "HOURBELL_DATA_DIR": str(tmp_path / "data"),
        "PYTHONPATH": str(tmp_path),
    }
    async with new_database(postgres) as direct:
        watching = await connect(direct)
        dsn = direct if pooler is None else through_pgbouncer(request, direct)
        roles = ("api", "scheduler", "worker", "up")
        with running(dsn, *roles, WORKER, **settings) as parts:
            for role in roles:
                await eventually(lambda port=parts[role][1]: is_ready(port), PATIENCE_SECONDS)
            most: Counter[str] = Counter()
            names = {f"{role} {platform.node()}-{parts[role][0].pid}" for role in roles}
            names.add("worker mail-1")
            # A connection of a pooler has the name of its last client, and at first none.
            idle = {"app mails", "hourbell", ""}

            async def has_seen_all() -> bool:
                rows = await watching.fetch(CONNECTIONS)
                now = {row["application_name"].removeprefix("hourbell "): row["n"] for row in rows}
                for name, number in now.items():
                    most[name] = max(most[name], number)
                return set(most) >= names

            jobs = [await created(parts["api"][1], number) for number in range(20)]
            await eventually(has_seen_all, PATIENCE_SECONDS)

            async def have_succeeded() -> bool:
                await has_seen_all()
                found = await watching.fetch(SUCCEEDED)
                return len(found) == len(jobs)

            await eventually(have_succeeded, PATIENCE_SECONDS)
            assert set(most) - idle == names
            if pooler is None:
                listening = {row["application_name"] for row in await watching.fetch(LISTENING)}
                assert listening == {f"hourbell {name}" for name in names}
                pools = {name: 1 + name.startswith(("api", "up")) for name in names}
                allowed = Counter({name: 2 * pools[name] + 1 for name in names} | {"app mails": 2})
                assert most - allowed == Counter()
                assert not {"hourbell", ""} & set(most)
            for process, _ in parts.values():
                process.send_signal(signal.SIGTERM)
            for role, (process, _) in parts.items():
                said, _ = await asyncio.to_thread(process.communicate, timeout=60)
                assert process.returncode == 0, f"{role}: {said}"
                assert "Traceback" not in said
                assert "unavailable" not in said
        await watching.close()


CONNECTIONS = """
    select application_name, count(*) as n from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() group by 1
"""
LISTENING = """
    select application_name from pg_stat_activity
    where datname = current_database() and query ilike 'listen%'
"""
SUCCEEDED = "select from hourbell.outcomes where fate = hourbell.fate_succeeded()"


async def created(port: int, number: int) -> str:
    document = {
        "name": f"hello {number}",
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 0},
        "action": {"type": "WEBHOOK", "method": "GET", "url": f"http://127.0.0.1:{port}/livez"},
    }
    made = await asyncio.to_thread(ask, port, "/api/v1/jobs", document, None, str(number))
    return str(made["job_id"])


def finished(command: str, dsn: str, **settings: str) -> tuple[int, str]:
    """The exit code of a command, and what it says on both streams."""
    process = hourbell(command, dsn, **settings)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


async def test_the_first_admin_key_comes_from_a_file_and_only_once(
    postgres: str, new_database: DatabaseMaker, tmp_path: Path
) -> None:
    given, later = (f"hb_{letter * 43}" for letter in "ab")
    (file := tmp_path / "admin-key").write_text(f"{given}\n")
    from_file = LONG_LEASES | {"HOURBELL_HOST": "0.0.0.0", "HOURBELL_ADMIN_KEY_FILE": str(file)}
    async with new_database(postgres) as dsn:
        with running(dsn, "api", "api ", **from_file) as parts:  # two at the same time
            for _, port in parts.values():
                await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
                keys = await asyncio.to_thread(ask, port, "/api/v1/keys", None, given)
                assert [(key["role"], key["name"]) for key in keys["items"]] == [
                    ("admin", "first admin")
                ]
        file.write_text(later)
        with running(dsn, "api", **from_file) as parts:
            port = parts["api"][1]
            await eventually(lambda: is_ready(port), PATIENCE_SECONDS)
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                await asyncio.to_thread(ask, port, "/api/v1/keys", None, later)
            refused.value.close()
            code, made = await asyncio.to_thread(
                finished, "keys create --role admin --name other", dsn
            )
            assert code == 0
            code, said = await asyncio.to_thread(
                finished, f"keys revoke {keys['items'][0]['key_id']}", dsn
            )
            assert (code, said.startswith("Revoked")) == (0, True)
        file.write_text(given)
        with running(dsn, "api", **from_file) as parts:
            port = parts["api"][1]
            await eventually(lambda: is_ready(port), PATIENCE_SECONDS)
            other = made.splitlines()[-1]
            keys = await asyncio.to_thread(ask, port, "/api/v1/keys", None, other)
            assert [key["name"] for key in keys["items"]] == ["other", "first admin"]
            assert keys["items"][1]["revoked_at"] is not None


async def test_the_first_key_is_printed_once(postgres: str, new_database: DatabaseMaker) -> None:
    async with new_database(postgres) as dsn:
        both = await asyncio.gather(
            *(asyncio.to_thread(finished, "keys create --first", dsn) for _ in range(2))
        )
        printed = [said.splitlines()[-1] for _, said in both if "hb_" in said]
        assert len(printed) == 1
        assert sorted(code for code, _ in both) in ([0, 0], [0, 5])
        again = await asyncio.to_thread(finished, "keys create --first", dsn)
        assert again == (0, "There is a key already, so no first one was created.\n")
        code, said = await asyncio.to_thread(finished, "keys create --first --role admin", dsn)
        assert (code, "leave out --role" in said) == (2, True)
        code, said = await asyncio.to_thread(finished, "keys create --role admin", dsn)
        assert (code, "Missing option '--name'" in said) == (2, True)


async def test_keys_are_rotated_by_the_commands_of_the_docs(
    postgres: str, new_database: DatabaseMaker
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    of_keys, of_secrets = (
        textwrap.dedent(part.partition("\n\n")[2].partition("\n\n")[0])
        for part in page.split("**Rotation.**")[1:]
    )
    assert of_keys.count("hourbell ") == 3
    assert of_secrets.count("hourbell ") == 2
    async with new_database(postgres) as dsn:
        _, said = await asyncio.to_thread(finished, "keys create --first", dsn)
        old = said.splitlines()[-1]
        _, sealing = await asyncio.to_thread(finished, "secrets new-key", dsn)
        settings = LONG_LEASES | {"HOURBELL_SECRET_KEYS": sealing.strip()}
        with running(dsn, "api", **settings) as parts:
            port = parts["api"][1]
            await eventually(lambda: is_ready(port), PATIENCE_SECONDS)
            keys = await asyncio.to_thread(ask, port, "/api/v1/keys", None, old)
            script = of_keys.replace("key_…", keys["items"][0]["key_id"])
            new = next(line for line in run_script(script, dsn) if line.startswith("hb_"))

            async def has_the_new_key_only() -> bool:
                await asyncio.to_thread(ask, port, "/api/v1/keys", None, new)
                try:
                    await asyncio.to_thread(ask, port, "/api/v1/keys", None, old)
                except urllib.error.HTTPError as error:
                    error.close()
                    return error.code == 401
                return False

            await eventually(has_the_new_key_only, PATIENCE_SECONDS)
            value = {"tenant_id": "default", "value": "a value that is long enough"}
            await asyncio.to_thread(put, port, "/api/v1/secrets/token", value, new)
        after = f"{of_secrets}\nhourbell secrets rotate\n"
        told = run_script(after, dsn, HOURBELL_SECRET_KEYS=sealing.strip())
        assert [line.partition(";")[0] for line in told] == [
            "Re-encrypted 1 secrets",
            "Re-encrypted 0 secrets",
        ]


def run_script(script: str, dsn: str, **settings: str) -> list[str]:
    """What a script of the docs prints; it ends at the first error."""
    hourbell = f'hourbell() {{ "{sys.executable}" -m hourbell "$@"; }}\n'
    done = subprocess.run(
        ["sh", "-euc", hourbell + script],
        env=os.environ | {"HOURBELL_DATABASE_URL": dsn} | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def put(port: int, path: str, body: object, key: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method="PUT",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        | {"Idempotency-Key": "put"},
    )
    with urllib.request.urlopen(request, timeout=30):
        pass
