"""`hourbell.enqueue`, `hourbell.try_enqueue` and `hourbell.cancel`: jobs from SQL, in the caller's transaction."""

import asyncio
import contextlib
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hourbell import App, Context, Retry, WorkerOptions
from hourbell.cli.main import main
from hourbell.documents.jobs import parse_new_job
from hourbell.engine.core import CHANNEL, DUE, Engine
from hourbell.engine.life.create.rows import key_number
from hourbell.model.errors import InvalidInput
from hourbell.model.ids import job_text, parse_job_id
from hourbell.model.jobs import JobType, NewJob, OnDuplicate, TaskAction, decode_job
from hourbell.model.policies import Backoff, Priority, RetryPolicy
from hourbell.model.schedules import Once
from hourbell.store.embedded import program_path
from hourbell.store.function_set import function_set
from hourbell.store.migrations import migrate
from integration.life.support import (
    PATIENCE_SECONDS,
    START,
    Hand,
    admit_all,
    eventually,
    travel,
    working,
)

PAGE = Path(__file__).parents[3] / "docs" / "sql.md"
TRY = "select * from hourbell.try_enqueue($1, $2, $3, $4, $5)"


@contextlib.asynccontextmanager
async def connected(dsn: str, **options: Any) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn, **options)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def conn(database: str, engine: Engine) -> AsyncIterator[asyncpg.Connection]:
    """A user's connection to a database that knows the task shop.mail, the tenant default and the queue default."""
    now = await engine.clock.now()
    await engine.tenant("default", now)
    await engine.queue("default", now)
    await engine.tasks(["shop.mail"], now)
    async with connected(database) as connection:
        yield connection


async def attempt(
    connection: asyncpg.Connection,
    *payloads: str,
    keys: list[str | None] | None = None,
    at: list[datetime | None] | None = None,
    options_of: list[int] | None = None,
    options: list[dict[str, Any]] | None = None,
    **shared: Any,
) -> list[tuple[Any, ...]]:
    described = json.dumps(options or [{"task": "shop.mail"} | shared])
    rows = await connection.fetch(TRY, described, list(payloads) or ["{}"], options_of, at, keys)
    return [tuple(row) for row in rows]


async def outcomes(connection: asyncpg.Connection, *payloads: str, **options: Any) -> list[str]:
    return [row[2] for row in await attempt(connection, *payloads, **options)]


async def live(connection: asyncpg.Connection) -> int:
    count: int = await connection.fetchval("select count(*) from hourbell.live")
    return count


async def test_a_job_exists_if_and_only_if_its_transaction_commits(
    conn: asyncpg.Connection, database: str
) -> None:
    async with connected(database) as other:
        async with conn.transaction():
            await outcomes(conn, '{"cart_id": 7}')
            assert await live(other) == 0
        assert await live(other) == 1
        with contextlib.suppress(ZeroDivisionError):
            async with conn.transaction():
                await outcomes(conn)
                raise ZeroDivisionError
        async with conn.transaction():
            with contextlib.suppress(ZeroDivisionError):
                async with conn.transaction():  # a savepoint
                    await outcomes(conn)
                    raise ZeroDivisionError
        assert await live(other) == 1


async def test_a_worker_runs_what_sql_has_enqueued(
    conn: asyncpg.Connection, engine: Engine
) -> None:
    seen: list[object] = []

    async def mail(payload: object, context: object) -> None:
        seen.append(payload)

    async with working(engine, {"shop.mail": mail}):
        await conn.fetchval("""select hourbell.enqueue('shop.mail', '{"cart_id": 7}')""")

        async def ran() -> bool:
            return bool(seen)

        await eventually(ran)
    assert seen == [{"cart_id": 7}]


