"""What the tests of the calls of workers share: a worker that is driven call by call."""

from collections.abc import Sequence
from typing import Any

from hourbell.engine.core import Engine
from integration.api.client import Answer, Client
from integration.life.support import admit_all, create, one_time

EXECUTIONS = "/internal/v1/executions"
NOBODY = f"ses_7_{'0' * 32}"  # a session that never was


class RemoteWorker:
    """A worker over HTTP, one call at a time."""

    def __init__(self, api: Client, name: str = "worker") -> None:
        self.api = api
        self.name = name
        self.token: str | None = None

    async def call(self, path: str, body: dict[str, Any]) -> Answer:
        return await self.api.post(path, body, key=None)

    async def ask(self, capacity: int = 10, **fields: Any) -> Answer:
        """A claim, as it is answered."""
        body = {"worker_id": self.name, "capacity": capacity, "session_token": self.token}
        return await self.call(f"{EXECUTIONS}/claim", body | fields)

    async def claim(self, capacity: int = 10, **fields: Any) -> list[Any]:
        answer = await self.ask(capacity, **fields)
        assert answer.status == 200, answer.body
        self.token = answer.body["session_token"]
        executions: list[Any] = answer.body["executions"]
        return executions

    async def beat(self, *executions: Any, **fields: Any) -> Answer:
        ids = [each["execution_id"] for each in executions]
        body = {"worker_id": self.name, "session_token": self.token, "execution_ids": ids}
        return await self.call(f"{EXECUTIONS}/heartbeat", body | fields)

    async def complete(self, execution: Any, status: str = "SUCCEEDED", **fields: Any) -> Answer:
        body = self.held(execution) | {"status": status, "duration_ms": 7} | fields
        return await self.call(f"{EXECUTIONS}/{execution['execution_id']}/complete", body)

    async def complete_all(self, executions: Sequence[Any]) -> None:
        """Report successes together."""
        outcomes = [
            {
                "execution_id": each["execution_id"],
                "fence_token": each["fence_token"],
                "status": "SUCCEEDED",
                "duration_ms": 7,
            }
            for each in executions
        ]
        body = {"session_token": self.token, "outcomes": outcomes}
        answer = await self.call(f"{EXECUTIONS}/complete", body)
        assert answer.body["refused"] == [], answer.body

    async def tell(self, execution: Any, verb: str, **fields: Any) -> Answer:
        """progress or release"""
        path = f"{EXECUTIONS}/{execution['execution_id']}/{verb}"
        return await self.call(path, self.held(execution) | fields)

    def held(self, execution: Any) -> dict[str, Any]:
        return {"session_token": self.token, "fence_token": execution["fence_token"]}

    async def status(self, execution: Any) -> Any:
        """The execution as people see it."""
        return (await self.api.get(f"/api/v1/executions/{execution['execution_id']}")).body


async def enqueue(engine: Engine, count: int = 1, **fields: Any) -> list[int]:
    """So many tasks that a worker may claim at once."""
    ids = [
        (await create(engine, one_time("count", {"number": n}, **fields))).job_id
        for n in range(count)
    ]
    await admit_all(engine)
    return ids
