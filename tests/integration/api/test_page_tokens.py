"""Page tokens of all lists."""

from typing import Any

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from integration.api.client import Client, one_time, recurring
from integration.api.test_create_monitor import MONITORS, watching
from integration.api.working import Hand


async def filled(api: Client, dispatch: PostgresDispatch) -> str:
    """Two or more of everything that a list shows; returns the path of a job with such lists."""
    for name in ("a", "b"):
        await api.put(f"/api/v1/tenants/{name}", {})
        await api.put(f"/api/v1/queues/{name}", {})
        await api.put(f"/api/v1/targets/{name}.example", {})
        await api.put(f"/api/v1/secrets/{name}", {"value": "a value of a secret"})
        await api.put(f"/api/v1/calendars/{name}", {"dates": ["2030-01-01"]})
        await api.post("/api/v1/groups", {"name": name, "url": "https://api.example/done"})
        await api.post("/api/v1/operations", {"act": "pause", "filter": {"queue": name}})
    await api.created(one_time(schedule={"delay_seconds": 0}))
    await api.created(one_time(schedule={"delay_seconds": 0}))
    hands = Hand(dispatch), Hand(dispatch)
    await hands[0].kill()
    await hands[1].claim()
    job = await api.created(recurring())
    for number in range(2):
        await api.patch(job["path"], {"name": f"n{number}"})
        await api.post(job["path"] + "/run")
        other = await api.created(recurring())
        await api.post(MONITORS, watching(other["job_id"]))
    return str(job["path"])


def lists_of(document: Any, job: str) -> list[str]:
    """The paths of all operations that take a page token."""
    paths = []
    for path, operations in document["paths"].items():
        parameters = operations.get("get", {"parameters": []})["parameters"]
        if any(each["name"] == "page_token" for each in parameters):
            paths.append(path.replace("/api/v1/jobs/{job_id}", job))
    return paths


async def test_the_page_token_of_a_list_is_refused_by_every_other(
    api: Client, dispatch: PostgresDispatch, monkeypatch: pytest.MonkeyPatch
):
    job = await filled(api, dispatch)
    lists = lists_of((await api.get("/schema/openapi.json")).body, job)
    lists.append("/api/v1/jobs?q=n")  # recurring jobs first: its positions are of another kind
    assert len(lists) > 15
    assert not [path for path in lists if "{" in path]
    tokens = {}
    for path in lists:
        sign = "&" if "?" in path else "?"
        first = await api.get(f"{path}{sign}page_size=1")
        assert first.status == 200, path
        tokens[path] = first.body["next_page_token"]
    keys = "/api/v1/keys"  # which would be asked for as soon as there is one
    assert {path for path, token in tokens.items() if token is None} == {keys}
    tokens[keys] = tokens["/api/v1/monitors"].replace("list_monitors", "list_keys")
    for path in lists:
        sign = "&" if "?" in path else "?"
        for other, token in tokens.items():
            answer = await api.get(f"{path}{sign}page_size=1&page_token={token}")
            if other == path:
                assert answer.status == 200, path
            else:
                assert answer.is_problem(422, "invalid_input"), (path, other)
                assert answer.paths == {"page_token"}


async def test_the_token_of_a_bulk_change_is_refused_by_another(api: Client):
    for _ in range(2):
        await api.created(recurring())
    paused = await api.post("/api/v1/jobs/pause", {"limit": 1})
    token = paused.body["next_page_token"]
    assert token is not None
    for path in ("jobs/resume", "dead-letters/replay", "dead-letters/purge"):
        answer = await api.post(f"/api/v1/{path}", {"page_token": token})
        assert answer.is_problem(422, "invalid_input"), path
        assert answer.paths == {"page_token"}
    again = await api.post("/api/v1/jobs/pause", {"limit": 1, "page_token": token})
    assert again.body["paused"] == 1