@pytest.mark.parametrize(
    ("payloads", "options"),
    [(["{}"], {}), (["{}"], {"labels": {"a": "b"}}), (["{}", "{}"], {}), (["{}"], {"keys": ["k"]})],
    ids=["few options", "other options", "several jobs", "unique key"],
)
async def test_a_job_is_announced_when_it_is_due_soon_and_its_caller_wants_that(
    conn: asyncpg.Connection, engine: Engine, payloads: list[str], options: dict[str, Any]
) -> None:
    heard: list[str] = []
    listener = await engine.database.listen(CHANNEL, heard.append)
    try:
        for number, quiet in enumerate(({"notify": False}, {"delay_seconds": 60})):
            other_keys = {"keys": [f"quiet {number}"]} if "keys" in options else {}
            created = await outcomes(conn, *payloads, **{**options, **other_keys}, **quiet)
            assert set(created) == {"created"}
        await conn.execute("notify hourbell, 'these were not announced'")
        assert set(await outcomes(conn, *payloads, **options)) == {"created"}

        async def heard_twice() -> bool:
            return len(heard) >= 2

        await eventually(heard_twice)
    finally:
        await listener.close()
    assert heard == ["these were not announced", DUE]


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({"task": "shop.mial"}, "unknown_task"),
        ({"queue": "mial"}, "unknown_queue"),
        ({"tenant": "acme"}, "unknown_tenant"),
        ({"priority": "URGENT"}, "invalid"),
        ({"timeout_seconds": "soon"}, "invalid"),
        ({"colour": "red"}, "invalid"),
        ({"on_duplicate": "keep"}, "invalid"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "invalid"),
    ],
)
async def test_a_refusal_is_a_row_and_leaves_the_transaction_usable(
    conn: asyncpg.Connection, options: dict[str, Any], outcome: str
) -> None:
    async with conn.transaction():
        assert await outcomes(conn, **options) == [outcome]
        assert await outcomes(conn) == ["created"]
    assert await live(conn) == 1


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ('"notify": "x"', "notify must be true or false"),
        ('"timeout_seconds": 1e20', "timeout must be from 1 to 86400 seconds"),
        ('"timeout_seconds": 1.5', "timeout must be from 1 to 86400 seconds, in whole seconds"),
        ('"deadline_seconds": {}', "deadline must be from 1 second to 366 days"),
        ('"expires_in_seconds": "x"', "expires_in must be from 1 second to 30 days"),
        ('"delay_seconds": [1]', "delay must be from 0 seconds to 3650 days"),
        ('"concurrency_limit": true', "concurrency_limit must be a whole number from 1 to 10000"),
        ('"expires_at": "soon"', "expires_at must be a time"),
        ('"retry_policy": {"max_retries": "x"}', "retry must be an object"),
        ('"retry_policy": 7', "retry must be an object"),
        ('"labels": {"a": "\\u0000"}', "labels must not contain the character U+0000"),
        ('"labels": {"\\ud800": "a"}', "labels must not contain the character U+0000"),
        ('"concurrency_key": "\\u0000"', "concurrency_key must not contain the character U+0000"),
        ('"idempotency_key": "\\u0000"', "idempotency_key must not contain the character U+0000"),
        ('"queue": "\\u0000"', "queue must not contain the character U+0000"),
        ('"timeout_seconds": 1e999999', "timeout must be from 1 to 86400"),
    ],
)
async def test_an_option_that_cannot_be_read_is_named(
    conn: asyncpg.Connection, option: str, text: str
) -> None:
    good, bad = '{"task": "shop.mail"}', f'{{"task": "shop.mail", {option}}}'
    async with conn.transaction():
        for options, payloads, options_of in (
            (f"[{bad}]", ["{}"], None),
            (f"[{bad}]", ["{}", "{}"], None),
            (f"[{good}, {bad}]", ["{}", "{}", "{}"], [1, 1, 2]),
        ):
            (row,) = await conn.fetch(TRY, options, payloads, options_of, None, None)
            assert (row["place"], row["outcome"]) == (1 if options_of is None else 3, "invalid")
            assert row["detail"].startswith(text)
        group = "select * from hourbell.try_group('a', $1, '{}', '{}')"
        (row,) = await conn.fetch(group, bad)
        assert row["detail"].startswith(text)
        assert await outcomes(conn) == ["created"]


@pytest.mark.parametrize(
    "payload",
    [
        "7",
        "[1]",
        "{",
        '{"a": ' + "[" * 100_000,
        '{"a": ' + "[" * 32 + "]" * 32 + "}",
        '{"a": "\\u0000"}',
        '{"a": "\\ud83d"}',
        '{"a": "%s"}' % ("x" * 262_144),
    ],
)
async def test_a_payload_is_an_object_that_can_be_read_back(
    conn: asyncpg.Connection, payload: str
) -> None:
    async with conn.transaction():
        deep = '{"a": ' + "[" * 31 + '"[[[[[[[[[["' + "]" * 31 + "}"
        refused = await attempt(conn, deep, payload, '{"smile": "\\ud83d\\ude00"}')
        assert [(row[0], row[2]) for row in refused] == [(2, "invalid")]
        assert [row[2] for row in await attempt(conn, payload)] == ["invalid"]
        assert await live(conn) == 0


@pytest.mark.parametrize("where", ["labels", "retry_policy"])
async def test_options_that_are_nested_too_deeply_are_refused_as_a_row(
    conn: asyncpg.Connection, where: str
) -> None:
    deep = '{"a":' * 50_000 + "1" + "}" * 50_000
    options = f'[{{"task": "shop.mail", "{where}": {deep}}}]'
    async with conn.transaction():
        rows = await conn.fetch(TRY, options, ["{}", "{}"], None, None, None)
        assert [row["outcome"] for row in rows] == ["invalid"]
        (row,) = await conn.fetch(
            "select * from hourbell.try_group('a', $1, '{}', '{}')", options[1:-1]
        )
        assert row["outcome"] == "invalid"
        assert await outcomes(conn) == ["created"]


async def test_text_that_closes_the_document_early_stays_in_the_payload(
    conn: asyncpg.Connection,
) -> None:
    hostile = '{"a": "}},\\"tenant_id\\":\\"acme\\",\\"x\\":{"}'
    await outcomes(conn, hostile, labels={"a": '"},"b":"c'}, concurrency_key='"}')
    stored = decode_job(await conn.fetchval("select spec from hourbell.executions"))
    assert stored.action.payload == json.loads(hostile)
    assert (stored.tenant_id, stored.labels) == ("default", {"a": '"},"b":"c'})


async def test_one_refusal_undoes_the_whole_call(conn: asyncpg.Connection) -> None:
    assert await outcomes(conn, keys=["a"], delay_seconds=60) == ["created"]
    async with conn.transaction():
        refused = await attempt(conn, "{}", "{}", "{}", keys=["b", "a", None])
        assert [(row[0], row[2]) for row in refused] == [(2, "duplicate")]
        assert "SCHEDULED, runs " in refused[0][4]
    assert await live(conn) == 1
    assert await outcomes(conn, keys=["b"]) == ["created"]


async def test_a_kept_job_is_returned_also_to_a_later_one_of_the_same_call(
    conn: asyncpg.Connection,
) -> None:
    ((_, first, *_),) = await attempt(conn, keys=["a"])
    rows = await attempt(conn, "{}", "{}", "{}", keys=["a", "a", "b"], on_duplicate="keep")
    assert [row[2] for row in rows] == ["kept", "kept", "created"]
    assert [row[1] for row in rows[:2]] == [first, first]
    assert await live(conn) == 2
    assert await outcomes(conn, "{}", "{}", keys=["c", "c"]) == ["duplicate"]


