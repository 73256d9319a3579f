"""A secret that would be known anywhere: sent to a target that echoes it in every disguise, and then looked for everywhere."""

import asyncio
import base64
import json
from typing import Any
from urllib.parse import quote, quote_plus

import aiohttp
import asyncpg
import pytest
from aiohttp import web

from conftest import DatabaseMaker
from hourbell.model.sealing import KeyRing
from integration.life.support import eventually
from integration.test_roles import PATIENCE_SECONDS, free_port, hourbell, is_ready

CANARY = "c4n4ry/Sings+at=dawn & \u00fcbt"
FORMS = {
    CANARY,
    quote(CANARY, safe=""),
    quote_plus(CANARY),
    CANARY.encode().hex(),
    base64.b64encode(CANARY.encode()).decode(),
    base64.urlsafe_b64encode(CANARY.encode()).decode(),
    json.dumps(CANARY)[1:-1],
}
TABLES = """
select relname from pg_class where relnamespace = 'hourbell'::regnamespace and relkind in ('r', 'p')
"""


async def echo(request: web.Request) -> web.Response:
    """Says all that it was sent, in all the ways that it can think of, and is not content with some of it."""
    body = (await request.read()).decode()
    sent = [body, str(request.url), request.headers.get("X-Token", "")]
    said = "\n".join([*sent, *FORMS])
    status = int(request.match_info["status"])
    return web.Response(status=status, text=said, headers={"X-Echo": CANARY.encode().hex()})


@pytest.mark.timeout(180)
async def test_a_secret_is_nowhere_but_in_the_request(
    postgres: str, new_database: DatabaseMaker
) -> None:
    heard: list[str] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append((await request.read()).decode() + request.headers.get("X-Token", ""))
        return await echo(request)

    application = web.Application()
    application.router.add_post("/{status}", listen)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    target = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    ring = {"HOURBELL_SECRET_KEYS": KeyRing.generate(), "HOURBELL_LOG_LEVEL": "debug"}
    async with new_database(postgres) as dsn:
        ports = {role: free_port() for role in ("api", "scheduler", "worker")}
        processes = {role: hourbell(role, dsn, port, **ring) for role, port in ports.items()}
        answers: list[str] = []
        try:
            for port in ports.values():
                await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{ports['api']}") as http:
                await told(http, answers, "PUT", "/api/v1/secrets/canary", {"value": CANARY})
                jobs = [
                    await sends(http, answers, f"{target}/{status}") for status in (200, 418, 500)
                ]
                # One that nobody answers, by a port that nobody has: errors name what could not be reached.
                jobs.append(await sends(http, answers, f"http://127.0.0.1:{free_port()}/1"))

                async def all_ended() -> bool:
                    found = await told(http, answers, "GET", "/api/v1/executions")
                    return [item["status"] for item in found["items"]].count("DEAD") == 3

                await eventually(all_ended)
                for job in jobs:
                    number = job.removeprefix("job_")
                    for path in (f"jobs/{job}", f"jobs/{job}/executions", f"jobs/{job}/audit",
                                 f"executions/exe_{number}", f"executions/exe_{number}/explain"):  # fmt: skip
                        await told(http, answers, "GET", f"/api/v1/{path}")
                for path in ("jobs", "dead-letters", "audit", "secrets"):
                    await told(http, answers, "GET", f"/api/v1/{path}")
                await told(
                    http, answers, "PUT", "/api/v1/secrets/canary", {"value": CANARY, "colour": 1}
                )
            connection = await asyncpg.connect(dsn)
            dump = ""
            for table in await connection.fetch(TABLES):
                statement = f"select t::text from hourbell.{table['relname']} as t"  # noqa: S608
                rows = await connection.fetch(statement)
                dump += "\n".join(row["t"] for row in rows)
            await connection.close()
        finally:
            logs = ""
            for process in processes.values():
                process.terminate()
                logs += (await asyncio.to_thread(process.communicate, timeout=60))[0]
            await runner.cleanup()
    assert sum(CANARY in one for one in heard) >= 3, "the targets have not got it"
    assert "canary" in dump  # its name
    assert "[secret]" in dump
    for where, text in {"answers": "\n".join(answers), "dump": dump, "logs": logs}.items():
        found = {form for form in FORMS if form.lower() in text.lower()}
        assert not found, f"{where}: {found}"


async def sends(http: aiohttp.ClientSession, answers: list[str], url: str) -> str:
    """A job that sends the secret wherever a job can."""
    document = {
        "name": url[-40:],
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 0},
        "action": {
            "type": "WEBHOOK",
            "url": url + "?plain=1",
            "headers": {"X-Token": "Bearer static"},
            "body": {"token": "{{secret:canary}}", "list": ["{{secret:canary}}"]},
        },
        "retry_policy": {"max_retries": 0},
    }
    made = await told(http, answers, "POST", "/api/v1/jobs", document)
    return str(made["job_id"])


async def told(
    http: aiohttp.ClientSession, answers: list[str], method: str, path: str, body: Any = None
) -> Any:
    headers = {"Idempotency-Key": f"{path}-{len(answers)}"} if method != "GET" else {}
    async with http.request(method, path, json=body, headers=headers) as answer:
        answers.append(await answer.text())
        return json.loads(answers[-1])
