"""How many next runs a process computes in a second, over the kinds of rules that people write."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from support import per_second, report

from hourbell.timing.cron import parse_cron
from hourbell.timing.rules import compile_rule

RULES = (
    ("* * * * *", "UTC"),
    ("*/5 * * * *", "Europe/Berlin"),
    ("0 * * * *", "America/New_York"),
    ("30 2 * * *", "America/New_York"),
    ("0 9 * * 1-5", "Asia/Kolkata"),
    ("0 0 1 * *", "Europe/London"),
    ("0 0 L * *", "Australia/Sydney"),
    ("0 0 * * 5#2", "America/Sao_Paulo"),
    ("0 0 29 2 *", "UTC"),
    ("*/10 * * * * *", "Asia/Tokyo"),
    ("@every 300+17", "UTC"),
)
RUNS_PER_RULE = 10_000
START = datetime(2026, 1, 1, tzinfo=UTC)


def main() -> None:
    slowest = ("", 0.0)
    total = 0.0
    for text, zone in RULES:
        rule = compile_rule(text, zone)
        started = time.perf_counter()
        for number in range(RUNS_PER_RULE):
            rule.next(START + timedelta(minutes=37 * number))
        seconds = time.perf_counter() - started
        total += seconds
        slowest = max(slowest, (text, seconds), key=lambda pair: pair[1])

    started = time.perf_counter()
    texts = [f"{minute} {hour} * * 1-5" for minute in range(60) for hour in range(24)]
    for text in texts:
        parse_cron(text)
    parsing = time.perf_counter() - started

    report(
        "timing_next",
        next_per_second=per_second(len(RULES) * RUNS_PER_RULE, total),
        next_microseconds=round(total / len(RULES) / RUNS_PER_RULE * 1e6, 2),
        slowest_rule=slowest[0],
        slowest_microseconds=round(slowest[1] / RUNS_PER_RULE * 1e6, 2),
        parsed_per_second=per_second(len(texts), parsing),
    )


if __name__ == "__main__":
    main()
