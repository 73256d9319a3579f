from datetime import UTC, datetime, timedelta, timezone

import pytest

from hourbell.model.instants import InvalidInstant, format_instant, parse_instant

INDIA = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-04-07T00:00:00Z", datetime(2026, 4, 7, tzinfo=UTC)),
        ("2026-04-07t00:00:00z", datetime(2026, 4, 7, tzinfo=UTC)),
        ("2026-04-07T02:00:00+05:30", datetime(2026, 4, 6, 20, 30, tzinfo=UTC)),
        ("2026-04-07T00:00:00-00:00", datetime(2026, 4, 7, tzinfo=UTC)),
        ("2026-04-07T00:00:00.5Z", datetime(2026, 4, 7, 0, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-04-07T00:00:00.123456789Z", datetime(2026, 4, 7, 0, 0, 0, 123_456, tzinfo=UTC)),
        ("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
    ],
)
def test_rfc_3339_is_read_into_utc(text: str, instant: datetime):
    parsed = parse_instant(text)
    assert parsed == instant
    assert parsed.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2026-04-07",
        "2026-04-07T00:00:00",  # an instant nowhere in particular
        "2026-04-07T00:00Z",
        "20260407T000000Z",
        "2026-W15-2T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-04-07T24:00:01Z",
        "2026-04-07T23:59:60Z",
        "2026-04-07T00:00:00+24:00",
        "2026-04-07T00:00:00+0530",
        "2026-04-07T00:00:00Z\n",
        "２０２６-04-07T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-04-07T00:00:00.Z",
    ],
)
def test_what_is_no_instant_is_refused(text: str):
    with pytest.raises(InvalidInstant) as caught:
        parse_instant(text)
    assert caught.value.in_range


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00+14:00",
        "1969-12-31T23:59:59Z",
        "9999-12-31T00:00:00Z",
        "9999-12-31T23:59:59-14:00",
    ],
)
def test_a_date_out_of_range_is_refused_as_such(text: str):
    with pytest.raises(InvalidInstant, match="between 1970") as caught:
        parse_instant(text)
    assert not caught.value.in_range


@pytest.mark.parametrize(
    ("microsecond", "text"),
    [(0, "00"), (500_000, "00.5"), (120_000, "00.12"), (1, "00.000001")],
)
def test_only_the_digits_that_are_needed_are_shown(microsecond: int, text: str):
    instant = datetime(2026, 4, 7, 10, 0, 0, microsecond, tzinfo=UTC)
    assert format_instant(instant) == f"2026-04-07T10:00:{text}Z"
    assert format_instant(instant, INDIA) == f"2026-04-07T15:30:{text}+05:30"


def test_an_offset_that_rfc_3339_cannot_write_is_shown_as_utc():
    monrovia_until_1972 = timezone(-timedelta(minutes=44, seconds=30))
    instant = datetime(1971, 1, 1, tzinfo=UTC)
    assert format_instant(instant, monrovia_until_1972) == "1971-01-01T00:00:00Z"
