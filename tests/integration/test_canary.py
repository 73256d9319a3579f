"""Secrets that would be known anywhere: sent to targets that echo them in every disguise, and then looked for everywhere."""

import asyncio
import base64
import html
import json
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote, quote_plus

import aiohttp
import asyncpg
import pytest
from aiohttp import web

from conftest import DatabaseMaker
from hourbell.engine.operations.completions import WITHHELD
from hourbell.engine.operations.secrets import IN_USE_SECONDS
from hourbell.security.sealing import KeyRing
from integration.life.support import eventually
from integration.test_roles import LONG_LEASES, PATIENCE_SECONDS, hourbell, is_ready
from ports import free_port

ODD = "c4n4ry/Sings+at=dawn & \u00fcbt"  # of what a body can hold
PLAIN = "c4n4ry-pla1n.sings~at_noon"  # of what a url and a header can hold, too
TABLES = """
select relname from pg_class where relnamespace = 'hourbell'::regnamespace and relkind in ('r', 'p')
"""


def forms(canary: str) -> set[str]:
    raw = canary.encode()
    return {
        canary,
        quote(canary, safe=""),
        quote_plus(canary),
        raw.hex(),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
        json.dumps(canary)[1:-1],
        html.escape(canary),
    }


FORMS = forms(ODD) | forms(PLAIN)


def forms_of(sent: Iterable[str]) -> set[str]:
    """Of those canaries that were sent: a target is not known to know more."""
    text = "\n".join(sent)
    return {form for canary in (ODD, PLAIN) if canary in text for form in forms(canary)}


class Target:
    """Says all that it was sent, in all the ways that it can think of, and is not content with some of it."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: dict[str, list[str]] = {}  # by path
        self.accepted: dict[str, tuple[str, str]] = {}  # by path: execution and token

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = (await request.read()).decode()
        sent = [body, str(request.url), *request.headers.values()]
        path = request.path
        self.heard.setdefault(path, []).append("\n".join(sent))
        said = "\n".join([*forms_of(sent), *sent])
        headers = {"X-Echo": PLAIN, "Location": f"{self.url}/elsewhere?{PLAIN}"}
        match request.match_info["how"].split("-"):
            case ["later", *_]:
                self.accepted[path] = (
                    request.headers["Hourbell-Execution-Id"],
                    request.headers["Hourbell-Completion-Token"],
                )
                return web.Response(status=202, headers={"Hourbell-Async": "1"}, text=said)
            case ["garbage"]:
                assert request.transport is not None
                request.transport.write(said.encode())
                request.transport.close()
                return web.Response()
            case [status]:
                # A second time, cut off in the middle of a secret.
                padding = "x" * (16 * 1024 - len(said.encode()) - 10)
                return web.Response(
                    status=int(status), reason=PLAIN, text=said + padding + PLAIN, headers=headers
                )
            case how:
                raise AssertionError(how)


class Operator:
    """A client of the API that keeps all answers."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.answers: list[str] = []

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Idempotency-Key": f"{path}-{len(self.answers)}"} if method != "GET" else {}
        async with self.http.request(method, path, json=body, headers=headers) as answer:
            self.answers.append(f"{answer.headers}\n{await answer.text()}")
            return await answer.json(content_type=None)

    async def sends(self, url: str, **fields: Any) -> str:
        """A job that sends the secrets wherever a job can."""
        document = {
            "name": url[-40:],
            "type": "ONE_TIME",
            "schedule": {"delay_seconds": 0},
            "action": {
                "type": "WEBHOOK",
                "url": url + "?key={{secret:plain}}",
                "headers": {"Authorization": "Bearer {{secret:plain}}"},
                "body": {"token": "{{secret:odd}}", "list": ["{{secret:plain}}"]},
            },
            "retry_policy": {"max_retries": 0},
            **fields,
        }
        made = await self("POST", "/api/v1/jobs", document)
        return str(made["job_id"]).replace("job_", "exe_")

    async def status(self, execution: str) -> str:
        return str((await self("GET", f"/api/v1/executions/{execution}"))["status"])


@pytest.mark.timeout(180)
async def test_a_secret_is_nowhere_but_in_the_request(
    postgres: str, new_database: DatabaseMaker
) -> None:
    target = Target()
    logs: list[str] = []
    ring = LONG_LEASES | {
        "HOURBELL_SECRET_KEYS": KeyRing.generate(),
        "HOURBELL_LOG_LEVEL": "debug",
        "HOURBELL_WORKER_QUEUES": "default,notifications",  # the queue `remote` is left to HTTP
    }
    async with new_database(postgres) as dsn, AsyncExitStack() as stack:
        runner = await served(target)
        stack.push_async_callback(runner.cleanup)
        ports = {role: free_port() for role in ("api", "scheduler", "worker")}
        for role, port in ports.items():
            process = hourbell(role, dsn, port, **ring)

            async def stop(process: Any = process) -> None:
                process.terminate()
                logs.append((await asyncio.to_thread(process.communicate, timeout=60))[0])

            stack.push_async_callback(stop)
        for port in ports.values():
            await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
        http = aiohttp.ClientSession(f"http://127.0.0.1:{ports['api']}")
        operator = Operator(await stack.enter_async_context(http))
        expected = await use_secrets(operator, target)
        await read_everything(operator, expected)
        metrics = await scraped(ports.values())
        dump = await dumped(dsn)
        await stack.aclose()

    # It was sent, and it was echoed.
    for path in ("/200", "/302", "/418", "/500", "/garbage", "/later-good", "/later-bad"):
        assert all(canary in target.heard[path][0] for canary in (ODD, PLAIN)), path
    assert all(PLAIN in one for one in target.heard["/201"]), "of notifications, url and headers"
    assert "/elsewhere" not in target.heard
    assert "{{secret:odd}}" in dump
    assert dump.count("[secret]") > 10
    assert WITHHELD not in dump

    everywhere = {
        "answers": "\n".join(operator.answers),
        "dump": dump,
        "logs": "\n".join(logs),
        "metrics": metrics,
        # What a notification says of an error; its url and headers are where secrets go.
        "notifications": "\n".join(one.partition("\n")[0] for one in target.heard["/201"]),
    }
    for where, text in everywhere.items():
        found = {form for form in FORMS if form.lower() in text.lower()}
        assert not found, f"{where}: {found}"
        assert PLAIN[:8] not in text, f"{where}: the beginning of one"


