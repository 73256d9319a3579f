"""Cron rules in plain English."""

import pytest

from hourbell.timing.words import cron_words

SAID = {
    "* * * * *": "Every minute.",
    "*/15 * * * *": "Every 15 minutes.",
    "* * * * * *": "Every second.",
    "*/10 * * * * *": "Every 10 seconds.",
    "30 * * * * *": "Every minute, at second 30 of the minute.",
    "30 2 * * *": "Every day at 02:30 in UTC.",
    "15 30 2 * * *": "Every day at 02:30:15 in UTC.",
    "0,30 2 * * *": "Every day at 02:00 and 02:30 in UTC.",
    "@hourly": "Every hour at minute 0 in UTC.",
    "5/15 * * * *": "Every hour at minutes 5, 20, 35 and 50 in UTC.",
    "0 */2 * * *": "Every 2 hours from 00:00 to 22:00 in UTC.",
    "0 */6 * * *": "Every day at 00:00, 06:00, 12:00 and 18:00 in UTC.",
    "0 9-17 * * MON-FRI": "Every hour from 09:00 to 17:00, every Monday to Friday in UTC.",
    "*/15 9-17 * * 1-5": "Every 15 minutes from 09:00 to 17:45, every Monday to Friday in UTC.",
    "* 9-17 * * *": "Every minute from 09:00 to 17:59 in UTC.",
    "*/5 1,4,7 * * *": "At minutes 0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50 and 55 of the hours 1, 4 and 7 in UTC.",
    "0 9 * * 1": "Every Monday at 09:00 in UTC.",
    "0 9 * * SAT,SUN": "Every Saturday and Sunday at 09:00 in UTC.",
    "0 9 * * 0,1,2": "Every Monday, Tuesday and Sunday at 09:00 in UTC.",
    "@monthly": "On day 1 of the month at 00:00 in UTC.",
    "@yearly": "Every year on 1 January at 00:00 in UTC.",
    "0 0 1,15 1,7 *": "On days 1 and 15 of the month in January and July at 00:00 in UTC.",
    "0 0 * 6-8 *": "Every day from June to August at 00:00 in UTC.",
    "0 0 L * *": "On the last day of the month at 00:00 in UTC.",
    "0 0 L-1 * *": "On the day 1 day before the last day of the month at 00:00 in UTC.",
    "0 0 LW * *": "On the last weekday (Monday to Friday) of the month at 00:00 in UTC.",
    "0 0 15W * *": "On the weekday (Monday to Friday) nearest to day 15 of the month at 00:00 in UTC.",
    "0 0 * * FRI#2": "On the second Friday of the month at 00:00 in UTC.",
    "0 0 * * 5L": "On the last Friday of the month at 00:00 in UTC.",
    "0 0 13 * FRI": "On days that are a Friday or day 13 of the month at 00:00 in UTC.",
    "0 0 */100,1-7 * MON": "On days that are both a Monday and day 1 to 7 of the month at 00:00 in UTC.",
    "0 0 1-31 * MON": "Every day at 00:00 in UTC.",
    "0 0 * * *": "Every day at 00:00 in UTC.",
}


@pytest.mark.parametrize("rule", SAID)
def test_a_rule_is_said_as_people_would_say_it(rule: str) -> None:
    assert cron_words(rule, "UTC") == SAID[rule]


def test_the_zone_is_said_where_it_matters() -> None:
    assert cron_words("30 2 * * *", "Europe/Berlin") == "Every day at 02:30 in Europe/Berlin."
    assert cron_words("*/5 * * * *", "Europe/Berlin") == "Every 5 minutes."


def test_a_rule_that_is_too_long_to_say_is_repeated() -> None:
    odd = "1,4,6,9,11,14,16,19,21,24,26,29,31 3,5,6,9,11 * * *"
    assert cron_words(odd, "UTC") == f"Cron: {odd} in UTC."
