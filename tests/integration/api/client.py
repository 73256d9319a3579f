"""A client that takes no answer which the OpenAPI document does not describe."""

import itertools
import json as json_module
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from hourbell.security.sealing import KeyRing
from integration.api.conforms import operation_of, problems_of

GENERATED = object()
KEY_RING = KeyRing.parse(KeyRing.generate())

# The job of the issue that asked for this API, with the dots filled in.
CONTRACT_JOB = {
    "name": "nightly-seller-report",
    "type": "RECURRING",
    "schedule": {
        "cron": "0 2 * * *",
        "timezone": "Asia/Kolkata",
        "starts_at": "2026-04-07T00:00:00Z",
    },
    "action": {
        "type": "WEBHOOK",
        "url": "https://reports.example.com/nightly",
        "method": "POST",
        "headers": {"X-Report": "nightly"},
        "body": {"sellers": ["all"], "limit": 10},
    },
    "retry_policy": {
        "max_retries": 3,
        "backoff": "EXPONENTIAL_WITH_JITTER",
        "initial_delay_seconds": 30,
    },
    "priority": "HIGH",
    "tenant_id": "seller-platform",
}

TASK = {"type": "TASK", "name": "count"}


def recurring(**fields: Any) -> dict[str, Any]:
    """A job far from its next run."""
    schedule = {"cron": "0 3 1 1 *"}
    return {
        "name": "yearly",
        "type": "RECURRING",
        "schedule": schedule,
        "action": TASK,
        **fields,
    }


def one_time(**fields: Any) -> dict[str, Any]:
    """A job for tomorrow."""
    schedule = {"delay_seconds": 86_400}
    return {"name": "once", "type": "ONE_TIME", "schedule": schedule, "action": TASK, **fields}


class Answer(msgspec.Struct):
    status: int
    headers: Any
    body: Any

    @property
    def paths(self) -> set[str]:
        """The wrong fields of a problem."""
        return {error["path"] for error in self.body["errors"]}

    def is_problem(self, status: int, code: str) -> bool:
        return (self.status, self.body.get("code")) == (status, code)


class Client:
    def __init__(self, http: aiohttp.ClientSession, document: Any) -> None:
        self.http = http
        self.document = document
        self._keys = (f"key-{number}" for number in itertools.count(1))

    async def get(self, path: str) -> Answer:
        return await self.send("GET", path, key=None)

    async def post(self, path: str, json: Any = None, **rest: Any) -> Answer:
        return await self.send("POST", path, json, **rest)

    async def patch(self, path: str, json: Any = None, **rest: Any) -> Answer:
        return await self.send("PATCH", path, json, **rest)

    async def put(self, path: str, json: Any = None, **rest: Any) -> Answer:
        return await self.send("PUT", path, json, **rest)

    async def pages(self, path: str) -> list[Any]:
        """Every item of a list, page by page."""
        items: list[Any] = []
        token = None
        while True:
            sign = "&" if "?" in path else "?"
            page = (await self.get(path + (f"{sign}page_token={token}" if token else ""))).body
            items += page["items"]
            token = page["next_page_token"]
            if token is None:
                return items

    async def delete(self, path: str, **rest: Any) -> Answer:
        return await self.send("DELETE", path, **rest)

    async def created(self, job: dict[str, Any]) -> Any:
        """The job, created; its `path` beside what was answered."""
        answer = await self.post("/api/v1/jobs", job)
        assert answer.status == 201, answer.body
        return answer.body | {"path": answer.headers["Location"]}

    async def send(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        key: object = GENERATED,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = dict(headers or {})
        if json is not None:
            body = json_module.dumps(json).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        if key is not None:
            sent["Idempotency-Key"] = next(self._keys) if key is GENERATED else str(key)
        async with self.http.request(
            method, path, data=body, headers=sent, skip_auto_headers=["Content-Type"]
        ) as response:
            is_json = response.content_type.endswith("json")
            read = await (response.json(content_type=None) if is_json else response.text())
            answer = Answer(response.status, response.headers, read)
        self._check(method, urlsplit(path).path, answer)
        return answer

    def _check(self, method: str, path: str, answer: Answer) -> None:
        media_type = answer.headers["Content-Type"]
        assert answer.headers["Cache-Control"] == "no-store"
        operation = operation_of(self.document, method, path)
        if operation is None:
            assert answer.status in (404, 405), f"{method} {path} is served and not described"
            schema = {"$ref": "#/components/schemas/Problem"}
            assert media_type == "application/problem+json"
        else:
            described = operation["responses"]
            assert str(answer.status) in described, f"{answer.status} is not described"
            content = described[str(answer.status)]["content"]
            assert media_type in content
            schema = content[media_type]["schema"]
        wrong = [*problems_of(self.document, schema, answer.body)]
        assert not wrong, wrong
        if media_type == "application/problem+json":
            assert answer.body["status"] == answer.status
            assert "Traceback" not in answer.body["detail"]


KEYS = "/api/v1/keys"


async def made(api: Client, role: str, tenant: str | None = None, **sent: Any) -> str:
    answer = await api.post(KEYS, {"name": role, "role": role, "tenant_id": tenant}, **sent)
    assert answer.status == 201, answer.body
    return str(answer.body["key"])


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def answers(api: Client, status: int, headers: dict[str, str] | None = None) -> bool:
    return (await api.send("GET", "/api/v1/jobs", key=None, headers=headers)).status == status