async def test_a_waiting_job_is_replaced_and_rolled_back_with_the_transaction(
    conn: asyncpg.Connection,
) -> None:
    ((_, first, *_),) = await attempt(conn, keys=["a"], delay_seconds=60)
    with contextlib.suppress(ZeroDivisionError):
        async with conn.transaction():
            assert await outcomes(conn, keys=["a"], on_duplicate="replace") == ["created"]
            raise ZeroDivisionError
    assert await conn.fetchval("select id from hourbell.live") == first
    ((_, second, *_),) = await attempt(conn, keys=["a"], on_duplicate="replace", delay_seconds=60)
    assert [row[0] for row in await conn.fetch("select id from hourbell.live")] == [second]


async def test_a_key_of_another_open_transaction_is_busy_after_half_a_second(
    conn: asyncpg.Connection, database: str
) -> None:
    async with connected(database) as other, other.transaction():
        assert await outcomes(other, keys=["a"]) == ["created"]
        async with asyncio.timeout(PATIENCE_SECONDS), conn.transaction():
            assert await outcomes(conn, keys=["a"]) == ["busy"]
            assert await outcomes(conn, keys=["b"]) == ["created"]
            # The other way round: each waits for the other. Both are told, and none is ended.
            first, second = await asyncio.gather(
                outcomes(conn, keys=["a"]), outcomes(other, keys=["b"])
            )
            assert (first, second) == (["busy"], ["busy"])
    assert await live(conn) == 2


async def test_no_setting_of_the_caller_is_changed(
    conn: asyncpg.Connection, engine: Engine
) -> None:
    everything = "select name, setting from pg_settings where name !~ '^(transaction_|in_hot|plpgsql)' order by 1"
    await conn.execute("update hourbell.tenants set max_jobs = 3 where name = 'default'")
    async with conn.transaction():
        await conn.execute("set local lock_timeout = '7s'")
        await conn.execute("set local idle_in_transaction_session_timeout = '11min'")
        await conn.execute("set local synchronous_commit = off")
        before = await conn.fetch(everything)
        assert await outcomes(conn, keys=["a"]) == ["created"]
        assert await outcomes(conn, "{}", "{}", keys=["a", None], on_duplicate="reject") == [
            "duplicate"
        ]
        await conn.fetchval("select hourbell.enqueue('shop.mail')")
        await conn.fetchval("select hourbell.cancel(null, 'a')")
        assert await conn.fetch(everything) == before


async def test_a_job_has_the_key_and_the_owner_of_its_own_options(
    conn: asyncpg.Connection, engine: Engine
) -> None:
    for tenant in ("acme", "globex"):
        await engine.tenant(tenant, await engine.clock.now())
    options = [
        {"task": "shop.mail", "tenant": "acme", "idempotency_key": "once"},
        {"task": "shop.mail", "tenant": "globex", "idempotency_key": "once"},
        {"task": "shop.mail", "tenant": "globex"},
    ]
    # A key of options that no job has is nobody's.
    assert [
        await outcomes(conn, options=options, options_of=[which]) for which in (3, 3, 1, 1, 2, 2)
    ] == [["created"], ["created"], ["created"], ["kept"], ["created"], ["kept"]]
    rows = await conn.fetch(
        "select t.name, count(*) as n from hourbell.live as e join hourbell.tenants as t on t.id = e.tenant group by 1"
    )
    assert {row["name"]: row["n"] for row in rows} == {"acme": 1, "globex": 3}
    kept = await conn.fetch(
        "select t.name from hourbell.idempotency as i join hourbell.tenants as t on t.id = i.tenant"
    )
    assert sorted(row["name"] for row in kept) == ["acme", "globex"]
    # The same key, for another payload of the same tenant.
    assert await outcomes(conn, '{"n": 1}', options=options, options_of=[2]) == ["invalid"]
    assert await outcomes(conn, "{}", "{}", options=options, options_of=[3, 3]) == ["created"] * 2
    assert await outcomes(conn, "{}", "{}", options=options, options_of=[3, 2]) == ["invalid"]


async def test_only_the_quotas_of_tenants_that_get_a_job_are_locked(
    conn: asyncpg.Connection, engine: Engine, database: str
) -> None:
    await engine.tenant("acme", await engine.clock.now())
    await conn.execute("update hourbell.tenants set max_jobs = 9 where name = 'acme'")
    options = [{"task": "shop.mail", "tenant": "acme"}, {"task": "shop.mail"}]
    async with connected(database) as other, other.transaction():
        assert await outcomes(other, options=options) == ["created"]
        assert await outcomes(conn, options=options) == ["busy"]
        assert await outcomes(conn, options=options, options_of=[2]) == ["created"]


async def test_a_quota_is_kept(conn: asyncpg.Connection) -> None:
    await conn.execute("update hourbell.tenants set max_jobs = 2 where name = 'default'")
    async with conn.transaction():
        assert await outcomes(conn, "{}", "{}", "{}") == ["over_quota"]
        assert await outcomes(conn, "{}", "{}") == ["created", "created"]
    with pytest.raises(asyncpg.PostgresError) as refused:
        await conn.fetchval("select hourbell.enqueue('shop.mail')")
    assert refused.value.sqlstate == "HB007"


async def test_a_quota_counts_a_job_once_when_several_sets_of_options_name_the_tenant(
    conn: asyncpg.Connection,
) -> None:
    await conn.execute("update hourbell.tenants set max_jobs = 3 where name = 'default'")
    options = [{"task": "shop.mail", "priority": priority} for priority in ("LOW", "HIGH")]
    many = await attempt(conn, *["{}"] * 4, options=options, options_of=[1, 2, 1, 2])
    assert [(place, outcome) for place, _, outcome, _, _ in many] == [(4, "over_quota")]
    assert (
        await outcomes(conn, *["{}"] * 3, options=options, options_of=[1, 2, 1]) == ["created"] * 3
    )


