"""A job from SQL gets the options that its task declares, as a job of the library does."""

from typing import Any

import asyncpg
import msgspec
import pytest

from hourbell import App, Retry, WorkerOptions
from hourbell.engine.core import Engine

FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)


def app_of(database: str) -> App:
    app = App("shop", url=database, timeout=40)

    @app.task(
        name="mail",
        priority="HIGH",
        deadline=600,
        expires_in=60,
        delivery="at_most_once",
        concurrency_key="mail-server",
        concurrency_limit=3,
        labels={"team": "web", "kind": "mail"},
    )
    async def mail(cart_id: int) -> None: ...

    @app.task(name="book", retry=Retry.delays(5), concurrency_key=lambda cart_id: f"{cart_id}")
    async def book(cart_id: int) -> None: ...

    return app


@pytest.fixture
async def app(database: str) -> App:
    """An app whose worker has declared its tasks, and has ended."""
    app = app_of(database)
    async with app, app.worker(FAST):
        pass
    return app_of(database)


async def definitions(engine: Engine) -> list[dict[str, Any]]:
    """Of all jobs, in the order of their creation, without their times."""
    rows = await engine.database.fetch(
        "select spec, priority, key, key_limit, at_most_once,"
        " extract(epoch from start_by - run_at)::int as start_seconds,"
        " extract(epoch from finish_by - run_at)::int as finish_seconds"
        " from hourbell.executions order by id"
    )
    specs: list[dict[str, Any]] = [msgspec.json.decode(row["spec"]) for row in rows]
    for spec in specs:
        del spec["schedule"]
    return [dict(row) | {"spec": spec} for row, spec in zip(rows, specs, strict=True)]


@pytest.mark.parametrize(
    ("task", "options", "arguments"),
    [
        ("mail", {}, ""),
        (
            "mail",
            {"labels": {"kind": "letter", "lang": "de"}},
            """, labels => '{"kind": "letter", "lang": "de"}'""",
        ),
        ("mail", {"labels": {}}, ", labels => '{}'"),
        ("mail", {}, ", labels => 'null'"),
        ("mail", {"concurrency_key": "other"}, ", concurrency_key => 'other'"),
        ("book", {"labels": {"a": "b"}}, """, labels => '{"a": "b"}'"""),
    ],
)
async def test_sql_and_the_library_create_the_same_job(
    app: App, engine: Engine, task: str, options: Any, arguments: str
) -> None:
    found = app.get_task(task)
    if task == "book":  # only the library calls the function
        options = {"concurrency_key": "7", **options}
        arguments += ", concurrency_key => '7'"
    async with app:
        await found.configure(**options, delay=3600).enqueue(7)
        await engine.database.value(
            f"select hourbell.enqueue('shop.{task}', '{{\"cart_id\":7}}', delay => '1 hour'{arguments})"
        )
    by_library, by_sql = await definitions(engine)
    assert by_sql == by_library


async def test_labels_must_still_be_an_object_of_texts(app: App, database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        for labels, why in (("[1]", "must be an object"), ('"x"', "must be an object")):
            with pytest.raises(asyncpg.PostgresError, match=why) as refused:
                await connection.fetchval(
                    "select hourbell.enqueue('shop.mail', labels => $1)", labels
                )
            assert refused.value.sqlstate == "HB001"
    finally:
        await connection.close()
