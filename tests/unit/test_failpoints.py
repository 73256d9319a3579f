"""Failpoints do what they were told, where and when they were told, and nothing otherwise."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from hourbell import failpoints
from hourbell.failpoints import (
    AnswerLost,
    FailpointAction,
    FailpointError,
    barrier,
    configure,
    failpoint,
    parse,
)
from hourbell.model.errors import ConfigurationError

NAMES = ("plan.before_commit", "plan.after_commit", "claim.answer")


def test_reads_names_actions_and_counts() -> None:
    text = "plan.before_commit=kill; plan.after_commit=pause:0.5@3 ;claim.answer=drop*2;"
    assert parse(text, names=NAMES) == {
        "plan.before_commit": FailpointAction("kill"),
        "plan.after_commit": FailpointAction("pause", pause_seconds=0.5, only_hit=3),
        "claim.answer": FailpointAction("drop", first_hits=2),
    }


def test_the_empty_text_sets_nothing() -> None:
    assert parse("", names=NAMES) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("plan.before_comit=kill", "Did you mean 'plan.before_commit'"),
        ("xyz=kill", "Failpoints: plan.before_commit, plan.after_commit, claim.answer"),
        ("claim.answer", "has no action"),
        ("claim.answer=explode", "is invalid"),
        ("claim.answer=pause", "is invalid"),
        ("claim.answer=pause:-1", "is invalid"),
        ("claim.answer=pause:99999", "is invalid"),
        ("claim.answer=kill:5", "is invalid"),
        ("claim.answer=drop*0", "is invalid"),
        ("claim.answer=drop*1@2", "is invalid"),
        ("claim.answer=drop;claim.answer=kill", "set twice"),
    ],
)
def test_refuses_what_it_cannot_mean(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(text, names=NAMES)
    assert complaint in refused.value.message


async def test_a_refused_text_leaves_the_points_as_they_were() -> None:
    configure("claim.answer=error", names=NAMES)
    with pytest.raises(ConfigurationError):
        configure("claim.answer=explode", names=NAMES)
    with pytest.raises(FailpointError):
        await failpoint("claim.answer")


async def test_error_raises_at_its_point_only() -> None:
    configure("claim.answer=error", names=NAMES)
    with pytest.raises(FailpointError, match=r"claim\.answer"):
        await failpoint("claim.answer")
    await failpoint("plan.before_commit")


async def test_drop_looks_like_a_broken_connection() -> None:
    configure("claim.answer=drop", names=NAMES)
    with pytest.raises(ConnectionResetError) as lost:
        await failpoint("claim.answer")
    assert isinstance(lost.value, AnswerLost)


async def test_a_star_limits_an_action_to_the_first_hits() -> None:
    configure("claim.answer=error*2", names=NAMES)
    assert [await _fails("claim.answer") for _ in range(4)] == [True, True, False, False]


async def test_an_at_sign_picks_one_hit() -> None:
    configure("claim.answer=error@3", names=NAMES)
    assert [await _fails("claim.answer") for _ in range(4)] == [False, False, True, False]


async def test_a_pause_lets_the_loop_go_on() -> None:
    configure("claim.answer=pause:0.05", names=NAMES)
    pausing = asyncio.create_task(failpoint("claim.answer"))
    await asyncio.sleep(0)
    assert not pausing.done()
    await pausing


async def test_a_barrier_stops_the_first_caller_until_it_is_released() -> None:
    with barrier("plan.after_commit", names=NAMES) as point:
        first = asyncio.create_task(failpoint("plan.after_commit"))
        await point.reached()
        await failpoint("plan.after_commit")  # the second passes
        assert not first.done()
        point.release()
        await first


async def test_the_end_of_the_block_releases_and_restores() -> None:
    configure("plan.after_commit=error", names=NAMES)
    with barrier("plan.after_commit", names=NAMES) as point:
        waiting = asyncio.create_task(failpoint("plan.after_commit"))
        await point.reached()
    await waiting
    with pytest.raises(FailpointError):
        await failpoint("plan.after_commit")


def test_holding_an_unknown_point_is_refused() -> None:
    with pytest.raises(ConfigurationError), barrier("plan.never", names=NAMES):
        pass


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_kill_and_stop_signal_the_process_itself(action: str, number: signal.Signals) -> None:
    script = (
        "import asyncio\n"
        "from hourbell.failpoints import configure, failpoint\n"
        f"configure('claim.answer={action}', names=('claim.answer',))\n"
        "asyncio.run(failpoint('claim.answer'))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    if action == "kill":
        assert process.wait(30) == -number
        return
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert pid == process.pid
    assert os.WSTOPSIG(status) == number
    process.send_signal(signal.SIGCONT)
    assert process.wait(30) == 0


async def test_costs_next_to_nothing_while_nothing_is_set() -> None:
    rounds = 100_000
    best = math.inf
    for _ in range(5):
        began = time.thread_time()
        for _ in range(rounds):
            await failpoint("claim.answer")
        best = min(best, time.thread_time() - began)
    # 0.05 µs measured; the bound leaves room for a slower machine.
    assert best / rounds < 1e-6


def test_names_are_sorted_and_unique() -> None:
    assert list(failpoints.NAMES) == sorted(set(failpoints.NAMES))


async def _fails(name: str) -> bool:
    try:
        await failpoint(name)
    except FailpointError:
        return True
    return False