async def test_an_error_for_people_has_a_code_and_says_what_to_do(
    conn: asyncpg.Connection,
) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        await conn.fetchval("select hourbell.enqueue('shop.mial')")
    assert (refused.value.sqlstate, refused.value.hint) == (
        "HB002",
        "Check the name, such as shop.send_reminder, or start its worker once.",
    )
    enqueue = "select hourbell.enqueue('shop.mail', unique_key => 'cart:7', delay => '1 hour')"
    job: str = await conn.fetchval(enqueue)
    with pytest.raises(asyncpg.PostgresError, match=f"cart:7 belongs to {job}") as refused:
        await conn.fetchval(enqueue)
    assert refused.value.sqlstate == "HB005"
    assert parse_job_id(job) == await conn.fetchval("select id from hourbell.live")


async def test_every_option_of_a_call_reaches_the_job(
    conn: asyncpg.Connection, engine: Engine
) -> None:
    now = await engine.clock.now()
    await engine.tenant("acme", now)
    await engine.queue("mail", now)
    heard: list[str] = []
    listener = await engine.database.listen(CHANNEL, heard.append)
    enqueue = """
        select hourbell.enqueue('shop.mail', '{"cart_id": 7}', at => '2031-05-06T12:00:00+02:00', queue => 'mail',
          priority => 'HIGH', tenant => 'acme', unique_key => 'cart:7', on_duplicate => 'keep',
          concurrency_key => 'carts', concurrency_limit => 3, expires_at => '2031-05-06T10:05:00Z',
          deadline => '2 hours', timeout => '90 seconds', retry => '{"delays_seconds": [60, 300]}',
          labels => '{"shop": "berlin"}', notify => false)"""
    try:
        job = await conn.fetchval(enqueue)
        assert await conn.fetchval(enqueue) == job  # kept
        await conn.execute("select hourbell.enqueue('shop.mail', notify => false)")
        await conn.execute("notify hourbell, 'none of these was announced'")

        async def heard_once() -> bool:
            return bool(heard)

        await eventually(heard_once)
    finally:
        await listener.close()
    assert heard == ["none of these was announced"]
    row = await conn.fetchrow(
        "select spec, run_at, start_by, finish_by, priority, key, key_limit from hourbell.executions"
        " where id = $1",
        parse_job_id(job),
    )
    assert row is not None
    at = datetime(2031, 5, 6, 10, tzinfo=UTC)
    stored = decode_job(row["spec"])
    assert stored == NewJob(
        name="shop.mail",
        action=TaskAction(name="shop.mail", payload={"cart_id": 7}),
        type=JobType.ONE_TIME,
        schedule=Once(at),
        queue="mail",
        priority=Priority.HIGH,
        tenant_id="acme",
        unique_key="shop.mail:cart:7",
        on_duplicate=OnDuplicate.KEEP,
        concurrency_key="carts",
        concurrency_limit=3,
        start_deadline_seconds=300,
        deadline_seconds=7200,
        timeout_seconds=90,
        retry_policy=RetryPolicy(max_retries=2, backoff=Backoff.LIST, delays_seconds=(60, 300)),
        labels={"shop": "berlin"},
    )
    assert tuple(row)[1:] == (
        at,
        at + timedelta(minutes=5),
        at + timedelta(hours=2),
        Priority.HIGH,
        key_number(stored),
        3,
    )


async def test_a_call_replaces_a_waiting_job_and_takes_its_time_from_now(
    conn: asyncpg.Connection,
) -> None:
    enqueue = (
        "select hourbell.enqueue('shop.mail', unique_key => 'cart:7', delay => '90 minutes',"
        " on_duplicate => 'replace')"
    )
    first, second = [await conn.fetchval(enqueue) for _ in range(2)]
    assert first != second
    (row,) = await conn.fetch("select id, run_at - hourbell.clock() as delay from hourbell.live")
    assert row["id"] == parse_job_id(second)
    assert timedelta(minutes=89) < row["delay"] <= timedelta(minutes=90)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("at => now(), delay => '1 hour'", "HB001", "at and delay exclude each other"),
        ("'[7]'", "HB001", "the payload must be a JSON object"),
        ("at => '2001-02-03Z'", "HB001", "at is more than 365 days in the past"),
        ("at => '-infinity'", "HB001", "at is more than 365 days in the past"),
        ("at => 'infinity'", "HB001", "at is too late"),
        ("delay => '-1 second'", "HB001", "delay must be from 0 seconds"),
        ("priority => 'URGENT'", "HB001", "priority must be CRITICAL, HIGH, MEDIUM or LOW"),
        ("unique_key => repeat('k', 200)", "HB001", "unique_key must be 1 to 200"),
        ("unique_key => ''", "HB001", "unique_key must be 1 to 200"),
        ("on_duplicate => 'keep'", "HB001", "on_duplicate needs a unique_key"),
        ("concurrency_limit => 2", "HB001", "concurrency_limit needs a concurrency_key"),
        ("expires_at => '2001-02-03Z'", "HB001", "expires_at has already passed"),
        ("at => 'infinity', expires_at => '2031-02-03Z'", "HB001", "at is too late"),
        ("expires_at => 'infinity'", "HB001", "expires_at must be from 1 second to 30 days"),
        ("deadline => '0 seconds'", "HB001", "deadline must be from 1 second"),
        ("timeout => '25 hours'", "HB001", "timeout must be from 1 to 86400"),
        ("timeout => '178000000 years'", "HB001", "timeout must be from 1 to 86400"),
        ("timeout => 'infinity'", "HB001", "timeout must be from 1 to 86400"),
        ("deadline => '100 years'", "HB001", "deadline must be from 1 second to 366 days"),
        ("deadline => '-infinity'", "HB001", "deadline must be from 1 second to 366 days"),
        ("delay => 'infinity'", "HB001", "delay must be from 0 seconds to 3650 days"),
        (
            "retry => '{\"max_retries\": 1000000000000}'",
            "HB001",
            "retry.max_retries must be from 0",
        ),
        ("retry => '{\"max_crashes\": 3000000000}'", "HB001", "retry.max_crashes must be from 1"),
        ("retry => '{\"delays_seconds\": [3000000000]}'", "HB001", "retry.delays_seconds must be"),
        ("retry => '{\"max_retries\": 101}'", "HB001", "retry.max_retries must be from 0 to 100"),
        ("labels => '{\"a\": 1}'", "HB001", "labels must be at most 16"),
        ("labels => '{\"a\": null}'", "HB001", "labels must be at most 16"),
        ('labels => \'{"a": "\\u0000"}\'', "HB001", "labels must not contain the character"),
        ('retry => \'{"retryable": ["\\u0000"]}\'', "HB001", "retry must not contain the char"),
        ("queue => 'mial'", "HB003", "there is no queue mial"),
        ("tenant => 'acme'", "HB004", "there is no tenant acme"),
    ],
)
async def test_a_refused_argument_has_a_code_and_says_why(
    conn: asyncpg.Connection, arguments: str, code: str, text: str
) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        await conn.fetchval(f"select hourbell.enqueue('shop.mail', {arguments})")
    assert (refused.value.sqlstate, await live(conn)) == (code, 0)
    assert str(refused.value).startswith(text)
    assert refused.value.hint


