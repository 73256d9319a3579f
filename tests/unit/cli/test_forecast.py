"""The chart of the coming load."""

from datetime import UTC, datetime, timedelta

from hourbell.cli.forecast import MAX_ROWS, chart_lines, delay_line
from hourbell.client import Forecast, ForecastDelay
from hourbell.client.values import Minute
from hourbell.timing.zones import load_zone

BEGINS = datetime(2026, 11, 17, 10, 25, 30, tzinfo=UTC)


def forecast(hours: int, counts: dict[int, int]) -> Forecast:
    """`counts` by minutes after 10:25."""
    start = BEGINS.replace(second=0)
    ends = BEGINS + timedelta(hours=hours)
    return Forecast(
        begins_at=BEGINS,
        ends_at=ends,
        complete_until=ends,
        estimated=False,
        minutes=[Minute(start + timedelta(minutes=at), count) for at, count in counts.items()],
    )


def test_every_execution_is_in_a_row_and_rows_begin_at_round_times() -> None:
    lines = list(chart_lines(forecast(2, {0: 5, 1: 1, 40: 10, 119: 2}), UTC, 40, blocks=False))
    assert lines[0] == "Executions due in each 5 minutes, times in UTC"
    shown = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    assert {at: count for at, count in shown.items() if count} == {
        "10:25": 6,
        "11:05": 10,
        "12:20": 2,
    }
    assert list(shown)[1] == "10:30"


def test_the_chart_fits_and_the_longest_bar_is_the_largest_count() -> None:
    for width in (40, 80, 200):
        lines = list(
            chart_lines(forecast(24, {0: 1, 60: 1_000, 120: 500}), UTC, width, blocks=True)
        )
        assert max(map(len, lines[1:])) == width
        bars = [line.count("█") for line in lines[1:]]
        assert bars.index(max(bars)) == 1
        assert "▏" in lines[1] or "█" in lines[1]  # one of a thousand is seen


def test_a_week_has_days_and_no_more_rows_than_a_screen() -> None:
    lines = list(chart_lines(forecast(168, {0: 1, 9_000: 1}), load_zone("Asia/Kolkata"), 80, True))
    assert lines[1].startswith("Tue ")
    assert len(lines) <= MAX_ROWS + 3
    assert sum(int(line.split()[2]) for line in lines[1:]) == 2


def test_a_delay_is_told_in_a_line() -> None:
    delay = ForecastDelay(
        kind="queue",
        name="reports",
        max_concurrency=2,
        per_second=None,
        begins_at=BEGINS,
        executions=25,
        seconds=840.0,
        due_at=BEGINS,
        last_start_at=BEGINS + timedelta(minutes=168),
    )
    assert delay_line(delay, UTC) == (
        "25 executions of about 840 s, due from 2026-11-17 10:25:30Z, wait for the queue reports"
        " (2 at once): the last starts at 2026-11-17 13:13:30Z."
    )
