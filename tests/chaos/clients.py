"""The clients of a run: people and programs that use the API while everything around it breaks.

Every request is written down with what was heard of it. One that was not answered is repeated under its key until it is,
as a good client does: what is still in doubt at the end cannot be judged.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp

from chaos import http_worker, keys
from chaos.worker import POISON
from chaos.zones import YOUNG
from verify.history import Call, Log

TENANTS = ("acme", "globex", "initech")
PRIORITIES = ("CRITICAL", "HIGH", "MEDIUM", "LOW")
MOODS = (
    "well",
    "well",
    "well",
    "slow",
    "fails_once",
    "flaky",
    "resets",
    "huge",
    "trickles",
    "garbage",
    "fails",
    "hangs",
)
RETRIES = (
    {"delays_seconds": [1, 2]},
    {"backoff": "FIXED", "initial_delay_seconds": 1, "max_retries": 2},
    {"backoff": "LINEAR", "initial_delay_seconds": 1, "max_retries": 2},
    {"backoff": "EXPONENTIAL_WITH_JITTER", "initial_delay_seconds": 1, "max_retries": 3},
)
# What some of the one-time jobs ask for besides.
WISHES: tuple[dict[str, object], ...] = (
    {},
    {},
    {},
    {"start_deadline_seconds": 20},
    {"deadline_seconds": 40},
    {"concurrency_key": "one"},
    {"concurrency_key": "two", "concurrency_limit": 2},
)
ONCE = {"max_retries": 0}
CHANGES = ("pause", "resume", "resume", "run", "cancel", "schedule", "priority")
KEY_LIMIT = 4  # of the key that recurring jobs get and lose
KEPT_SECONDS = 4  # how long a job keeps its unique key from the dead letter that had it
ANSWER_SECONDS = 6.0
REPEAT_SECONDS = 0.4
MAX_ASKED = 20  # times for a page, after the faults
RECURRING_JOBS = 12
STEADY_TASKS = (
    3  # recurring jobs for the workers over HTTP, beside those with a limited number of runs
)
_PAGE = 500
YOUNG_RULE = "*/5 * * * * *"
SPARE_JOBS = 5  # in the young zone, to be deleted while no more can be created

Answer = dict[str, Any]


def _status(job: dict[str, Any]) -> str:
    """The status of a job as the judge counts it: older builds have only these."""
    if job["status"] in ("QUEUED", "RUNNING", "AWAITING", "RETRYING"):
        return "SCHEDULED"
    return "COMPLETED" if job["status"] in ("FAILED", "SKIPPED", "ENDED") else str(job["status"])


class Clients:
    """All clients together; `stop` lets each finish what it has begun."""

    def __init__(self, api_port: int, receiver_port: int, log: Log, seed: int) -> None:
        self._api = f"http://127.0.0.1:{api_port}"
        self._receiver = f"http://127.0.0.1:{receiver_port}"
        self._log = log
        self._chosen = random.Random(seed)
        self._numbers = iter(range(1, 10**9))
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS))
        roles: tuple[Callable[[], Awaitable[None]], ...] = (
            self._once,
            self._again,
            self._over_http,
            self._in_a_young_zone,
            self._keyed,
        )
        self._tasks = [asyncio.create_task(self._for_ever(role)) for role in roles]

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        assert self._http is not None
        await self._http.close()
        self._log.close()

    async def count(self) -> None:
        """What the API says of how many jobs there are; after `stop`."""
        for tenant in TENANTS:
            asked_at, counted = time.time(), Counter[str]()
            of_tenant = {"tenant_id": tenant, "page_size": str(_PAGE)}
            for query in (of_tenant, of_tenant | {"status": "CANCELLED"}):  # deleted ones: if asked
                token = None
                while True:
                    page = await self._page(query | ({"page_token": token} if token else {}))
                    assert page[0] == 200
                    counted.update(map(_status, page[1]["items"]))
                    token = page[1]["next_page_token"]
                    if token is None:
                        break
            self._log.add(
                Call(
                    operation="count",
                    key=None,
                    tenant=tenant,
                    job_id=None,
                    execution_id=None,
                    document=None,
                    asked_at=asked_at,
                    answered_at=time.time(),
                    status=200,
                    answer={"jobs": dict(counted)},
                )
            )

    async def _page(self, query: dict[str, str]) -> tuple[int, Any]:
        """Of the list of jobs; asked for again if it is not answered, as everything is."""
        for _ in range(MAX_ASKED):
            heard = await self._ask("GET", "/api/v1/jobs", query)
            if heard is not None:
                return heard
            await asyncio.sleep(REPEAT_SECONDS)
        raise AssertionError(f"the list of jobs was not answered {MAX_ASKED} times")

    async def herd(self, size: int) -> None:
        """Many jobs of one tenant, all due at one moment; beside them a few of another, and a few that are urgent."""
        tenant, other = self._chosen.sample(TENANTS, 2)
        schedule = {"at": datetime.fromtimestamp(time.time() + 5, UTC).isoformat()}
        few = asyncio.Semaphore(8)

        async def one(kind: str, whose: str, priority: str) -> None:
            async with few:
                await self._create(kind, whose, schedule, "well", priority=priority)

        await asyncio.gather(
            *(one("herd", tenant, "LOW") for _ in range(size)),
            *(one("beside", other, "LOW") for _ in range(5)),
            *(one("urgent", tenant, "CRITICAL") for _ in range(5)),
        )

    async def poison(self) -> str:
        """A job that kills every worker it runs in; its id."""
        tenant = self._chosen.choice(TENANTS)
        document = {
            "name": f"poison-{next(self._numbers)}",
            "tenant_id": tenant,
            "type": "ONE_TIME",
            "schedule": {"delay_seconds": 0},
            "action": {"type": "TASK", "name": POISON},
        }
        _, made = await self._call("create", tenant, "POST", "/jobs", document)
        job: str = made["job_id"]
        return job

    async def unread(self, pause_seconds: float) -> tuple[str, str]:
        """A job that is due much later, and is paused for some seconds; its id and tenant."""
        made = await self._create(
            "unread", self._chosen.choice(TENANTS), {"delay_seconds": 3600}, "well"
        )
        job, tenant = made["job_id"], made["tenant_id"]
        until = datetime.fromtimestamp(time.time() + pause_seconds, UTC).isoformat()
        await self._call("pause", tenant, "POST", f"/jobs/{job}/pause", {"until": until}, job)
        return job, tenant

    async def has_died(self, job: str) -> bool:
        """Whether the API says that the system has given a one-time job up."""
        heard = await self._ask("GET", f"/api/v1/jobs/{job}/executions", {})
        return bool(heard and heard[0] == 200 and heard[1]["items"][0]["status"] == "DEAD")

    # What they do.

    async def _once(self) -> None:
        """One-time jobs of every kind, to targets of every mood; some are taken back."""
        delivery: dict[str, object] = {"retry_policy": self._chosen.choice(RETRIES)}
        if self._chosen.random() < 0.15:
            delivery = {"delivery": "at_most_once"}
        delay = self._chosen.choice((0, 0, 1, 3, 8))
        made = await self._create(
            "once",
            self._chosen.choice(TENANTS),
            {"delay_seconds": delay},
            self._chosen.choice(MOODS),
            priority=self._chosen.choice(PRIORITIES),
            **delivery | self._chosen.choice(WISHES),
        )
        if delay == 8 and self._chosen.random() < 0.3:
            job = made["job_id"]
            await self._call("delete", made["tenant_id"], "DELETE", f"/jobs/{job}", None, job)
        await self._rest(0.2)

    async def _again(self) -> None:
        """Recurring jobs, which are then changed, paused, run by hand and deleted."""
        jobs = [await self._recurring(number) for number in range(RECURRING_JOBS)]
        while not self._stopping.is_set():
            await self._rest(self._chosen.uniform(0.3, 1.0))
            number = self._chosen.randrange(RECURRING_JOBS)
            if self._chosen.random() < 0.03:
                made = jobs[number]
                await self.delete(made["job_id"], made["tenant_id"])
                jobs[number] = await self._recurring(number)
            await self._change(jobs[number], may_wait=number % 4 == 1)

    async def delete(self, job: str, tenant: str) -> None:
        await self._call("delete", tenant, "DELETE", f"/jobs/{job}", None, job)

    async def _recurring(self, number: int) -> Answer:
        """A job for one of the places, each of which has a kind of its own."""
        schedule: Answer = {"every_seconds": self._chosen.choice((1, 2, 3, 5))}
        if number % 5 == 0:
            zone = self._chosen.choice(("UTC", "Asia/Kolkata", "Europe/Berlin"))
            schedule = {"cron": self._chosen.choice(("* * * * *", "*/2 * * * *")), "timezone": zone}
        if number == 7:
            schedule["max_runs"] = 40
        if number == 8:
            schedule["ends_at"] = datetime.fromtimestamp(time.time() + 200, UTC).isoformat()
        overlap = self._chosen.choice(("forbid", "replace", "queue_one"))
        return await self._create(
            "again",
            self._chosen.choice(TENANTS),
            schedule,
            self._chosen.choice(("well", "slow", "trickles")),
            # Of a second or so: what waits for an earlier run waits for its retries too.
            retry_policy=RETRIES[number % len(RETRIES)],
            **({"overlap_policy": overlap} if number % 4 == 1 else {}),
        )

    async def _over_http(self) -> None:
        """Tasks for the workers over HTTP: some recurring without end, and one after the other with a limited number of runs, each
        of which takes longer than the time to the next. The steady ones go from one task to the other, which not every worker names.
        """
        steady = [
            await self._task("steady", {"every_seconds": every}, seconds=2.5)
            for every in range(1, STEADY_TASKS + 1)
        ]
        while not self._stopping.is_set():
            runs = self._chosen.choice((3, 6, 12))
            await self._task("counted", {"every_seconds": 1, "max_runs": runs}, seconds=1.5)
            await self._task("task", {"delay_seconds": self._chosen.choice((0, 1, 3))})
            await self._task("task", {"delay_seconds": 0}, seconds=0.5, fails=1)
            task = self._chosen.choice((http_worker.TASK, http_worker.OTHER_TASK))
            await self._update(self._chosen.choice(steady), {"action": {"name": task}})
            await self._rest(self._chosen.uniform(2.0, 5.0))

    async def _in_a_young_zone(self) -> None:
        """Jobs in a zone that not every node knows: some that stay, and one after the other that is deleted again. An API that
        does not know the zone refuses to create them; it lists and deletes what there is."""
        for policy in ("skip", "latest", "all"):
            await self._young({"misfire_policy": policy})
        spare: deque[Answer] = deque()
        while not self._stopping.is_set():
            made = await self._young({})
            if made is not None:
                spare.append(made)
            await self._rest(self._chosen.uniform(2.0, 5.0))
            if spare and (made is None or len(spare) > SPARE_JOBS):
                oldest = spare.popleft()
                job, tenant = oldest["job_id"], oldest["tenant_id"]
                await self._call("list", tenant, "GET", f"/jobs?tenant_id={tenant}", None)
                await self._call("delete", tenant, "DELETE", f"/jobs/{job}", None, job)

    async def _young(self, fields: Answer) -> Answer | None:
        """A job in the young zone; None if it was refused."""
        schedule = {"cron": YOUNG_RULE, "timezone": YOUNG}
        return await self._try_to_create(
            "young", self._chosen.choice(TENANTS), schedule, "well", **fields
        )

    async def _keyed(self) -> None:
        """Dead letters with a unique key, replayed while another job has the key, and when it has ended."""
        key = {"unique_key": f"key-{next(self._numbers)}"}
        dead = await self._create(
            "keyed", keys.TENANT, {"delay_seconds": 0}, "fails", retry_policy=ONCE, **key
        )
        job = dead["job_id"]
        for _ in range(MAX_ASKED):
            if await self.has_died(job):
                break
            await self._rest(1.0)
        await self._create("keyed", keys.TENANT, {"delay_seconds": KEPT_SECONDS}, "well", **key)
        for _ in range(2):
            run = job.replace("job_", "exe_")
            path = f"/dead-letters/{run}/replay"
            await self._call("replay", keys.TENANT, "POST", path, None, job, run)
            await self._rest(KEPT_SECONDS + 1.0)

    async def _task(
        self, kind: str, schedule: Answer, seconds: float = 0.2, fails: int = 0
    ) -> Answer:
        payload = {"seconds": seconds, "fails": fails}
        return await self._create(
            kind,
            self._chosen.choice(TENANTS),
            schedule,
            {"type": "TASK", "name": http_worker.TASK, "payload": payload},
            queue=http_worker.QUEUE,
            retry_policy=RETRIES[1],
        )

    async def _change(self, made: Answer, may_wait: bool) -> None:
        """Change a recurring job. What is queued of one that is sent elsewhere follows it.

        `may_wait`: runs of this job may have to wait for each other, and so for others of a key too.
        """
        job, tenant = made["job_id"], made["tenant_id"]
        ways = ("queue", "host", "key") if may_wait else ("queue", "host")
        match self._chosen.choice((*CHANGES, *ways)):
            case "schedule":
                every = self._chosen.choice((1, 2, 3, 4))
                await self._update(made, {"schedule": {"every_seconds": every}})
            case "priority":
                await self._update(made, {"priority": self._chosen.choice(PRIORITIES)})
            case "queue":
                await self._update(made, {"queue": self._chosen.choice(("default", "bulk"))})
            case "host":  # the same receiver by another name
                url: str = made["action"]["url"]
                other = url.replace("127.0.0.1", self._chosen.choice(("127.0.0.1", "localhost")))
                await self._update(made, {"action": {"url": other}})
            case "key":
                key = self._chosen.choice((None, "moved"))
                limit = {} if key is None else {"concurrency_limit": KEY_LIMIT}
                await self._update(made, {"concurrency_key": key} | limit)
            case "cancel":
                _, made = await self._call("run", tenant, "POST", f"/jobs/{job}/run", None, job)
                for run in made.get("execution_ids", []):
                    path = f"/executions/{run}/cancel"
                    await self._call("cancel", tenant, "POST", path, None, None, run)
            case operation:
                await self._call(operation, tenant, "POST", f"/jobs/{job}/{operation}", None, job)

    async def _update(self, made: Answer, change: Answer) -> None:
        job = made["job_id"]
        await self._call("update", made["tenant_id"], "PATCH", f"/jobs/{job}", change, job)

    async def _create(
        self, kind: str, tenant: str, schedule: Answer, what: str | Answer, **fields: object
    ) -> Answer:
        """A job that does what it says, or calls a target of that mood."""
        made = await self._try_to_create(kind, tenant, schedule, what, **fields)
        assert made is not None, f"a {kind} job was refused; see the last create in client.jsonl"
        return made

    async def _try_to_create(
        self, kind: str, tenant: str, schedule: Answer, what: str | Answer, **fields: object
    ) -> Answer | None:
        """The same; None if it was refused, of which the judge will think."""
        name = f"{kind}-{next(self._numbers)}"
        once = "at" in schedule or "delay_seconds" in schedule
        action: Answer = {"type": "WEBHOOK", "url": f"{self._receiver}/{name}/{what}"}
        document = {
            "name": name,
            "tenant_id": tenant,
            "type": "ONE_TIME" if once else "RECURRING",
            "schedule": schedule,
            "action": action if isinstance(what, str) else what,
            "timeout_seconds": 5,
        } | fields
        status, made = await self._call("create", tenant, "POST", "/jobs", document)
        return made if status == 201 else None

    # How they do it.

    async def _for_ever(self, role: Callable[[], Awaitable[None]]) -> None:
        while not self._stopping.is_set():
            await role()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _call(
        self,
        operation: str,
        tenant: str,
        method: str,
        path: str,
        document: Answer | None,
        job: str | None = None,
        execution: str | None = None,
    ) -> tuple[int, Answer]:
        """Ask until there is an answer that is one."""
        key = None if method == "GET" else f"{operation}-{next(self._numbers)}"
        while True:
            asked_at = time.time()
            heard = await self._ask(method, f"/api/v1{path}", {}, key, document)
            status, answer = heard or (None, None)
            self._log.add(
                Call(
                    operation=operation,
                    key=key,
                    tenant=tenant,
                    job_id=job,
                    execution_id=execution,
                    document=document,
                    asked_at=asked_at,
                    answered_at=time.time() if heard else None,
                    status=status,
                    answer=answer,
                )
            )
            if status is not None and status < 500:
                return status, answer or {}
            await asyncio.sleep(REPEAT_SECONDS)

    async def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        key: str | None = None,
        body: object = None,
    ) -> tuple[int, Any] | None:
        """Status and answer; None if there was none."""
        assert self._http is not None
        headers = {"Idempotency-Key": key} if key else {}
        try:
            async with self._http.request(
                method, self._api + path, params=query, headers=headers, json=body
            ) as response:
                return response.status, await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
