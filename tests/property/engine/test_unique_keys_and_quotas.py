"""Unique keys and quotas against a small model, for any batches and any crowds.

The model knows which jobs live, whose they are and which unique keys they have. A script sets quotas, sends batches, lets
several create jobs at the same moment on one engine, so that they are created together, ends jobs, lets them die and be
replayed, and lets housekeeping delete what is not needed any more. After every step the whole database must be what the
model says. All jobs are due in a far future, and replayed ones do not reach the gate: nothing is queued or runs, so that
whatever has a unique key can be replaced.

What a batch must answer is known beforehand. Of a crowd it is not known who comes first; what must come out of it is.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import empty
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.documents.dead_letters import BulkSelection, DeadLetterFilter
from hourbell.engine.core import Engine
from hourbell.engine.life.create import Made, Refused, create_batch, create_job
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.change import delete_job
from hourbell.engine.operations.dead_letters import replay_dead_letter, replay_dead_letters
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.engine.operations.runs import cancel_execution, run_now
from hourbell.model.errors import DuplicateJob, HourbellError
from hourbell.model.ids import job_text
from hourbell.model.limits import TenantSettings
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from integration.api.working import Hand
from integration.life.support import check_sound, one_time, recurring
from property.engine.conftest import Runs, slowly

# An example that fails is made smaller first, and that may take minutes.
pytestmark = pytest.mark.timeout(600)

TENANTS = 2
KEYS = 3  # of each
FAR = "2099-01-01T00:00:00Z"
UNLIMITED = 1_000_000
DUPLICATE, OVER = "duplicate_job", "quota_exceeded"

Place = tuple[int, int]  # a tenant and a unique key
Row = tuple[int, int, bool, int | None]  # a living job: its tenant, id, whether it recurs, its key

_LIVING = """
select t.name, l.id, l.recurs, k.key
from (
  select id, tenant, true as recurs from hourbell.jobs where status in (0, 1)
  union all
  select id, tenant, false from hourbell.live where job is null) as l
