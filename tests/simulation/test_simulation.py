"""Weeks and busy hours of a whole system with crashes everywhere, each a seed, each judged from its history.

    make sim SEED=7 DAYS=30      another seed, for longer

A seed that fails here fails everywhere in the same way: the run is a function of its seed.
"""

import os
from datetime import datetime

import pytest
from _pytest.mark import ParameterSet

from conftest import DatabaseMaker
from simulation.checker import check
from simulation.recorder import promise_of
from simulation.simulation import Options, simulate
from simulation.workload import BEGINNINGS, HOURS, WEEKS
from verify.history import History

# Bounded by the number of days; a seed that was asked for may take its time.
pytestmark = pytest.mark.timeout(0 if os.environ.get("SIM_SEED") else 400)

HOUR = 1 / 24  # of a day


def weeks(seed: int, days: float, led: bool = True) -> Options:
    """Days with changes of the clocks among them."""
    return Options(WEEKS, _beginning(seed), days, led)


def hours(seed: int, days: float, led: bool = True) -> Options:
    """A busy time, with the leases that are usual."""
    return Options(HOURS, _beginning(seed), days, led)


def _beginning(seed: int) -> datetime:
    return datetime.fromisoformat(BEGINNINGS[seed % len(BEGINNINGS)])


async def run(postgres: str, new_database: DatabaseMaker, seed: int, options: Options) -> History:
    async with new_database(postgres) as dsn:
        return await simulate(dsn, seed, options)


def judge(seed: int, options: Options, history: History) -> None:
    violations = check(history, promise_of(options.pace.times))
    lines = [f"{violation.invariant}: {violation.sentence}" for violation in violations]
    assert not lines, f"seed {seed}:\n" + "\n".join(lines[:40])


USUAL = [
    pytest.param(1, weeks(1, 15), id="weeks 1"),
    pytest.param(2, weeks(2, 9), id="week 2"),
    pytest.param(3, hours(3, HOUR), id="hour 3"),
    pytest.param(5, hours(5, HOUR, led=False), id="hour 5, nobody leads"),
]


def asked_for() -> list[ParameterSet]:
    """The seed of SIM_SEED, and for how many days; the busy times are shorter in proportion."""
    if not os.environ.get("SIM_SEED"):
        return []
    seed, days = int(os.environ["SIM_SEED"]), float(os.environ.get("SIM_DAYS") or 15)
    return [
        pytest.param(seed, weeks(seed, days), id=f"weeks {seed}"),
        pytest.param(seed, hours(seed, days * HOUR / 5), id=f"hours {seed}"),
        pytest.param(seed, hours(seed, days * HOUR / 5, led=False), id=f"leaderless {seed}"),
    ]


@pytest.mark.parametrize(("seed", "options"), asked_for() or USUAL)
async def test_a_run_keeps_every_promise(
    postgres: str, new_database: DatabaseMaker, seed: int, options: Options
) -> None:
    judge(seed, options, await run(postgres, new_database, seed, options))


async def test_the_same_seed_is_the_same_run(postgres: str, new_database: DatabaseMaker) -> None:
    options = hours(6, HOUR / 6)
    first = await run(postgres, new_database, 6, options)
    second = await run(postgres, new_database, 6, options)
    assert first == second
    judge(6, options, first)
