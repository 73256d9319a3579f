"""One result that cannot be stored among many that can: all of them are recorded."""

from collections.abc import Callable
from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life import settlement
from hourbell.engine.views.executions import get_execution
from hourbell.model.errors import InvalidInput
from hourbell.model.executions import Claimed
from integration.life.support import (
    create,
    eventually,
    fates,
    fill,
    one_time,
    places,
    scheduling,
    working,
)

NEVER = {"max_retries": 0}


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


ODD: dict[int, Any] = {
    50: "a\x00b",
    100: "\ud800",  # half a character
    150: {"not": object()},
    200: "x" * 20_000,
    250: nested(3000),
    300: float("nan"),
    350: {"\x00": {"deep": ["\x00"]}},
    400: 10**400,
}


async def recorded(engine: Engine, number: int) -> bool:
    return not await places(engine) and sum((await fates(engine)).values()) == number


async def test_a_nul_and_other_odd_results_among_500_are_all_recorded(engine: Engine) -> None:
    runs: dict[int, int] = {}  # execution by the order of its start

    async def odd(payload: object, claimed: Claimed) -> object:
        number = len(runs)
        runs[number] = claimed.execution_id
        if number == 450:
            raise ValueError("a\x00b \ud800")
        return ODD.get(number, {"number": number})

    await fill(engine, 500, one_time("odd", retry_policy=NEVER))
    async with scheduling(engine), working(engine, {"odd": odd}):
        await eventually(lambda: recorded(engine, 500))
    assert len(runs) == 500  # none ran twice
    assert await fates(engine) == {"SUCCEEDED": 499, "DEAD(retries_exhausted)": 1}
    for number, execution_id in runs.items():
        execution = await get_execution(engine, execution_id)
        if number not in ODD and number != 450:
            assert execution.result == {"number": number}
            assert execution.error is None
    told = {number: await get_execution(engine, runs[number]) for number in (*ODD, 450)}
    assert told[50].result == "a\x00b"
    assert told[100].result is None
    assert "not JSON" in told[100].error
    assert "not JSON" in told[150].error
    assert "20002 bytes" in told[200].error
    assert "JSON cannot represent the number nan" in told[300].error
    assert told[350].result == {"\x00": {"deep": ["\x00"]}}
    assert told[450].error == "ValueError: a\\x00b \\ud800"


async def test_outcomes_that_the_database_refuses_are_found_by_halving(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever may slip through the worker's own checks spoils itself only."""
    monkeypatch.setattr(settlement, "to_json", lambda value: value)  # no check at all
    seen: list[int] = []

    async def careless(payload: object, claimed: Claimed) -> bytes:
        seen.append(claimed.execution_id)
        return {3: b"{no json", 77: b'"\x00"', 140: b'"\\ud800\\u0000'}.get(len(seen), b"{}")

    await fill(engine, 200, one_time("careless"))
    async with scheduling(engine), working(engine, {"careless": careless}):
        await eventually(lambda: recorded(engine, 200))
    assert await fates(engine) == {"SUCCEEDED": 200}
    for number in (3, 77, 140):
        execution = await get_execution(engine, seen[number - 1])
        assert execution.result is None
        assert "could not be stored completely" in execution.error


WEBHOOK = {"type": "WEBHOOK", "url": "http://127.0.0.1/"}


@pytest.mark.parametrize("odd", ["b\x00c", "\ud800"], ids=["nul", "half a character"])
@pytest.mark.parametrize(
    "action",
    [
        lambda odd: {"type": "TASK", "name": "noop", "payload": {"a": [odd]}},
        lambda odd: {"type": "TASK", "name": "noop", "payload": {odd: 1}},
        lambda odd: WEBHOOK | {"body": odd},
        lambda odd: WEBHOOK | {"body": {"a": odd}},
    ],
    ids=["payload", "key of a payload", "text body", "body"],
)
async def test_what_a_dead_letter_could_not_keep_does_not_come_in(
    engine: Engine, action: Callable[[str], dict[str, object]], odd: str
) -> None:
    with pytest.raises(InvalidInput):
        await create(engine, one_time(action=action(odd)))
