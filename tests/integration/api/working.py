"""A worker's calls made by hand, for tests of what the API shows of runs."""

from collections.abc import Sequence
from typing import Any

from hourbell.dispatch import DEAD, RETRY, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.life.settlement import ACCEPTED, RELEASED
from hourbell.model.executions import Claimed
from integration.api.client import Client


class Hand:
    """Claims whatever is due, and settles it as it is told."""

    def __init__(self, dispatch: PostgresDispatch) -> None:
        self._dispatch = dispatch
        self._session: Any = None
        self._claims = 0

    async def admit(self) -> None:
        await self._dispatch.admit()

    async def claim(self) -> Sequence[Claimed]:
        if self._session is None:
            self._session = await self._dispatch.open("hand", ["default"], 100)
        await self._dispatch.admit()
        self._claims += 1
        return await self._dispatch.claim(self._session, self._claims, 100)

    async def settle(self, claimed: Claimed, kind: int, reason: str | None = None) -> None:
        delay = 3600.0 if kind in (RETRY, ACCEPTED) else None
        error = None if reason is None else f"{reason}!"
        token = f'"{"00" * 32}"' if kind == ACCEPTED else None
        one = Settlement(
            claimed.execution_id,
            claimed.fence,
            kind,
            1,
            2,
            delay,
            reason,
            error=error,
            result=token,
        )
        assert await self._dispatch.settle(self._session, [one]) == []

    async def release(self, claimed: Claimed, reason: str, delay: float) -> None:
        one = Settlement(claimed.execution_id, claimed.fence, RELEASED, 1, 2, delay, reason)
        assert await self._dispatch.settle(self._session, [one]) == []

    async def kill(self, reason: str = "retries_exhausted") -> Sequence[Claimed]:
        """Whatever is due runs and dies."""
        claimed = await self.claim()
        for one in claimed:
            await self.settle(one, DEAD, reason)
        return claimed


async def dead(
    api: Client, hand: Hand, document: dict[str, Any], reason: str = "retries_exhausted"
) -> Any:
    """A job whose first run is dead; its `execution_id` beside what was answered."""
    job = await api.created(document)
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    await hand.kill(reason)
    return job | {"execution_id": execution_id}
