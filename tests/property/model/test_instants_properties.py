from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from hourbell.model.instants import (
    EARLIEST,
    LATEST,
    InvalidInstant,
    format_instant,
    parse_instant,
)

INSTANTS = st.datetimes(
    EARLIEST.replace(tzinfo=None),
    LATEST.replace(tzinfo=None) - timedelta(microseconds=1),
    timezones=st.just(UTC),
)
OFFSETS = st.integers(-14 * 3600, 14 * 3600).map(lambda s: timezone(timedelta(seconds=s)))


@given(INSTANTS, OFFSETS)
def test_an_instant_survives_being_shown_in_any_zone(instant: datetime, zone: timezone):
    assert parse_instant(format_instant(instant)) == instant
    assert parse_instant(format_instant(instant, zone)) == instant


@given(
    st.text()
    | st.from_regex(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]*)?(Z|[+-][0-9]{2}:[0-9]{2})?",
        fullmatch=True,
    )
)
def test_a_text_is_an_instant_in_range_or_refused(text: str):
    try:
        instant = parse_instant(text)
    except InvalidInstant:
        return
    assert EARLIEST <= instant < LATEST