async def test_what_another_open_transaction_holds_is_waited_for_and_then_refused(
    conn: asyncpg.Connection, database: str, engine: Engine
) -> None:
    await engine.tenant("acme", await engine.clock.now())
    await conn.execute("update hourbell.tenants set max_jobs = 9 where name = 'acme'")
    keyed = "select hourbell.enqueue('shop.mail', unique_key => 'cart:7')"
    limited = "select hourbell.enqueue('shop.mail', tenant => 'acme')"
    cancel = "select hourbell.cancel('shop.mail', 'cart:8')"
    await conn.execute(keyed.replace("cart:7", "cart:8"))

    async def waited(call: str) -> float:
        async with connected(database) as other:
            began = time.monotonic()
            with pytest.raises(asyncpg.PostgresError, match="another open") as refused:
                await other.execute(call)
            assert (refused.value.sqlstate, refused.value.hint) == (
                "HB006",
                "Repeat the transaction.",
            )
            return time.monotonic() - began

    async def cancelled() -> str:
        async with connected(database) as other:
            said: str = await other.fetchval(cancel)
            return said

    async with conn.transaction():
        await conn.execute(keyed)
        await conn.execute(limited)
        assert await conn.fetchval(cancel) == "cancelled"
        for_key, for_quota, said = await asyncio.gather(waited(keyed), waited(limited), cancelled())
    assert (for_key >= 0.5, for_quota >= 2) == (True, True)
    assert for_key < for_quota
    assert (said, await cancelled()) == ("busy", "ended")


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_key_that_is_newer_than_the_snapshot_is_a_serialization_failure(
    conn: asyncpg.Connection, database: str, isolation: Any
) -> None:
    keyed = "select hourbell.enqueue('shop.mail', unique_key => 'cart:7')"
    async with connected(database) as other:
        transaction = conn.transaction(isolation=isolation)
        await transaction.start()
        await conn.execute("select hourbell.enqueue('shop.mail')")  # takes the snapshot
        await other.execute(keyed)
        with pytest.raises(asyncpg.SerializationError):  # SQLSTATE 40001
            await conn.execute(keyed)
        await transaction.rollback()
        async with conn.transaction(isolation=isolation):
            with pytest.raises(asyncpg.PostgresError) as refused:
                await conn.execute(keyed)
    assert (refused.value.sqlstate, await live(conn)) == ("HB005", 1)


async def test_a_trigger_enqueues_with_the_options_that_a_worker_declared(
    conn: asyncpg.Connection, engine: Engine
) -> None:
    await engine.queue("mail", await engine.clock.now())
    await conn.execute(
        "update hourbell.tasks set defaults = "
        """'{"queue": "mail", "timeout_seconds": 30, "retry_policy": {"delays_seconds": [60, 300]}}'"""
    )
    await conn.execute("""
        create temp table orders (id int);
        create function pg_temp.remind() returns trigger language plpgsql as $$
        begin
          perform hourbell.enqueue('shop.mail', json_build_object('cart_id', new.id), delay => '24 hours',
            timeout => '1 minute');
          return new;
        end $$;
        create trigger remind after insert on orders for each row execute function pg_temp.remind();
    """)
    await conn.execute("insert into orders values (7), (8)")
    jobs = [
        decode_job(row[0]) for row in await conn.fetch("select spec from hourbell.live order by id")
    ]
    assert [job.action.payload for job in jobs] == [{"cart_id": 7}, {"cart_id": 8}]
    assert {(job.queue, job.timeout_seconds) for job in jobs} == {("mail", 60)}
    assert {job.retry_policy.delays_seconds for job in jobs} == {(60, 300)}


