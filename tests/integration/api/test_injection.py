"""Text that means something to a database, a log or a header, in every place where a request may have text."""

import asyncio
import json
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
import structlog

from hourbell.api.server import ApiServer
from hourbell.engine.core import Engine
from integration.api.client import Client, one_time

NASTY = [
    "'; drop table hourbell.jobs; --",
    "' or '1'='1",
    "$1; select pg_sleep(10)",
    "\\'; truncate hourbell.tenants cascade; --",
    "a\r\nX-Injected: yes\r\n\r\n",
    "a\nlevel=error event=forged",
    "\x1b[2J\x1b]0;owned\x07",
    "%(injected)s {0} ${jndi:ldap://x}",
    "\u202egnp.exe",
    "../../../../etc/passwd",
    "<script>alert(1)</script>",
]
IDS = {
    "job_id": "job_0ahr000000000",
    "execution_id": "exe_0ahr000000000",
    "key_id": "key_0ahr000000000",
    "monitor_id": "mon_0ahr000000000",
    "group_id": "grp_0ahr000000000",
}


async def tables(engine: Engine) -> Any:
    names = await engine.database.fetch(
        "select relname, relkind::text from pg_class where relnamespace = 'hourbell'::regnamespace order by 1"
    )
    return [tuple(row) for row in names]


async def test_every_parameter_takes_any_text_as_text(api: Client, engine: Engine):
    before = await tables(engine)
    asked = 0
    for path, operations in api.document["paths"].items():
        for (method, operation), nasty in product(operations.items(), NASTY):
            for parameter in operation["parameters"]:
                if parameter["in"] == "header":
                    continue  # below: a client that keeps to HTTP cannot send them
                url, query = path, ""
                if parameter["in"] == "query":
                    query = f"?{parameter['name']}={quote(nasty, safe='')}"
                for name in (
                    each["name"] for each in operation["parameters"] if each["in"] == "path"
                ):
                    value = nasty if name == parameter["name"] else IDS.get(name, "some")
                    url = url.replace(f"{{{name}}}", quote(value, safe=""))
                key = None if method == "get" else "k"
                answer = await api.send(
                    method.upper(),
                    url + query,
                    key=key,
                    headers={"Accept": nasty.encode("unicode_escape").decode()},
                )
                assert answer.status < 500, (method, path, nasty)
                assert "X-Injected" not in answer.headers
                asked += 1
    assert asked > 200
    assert await tables(engine) == before


async def test_every_text_of_a_job_comes_back_as_it_was_or_is_refused(api: Client, engine: Engine):
    before = await tables(engine)
    for nasty in NASTY:
        for document in (
            one_time(name=nasty),
            one_time(concurrency_key=nasty),
            one_time(action={"type": "TASK", "name": "x", "payload": {nasty: nasty}}),
            one_time(action={"type": "WEBHOOK", "url": "http://example.com/", "body": nasty}),
            one_time(
                action={"type": "WEBHOOK", "url": "http://example.com/", "headers": {"X-A": nasty}}
            ),
            one_time(
                action={"type": "WEBHOOK", "url": "http://example.com/", "headers": {nasty: "a"}}
            ),
            one_time(action={"type": "WEBHOOK", "url": "http://example.com/" + nasty}),
            one_time(queue=nasty),
            one_time(tenant_id=nasty),
        ):
            answer = await api.post("/api/v1/jobs", document)
            assert answer.status in (201, 422)
            if answer.status == 201:
                kept = (await api.get(answer.headers["Location"])).body
                for field in ("name", "concurrency_key", "queue", "tenant_id"):
                    assert kept[field] == answer.body[field] == document.get(field, kept[field])
                for part, value in document["action"].items():
                    assert kept["action"][part] == value
    assert await tables(engine) == before


@pytest.mark.parametrize(
    "name", ["Idempotency-Key", "Authorization", "If-Match", "Content-Type", "Host"]
)
async def test_every_header_takes_any_bytes_as_bytes(server: ApiServer, engine: Engine, name: str):
    before = await tables(engine)
    body = json.dumps(one_time()).encode()
    for nasty in (
        b"'; drop table hourbell.jobs; --",
        b"\xff\xfe",
        b"x" * 5000,
        b"a\tb",
        b"",
        b"\x1b[2J",
    ):
        request = (
            b"POST /api/v1/jobs HTTP/1.1\r\n"
            + name.encode() + b": " + nasty + b"\r\n"
            + (b"" if name == "Host" else b"Host: localhost\r\n")
            + b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )  # fmt: skip
        answer = await spoken(server.port, request)
        assert answer.split(b" ", 2)[1][:1] == b"4" or answer.split(b" ", 2)[1] == b"201", answer[
            :200
        ]
        assert b"Traceback" not in answer
    assert await tables(engine) == before


async def test_the_log_has_one_line_for_each_event_whatever_was_sent(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    """A client that could write into the log could forge it: of a request only its path is logged, as it was sent."""

    async def fails(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("hourbell.engine.views.jobs.get_job", fails)
    unknown = {"Authorization": "Bearer hb_" + "x" * 43}
    with structlog.testing.capture_logs() as captured:
        for nasty in NASTY:
            await api.get(f"/api/v1/jobs/{IDS['job_id']}?a={quote(nasty, safe='')}")
            answer = await api.get(f"/api/v1/jobs/{quote(nasty, safe='')}/explain")
            await api.send("GET", "/api/v1/jobs", key=None, headers=unknown)
        answer = await api.get(f"/api/v1/jobs/{IDS['job_id']}")
    assert answer.is_problem(500, "internal_error")
    events = [{**event, "exc_info": None} for event in captured]
    assert {event["event"] for event in events} == {"unknown API key", "unexpected error"}
    for event in events:
        assert not set("".join(map(str, event.values()))) & set("\r\n\x1b\u202e")


async def spoken(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer
