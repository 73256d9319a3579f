"""What simulated users ask for: jobs of every kind, drawn from one random source."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from hourbell.engine.core import Times
from verify.promise import Document

ZONES = ("America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Santiago", "UTC")

# Each has a change of the clocks in one of these zones within its first two weeks.
BEGINNINGS = (
    "2027-03-05T09:00:00+00:00",  # New York, 14 March
    "2027-03-22T21:30:00+00:00",  # London, 28 March; Lord Howe and Santiago, 3 April
    "2027-08-28T12:00:00+00:00",  # Santiago, 4 September
    "2027-09-25T00:00:00+00:00",  # Lord Howe, 2 October
    "2027-10-26T05:15:00+00:00",  # London, 31 October; New York, 7 November
)


@dataclass(frozen=True)
class Pace:
    """How fast life goes in a simulated world."""

    times: Times
    crons: tuple[str, ...]
    every_seconds: tuple[int, ...]
    most_jobs: int
    between_actions: float  # seconds between two actions of users, on average
    between_troubles: float  # the same for crashes, stops and outages
    longest_outage: float
    usual_run: float
    longest_run: float


# Days of a small company: daily and hourly work, long leases, so that weeks pass quickly.
WEEKS = Pace(
    times=Times(
        horizon_seconds=600,
        grace_seconds=300,
        lease_seconds=7200,
        leader_lease_seconds=5400,
        ledger_days=400,
    ),
    crons=(
        "30 2 * * *",
        "0 2 * * *",
        "15 1 * * *",
        "0 0 * * *",
        "45 1,2,3 * * *",
        "*/30 1-3 * * *",
        "0 */6 * * *",
        "5 */12 * * *",
        "0 9 * * MON-FRI",
        "10 0 1,15 * MON",
        "30 23 * * SAT,SUN",
        "0 1 */3 * *",
    ),
    every_seconds=(7200, 14_400, 21_600, 36_000, 86_400, 5401),
    most_jobs=14,
    between_actions=6 * 3600,
    between_troubles=9 * 3600,
    longest_outage=9 * 3600,
    usual_run=900,
    longest_run=3 * 3600,
)

# A busy hour of a big one, with the leases that are usual.
HOURS = Pace(
    times=Times(ledger_days=400),
    crons=("* * * * *", "*/2 * * * *", "*/5 1-3 * * *", "30 2 * * *", "7,8,9 * * * *"),
    every_seconds=(20, 33, 60, 90, 300, 601),
    most_jobs=10,
    between_actions=45,
    between_troubles=60,
    longest_outage=600,
    usual_run=15,
    longest_run=200,
)


class Workload:
    """Draws documents."""

    def __init__(self, random: Random, pace: Pace, ends_at: datetime) -> None:
        self._random = random
        self._pace = pace
        self._ends_at = ends_at

    def new_job(self, now: datetime, number: int) -> Document:
        random = self._random
        document: Document = {
            "name": f"job {number}",
            "tenant_id": random.choice(["acme", "globex"]),
            "queue": random.choice(["default", "default", "mail"]),
            "priority": random.choice(["CRITICAL", "HIGH", "MEDIUM", "LOW"]),
            "action": {"type": "TASK", "name": "work", "payload": {"poison": False}},
            "timeout_seconds": int(self._pace.longest_run),
        }
        if number % 13 == 5:
            document["action"]["payload"]["poison"] = True
        if random.random() < 0.15:
            document["delivery"] = "at_most_once"
        else:
            document["retry_policy"] = _compact(self.retry_policy())
        document |= _compact(self.deadlines())
        if random.random() < 0.3:
            seconds = random.choice([-20, 1, 30, 1]) * random.random() * self._pace.usual_run * 20
            at = now + timedelta(seconds=max(seconds, -30))
            schedule: Document = {"at": at.isoformat()}
            if "start_deadline_seconds" in document or "deadline_seconds" in document:
                schedule = {"delay_seconds": int(max(seconds, 0))}
            return document | {"type": "ONE_TIME", "schedule": schedule}
        document |= {"type": "RECURRING", "schedule": _compact(self.schedule(now))}
        return document | _compact(self.policies())

    def schedule(self, now: datetime) -> Document:
        """A whole schedule; what is None is left to its default."""
        random, pace = self._random, self._pace
        schedule: Document = {"starts_at": None, "ends_at": None, "max_runs": None}
        if random.random() < 0.4:
            schedule |= {"every_seconds": random.choice(pace.every_seconds)}
        else:
            zone = random.choice(ZONES)
            schedule |= {"cron": random.choice(pace.crons), "timezone": zone}
            schedule["dst_gap"] = random.choice([None, None, "skip"])
            schedule["dst_overlap"] = random.choice([None, None, "twice"])
        left = (self._ends_at - now).total_seconds()
        if random.random() < 0.2:
            starts = now + timedelta(seconds=random.uniform(-0.05, 0.3) * left)
            schedule["starts_at"] = starts.isoformat()
        if random.random() < 0.2:
            ends = now + timedelta(seconds=random.uniform(0.4, 1.1) * left + 86_400)
            schedule["ends_at"] = ends.replace(microsecond=0).isoformat()
        if random.random() < 0.15:
            schedule["max_runs"] = random.randint(1, 8)
        return schedule

    def policies(self) -> Document:
        random = self._random
        policies: Document = {
            "misfire_policy": random.choice([None, "skip", "latest", "all"]),
            "overlap_policy": random.choice([None, "forbid", "replace", "queue_one"]),
            "catch_up_window_seconds": None,
            "catch_up_limit": None,
        }
        if policies["misfire_policy"] == "all" and random.random() < 0.7:
            policies["catch_up_limit"] = random.randint(1, 5)
            window = self._pace.longest_outage * random.uniform(0.1, 1)
            policies["catch_up_window_seconds"] = int(window)
        return policies

    def retry_policy(self) -> Document:
        """Whole; what is None is left to its default."""
        random, unit = self._random, int(self._pace.usual_run)
        if random.random() < 0.4:
            delays = [
                random.choice([0, 1, 5, 30, unit, 3 * unit]) for _ in range(random.choice([1, 3]))
            ]
            return {"delays_seconds": delays}
        return {
            "backoff": random.choice(["FIXED", "LINEAR", "EXPONENTIAL", "EXPONENTIAL_WITH_JITTER"]),
            "max_retries": random.randint(0, 4),
            "initial_delay_seconds": random.choice([0, 5, unit]),
            "max_delay_seconds": random.choice([None, 3 * unit]),
        }

    def deadlines(self) -> Document:
        random, unit = self._random, int(self._pace.usual_run)
        return {
            "start_deadline_seconds": random.choice([None, None, None, unit, 6 * unit]),
            "deadline_seconds": random.choice([None, None, None, 2 * unit, 12 * unit]),
        }

    def patch(self, document: Document, now: datetime) -> tuple[Document, Document]:
        """A change to a job: the patch to send, and the document that the job then has."""
        random = self._random
        patch: Document = {}
        if document["type"] == "ONE_TIME":
            at = now + timedelta(seconds=random.random() * self._pace.usual_run * 10)
            return self._patched(document, {"schedule": {"at": at.isoformat()}})
        what = random.choice(["schedule", "window", "policies", "retries", "priority", "payload"])
        if what == "schedule":
            # Runs are counted from when a limit is set; the limit stays, so that the judge can count too.
            kept = {"max_runs": document["schedule"].get("max_runs")}
            patch["schedule"] = self.schedule(now) | kept
        elif what == "window":
            fresh = self.schedule(now)
            window = {key: fresh[key] for key in ("starts_at", "ends_at")}
            whole = {"max_runs": None, "starts_at": None, "ends_at": None} | document["schedule"]
            patch["schedule"] = whole | window
        elif what == "policies":
            patch |= self.policies()
        elif what == "retries" and "delivery" not in document:
            patch["retry_policy"] = self.retry_policy()
        elif what == "priority":
            patch["priority"] = random.choice(["CRITICAL", "HIGH", "MEDIUM", "LOW"])
            patch["queue"] = random.choice(["default", "mail"])
        if not patch:
            payload = {"poison": False, "note": random.random()}
            patch["action"] = {"payload": payload}
        return self._patched(document, patch)

    def _patched(self, document: Document, patch: Document) -> tuple[Document, Document]:
        after = dict(document)
        for key, value in patch.items():
            if key == "action":
                after[key] = document[key] | value
            elif isinstance(value, dict):
                after[key] = _compact(value)
            else:
                after[key] = value
        return patch, _compact(after)


def _compact(document: dict[str, Any]) -> Document:
    return {key: value for key, value in document.items() if value is not None}
