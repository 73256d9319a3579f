"""Zones come from the tzdata package, whatever the system has."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib import metadata, resources
from pathlib import Path

import pytest

from hourbell.timing.errors import UnknownZone
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import load_zone, tz_version, zone_names


def test_the_version_is_that_of_the_package() -> None:
    released, number = metadata.version("tzdata").split(".")[:2]  # 2026.6 is 2026f
    assert tz_version() == f"{released}{'abcdefghijklmnopqrstuvwxyz'[int(number) - 1]}"


def test_every_name_of_the_package_loads() -> None:
    assert len(zone_names()) > 590
    for name in zone_names():
        assert load_zone(name).key == name


def test_a_zone_is_loaded_once() -> None:
    assert load_zone("Europe/Berlin") is load_zone("Europe/Berlin")


def test_rules_are_those_of_the_package_where_old_systems_are_wrong() -> None:
    """British Columbia stays on summer time from November 2026 on: news of 2026."""
    winter = datetime(2027, 1, 15, 12, tzinfo=UTC)
    assert winter.astimezone(load_zone("America/Vancouver")).utcoffset() == timedelta(hours=-7)
    rule = compile_rule("0 9 * * *", "America/Vancouver")
    assert rule.next(winter) == datetime(2027, 1, 15, 16, tzinfo=UTC)


def test_a_system_with_wrong_zones_changes_nothing(tmp_path: Path) -> None:
    """Where zoneinfo looks first, the file of Berlin is put in the place of New York's."""
    zone = tmp_path / "America" / "New_York"
    zone.parent.mkdir()
    zone.write_bytes((resources.files("tzdata") / "zoneinfo/Europe/Berlin").read_bytes())
    script = (
        "import zoneinfo\n"
        "from datetime import UTC, datetime\n"
        "from hourbell.timing.rules import compile_rule\n"
        "at = datetime(2026, 7, 1, tzinfo=UTC)\n"
        "system = at.astimezone(zoneinfo.ZoneInfo('America/New_York')).hour\n"
        "ours = compile_rule('0 9 * * *', 'America/New_York').next(at).hour\n"
        "assert (system, ours) == (2, 13), (system, ours)\n"
    )
    environment = {**os.environ, "PYTHONTZPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=30)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "Mars/Olympus",
        "europe/berlin",
        "Europe",
        "Europe/",
        "/Europe/Berlin",
        "Europe/../Europe/Berlin",
        "../zones",
        "../../etc/passwd",
        "/etc/localtime",
        "posixrules",
        "localtime",
        "tzdata.zi",
        "zone.tab",
        "__init__.py",
        "Europe/Berlin\0",
        "\0",
        "UTC\n",
        "EST5EDT4,M3.2.0,M11.1.0",
        "+02:00",
        "Ευρώπη/Βερολίνο",
        "x" * 65,
        "x" * 100_000,
    ],
)
def test_what_is_no_name_of_the_package_is_unknown(name: str) -> None:
    with pytest.raises(UnknownZone) as refusal:
        load_zone(name)
    assert refusal.value.field == "timezone"
    assert refusal.value.reason
    assert len(refusal.value.reason) < 400
    assert refusal.value.reason.isprintable()
    with pytest.raises(UnknownZone):
        compile_rule("* * * * *", name)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("europe/berlin", "Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("new york", "America/New_York"),
        ("Asia/Calcuta", "Asia/Calcutta"),
        ("utc", "UTC"),
    ],
)
def test_an_unknown_zone_comes_with_a_near_name(name: str, suggestion: str) -> None:
    with pytest.raises(UnknownZone) as refusal:
        load_zone(name)
    assert refusal.value.suggestions[0] == suggestion
    assert suggestion in refusal.value.reason


def test_there_is_no_suggestion_for_what_is_like_nothing() -> None:
    with pytest.raises(UnknownZone) as refusal:
        load_zone("qqqqqqqq")
    assert refusal.value.suggestions == ()