join hourbell.tenants as t on t.id = l.tenant
left join hourbell.unique_keys as k on k.job = l.id and k.tenant = l.tenant and k.space = 0
"""
_CANCELLED = """
select id from hourbell.jobs where status = 3 union all select id from hourbell.ledger where id = job and status = 2
"""
_ALL_LETTERS = BulkSelection(DeadLetterFilter(), 1_000, None, None)
_KEPT = "select key from hourbell.idempotency"


class Item(NamedTuple):
    """A requested job."""

    tenant: int
    key: int | None = None
    on_duplicate: str = "reject"
    recurs: bool = False

    @property
    def place(self) -> Place | None:
        return None if self.key is None else (self.tenant, self.key)

    def document(self) -> dict[str, object]:
        fields: dict[str, object] = {"tenant_id": f"t{self.tenant}"}
        if self.key is not None:
            fields |= {"unique_key": f"{self.key}", "on_duplicate": self.on_duplicate}
        if self.recurs:
            return recurring(window={"starts_at": FAR}) | fields
        return one_time(schedule={"at": FAR}) | fields


class Quota(NamedTuple):
    """A tenant may have so many more jobs than it has, or as many as it likes."""

    tenant: int
    more: int | None


class Batch(NamedTuple):
    items: Sequence[Item]


class Crowd(NamedTuple):
    """Several at once. The same number twice: the same request, under the same idempotency key."""

    items: Sequence[Item]
    numbers: Sequence[int]


class End(NamedTuple):
    """One job ends, if there is any."""

    number: int
    by_execution: bool = False


class Die(NamedTuple):
    """A one-time job runs now and dies, if there is any; and so do those that were replayed."""

    number: int


class Replay(NamedTuple):
    """A dead job is replayed; or all of them are, in one call."""

    number: int | None


class Housekeeping(NamedTuple):
    """What is not needed any more is deleted."""


Step = Quota | Batch | Crowd | End | Die | Replay | Housekeeping


class Told(NamedTuple):
    """An answer: a job, or what was wrong."""

    job: int | None = None
    existed: bool = False
    code: str | None = None
    detail: str = ""


class Model:
    """What must be."""

    def __init__(self) -> None:
        self.quotas: list[int | None] = [None] * TENANTS
        self.living: dict[int, Item] = {}
        self.cancelled: set[int] = set()
        self.dead: dict[int, Item] = {}  # the first one died first
        self.kept: set[str] = set()  # idempotency keys that have an answer

    def holders(self) -> dict[Place, int]:
        return {item.place: job for job, item in self.living.items() if item.place is not None}

    def rows(self) -> list[Row]:
        return sorted(
            (item.tenant, job, item.recurs, item.key) for job, item in self.living.items()
        )

    def has(self, tenant: int) -> int:
        return sum(item.tenant == tenant for item in self.living.values())

    def room(self, tenant: int) -> int:
        quota = self.quotas[tenant]
        return UNLIMITED if quota is None else max(0, quota - self.has(tenant))

    def end(self, job: int) -> None:
        del self.living[job]
        self.cancelled.add(job)

    def begin(self, job: int, item: Item) -> None:
        assert job not in self.living.keys() | self.cancelled
        self.living[job] = item

    def die(self, job: int) -> None:
        self.dead[job] = self.living.pop(job)

    def replay(self, job: int) -> int | None:
        """Live again, unless another job has its unique key: that one."""
        place = self.dead[job].place
        holder = None if place is None else self.holders().get(place)
        if holder is None:
            self.begin(job, self.dead.pop(job))
        return holder

    # Batches.

    def batch(self, items: Sequence[Item], answers: Sequence[Told]) -> None:
        """Every answer is the right one; now what they say is so."""
        held, rooms = self.holders(), [self.room(tenant) for tenant in range(TENANTS)]
        firsts: dict[Place, Told] = {}  # what the first who wanted a unique key was told
        needy: list[tuple[Item, Told]] = []  # new ones, that need room
        later: list[tuple[Item, Told]] = []
        for item, answer in zip(items, answers, strict=True):
            holder = None if item.place is None else held.get(item.place)
            if item.place in firsts:
                later.append((item, answer))
                continue
            if item.place is not None:
                firsts[item.place] = answer
            if holder is None:
                needy.append((item, answer))
            elif item.on_duplicate != "replace":
                _refers(item, answer, holder)
            else:
                assert answer.job is not None
                self.end(holder)
                self.begin(answer.job, item)
        for tenant, room in enumerate(rooms):
            _let_in([each for each in needy if each[0].tenant == tenant], room)
        for item, answer in needy:
            if answer.job is not None:
                self.begin(answer.job, item)
        holding = self.holders()
        for item, answer in later:
            assert item.place is not None
            if firsts[item.place].code == OVER:
                assert answer.code == OVER
            else:  # a later one never replaces
                _refers(item, answer, holding[item.place])

    # Crowds.

    def crowd(
        self,
        asks: Sequence[tuple[str, Item]],
        answers: Sequence[Told],
        holding: Mapping[Place, int],
    ) -> None:
        """The answers can all be right. Who of several has a unique key in the end is what the database says."""
        held = self.holders()
        rooms = [self.room(tenant) for tenant in range(TENANTS)]
        had = [self.has(tenant) for tenant in range(TENANTS)]
        wanted = dict(asks)
        told: dict[str, Told] = {}
        for (key, _), answer in zip(asks, answers, strict=True):
            assert told.setdefault(key, answer) == answer, "one request, two answers"
        made: dict[int, Item] = {}
        for key, answer in told.items():
            if answer.job is not None and not answer.existed:
                assert answer.job not in made.keys() | self.living.keys() | self.cancelled
                made[answer.job] = wanted[key]
        contenders = {place: [job] for place, job in held.items()}
        for job, item in made.items():
            if item.place is not None:
                contenders.setdefault(item.place, []).append(job)
        for key, answer in told.items():
            assert _possible(wanted[key], answer, held, contenders), (wanted[key], answer)

        self.kept |= {key for key, answer in told.items() if answer.job is not None}
        for job, item in made.items():
            self.begin(job, item)
        for place, jobs in contenders.items():
            now = holding.get(place)
            assert now in jobs, "a unique key has left its jobs"
            for job in jobs:
                if job != now:
                    self.end(job)
            replacing = [job for job in jobs if job in made and made[job].on_duplicate == "replace"]
            assert len(jobs) == 1 or now in replacing
            assert len(replacing) >= len(jobs) - 1, "withdrawn, and not replaced"
        for tenant, room in enumerate(rooms):
            new = {
                item.place or key
                for key, item in asks
                if item.tenant == tenant and item.place not in held
            }
            assert self.has(tenant) == had[tenant] + min(room, len(new))


def _refers(item: Item, answer: Told, holder: int) -> None:
    """Another job has the unique key, and is not replaced."""
    if item.on_duplicate == "keep":
        assert answer.job == holder
    else:
        assert answer.code == DUPLICATE
        assert job_text(holder) in answer.detail


def _let_in(needy: Sequence[tuple[Item, Told]], room: int) -> None:
    """As many as there is room for. The first ones, though unique keys may go before what has none, or after it."""
    assert {answer.code for _, answer in needy} <= {None, OVER}
    admitted = [answer.job is not None for _, answer in needy]
    assert sum(admitted) == min(room, len(needy))
    for unique in (False, True):
        those = [answer.job is None for item, answer in needy if (item.key is not None) == unique]
        assert those == sorted(those), "a later one was let in, an earlier one was not"


def _possible(
    item: Item,
    answer: Told,
    held: Mapping[Place, int],
    contenders: Mapping[Place, Sequence[int]],
) -> bool:
    """Whether one of a crowd can have got this answer."""
    if answer.code == OVER:
        return item.place not in held  # what takes no room is never refused for want of it
    if answer.code == DUPLICATE:
        return item.place in contenders and item.on_duplicate == "reject"
    if answer.job is None:
        return False
    if answer.existed:
        assert item.place is not None
        return item.on_duplicate == "keep" and answer.job in contenders[item.place]
    return item.place not in held or item.on_duplicate == "replace"


class Life:
    """A real engine, and the model beside it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._dispatch = PostgresDispatch(engine)
        self._hand = Hand(self._dispatch)
        self._model = Model()
        self._keys = 0

    @classmethod
    async def begin(cls, database: Database) -> "Life":
        async with database.connection() as connection:
            await empty(connection)
        return cls(Engine(database, DatabaseClock(database)))

    async def do(self, step: Step) -> None:
        rows = self._model.rows()
        match step:
            case Quota(tenant, more):
                quota = None if more is None else max(0, self._model.has(tenant) + more)
                await set_tenant(
                    self._engine, f"t{tenant}", TenantSettings(max_jobs=quota), Write()
                )
                self._model.quotas[tenant] = quota
            case Batch(items):
                answers = await self._batch(items)
                self._model.batch(items, answers)
            case Crowd(items, numbers):
                mark = self._new_key()
                asks = [(f"{mark}.{n % len(items)}", items[n % len(items)]) for n in numbers]
                answers = await self._crowd(asks)
                self._model.crowd(asks, answers, await self._holding())
            case End(number, by_execution) if rows:
                _, job, recurs, _ = rows[number % len(rows)]
                if by_execution and not recurs:
                    await cancel_execution(self._engine, job, Write())
                else:
                    await delete_job(self._engine, job, Write())
                self._model.end(job)
            case Die(number):
                await self._die([job for _, job, recurs, _ in rows if not recurs], number)
            case Replay(None):
                await self._replay_all()
            case Replay(int(number)) if self._model.dead:
                await self._replay([*self._model.dead][number % len(self._model.dead)])
            case Housekeeping():
                for _ in range(2):  # its cursors wrap around
                    now = await self._engine.clock.now()
                    await run_housekeeping(self._engine, None, now)
        await self._compare()

    async def finish(self) -> None:
        await check_sound(self._engine)

    async def _die(self, jobs: Sequence[int], number: int) -> None:
        if jobs:
            await run_now(self._engine, jobs[number % len(jobs)], Write())
        for claimed in await self._hand.kill():
            self._model.die(claimed.execution_id)

    async def _replay(self, job: int) -> None:
        holder = self._model.replay(job)
        if holder is None:
            await replay_dead_letter(self._engine, job, Write())
            return
        with pytest.raises(DuplicateJob, match=job_text(holder)):
            await replay_dead_letter(self._engine, job, Write())

    async def _replay_all(self) -> None:
        refused = [job for job in [*self._model.dead] if self._model.replay(job) is not None]
        done = await replay_dead_letters(self._engine, _ALL_LETTERS, Write())
        assert done.left == len(refused)
        assert done.left_over == ({DUPLICATE: len(refused)} if refused else {})

    async def _batch(self, items: Sequence[Item]) -> list[Told]:
        write = Write(self._new_key())
        answers = await create_batch(self._engine, items, Item.document, write)
        assert await create_batch(self._engine, items, Item.document, write) == answers
        self._model.kept.add(f"{write.key}")
        return [
            Told(code=answer.code, detail=answer.detail)
            if isinstance(answer, Refused)
            else Told(answer.job_id if isinstance(answer, Made) else answer)
            for answer in answers
        ]

    async def _crowd(self, asks: Sequence[tuple[str, Item]]) -> list[Told]:
        """The answer to each of them; a request that got a job gets the same answer again."""
        answers = await asyncio.gather(*(self._ask(*ask) for ask in asks))
        told = [(ask, answer) for ask, answer in zip(asks, answers, strict=True) if answer.job]
        again = await asyncio.gather(*(self._ask(*ask) for ask, _ in told))
        assert again == [answer for _, answer in told]
        return answers

    async def _ask(self, key: str, item: Item) -> Told:
        try:
            created = await create_job(self._engine, item.document(), Write(key, key.encode()))
        except HourbellError as error:
            return Told(code=error.code, detail=error.message)
        assert created.job.unique_key == (None if item.key is None else f"{item.key}")
        return Told(created.job.job_id, created.existed)

    def _new_key(self) -> str:
        self._keys += 1
        return f"{self._keys}"

    async def _rows(self) -> list[Row]:
        return sorted(
            (int(name[1:]), job, recurs, None if key is None else int(key))
            for name, job, recurs, key in await self._engine.database.fetch(_LIVING)
        )

    async def _holding(self) -> dict[Place, int]:
        return {(t, key): job for t, job, _, key in await self._rows() if key is not None}

    async def _compare(self) -> None:
        fetch = self._engine.database.fetch
        assert await self._rows() == self._model.rows()
        dead = {row["id"] for row in await fetch("select id from hourbell.dead_letters")}
        assert dead == self._model.dead.keys()
        cancelled = sorted(row["id"] for row in await fetch(_CANCELLED))
        assert cancelled == sorted(self._model.cancelled)
        assert {row["key"] for row in await fetch(_KEPT)} == self._model.kept


