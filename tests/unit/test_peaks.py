"""Peaks: one forecast serves all that ask for an overview, and none waits for the next one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hourbell.engine.views import overview
from hourbell.engine.views.overview import Peaks
from hourbell.model.errors import StoreUnavailable


class Forecasts:
    """Stands for the forecast: each call waits until it is told what to return."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Any]] = []

    async def peak(self, engine: Any) -> Any:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


@pytest.fixture
def forecasts(monkeypatch: pytest.MonkeyPatch) -> Forecasts:
    made = Forecasts()
    monkeypatch.setattr(overview, "_peak", made.peak)
    return made


def engine_at(seconds: float, scope: str | None = None) -> Any:
    return SimpleNamespace(scope=scope, clock=SimpleNamespace(monotonic=lambda: seconds))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_that_ask_at_the_same_time_share_a_forecast_of_their_tenant(
    forecasts: Forecasts,
):
    peaks = Peaks()
    asking = [asyncio.create_task(peaks.of(engine_at(0, scope))) for scope in (None, None, "acme")]
    await settle()
    asking[0].cancel()  # who leaves does not end the forecast of the others
    await settle()
    assert len(forecasts.asked) == 2
    forecasts.asked[0].set_result("all")
    forecasts.asked[1].set_result("acme")
    assert await asyncio.gather(*asking[1:]) == [("all", True), ("acme", True)]
    assert await peaks.of(engine_at(59)) == ("all", True)
    assert len(forecasts.asked) == 2


async def test_an_old_peak_is_shown_while_the_next_one_is_computed(forecasts: Forecasts):
    peaks = Peaks()
    first = asyncio.create_task(peaks.of(engine_at(0)))
    await settle()
    forecasts.asked[0].set_result("first")
    assert await first == ("first", True)
    assert await peaks.of(engine_at(61)) == ("first", True)
    assert await peaks.of(engine_at(62)) == ("first", True)
    await settle()
    assert len(forecasts.asked) == 2
    forecasts.asked[1].set_exception(StoreUnavailable("away"))
    await settle()
    assert await peaks.of(engine_at(63)) == ("first", True)  # and it is tried again
    await settle()
    forecasts.asked[2].set_result("second")
    await settle()
    assert await peaks.of(engine_at(64)) == ("second", True)


async def test_a_peak_that_is_too_old_is_not_shown(
    forecasts: Forecasts, monkeypatch: pytest.MonkeyPatch
):
    peaks = Peaks()
    first = asyncio.create_task(peaks.of(engine_at(0)))
    await settle()
    forecasts.asked[0].set_result("first")
    await first
    later = asyncio.create_task(peaks.of(engine_at(301)))
    await settle()
    assert not later.done()
    forecasts.asked[1].set_exception(StoreUnavailable("away"))
    assert await later == (None, False)
    monkeypatch.setattr(overview, "_WAIT_SECONDS", 0.0)
    assert await peaks.of(engine_at(302)) == (
        None,
        False,
    )  # a slow forecast does not delay an overview
    forecasts.asked[2].set_result("second")
    await settle()
    assert await peaks.of(engine_at(303)) == ("second", True)