async def use_secrets(operator: Operator, target: Target) -> dict[str, str]:
    """Everything that can be done with them; what becomes of each execution."""
    await operator("PUT", "/api/v1/secrets/odd", {"value": ODD})
    await operator("PUT", "/api/v1/secrets/plain", {"value": PLAIN})
    hook = {
        "url": target.url + "/201?key={{secret:plain}}",
        "headers": {"X-Key": "{{secret:plain}}"},
        "on": ["success", "failure", "dead_letter"],
    }
    expected = {}
    for how in ("200", "302", "418", "500", "garbage"):
        job = await operator.sends(f"{target.url}/{how}", notifications=[hook])
        expected[job] = "SUCCEEDED" if how == "200" else "DEAD"
    # One that nobody answers, by a port that nobody has: errors name what could not be reached.
    expected[await operator.sends(f"http://127.0.0.1:{free_port()}/1")] = "DEAD"

    # Those that their target completes later, and tells what it was sent. By now no worker remembers anything older than the
    # secrets, so what is told is searched, not withheld.
    await asyncio.sleep(IN_USE_SECONDS)
    ends = {
        "good": {"status": "SUCCEEDED", "result": {"echo": [*FORMS], PLAIN: {ODD: "x"}}},
        "bad": {"status": "FAILED", "error": "\n".join(FORMS)},
    }
    for how, said in ends.items():
        job = await operator.sends(f"{target.url}/later-{how}", notifications=[hook])
        expected[job] = "SUCCEEDED" if how == "good" else "DEAD"

        async def is_accepted(how: str = how) -> bool:
            return f"/later-{how}" in target.accepted

        await eventually(is_accepted, PATIENCE_SECONDS)
        execution, token = target.accepted[f"/later-{how}"]
        path = f"/api/v1/executions/{execution}/complete"
        done = await operator("POST", path, {"token": token, **said})
        assert done == {"execution_id": job, "status": said["status"]}

    # One that a worker over HTTP runs, who is told the names of secrets only.
    job = await operator.sends(f"{target.url}/200", queue="remote")
    expected[job] = "SUCCEEDED"
    wish = {"worker_id": "w", "capacity": 1, "queues": ["remote"], "wait_seconds": 20}
    claimed = await operator("POST", "/internal/v1/executions/claim", wish)
    [given] = claimed["executions"]
    assert given["action"]["headers"] == {"Authorization": "Bearer {{secret:plain}}"}
    held = {"session_token": claimed["session_token"], "fence_token": given["fence_token"]}
    mine = f"/internal/v1/executions/{job}"
    await operator("POST", f"{mine}/progress", held | {"progress": given["action"]})
    ended = {"status": "SUCCEEDED", "duration_ms": 1, "result": given["action"]}
    await operator("POST", f"{mine}/complete", held | ended)

    for execution, status in expected.items():

        async def has_ended(execution: str = execution, status: str = status) -> bool:
            return await operator.status(execution) == status

        await eventually(has_ended, PATIENCE_SECONDS)

    async def all_are_told() -> bool:
        return len(target.heard.get("/201", [])) == len(ends) + 5

    await eventually(all_are_told, PATIENCE_SECONDS)
    return expected


async def read_everything(operator: Operator, executions: Iterable[str]) -> None:
    for execution in executions:
        job = execution.replace("exe_", "job_")
        for path in (f"jobs/{job}", f"jobs/{job}/executions", f"jobs/{job}/audit", f"jobs/{job}/explain",
                     f"executions/{execution}", f"executions/{execution}/explain"):  # fmt: skip
            await operator("GET", f"/api/v1/{path}")
    for path in ("jobs", "executions", "dead-letters", "audit", "secrets", "monitors"):
        await operator("GET", f"/api/v1/{path}")
    await operator("PUT", "/api/v1/secrets/odd", {"value": ODD, "colour": 1})
    await operator("PUT", "/api/v1/secrets/odd", {"value": [ODD]})


async def scraped(ports: Iterable[int]) -> str:
    """What the processes report about themselves to any caller."""
    found = ""
    async with aiohttp.ClientSession() as http:
        for port in ports:
            for path in ("livez", "readyz", "metrics"):
                async with http.get(f"http://127.0.0.1:{port}/{path}") as answer:
                    found += await answer.text()
    return found


async def dumped(dsn: str) -> str:
    """Every row of every table."""
    connection = await asyncpg.connect(dsn)
    dump = ""
    for table in await connection.fetch(TABLES):
        statement = f"select t::text from hourbell.{table['relname']} as t"  # noqa: S608
        dump += "\n".join(row["t"] for row in await connection.fetch(statement))
    await connection.close()
    return dump


async def served(target: Target) -> web.AppRunner:
    application = web.Application()
    application.router.add_post("/{how}", target.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    target.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return runner