# One tenant and one of its unique keys are wanted more than others: there they meet.
tenants = st.sampled_from([0, 0, 0, *range(1, TENANTS)])
keys = st.sampled_from([None, None, 0, 0, 0, *range(1, KEYS)])
choices = st.sampled_from(["reject", "keep", "replace"])
items = st.builds(Item, tenants, keys, choices, st.booleans())
numbers = st.integers(0, 5)
quotas = st.builds(Quota, tenants, st.sampled_from([None, -99, -1, 0, 1, 1, 2, 3]))
batches = st.builds(Batch, st.lists(items, min_size=1, max_size=8))
crowds = st.builds(
    Crowd, st.lists(items, min_size=1, max_size=6), st.lists(numbers, min_size=2, max_size=6)
)
ends = st.builds(End, numbers, st.booleans())
deaths = st.builds(Die, numbers)
replays = st.builds(Replay, st.one_of(st.none(), numbers))
steps = st.one_of(quotas, batches, crowds, ends, deaths, replays, st.just(Housekeeping()))


_HOLDER = Batch([Item(0, 0)])


@settings(slowly, max_examples=100)
@given(st.lists(steps, min_size=6, max_size=16))
# Without room one replaces another, and nothing else comes in;
@example([_HOLDER, Quota(0, 0), Batch([Item(0, 0, "replace"), Item(0, 1), Item(0)])])
# a request that keeps or replaces an existing job leaves the last room to a new one;
@example([_HOLDER, Quota(0, 1), Batch([Item(0, 0, "keep"), Item(0)])])
@example([_HOLDER, Quota(0, 1), Batch([Item(0, 0, "replace", True), Item(0, 1, "keep")])])
# the same in a crowd, where two want the last room and one asks twice;
@example(
    [
        _HOLDER,
        Quota(0, 1),
        Crowd([Item(0, 0, "keep"), Item(0, 0, "replace"), Item(0), Item(0, 1)], [0, 1, 2, 3, 1]),
    ]
)
# the first of a batch who wants a unique key speaks for all who do.
@example([_HOLDER, Batch([Item(0, 0, choice) for choice in ("reject", "keep", "replace")])])
@example([Batch([Item(0, 0, choice) for choice in ("keep", "keep", "reject", "replace")])])
# A dead job gets its key back, whether another has had it or not, and not while another has it.
@example([_HOLDER, Die(0), Housekeeping(), Replay(0), _HOLDER])
@example([_HOLDER, Die(0), _HOLDER, Replay(0), Replay(None), End(0), Replay(None)])
@example([_HOLDER, Die(0), _HOLDER, Die(0), Housekeeping(), Replay(None), _HOLDER])
# What has ended leaves its room, whether it was listed or is from before the quota.
@example([Quota(0, 1), Batch([Item(0)]), End(0, True), Batch([Item(0)] * 2)])
@example([Quota(0, 1), Batch([Item(0)]), Die(0), Batch([Item(0)] * 2), Replay(0), Batch([Item(0)])])
@example([Quota(0, 1), Batch([Item(0, recurs=True)]), End(0), Batch([Item(0)] * 2)])
@example([Batch([Item(0)] * 2), Quota(0, 0), Housekeeping(), End(0, True), Batch([Item(0)] * 2)])
def test_a_unique_key_has_one_job_and_a_quota_is_kept_whoever_asks(
    in_database: Runs, script: list[Step]
) -> None:
    async def work(database: Database) -> None:
        life = await Life.begin(database)
        for step in script:
            await life.do(step)
        await life.finish()

    in_database(work)