async def test_what_the_page_prints_runs_in_psql(
    conn: asyncpg.Connection, engine: Engine, database: str
) -> None:
    (printed,) = re.findall(r"^    begin;\n(?:    .*\n)+", PAGE.read_text("utf-8"), re.MULTILINE)
    await engine.tasks(["shop.send_reminder"], await engine.clock.now())
    await conn.execute("create table orders (id int, customer int)")
    command = [program_path("psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]
    try:
        for end in ("rollback", "commit"):
            ran = await asyncio.to_thread(
                subprocess.run,
                [*command, "--set", "ON_ERROR_STOP=1", database],
                input=printed.replace("commit", end),
                capture_output=True,
                text=True,
            )
            assert (ran.returncode, ran.stderr) == (0, "")
            assert await live(conn) == (end == "commit")
    finally:
        await conn.execute("drop table orders")
    row = await conn.fetchrow("select id, spec from hourbell.live")
    assert row is not None
    assert ran.stdout == f"{job_text(row['id'])}\n"
    assert decode_job(row["spec"]).action.payload == {"cart_id": 7}
    assert await outcomes(conn, keys=["shop.send_reminder:cart:7"]) == ["duplicate"]


async def test_cancel_ends_what_waits_and_asks_what_runs_to_stop(
    conn: asyncpg.Connection, engine: Engine
) -> None:
    cancel = "select hourbell.cancel('shop.mail', 'cart:7')"
    assert await conn.fetchval(cancel) == "not_found"
    await conn.fetchval(
        "select hourbell.enqueue('shop.mail', unique_key => 'cart:7', delay => '1 hour')"
    )
    with contextlib.suppress(ZeroDivisionError):
        async with conn.transaction():
            assert await conn.fetchval(cancel) == "cancelled"
            raise ZeroDivisionError
    assert await live(conn) == 1
    assert await conn.fetchval(cancel) == "cancelled"
    assert await live(conn) == 0

    await conn.fetchval("select hourbell.enqueue('shop.mail', unique_key => 'cart:7')")
    hand = await Hand.opened(engine, tasks=["shop.mail"])
    await admit_all(engine)
    (claimed,) = await hand.claim()
    assert await conn.fetchval(cancel) == "requested"
    assert (await hand.beat([claimed])).cancelled == [claimed.execution_id]
    await hand.succeed([claimed])
    assert await conn.fetchval(cancel) == "ended"


# What a caller can put before PostgreSQL's functions and operators, and before our tables.
HOSTILE = """
create schema shadows;
create function shadows.no(text, text) returns boolean language sql as $$ select 1 / 0 = 1 $$;
create function shadows.no(bigint, bigint) returns boolean language sql as $$ select 1 / 0 = 1 $$;
create function shadows.no(int, int) returns boolean language sql as $$ select 1 / 0 = 1 $$;
create function shadows.no(bigint[], bigint[]) returns boolean language sql as $$ select 1 / 0 = 1 $$;
create function shadows.none(text, text) returns text language sql as $$ select (1 / 0)::text $$;
create operator shadows.= (function = shadows.no, leftarg = text, rightarg = text);
create operator shadows.= (function = shadows.no, leftarg = bigint, rightarg = bigint);
create operator shadows.= (function = shadows.no, leftarg = int, rightarg = int);
create operator shadows.<> (function = shadows.no, leftarg = bigint[], rightarg = bigint[]);
create operator shadows.|| (function = shadows.none, leftarg = text, rightarg = text);
create function shadows.json_typeof(json) returns text language sql as $$ select 'object' $$;
create function shadows.clock_timestamp() returns timestamptz language sql as $$ select '2000-01-01'::timestamptz $$;
create temp table tasks (id int, name text);
create temp table tenants (id int, name text);
set search_path = shadows, pg_temp, hourbell, pg_catalog;
"""


@contextlib.asynccontextmanager
async def granted(conn: asyncpg.Connection, database: str) -> AsyncIterator[None]:
    """A role `shop_web` that may create schemas, and what `hourbell migrate --grant-enqueue-to` allows."""
    await conn.execute("create role shop_web login")
    try:
        await conn.execute(f"grant create on database {urlsplit(database).path[1:]} to shop_web")
        migrating = CliRunner(env={"HOURBELL_DATABASE_URL": database})
        command = ["migrate", "--grant-enqueue-to", "shop_web"]
        done = await asyncio.to_thread(migrating.invoke, main, command)
        assert done.exit_code == 0, done.stderr
        yield
    finally:
        await conn.execute("drop owned by shop_web cascade; drop role shop_web")


async def test_a_role_with_the_grant_may_enqueue_and_nothing_else(
    conn: asyncpg.Connection, database: str
) -> None:
    async with granted(conn, database), connected(database, user="shop_web") as web:
        assert await outcomes(web) == ["created"]
        for forbidden in (
            "select * from hourbell.executions",
            "delete from hourbell.due",
            f"select hourbell.live_jobs__{function_set().digest}('{{}}')",
            "select hourbell.clock()",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await web.execute(forbidden)
        assert await conn.fetchval("select actor from hourbell.audit") == "role shop_web"


async def test_the_search_path_of_a_caller_changes_nothing(
    conn: asyncpg.Connection, database: str
) -> None:
    async with granted(conn, database), connected(database, user="shop_web") as web:
        await web.execute(HOSTILE)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await web.fetchval("select 'a'::text = 'b'::text")  # it is hostile
        assert await outcomes(web) == ["created"]
        assert await outcomes(web, "[1]") == ["invalid"]
        enqueue = "select hourbell.enqueue('shop.mail', unique_key => 'cart:7', delay => '1 hour')"
        job = await web.fetchval(enqueue)
        with pytest.raises(asyncpg.PostgresError, match=f"belongs to {job}"):
            await web.fetchval(enqueue)
        options = '{"task": "shop.mail", "labels": {"a": "b"}}'
        group = "select (hourbell.try_group('carts', $1, '{}', $2)).outcome"
        assert await web.fetchval(group, options, [parse_job_id(job)]) == "created"
        assert await web.fetchval("select hourbell.cancel('shop.mail', 'cart:7')") == "cancelled"
        actors = "select distinct actor from hourbell.audit"
        assert await conn.fetchval(actors) == "role shop_web"


async def test_a_handler_completes_in_the_transaction_of_a_role_with_the_grant(
    conn: asyncpg.Connection, database: str
) -> None:
    app = App("shop", url=database, retry=Retry.never())

    @app.task(name="book")
    async def book(ctx: Context) -> None:
        async with connected(database, user="shop_web") as web:
            await web.execute(HOSTILE)
            async with web.transaction():
                await web.execute("create table shadows.orders ()")
                await ctx.complete("booked", connection=web)

    async with granted(conn, database):
        async with app, app.worker(WorkerOptions(lease_seconds=3, drain_seconds=5)):
            assert await (await book.enqueue()).result(20) == "booked"
        assert await conn.fetchval("select to_regclass('shadows.orders') is not null")


async def test_the_names_survive_an_older_build_and_the_functions_that_they_call_are_kept(
    conn: asyncpg.Connection, database: str
) -> None:
    await conn.execute(
        "insert into hourbell.migrations (name, digest) values ('9999_newer.sql', '')"
    )
    try:
        await conn.execute(
            "insert into hourbell.function_sets values ('newer', '9', now() - interval '30 days', true)"
        )
        await conn.execute(
            "update hourbell.function_sets set is_public = false where digest <> 'newer'"
        )
        await migrate(database)
        assert await conn.fetchval(
            "select is_public from hourbell.function_sets where digest = 'newer'"
        )
    finally:
        await conn.execute("delete from hourbell.migrations where name = '9999_newer.sql'")
        await conn.execute("update hourbell.function_sets set is_public = digest <> 'newer'")
        await conn.execute("delete from hourbell.function_sets where digest = 'newer'")
    assert await outcomes(conn) == ["created"]


async def test_jobs_of_many_tenants_in_one_call_have_the_first_level(
    conn: asyncpg.Connection, engine: Engine
) -> None:
    names = [f"t{n}" for n in range(50)]
    await engine.tenants(names, await engine.clock.now())
    options = [{"task": "shop.mail", "tenant": name} for name in names]
    await attempt(conn, *["{}"] * 100, options=options, options_of=[*range(1, 51)] * 2)
    assert await conn.fetchval("select max(flags) from hourbell.due_slabs") == 0
    await attempt(conn, *["{}"] * 100, options=options[:1])
    second = "select sum(cardinality(ids)) from hourbell.due_slabs where flags = 4"
    assert await conn.fetchval(second) == 84


LINES = st.text(st.characters(codec="ascii"), max_size=5) | st.sampled_from(
    ["x" * 64, "x" * 65, "x" * 201]
)
SECONDS = st.integers(-1, 3) | st.integers(0, 10**9)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "max_retries": st.integers(-1, 4) | st.just(101),
        "backoff": st.sampled_from(["FIXED", "LINEAR", "EXPONENTIAL", "LIST", "NONE"]),
        "initial_delay_seconds": st.integers(-1, 4000),
        "max_delay_seconds": st.integers(-1, 4000),
        "delays_seconds": st.lists(st.integers(-1, 3), max_size=4),
        "non_retryable": st.lists(st.sampled_from(["ValueError", "http_404", "a b"]), max_size=2),
        "retryable": st.lists(st.sampled_from(["ValueError", "http_404"]), max_size=2),
        "max_crashes": st.integers(0, 2),
    },
)
OPTIONS = st.fixed_dictionaries(
    {"task": st.just("shop.mail") | LINES},
    optional={
        "priority": st.sampled_from(["CRITICAL", "HIGH", "MEDIUM", "LOW", "high"]),
        "delay_seconds": SECONDS,
        "timeout_seconds": SECONDS,
        "retry_policy": POLICIES,
        "delivery": st.sampled_from(["at_least_once", "at_most_once"]),
        "deadline_seconds": SECONDS,
        "concurrency_key": LINES,
        "concurrency_limit": st.integers(0, 3) | st.just(10_001),
        "labels": st.dictionaries(LINES, LINES, max_size=2),
    },
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example({"task": "shop.mail", "delivery": "at_most_once", "retry_policy": {"max_retries": 0}})
@example({"task": "shop.mail", "retry_policy": {"initial_delay_seconds": 4000}})
@example({"task": "shop.mail", "retry_policy": {"delays_seconds": [1], "max_delay_seconds": 1}})
@given(OPTIONS)
async def test_sql_accepts_what_the_api_accepts_and_stores_the_same(
    conn: asyncpg.Connection, engine: Engine, options: dict[str, Any]
) -> None:
    now = await engine.clock.now()
    fields = {
        name: value for name, value in options.items() if name not in ("task", "delay_seconds")
    }
    document = fields | {
        "name": options["task"],
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": options.get("delay_seconds", 0)},
        "action": {"type": "TASK", "name": options["task"], "payload": {"a": 1}},
    }
    try:
        expected = parse_new_job(document, now, 1)
    except InvalidInput:
        expected = None
    ((_, job, outcome, _, detail),) = await attempt(conn, '{"a": 1}', options=[options])
    if outcome == "unknown_task":
        assert options["task"] != "shop.mail"
        return
    if expected is None:
        assert outcome == "invalid", (outcome, detail)
        return
    assert outcome == "created", detail
    row = await conn.fetchrow(
        "select spec, key, key_limit from hourbell.executions where id = $1", job
    )
    assert row is not None
    stored = decode_job(row["spec"])
    due = stored.schedule.at - now  # type: ignore[union-attr]
    assert abs(due - timedelta(seconds=options.get("delay_seconds", 0))) < timedelta(minutes=1)
    assert {f: getattr(stored, f) for f in stored.__struct_fields__ if f != "schedule"} == {
        f: getattr(expected, f) for f in expected.__struct_fields__ if f != "schedule"
    }
    assert (row["key"], row["key_limit"]) == (key_number(expected), expected.concurrency_limit)


PLAIN = st.fixed_dictionaries(
    {"task": st.just("shop.mail")},
    optional={
        "tenant": st.sampled_from(["default", "acme"]),
        "queue": st.sampled_from(["default", "mail"]),
        "priority": st.sampled_from(["CRITICAL", "HIGH", "MEDIUM", "LOW"]),
        "delay_seconds": st.sampled_from([0, 0.000001, 0.5, 1.0000005, 86400, 315_360_000, -1]),
        "timeout_seconds": st.integers(1, 60),
        "retry_policy": st.sampled_from([{"max_retries": 0}, {"delays_seconds": [1, 2]}, {}]),
        "delivery": st.sampled_from(["at_least_once", "at_most_once"]),
        "expires_at": st.integers(-1, 3).map(lambda n: str(START + timedelta(seconds=1.5 * n))),
        "expires_in_seconds": st.integers(1, 60),
        "deadline_seconds": st.integers(1, 60),
        "concurrency_key": st.sampled_from(["a", "b"]),
        "concurrency_limit": st.integers(1, 3),
        "on_duplicate": st.sampled_from(["reject", "keep"]),
        "labels": st.sampled_from([{}, {"a": "b"}]),
        "notify": st.booleans(),
        "traceparent": st.just(f"00-{'a' * 32}-{'b' * 16}-01"),
        "trace_link": st.sampled_from([f"00-{'c' * 32}-{'d' * 16}-00", "nonsense"]),
    },
)
# Options that are read without `read_options` if there are no others, with values that it refuses too.
FEW_VALUES: dict[str, list[Any]] = {
    "task": ["shop.mail", "shop.other", "no task", 7, None],
    "tenant": ["default", "acme", "limited", "other", "no tenant", None],
    "queue": ["default", "mail", "other", "no queue", None],
    "priority": ["CRITICAL", "HIGH", "MEDIUM", "LOW", "high", None],
    "delay_seconds": [0, 0.5, "1", 315_360_000, 315_360_001, -1, "NaN", "x"],
    "timeout_seconds": [1, 86_400, 86_401, 0, "7", 1.5, "x", True, None],
    "notify": [True, False, "x", 1, None],
}
FEW = st.fixed_dictionaries(
    {}, optional={option: st.sampled_from(values) for option, values in FEW_VALUES.items()}
)


async def test_one_job_is_refused_as_it_would_be_in_a_batch(
    conn: asyncpg.Connection, engine: Engine
) -> None:
    await engine.tenants(["acme", "limited"], await engine.clock.now())
    await conn.execute("update hourbell.tenants set max_jobs = 0 where name = 'limited'")

    async def said(options: list[dict[str, Any]], options_of: int) -> tuple[str, str | None]:
        ((_, _, outcome, _, detail),) = await attempt(
            conn, "{}", options=options, options_of=[options_of]
        )
        return outcome, detail

    seen = set()
    for option, values in FEW_VALUES.items():
        for value in values:
            options = {"task": "shop.mail", option: value}
            alone = await said([options], 1)
            assert alone == await said([options, options], 2), options
            seen.add(alone[0])
    assert seen == {
        *("created", "invalid", "over_quota"),
        *("unknown_task", "unknown_queue", "unknown_tenant"),
    }


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    PLAIN | FEW | FEW.map(lambda options: options | {"task": "shop.mail"}),
    st.sampled_from(["{}", '{"a": [1, "é"]}', "[]", "{"]),
    st.none() | st.sampled_from([-86400.0 * 366, -86400.0, -1.0, 0.0, 0.000001, 1.0, 2.5]),
)
async def test_one_job_is_stored_as_it_would_be_in_a_batch(
    conn: asyncpg.Connection,
    engine: Engine,
    options: dict[str, Any],
    payload: str,
    at: float | None,
) -> None:
    """A single job has a path of its own (`enqueue_jobs`): the whole database must be as after `create_jobs`."""
    now = await travel(engine, START)
    await engine.tenants(["acme", "limited"], now)
    await conn.execute("update hourbell.tenants set max_jobs = 0 where name = 'limited'")
    mail = await engine.queue("mail", now)
    await conn.execute(
        "update hourbell.queues set timeout_seconds = 7, retry_policy = '{\"max_retries\":9}' where id = $1",
        mail,
    )
    tables = await conn.fetch(
        "select relname from pg_class where relnamespace = 'hourbell'::regnamespace and relkind = 'r' order by 1"
    )
    everything = " union all ".join(
        f"select '{name}' as name, to_jsonb(t)::text as row from hourbell.{name} as t"  # noqa: S608
        for (name,) in tables
    )

    async def stored(options: list[dict[str, Any]], options_of: int) -> tuple[list[Any], list[Any]]:
        rollback = conn.transaction()
        await rollback.start()
        await conn.execute(
            "select setval('hourbell.ids', 1), setval(pg_get_serial_sequence('hourbell.audit', 'id'), 1)"
        )
        when = None if at is None else [START + timedelta(seconds=at)]
        answer = await attempt(conn, payload, options=options, options_of=[options_of], at=when)
        found = await conn.fetch(f"{everything} order by 1, 2")
        await rollback.rollback()
        return answer, found

    # With the second of two sets of options it takes the path of a batch.
    assert await stored([options], 1) == await stored([options, options], 2)


async def test_the_end_of_the_validity_is_a_start_deadline(conn: asyncpg.Connection) -> None:
    at = datetime(2031, 5, 6, 10, tzinfo=UTC)
    until = (at + timedelta(seconds=90.5)).isoformat()
    assert await outcomes(conn, at=[at], expires_at=until) == ["created"]
    row = await conn.fetchrow("select spec, start_by from hourbell.executions")
    assert row is not None
    assert row["start_by"] == at + timedelta(seconds=90)  # never later than it was said
    assert decode_job(row["spec"]).start_deadline_seconds == 90
    assert await outcomes(conn, "{}", "{}", at=[at, None], expires_at=until) == ["invalid"]


async def test_ids_have_the_same_text_in_sql(conn: asyncpg.Connection) -> None:
    function = f"select hourbell.job_text__{function_set().digest}($1)"
    for number in (0, 1, 31, 2**22, 381010603205984257, 2**63 - 1):
        assert await conn.fetchval(function, number) == job_text(number)
