"""What belongs to another tenant: every id and name that can be said is answered as one that nothing has."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from integration.api.client import KEYS, Answer, Client, bearing, made, one_time, recurring
from integration.api.working import Hand

SECRET = "/api/v1/secrets/theirs"


class Cell(msgspec.Struct):
    """A tenant that has one of everything, and a neighbour who is curious."""

    api: Client
    admin: dict[str, str]  # headers of the cell's administrator
    curious: dict[str, str]  # headers of an administrator of acme
    theirs: dict[str, str]  # what globex has, by the names of parameters

    async def seen(self) -> list[Any]:
        """All that globex has, as the cell sees it."""
        paths = [
            "/api/v1/jobs?tenant_id=globex",
            "/api/v1/executions?tenant_id=globex",
            "/api/v1/dead-letters?tenant_id=globex",
            "/api/v1/secrets?tenant_id=globex",
            "/api/v1/audit?tenant_id=globex",
            "/api/v1/tenants/globex",
            "/api/v1/targets/hooks.globex.example",
            f"/api/v1/monitors/{self.theirs['monitor_id']}",
            f"/api/v1/jobs/{self.theirs['job_id']}/audit",
            "/api/v1/keys",
        ]
        return [
            (await self.api.send("GET", path, key=None, headers=self.admin)).body for path in paths
        ]


@pytest.fixture
async def cell(api: Client, admin: str, dispatch: PostgresDispatch) -> Cell:
    cells = bearing(admin)

    async def post(path: str, body: Any = None, method: str = "POST") -> Any:
        answer = await api.send(method, path, body, headers=cells)
        assert answer.status in (200, 201, 202), answer.body
        return answer.body

    action = {"type": "WEBHOOK", "url": "https://hooks.globex.example/x"}
    job = await post("/api/v1/jobs", recurring(tenant_id="globex", name="theirs", action=action))
    hand, run = Hand(dispatch), f"/api/v1/jobs/{job['job_id']}/run"
    (dead,) = (await post(run))["execution_ids"]
    await hand.kill()
    (running,) = (await post(run))["execution_ids"]
    assert len(await hand.claim()) == 1
    once = await post("/api/v1/jobs", one_time(tenant_id="globex", queue="globex-mail"))
    await post("/api/v1/jobs/by-name/theirs", recurring(tenant_id="globex", name="theirs"), "PUT")
    watching = {"job_id": job["job_id"], "grace_seconds": 600, "url": "https://pager.example/"}
    monitor = await post("/api/v1/monitors", watching)
    await post(SECRET, {"value": "the first value", "tenant_id": "globex"}, "PUT")
    await post("/api/v1/targets/hooks.globex.example", {"max_concurrency": 5}, "PUT")
    key = await post(KEYS, {"name": "k", "role": "viewer", "tenant_id": "globex"})
    callback = {"name": "g", "url": "https://done.globex.example/", "tenant_id": "globex"}
    group = await post("/api/v1/groups", callback)
    pausing = {"act": "pause", "filter": {"tenant_id": "globex", "name_prefix": "nobody"}}
    operation = await post("/api/v1/operations", pausing)
    workers = await api.send("GET", "/api/v1/workers", headers=cells)
    curious = await made(api, "admin", "acme", headers=cells)
    theirs = {
        "job_id": job["job_id"],
        "one_time_id": once["job_id"],
        "dead_id": dead,
        "running_id": running,
        "monitor_id": monitor["monitor_id"],
        "key_id": key["key_id"],
        "group_id": group["group_id"],
        "operation_id": operation["operation_id"],
        "session_id": workers.body["items"][0]["session_id"],
        "name": "theirs",
        "tenant": "globex",
        "queue": "globex-mail",
        "host": "hooks.globex.example",
    }
    return Cell(api, cells, bearing(curious), theirs)


MISSING = {
    "job_id": "job_0ahr000000000",
    "one_time_id": "job_0ahr000000000",
    "dead_id": "exe_0ahr000000000",
    "running_id": "exe_0ahr000000000",
    "monitor_id": "mon_0ahr000000000",
    "key_id": "key_0ahr000000000",
    "group_id": "grp_0ahr000000000",
    "operation_id": "ops_0ahr000000000",
    "session_id": "ses_0ahr000000000",
    "name": "nobody",
    "tenant": "nobody",
    "queue": "nobody-mail",
    "host": "hooks.nobody.example",
}

# Which of these may stand for a parameter of a path.
KINDS = {
    "job_id": ["job_id", "one_time_id"],
    "execution_id": ["dead_id", "running_id"],
    "monitor_id": ["monitor_id"],
    "key_id": ["key_id"],
    "group_id": ["group_id"],
    "operation_id": ["operation_id"],
    "session_id": ["session_id"],
    "host": ["host"],
}

# By name: a tenant's own, whatever others call theirs. What makes something is in a test of its own.
NAMED = {
    ("delete", "/api/v1/secrets/{name}"): "name",
    ("get", "/api/v1/calendars/{name}"): "name",
    ("delete", "/api/v1/calendars/{name}"): "name",
    ("get", "/api/v1/jobs/by-name/{name}"): "name",
    ("delete", "/api/v1/jobs/by-name/{name}"): "name",
    ("put", "/api/v1/tenants/{name}"): "tenant",
    ("get", "/api/v1/tenants/{name}"): "tenant",
    ("get", "/api/v1/queues/{name}"): "queue",
}
MAKING = {
    ("put", "/api/v1/calendars/{name}"),
    ("put", "/api/v1/secrets/{name}"),
    ("put", "/api/v1/jobs/by-name/{name}"),
}
SHARED = {("put", "/api/v1/queues/{name}"), ("get", "/api/v1/tasks/{name}")}  # by all tenants

BODIES: dict[str, Any] = {
    "/members": {"job_ids": []},
    "/backfill": {"after": "2020-01-01T00:00:00Z", "through": "2020-01-02T00:00:00Z"},
    "/complete": {"token": "guessed", "status": "SUCCEEDED"},
}


def calls_with_ids_in_their_paths(document: Any) -> list[tuple[str, str, str]]:
    """Methods, paths and what stands in these; everything that the document describes, or it fails."""
    found = []
    for path, operations in document["paths"].items():
        if path.startswith("/internal/"):
            continue  # workers see all tenants
        for method in operations:
            for parameter in re.findall(r"{(\w+)}", path):
                if parameter == "name":
                    assert (method, path) in NAMED.keys() | MAKING | SHARED, "teach this test"
                    kinds = [NAMED[method, path]] if (method, path) in NAMED else []
                else:
                    kinds = KINDS[parameter]
                found += [(method, path.replace(f"{{{parameter}}}", "{id}"), k) for k in kinds]
    return found


Ask = Callable[[str], tuple[str, str, Any]]  # from what is meant to method, path and body

ELSEWHERE: list[tuple[str, Ask]] = [
    (
        "job_id",
        lambda job: (
            "POST",
            "/api/v1/monitors",
            {"job_id": job, "grace_seconds": 600, "url": "https://pager.example/"},
        ),
    ),
    ("job_id", lambda job: ("POST", "/api/v1/dead-letters/replay", {"job_id": job})),
    ("job_id", lambda job: ("POST", "/api/v1/dead-letters/purge", {"job_id": job})),
    ("job_id", lambda job: ("GET", f"/api/v1/dead-letters?job_id={job}", None)),
    ("job_id", lambda job: ("GET", f"/api/v1/executions?job_id={job}", None)),
    ("one_time_id", lambda job: ("GET", f"/api/v1/executions?job_id={job}", None)),
    ("tenant", lambda name: ("POST", "/api/v1/jobs", one_time(tenant_id=name))),
    ("tenant", lambda name: ("PUT", "/api/v1/jobs/by-name/x", recurring(tenant_id=name, name="x"))),
    ("tenant", lambda name: ("POST", "/api/v1/jobs/batch", [one_time(tenant_id=name)])),
    ("tenant", lambda name: ("POST", "/api/v1/dead-letters/replay", {"tenant_id": name})),
    ("tenant", lambda name: ("POST", "/api/v1/dead-letters/purge", {"tenant_id": name})),
    ("tenant", lambda name: ("POST", KEYS, {"name": "k", "role": "viewer", "tenant_id": name})),
    ("tenant", lambda name: ("PUT", SECRET, {"value": "a long value", "tenant_id": name})),
    ("tenant", lambda name: ("DELETE", f"{SECRET}?tenant_id={name}", None)),
    *(
        ("tenant", lambda name, kind=kind: ("GET", f"/api/v1/{kind}?tenant_id={name}", None))
        for kind in ("jobs", "executions", "dead-letters", "secrets", "audit", "forecast")
    ),
]


async def ask(cell: Cell, method: str, path: str, body: Any) -> Answer:
    key = {"key": None} if method == "GET" else {}
    return await cell.api.send(method, path, body, headers=cell.curious, **key)


def told(answer: Answer, meant: str) -> tuple[int, str]:
    # The times of a forecast are those of its moment.
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "AT", str(answer.body))
    return answer.status, text.replace(meant, "ID")


async def test_an_id_in_a_path_is_answered_as_one_that_nothing_has(cell: Cell):
    before = await cell.seen()
    calls = calls_with_ids_in_their_paths(cell.api.document)
    for method, path, kind in calls:
        body = next((body for end, body in BODIES.items() if path.endswith(end)), None)
        body = {} if method in ("patch", "put") else body
        theirs, nobodys = [
            told(await ask(cell, method.upper(), path.replace("{id}", meant), body), meant)
            for meant in (cell.theirs[kind], MISSING[kind])
        ]
        assert theirs == nobodys, (method, path, kind)
        assert theirs[0] == (403 if (method, kind) == ("put", "tenant") else 404), (method, path)
    assert len(calls) > 30
    assert await cell.seen() == before


async def test_an_id_in_a_body_or_a_query_is_answered_as_one_that_nothing_has(cell: Cell):
    before = await cell.seen()
    for kind, asked in ELSEWHERE:
        theirs, nobodys = [
            told(await ask(cell, *asked(meant)), meant)
            for meant in (cell.theirs[kind], MISSING[kind])
        ]
        assert theirs == nobodys, asked("…")
    assert await cell.seen() == before


async def test_a_foreign_job_is_not_written_into(api: Client, admin: str):
    job = (
        await api.post("/api/v1/jobs", recurring(tenant_id="victim"), headers=bearing(admin))
    ).body
    other = bearing(await made(api, "operator", "attacker", headers=bearing(admin)))
    for path in ("replay", "purge"):
        answer = await api.post(
            f"/api/v1/dead-letters/{path}", {"job_id": job["job_id"]}, headers=other
        )
        assert answer.status < 300
    trail = await api.send(
        "GET", f"/api/v1/jobs/{job['job_id']}/audit", key=None, headers=bearing(admin)
    )
    assert [entry["operation"] for entry in trail.body["items"]] == ["create"]


async def test_a_name_that_others_have_is_free(cell: Cell):
    before = await cell.seen()
    made = await ask(cell, "PUT", "/api/v1/jobs/by-name/theirs", recurring(name="theirs"))
    assert (made.status, made.body["tenant_id"]) == (201, "acme")
    made = await ask(cell, "PUT", SECRET, {"value": "another value"})
    assert (made.status, made.body["tenant_id"], made.body["previous_until"]) == (200, "acme", None)
    assert (await ask(cell, "DELETE", SECRET, None)).status == 200
    assert await cell.seen() == before


async def test_idempotency_keys_and_unique_keys_of_others_are_free(cell: Cell):
    job = recurring(unique_key="one")
    theirs = await cell.api.post(
        "/api/v1/jobs", job | {"tenant_id": "globex"}, key="same", headers=cell.admin
    )
    ours = await cell.api.post("/api/v1/jobs", job, key="same", headers=cell.curious)
    assert (theirs.status, ours.status) == (201, 201)
    assert ours.body["job_id"] != theirs.body["job_id"]


async def test_a_page_token_of_others_leads_to_nothing_of_theirs(cell: Cell):
    for kind in ("jobs", "executions", "dead-letters", "keys", "audit"):
        own = await cell.api.send(
            "GET", f"/api/v1/{kind}?page_size=1", key=None, headers=cell.admin
        )
        token = own.body["next_page_token"]
        path = f"/api/v1/{kind}?page_size=50" + (f"&page_token={token}" if token else "")
        answer = await ask(cell, "GET", path, None)
        assert answer.status == 200
        assert "globex" not in str(answer.body), kind
