"""The words of a rule say what the rule means: neither more nor less."""

from datetime import UTC, date, datetime, timedelta

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hourbell.timing.errors import InvalidRule
from hourbell.timing.rules import compile_rule
from hourbell.timing.words import cron_words
from property.timing.drawn import DrawnRule, rules
from property.timing.read_words import read_words

DAYS = [date(2027, 1, 1) + timedelta(days=n) for n in range(731)]  # 2028 is a leap year
ZONE = "Europe/Berlin"


@settings(max_examples=150, deadline=None)
@given(rules())
def test_the_words_of_any_rule_say_what_it_means_or_repeat_it(rule: DrawnRule) -> None:
    try:
        words = cron_words(rule.text, ZONE)
    except InvalidRule as error:
        assume("never matches" not in error.reason)
        raise
    said = read_words(words, ZONE)
    if said is None:
        assert words == f"Cron: {' '.join(rule.text.split())} in {ZONE}."
        return
    assert said.seconds == rule.seconds, words
    assert said.minutes == {(h, m) for h in rule.hours for m in rule.minutes}, words
    assert [day for day in DAYS if said.day(day)] == [
        day for day in DAYS if rule.matches_day(day)
    ], words


@st.composite
def common_rules(draw: st.DrawFn) -> str:
    """What people write: they never get the fallback."""
    minute = draw(st.sampled_from(["0", "30", "*", "*/5", "*/15", "7", "0,30", "5/20"]))
    hour = draw(st.sampled_from(["*", "2", "9-17", "*/2", "*/6", "8,12,18", "0", "23"]))
    date_ = draw(st.sampled_from(["*", "1", "1,15", "L", "LW", "15W", "L-3"]))
    month = draw(st.sampled_from(["*", "1", "*/3", "6-8", "JAN,JUL"]))
    weekday = (
        "*"
        if date_ != "*"
        else draw(st.sampled_from(["*", "MON", "MON-FRI", "SAT,SUN", "FRI#2", "5L", "1,3,5"]))
    )
    return f"{minute} {hour} {date_} {month} {weekday}"


@settings(max_examples=150, deadline=None)
@given(common_rules(), st.sampled_from(DAYS))
def test_the_words_of_common_rules_say_exactly_when_the_next_runs_are(rule: str, day: date) -> None:
    said = read_words(cron_words(rule, "UTC"), "UTC")
    assert said is not None
    at = datetime(day.year, day.month, day.day, tzinfo=UTC)
    compiled = compile_rule(rule, "UTC")
    for _ in range(5):
        following = compiled.next(at)
        assert following is not None
        assert said.day(following.date())
        assert (following.hour, following.minute) in said.minutes
        # Nothing that the words promise lies between.
        moment = at + timedelta(minutes=1)
        while moment < min(following, at + timedelta(days=2)):
            promised = (moment.hour, moment.minute) in said.minutes and said.day(moment.date())
            assert not promised, moment
            moment += timedelta(minutes=1)
        at = following
