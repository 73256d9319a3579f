"""What the code assumes about the zones of the world. A new tzdata may break it: then look here."""

from datetime import timedelta
from itertools import pairwise

import pytest

from hourbell.timing.rules import RULES_REPEAT_FROM_YEAR
from hourbell.timing.zones import load_zone, zone_names
from property.timing.tzif import LOOK_EVERY, known_changes, listed_changes

SECOND = timedelta(seconds=1)


def test_no_two_changes_are_so_near_that_their_gaps_or_overlaps_could_meet() -> None:
    for zone in zone_names():
        changes = known_changes(zone)
        for change, following in pairwise(changes):
            assert following.at - change.at > abs(change.by) + abs(following.by), zone
            assert following.at - change.at > LOOK_EVERY, zone


def test_from_some_year_on_there_are_only_rules_without_end() -> None:
    last_years = {
        zone: changes[-1].at.year for zone in zone_names() if (changes := listed_changes(zone))
    }
    assert max(last_years.values()) < RULES_REPEAT_FROM_YEAR


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Dublin", "Pacific/Apia", "Asia/Gaza"])
def test_the_changes_of_the_tests_are_those_of_zoneinfo(zone: str) -> None:
    info = load_zone(zone)
    assert len(known_changes(zone)) > 20
    for change in known_changes(zone):
        before, after = (at.astimezone(info).utcoffset() for at in (change.at - SECOND, change.at))
        assert before is not None
        assert after is not None
        assert after - before == change.by
