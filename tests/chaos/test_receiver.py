"""Each mood of the receiver, as a sender meets it and as the log tells it; and what a kill leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
import pytest

from chaos.receiver import HUGE_BYTES, MOODS, SLOW_SECONDS, TRICKLED_BODY, merged
from integration.life.children import Child
from integration.life.support import PATIENCE_SECONDS, eventually
from verify.history import Delivery, read_log

TESTS = Path(__file__).parent.parent
SCHEDULED = datetime(2031, 5, 6, 10, 0, 30, 250_000, tzinfo=UTC)


class Sender:
    """Sends webhooks to one receiver, and reads what it writes."""

    def __init__(self, child: Child, port: int, log: Path, session: aiohttp.ClientSession) -> None:
        self.child = child
        self.port = port
        self._log = log
        self._session = session

    async def send(
        self, mood: str, *, attempt: int = 1, execution: str = "exe_1"
    ) -> tuple[int, bytes]:
        async with self.request(mood, attempt, execution) as response:
            return response.status, await response.read()

    @contextlib.asynccontextmanager
    async def request(
        self, mood: str, attempt: int = 1, execution: str = "exe_1"
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {
            "Hourbell-Execution-Id": execution,
            "Hourbell-Fence-Token": "77",
            "Hourbell-Attempt": str(attempt),
            "Hourbell-Scheduled-For": "2031-05-06T10:00:30.25Z",
        }
        async with self._session.post(
            f"http://127.0.0.1:{self.port}/a job/{mood}",
            headers=headers,
            json={"some": "body"},
            timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS),
        ) as response:
            yield response

    def lines(self) -> list[Delivery]:
        return [line for line in read_log(self._log) if isinstance(line, Delivery)]

    async def only_delivery(self) -> Delivery:
        """What the log says of the only request, when it is over."""

        async def both_lines() -> bool:
            return len(self.lines()) == 2

        await eventually(both_lines)
        [delivery] = merged(self.lines())
        return delivery


@contextlib.asynccontextmanager
async def receiving(log: Path, seed: int = 1) -> AsyncIterator[Sender]:
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    arguments = ["--port", "0", "--log", str(log), "--seed", str(seed)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "chaos.receiver",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdout is not None
    child = Child(process.pid, process.stdout, asyncio.create_task(process.wait()))
    try:
        port = int(await child.says("listening"))
        async with aiohttp.ClientSession() as session:
            yield Sender(child, port, log, session)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await child.ends()
        await child.last_words()


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[Sender]:
    async with receiving(tmp_path / "deliveries") as sender:
        yield sender


async def test_all_that_a_webhook_says_of_itself_is_written_down(sender: Sender) -> None:
    before = time.time()
    assert await sender.send("well") == (200, b"200\n")
    delivery = await sender.only_delivery()
    assert delivery.answered_at is not None
    assert before <= delivery.at <= delivery.answered_at <= time.time()
    assert delivery == Delivery(
        at=delivery.at,
        execution_id="exe_1",
        job="a job",
        fence=77,
        attempt=1,
        scheduled_for=SCHEDULED.timestamp(),
        mood="well",
        answered_at=delivery.answered_at,
        status=200,
    )


async def test_slow_answers_in_its_own_time(sender: Sender) -> None:
    began = time.monotonic()
    assert await sender.send("slow") == (200, b"200\n")
    delivery = await sender.only_delivery()
    assert delivery.answered_at is not None
    drawn = random.Random("1 exe_1 77 1").uniform(0, SLOW_SECONDS)
    assert drawn - 0.01 <= delivery.answered_at - delivery.at <= time.monotonic() - began


async def test_fails_once_fails_on_the_first_attempt_only(sender: Sender) -> None:
    assert [(await sender.send("fails_once", attempt=n))[0] for n in (1, 2, 3)] == [500, 200, 200]


async def test_fails_always_fails(sender: Sender) -> None:
    assert [(await sender.send("fails", attempt=n))[0] for n in (1, 2, 3)] == [500, 500, 500]


async def test_flaky_fails_now_and_then_and_the_same_way_from_the_same_seed(
    tmp_path: Path, sender: Sender
) -> None:
    async def statuses(one: Sender) -> list[int]:
        seen = []
        for number in range(100):
            async with one.request("flaky", execution=f"exe_{number}") as response:
                wish = response.headers.get("Retry-After")
                assert wish == ("1" if response.status == 503 else None)
                seen.append(response.status)
        return seen

    first = await statuses(sender)
    assert set(first) == {200, 500, 503}
    assert 15 <= len(first) - first.count(200) <= 45
    async with receiving(tmp_path / "again") as again:
        assert await statuses(again) == first
    async with receiving(tmp_path / "other", seed=2) as other:
        assert await statuses(other) != first


async def test_hangs_never_answers(sender: Sender) -> None:
    hanging = asyncio.create_task(sender.send("hangs"))
    await eventually(lambda: has_lines(sender, 1))
    answered, _ = await asyncio.wait({hanging}, timeout=0.3)
    assert not answered
    await gives_up(hanging)
    delivery = await sender.only_delivery()
    assert (delivery.status, delivery.answered_at) == (None, None)


async def test_resets_breaks_the_first_answer_in_the_middle(sender: Sender) -> None:
    with pytest.raises(aiohttp.ClientError):
        await sender.send("resets")
    delivery = await sender.only_delivery()
    assert (delivery.status, delivery.answered_at) == (200, None)
    assert await sender.send("resets", attempt=2) == (200, b"200\n")


async def test_trickles_answers_byte_by_byte(sender: Sender) -> None:
    assert await sender.send("trickles") == (200, TRICKLED_BODY)
    delivery = await sender.only_delivery()
    assert delivery.status == 200
    assert delivery.answered_at is not None
    assert delivery.answered_at - delivery.at > 1


async def test_a_trickle_that_nobody_waits_for_was_not_answered(sender: Sender) -> None:
    trickling = asyncio.create_task(sender.send("trickles"))
    await eventually(lambda: has_lines(sender, 1))
    await gives_up(trickling)
    delivery = await sender.only_delivery()
    assert (delivery.status, delivery.answered_at) == (None, None)


async def test_huge_is_huge(sender: Sender) -> None:
    status, body = await sender.send("huge")
    assert (status, len(body)) == (200, HUGE_BYTES)
    delivery = await sender.only_delivery()
    assert delivery.status == 200
    assert delivery.answered_at is not None


async def test_a_huge_answer_that_is_read_in_part_was_begun_and_not_finished(
    sender: Sender,
) -> None:
    async with sender.request("huge") as response:
        assert response.status == 200
        assert await response.content.read(1000)
    delivery = await sender.only_delivery()
    assert (delivery.status, delivery.answered_at) == (200, None)


async def test_garbage_is_no_http(sender: Sender) -> None:
    with pytest.raises(aiohttp.ClientError):
        await sender.send("garbage")
    delivery = await sender.only_delivery()
    assert (delivery.status, delivery.answered_at) == (None, None)


async def test_a_bad_mood_towards_one_does_not_keep_another_waiting(sender: Sender) -> None:
    hanging = asyncio.create_task(sender.send("hangs", execution="exe_2"))
    await eventually(lambda: has_lines(sender, 1))
    assert await sender.send("well") == (200, b"200\n")
    hanging.cancel()


async def test_what_was_in_hand_at_a_kill_is_in_the_log(sender: Sender) -> None:
    hanging = asyncio.create_task(sender.send("hangs"))
    await eventually(lambda: has_lines(sender, 1))
    await sender.child.kill()
    with pytest.raises(aiohttp.ClientError):
        await hanging
    [delivery] = merged(sender.lines())
    assert (delivery.execution_id, delivery.status) == ("exe_1", None)


async def test_a_receiver_that_is_told_to_stop_does_not_wait_for_the_hanging(
    sender: Sender,
) -> None:
    hanging = asyncio.create_task(sender.send("hangs"))
    await eventually(lambda: has_lines(sender, 1))
    sender.child.signal(signal.SIGTERM)
    assert await sender.child.ends() == 0
    with pytest.raises(aiohttp.ClientError):
        await hanging


async def test_what_is_no_webhook_is_turned_down_and_not_written(sender: Sender) -> None:
    assert (await sender.send("merry"))[0] == 404
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{sender.port}/a/well") as response,
    ):
        assert response.status == 400
    assert sender.lines() == []


def test_every_mood_is_described() -> None:
    assert all(mood.__doc__ for mood in MOODS.values())


def test_lines_of_one_request_are_joined_and_those_of_two_are_not() -> None:
    first = Delivery(
        at=1.0,
        execution_id="exe_1",
        job="j",
        fence=1,
        attempt=1,
        scheduled_for=0.5,
        mood="well",
        answered_at=None,
        status=None,
    )
    replaced: Callable[..., Delivery] = msgspec.structs.replace
    again = replaced(first, at=2.0)
    other_fence = replaced(first, fence=2)
    outcome = replaced(first, answered_at=1.5, status=200)
    assert merged([first, again, outcome]) == [outcome, again]
    assert merged([other_fence, outcome]) == [other_fence, outcome]


async def has_lines(sender: Sender, number: int) -> bool:
    return len(sender.lines()) == number


async def gives_up(sending: asyncio.Task[tuple[int, bytes]]) -> None:
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
