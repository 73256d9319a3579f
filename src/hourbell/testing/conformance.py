"""Conformance tests for implementations of the Dispatch interface.

An implementation runs them with a subclass in its own test module and a fixture `stage` (pytest
with pytest-asyncio in auto mode):

    class TestMyDispatch(DispatchConformance):
        pass

    @pytest.fixture
    async def stage() -> AsyncIterator[Stage]: ...

A `Stage` is the implementation together with its environment in production: the producer of ready
executions, the clock, and a reader of the results. Time on a stage passes only when a test calls
`wait`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec
import pytest

from hourbell.dispatch import (
    CANCELLED,
    DEAD,
    INTERRUPTED,
    RELEASED,
    RETRY,
    SNOOZED,
    SUCCEEDED,
    Claim,
    Dispatch,
    Session,
    Settlement,
)
from hourbell.model.errors import SessionLost, StoreUnavailable
from hourbell.model.executions import Claimed, Execution, ExecutionStatus, Reason
from hourbell.model.jobs import NO_CHECKPOINT, decode_spec
from hourbell.model.policies import Priority

QUEUE = "default"
MAX_LOSSES = 10  # an execution that crashes its workers must be identified within this many


class Stage(Protocol):
    """The implementation under test and its environment."""

    @property
    def dispatch(self) -> Dispatch: ...

    @property
    def lease_seconds(self) -> float:
        """How long a session lives without a heartbeat."""

    async def enqueue(
        self,
        count: int = 1,
        *,
        tenant: str = "default",
        priority: Priority = Priority.MEDIUM,
        queue: str = QUEUE,
        at_most_once: bool = False,
    ) -> list[int]:
        """Add executions that any worker of the queue may claim."""

    async def weigh(self, tenant: str, weight: float) -> None:
        """Set the tenant's share to this multiple of the share of a tenant with weight 1."""

    async def cancel(self, execution_id: int) -> None:
        """Request cancellation of an execution."""

    async def read(self, execution_id: int) -> Execution:
        """The execution as shown to users, live or recorded."""

    async def wait(self, seconds: float) -> None:
        """Let time pass: due executions become claimable, expired sessions are ended."""


class DispatchConformance:
    """The contract of `hourbell.dispatch`."""

    # Claims.

    async def test_a_claim_gives_what_is_ready(self, stage: Stage) -> None:
        [execution_id] = await stage.enqueue(tenant="acme")
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 10)
        assert claimed.execution_id == execution_id
        assert claimed.tenant_id == "acme"
        assert claimed.attempt == 1
        assert claimed.fence > 0
        assert await status(stage, execution_id) is ExecutionStatus.RUNNING

    async def test_a_session_knows_its_worker_until_it_is_closed(self, stage: Stage) -> None:
        session = await stage.dispatch.open("reporter", ["default"], 1)
        assert await stage.dispatch.worker_of(session) == "reporter"
        stranger = Session(session.id, UUID(int=0))
        assert await stage.dispatch.worker_of(stranger) is None
        await stage.dispatch.close(session)
        assert await stage.dispatch.worker_of(session) is None

    async def test_the_sessions_of_a_worker_are_those_of_its_name(self, stage: Stage) -> None:
        ids = await stage.enqueue(3)
        first = await stage.dispatch.open("same", ["default"], 2)
        [one] = await stage.dispatch.claim(first, 1, 1)
        second = await stage.dispatch.open("same", ["default"], 2)
        [two] = await stage.dispatch.claim(second, 1, 1)
        other = await stage.dispatch.open("other", ["default"], 2)
        await stage.dispatch.claim(other, 1, 1)
        held = {first: [one.execution_id], second: [two.execution_id]}
        assert dict(await stage.dispatch.sessions_of("same", ids)) == held
        await stage.dispatch.close(first)
        assert dict(await stage.dispatch.sessions_of("same", ids[:0])) == {second: []}

    async def test_the_current_claim_is_the_one_that_holds_an_execution(self, stage: Stage) -> None:
        one, two = await stage.enqueue(2)
        assert await stage.dispatch.current_claim(one) is None
        session = await stage.dispatch.open("reporter", ["default"], 2)
        claimed = await stage.dispatch.claim(session, 1, 2)  # both in one slab
        for each in claimed:
            claim = Claim(session, "reporter", each.fence)
            assert await stage.dispatch.current_claim(each.execution_id) == claim
        await stage.dispatch.settle(session, [Settlement(one, claimed[0].fence, SUCCEEDED)])
        assert await stage.dispatch.current_claim(one) is None
        await stage.dispatch.close(session)
        await stage.dispatch.admit()
        again = await opened(stage)
        [later] = await stage.dispatch.claim(again, 1, 2)
        claim = Claim(again, "worker", later.fence)
        assert (later.execution_id, await stage.dispatch.current_claim(two)) == (two, claim)

    async def test_a_claim_gives_nothing_when_nothing_is_ready(self, stage: Stage) -> None:
        session = await opened(stage)
        assert await stage.dispatch.claim(session, 1, 10) == []

    async def test_a_claim_gives_no_more_than_its_limit(self, stage: Stage) -> None:
        ids = await stage.enqueue(7)
        session = await opened(stage)
        sizes = [len(await stage.dispatch.claim(session, number, 3)) for number in range(1, 5)]
        assert sizes == [3, 3, 1, 0]
        result = await stage.dispatch.heartbeat(session, ids, 0)
        assert list(result.lost) == []

    async def test_a_session_is_given_executions_of_its_queues_only(self, stage: Stage) -> None:
        [mail] = await stage.enqueue(queue="mail")
        [report] = await stage.enqueue(queue="reports")
        of_reports = await opened(stage, queues=["reports"])
        of_both = await opened(stage, queues=["reports", "mail"])
        assert ids_of(await stage.dispatch.claim(of_reports, 1, 10)) == [report]
        assert ids_of(await stage.dispatch.claim(of_both, 1, 10)) == [mail]

    async def test_an_execution_is_claimed_once(self, stage: Stage) -> None:
        await stage.enqueue(3)
        first, second = await opened(stage), await opened(stage)
        assert len(await stage.dispatch.claim(first, 1, 10)) == 3
        assert await stage.dispatch.claim(second, 1, 10) == []
        assert await stage.dispatch.claim(first, 2, 10) == []

    async def test_sessions_that_claim_at_once_share_nothing(self, stage: Stage) -> None:
        ids = await stage.enqueue(60)
        sessions = [await opened(stage) for _ in range(4)]

        async def claim_all(session: Session) -> list[int]:
            mine: list[int] = []
            for number in range(1, 100):
                claimed = await stage.dispatch.claim(session, number, 4)
                if not claimed:
                    break
                mine += ids_of(claimed)
            return mine

        shares = await asyncio.gather(*map(claim_all, sessions))
        assert sorted(number for share in shares for number in share) == sorted(ids)

    async def test_a_repeated_claim_gives_the_same_executions(self, stage: Stage) -> None:
        # The first response was lost; the worker repeats the claim number.
        await stage.enqueue(5)
        session = await opened(stage)
        first = await stage.dispatch.claim(session, 1, 3)
        again = await stage.dispatch.claim(session, 1, 3, repeated=True)
        assert sorted(again, key=by_id) == sorted(first, key=by_id)
        assert len(await stage.dispatch.claim(session, 2, 10)) == 2

    async def test_a_repeated_claim_that_had_not_happened_happens_now(self, stage: Stage) -> None:
        # The request itself was lost.
        [execution_id] = await stage.enqueue()
        session = await opened(stage)
        claimed = await stage.dispatch.claim(session, 1, 3, repeated=True)
        assert ids_of(claimed) == [execution_id]

    async def test_a_repeated_claim_does_not_give_what_is_settled(self, stage: Stage) -> None:
        await stage.enqueue(2)
        session = await opened(stage)
        one, other = await stage.dispatch.claim(session, 1, 2)
        await settle(stage, session, succeeded(one))
        assert await stage.dispatch.claim(session, 1, 2, repeated=True) == [other]

    async def test_an_unnumbered_claim_cannot_be_repeated(self, stage: Stage) -> None:
        await stage.enqueue(2)
        session = await opened(stage)
        first = await stage.dispatch.claim(session, 0, 1)
        second = await stage.dispatch.claim(session, 0, 10, repeated=True)
        assert len(first) == len(second) == 1
        assert ids_of(first) != ids_of(second)

    # The order of claims.

    async def test_the_most_urgent_are_claimed_first(self, stage: Stage) -> None:
        by_urgency = [
            (await stage.enqueue(priority=priority))[0] for priority in reversed(Priority)
        ]
        session = await opened(stage)
        claimed = [await stage.dispatch.claim(session, number, 1) for number in (1, 2, 3, 4)]
        assert [ids_of(one) for one in claimed] == [[number] for number in reversed(by_urgency)]

    async def test_tenants_get_shares_by_their_weights(self, stage: Stage) -> None:
        await stage.weigh("heavy", 3)
        await stage.enqueue(30, tenant="heavy")
        await stage.enqueue(30, tenant="light")
        session = await opened(stage)
        claimed = await stage.dispatch.claim(session, 1, 20)
        shares = Counter(one.tenant_id for one in claimed)
        assert abs(shares["heavy"] - 15) <= 3  # what became ready together may be claimed together

    async def test_a_small_tenant_does_not_wait_behind_a_big_one(self, stage: Stage) -> None:
        await stage.enqueue(60, tenant="big")
        session = await opened(stage)
        await stage.dispatch.claim(session, 1, 20)
        small = await stage.enqueue(5, tenant="small")
        claimed = await stage.dispatch.claim(session, 2, 12)
        assert set(small) <= set(ids_of(claimed))

    async def test_a_tenant_that_was_idle_has_saved_nothing_up(self, stage: Stage) -> None:
        await stage.enqueue(40, tenant="busy")
        session = await opened(stage)
        await stage.dispatch.claim(session, 1, 20)
        # As in production, where it runs all the time: the gate records how far claims have come.
        await stage.dispatch.admit()
        await stage.enqueue(20, tenant="idle")
        claimed = await stage.dispatch.claim(session, 2, 20)
        shares = Counter(one.tenant_id for one in claimed)
        assert shares["busy"] >= 8

    # Fences.

    async def test_every_claim_of_an_execution_has_a_higher_fence(self, stage: Stage) -> None:
        await stage.enqueue()
        fences = []
        for _ in range(3):
            session = await opened(stage)
            [claimed] = await stage.dispatch.claim(session, 1, 1)
            fences.append(claimed.fence)
            await stage.dispatch.close(session)
            await stage.dispatch.admit()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        fences.append(claimed.fence)
        await settle(stage, session, Settlement(claimed.execution_id, claimed.fence, RELEASED))
        await stage.dispatch.admit()
        [claimed] = await stage.dispatch.claim(session, 2, 1)
        fences.append(claimed.fence)
        assert fences == sorted(set(fences))

    async def test_an_outcome_under_a_stale_fence_changes_nothing(self, stage: Stage) -> None:
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        for fence in (claimed.fence - 1, claimed.fence + 1, 0):
            stale = Settlement(claimed.execution_id, fence, SUCCEEDED)
            assert await stage.dispatch.settle(session, [stale]) == [claimed.execution_id]
        assert await status(stage, claimed.execution_id) is ExecutionStatus.RUNNING
        await settle(stage, session, succeeded(claimed))

    async def test_an_outcome_of_a_session_that_does_not_hold_it_is_refused(
        self, stage: Stage
    ) -> None:
        await stage.enqueue()
        holder, other = await opened(stage), await opened(stage)
        [claimed] = await stage.dispatch.claim(holder, 1, 1)
        refused = await stage.dispatch.settle(other, [succeeded(claimed)])
        assert refused == [claimed.execution_id]
        assert await status(stage, claimed.execution_id) is ExecutionStatus.RUNNING

    async def test_a_session_is_not_taken_without_its_token(self, stage: Stage) -> None:
        await stage.enqueue()
        one, other = await opened(stage), await opened(stage)
        forged = Session(one.id, other.token)
        with pytest.raises(SessionLost):
            await stage.dispatch.claim(forged, 1, 1)
        with pytest.raises(SessionLost):
            await stage.dispatch.heartbeat(forged, [], 0)
        await stage.dispatch.close(forged)
        assert len(await stage.dispatch.claim(one, 1, 1)) == 1

    # Outcomes.

    async def test_a_success_is_recorded(self, stage: Stage) -> None:
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        outcome = Settlement(
            claimed.execution_id, claimed.fence, SUCCEEDED, begun_ms=5, took_ms=20, result='{"n":1}'
        )
        await settle(stage, session, outcome)
        ended = await stage.read(claimed.execution_id)
        assert ended.status is ExecutionStatus.SUCCEEDED
        assert ended.attempt == 1
        assert ended.result == {"n": 1}
        assert ended.started_at is not None
        assert ended.finished_at is not None
        assert (ended.finished_at - ended.started_at).total_seconds() == 0.02

    async def test_a_retry_comes_after_its_delay_as_the_next_attempt(self, stage: Stage) -> None:
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        again = Settlement(
            claimed.execution_id,
            claimed.fence,
            RETRY,
            delay_seconds=stage.lease_seconds / 2,
            reason="http_503",
            error="try later",
        )
        await settle(stage, session, again)
        waiting = await stage.read(claimed.execution_id)
        assert waiting.status is ExecutionStatus.RETRYING
        assert waiting.error == "try later"
        await stage.dispatch.admit()
        assert await stage.dispatch.claim(session, 2, 1) == []
        await stage.wait(stage.lease_seconds / 2)
        [second] = await stage.dispatch.claim(session, 3, 1)
        assert second.execution_id == claimed.execution_id
        assert second.attempt == 2
        await settle(stage, session, succeeded(second))
        ended = await stage.read(claimed.execution_id)
        assert [(a.attempt, a.status) for a in ended.attempts] == [
            (1, ExecutionStatus.FAILED),
            (2, ExecutionStatus.SUCCEEDED),
        ]

    async def test_what_is_dead_stays_dead(self, stage: Stage) -> None:
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        outcome = Settlement(
            claimed.execution_id,
            claimed.fence,
            DEAD,
            reason=Reason.RETRIES_EXHAUSTED.value,
            error="no such host",
        )
        await settle(stage, session, outcome)
        await stage.wait(stage.lease_seconds / 2)
        assert await stage.dispatch.claim(session, 2, 1) == []
        ended = await stage.read(claimed.execution_id)
        assert ended.status is ExecutionStatus.DEAD
        assert ended.reason is Reason.RETRIES_EXHAUSTED
        assert ended.error == "no such host"

    async def test_what_was_cancelled_while_it_ran_is_recorded_so(self, stage: Stage) -> None:
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        reason = Reason.CANCELLED.value
        outcome = Settlement(claimed.execution_id, claimed.fence, CANCELLED, reason=reason)
        await settle(stage, session, outcome)
        assert await status(stage, claimed.execution_id) is ExecutionStatus.CANCELLED

    @pytest.mark.parametrize("kind", [RELEASED, INTERRUPTED, SNOOZED])
    async def test_what_is_given_back_burns_no_attempt(self, stage: Stage, kind: int) -> None:
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        await settle(stage, session, Settlement(claimed.execution_id, claimed.fence, kind))
        await stage.dispatch.admit()
        [again] = await stage.dispatch.claim(session, 2, 1)
        assert again.execution_id == claimed.execution_id
        assert again.attempt == 1

    async def test_what_comes_back_can_be_claimed_at_once_however_long_it_was_held(
        self, stage: Stage
    ) -> None:
        [execution_id] = await stage.enqueue()
        session = await opened(stage)
        await stage.wait(stage.lease_seconds / 2)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        await settle(stage, session, Settlement(execution_id, claimed.fence, RELEASED))
        await stage.dispatch.admit()
        assert ids_of(await stage.dispatch.claim(session, 2, 1)) == [execution_id]
        await stage.dispatch.heartbeat(session, [], 2)  # the response was lost
        await stage.dispatch.admit()
        assert ids_of(await stage.dispatch.claim(session, 3, 1)) == [execution_id]
        await stage.dispatch.close(session)
        await stage.dispatch.admit()
        assert ids_of(await stage.dispatch.claim(await opened(stage), 1, 1)) == [execution_id]

    async def test_an_outcome_counts_once(self, stage: Stage) -> None:
        # The response was lost, and the worker settles again.
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        await settle(stage, session, succeeded(claimed))
        other = Settlement(claimed.execution_id, claimed.fence, DEAD, reason="non_retryable")
        assert await stage.dispatch.settle(session, [other]) == [claimed.execution_id]
        assert await status(stage, claimed.execution_id) is ExecutionStatus.SUCCEEDED

    async def test_a_batch_of_all_kinds_is_settled_each_by_its_kind(self, stage: Stage) -> None:
        await stage.enqueue(7)
        session = await opened(stage)
        claimed = await stage.dispatch.claim(session, 1, 7)
        batch = [
            Settlement(one.execution_id, one.fence, kind, delay_seconds=60, reason=reason)
            for one, kind, reason in zip(
                claimed,
                (SUCCEEDED, RETRY, DEAD, CANCELLED, RELEASED, INTERRUPTED, SNOOZED),
                (None, "error", "non_retryable", "cancelled", None, None, "snoozed"),
                strict=True,
            )
        ]
        assert list(await stage.dispatch.settle(session, batch)) == []
        assert [await status(stage, one.execution_id) for one in claimed] == [
            ExecutionStatus.SUCCEEDED,
            ExecutionStatus.RETRYING,
            ExecutionStatus.DEAD,
            ExecutionStatus.CANCELLED,
            ExecutionStatus.SCHEDULED,
            ExecutionStatus.SCHEDULED,
            ExecutionStatus.SCHEDULED,
        ]

    async def test_a_stale_outcome_does_not_spoil_its_batch(self, stage: Stage) -> None:
        await stage.enqueue(10)
        session = await opened(stage)
        claimed = await stage.dispatch.claim(session, 1, 10)
        batch = [succeeded(one) for one in claimed]
        stale = claimed[4]
        batch[4] = Settlement(stale.execution_id, stale.fence - 1, SUCCEEDED)
        assert await stage.dispatch.settle(session, batch) == [stale.execution_id]
        ended = Counter([await status(stage, one.execution_id) for one in claimed])
        assert ended == {ExecutionStatus.SUCCEEDED: 9, ExecutionStatus.RUNNING: 1}

    async def test_an_outcome_that_cannot_be_stored_settles_nothing_of_its_batch(
        self, stage: Stage
    ) -> None:
        # So that the worker can bisect the batch and find the bad outcome.
        await stage.enqueue(4)
        session = await opened(stage)
        claimed = await stage.dispatch.claim(session, 1, 4)
        batch = [succeeded(one) for one in claimed]
        bad = claimed[2]
        batch[2] = Settlement(bad.execution_id, bad.fence, SUCCEEDED, result="{not JSON")
        error = await failure_of(stage, session, batch)
        assert error is not None
        assert not isinstance(error, StoreUnavailable | SessionLost)
        statuses = [await status(stage, one.execution_id) for one in claimed]
        assert statuses == [ExecutionStatus.RUNNING] * 4
        del batch[2]
        assert list(await stage.dispatch.settle(session, batch)) == []

    async def test_an_empty_batch_is_settled(self, stage: Stage) -> None:
        session = await opened(stage)
        assert list(await stage.dispatch.settle(session, [])) == []

    # Heartbeats.

    async def test_heartbeats_keep_a_session_alive(self, stage: Stage) -> None:
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        for _ in range(4):
            await stage.wait(stage.lease_seconds * 0.6)
            result = await stage.dispatch.heartbeat(session, [claimed.execution_id], 1)
            assert list(result.lost) == []
        await settle(stage, session, succeeded(claimed))

    async def test_a_heartbeat_says_what_is_lost(self, stage: Stage) -> None:
        await stage.enqueue(2)
        session, other = await opened(stage), await opened(stage)
        [mine] = await stage.dispatch.claim(session, 1, 1)
        [theirs] = await stage.dispatch.claim(other, 1, 1)
        running = [mine.execution_id, theirs.execution_id]
        result = await stage.dispatch.heartbeat(session, running, 1)
        assert list(result.lost) == [theirs.execution_id]
        assert list(result.cancelled) == []

    async def test_a_heartbeat_says_what_is_unwanted(self, stage: Stage) -> None:
        await stage.enqueue(2)
        session = await opened(stage)
        claimed = await stage.dispatch.claim(session, 1, 2)
        await stage.cancel(claimed[0].execution_id)
        result = await stage.dispatch.heartbeat(session, ids_of(claimed), 1)
        assert list(result.cancelled) == [claimed[0].execution_id]
        assert list(result.lost) == []

    async def test_a_heartbeat_gives_back_what_the_worker_has_not_heard_of(
        self, stage: Stage
    ) -> None:
        await stage.enqueue(3)
        session, other = await opened(stage), await opened(stage)
        claimed = await stage.dispatch.claim(session, 1, 3)
        known = [claimed[0].execution_id]
        await stage.dispatch.heartbeat(session, known, 0)  # no response to the claim yet
        await stage.dispatch.admit()
        assert await stage.dispatch.claim(other, 1, 10) == []
        await stage.dispatch.heartbeat(session, known, 1)
        await stage.dispatch.admit()
        back = await stage.dispatch.claim(other, 2, 10)
        assert sorted(ids_of(back)) == sorted(set(ids_of(claimed)) - set(known))
        assert [one.attempt for one in back] == [1, 1]
        await settle(stage, session, succeeded(claimed[0]))

    async def test_what_is_cancelled_before_it_is_claimed_is_never_claimed(
        self, stage: Stage
    ) -> None:
        [first, second] = await stage.enqueue(2)
        await stage.cancel(first)
        session = await opened(stage)
        assert ids_of(await stage.dispatch.claim(session, 1, 10)) == [second]
        assert await status(stage, first) is ExecutionStatus.CANCELLED

    # The end of a session.

    async def test_a_closed_session_gives_everything_back_at_once(self, stage: Stage) -> None:
        ids = await stage.enqueue(3)
        session, other = await opened(stage), await opened(stage)
        await stage.dispatch.claim(session, 1, 10)
        await stage.dispatch.close(session)
        await stage.dispatch.admit()
        back = await stage.dispatch.claim(other, 1, 10)
        assert sorted(ids_of(back)) == sorted(ids)
        assert [one.attempt for one in back] == [1, 1, 1]

    async def test_a_closed_session_is_over(self, stage: Stage) -> None:
        session = await opened(stage)
        await stage.dispatch.close(session)
        await stage.dispatch.close(session)
        with pytest.raises(SessionLost):
            await stage.dispatch.claim(session, 1, 1)
        with pytest.raises(SessionLost):
            await stage.dispatch.heartbeat(session, [], 0)

    async def test_an_expired_session_is_lost_with_all_that_it_held(self, stage: Stage) -> None:
        await stage.enqueue()
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        await stage.wait(stage.lease_seconds * 1.1)
        with pytest.raises(SessionLost):
            await stage.dispatch.claim(session, 2, 1)
        with pytest.raises(SessionLost):
            await stage.dispatch.claim(session, 1, 1, repeated=True)
        with pytest.raises(SessionLost):
            await stage.dispatch.heartbeat(session, [claimed.execution_id], 1)
        refused = await stage.dispatch.settle(session, [succeeded(claimed)])
        assert list(refused) == [claimed.execution_id]

    async def test_a_heartbeat_without_a_number_gives_back_what_it_does_not_name_after_a_lease(
        self, stage: Stage
    ) -> None:
        await stage.enqueue(3)
        session = await opened(stage)
        named, forgotten = await stage.dispatch.claim(session, 0, 2)
        await stage.wait(stage.lease_seconds * 0.7)
        await stage.dispatch.heartbeat(session, [named.execution_id], None)
        await stage.wait(stage.lease_seconds * 0.7)
        [young] = await stage.dispatch.claim(session, 0, 1)
        await stage.dispatch.heartbeat(session, [named.execution_id], None)
        result = await stage.dispatch.heartbeat(session, ids_of([named, forgotten, young]), None)
        assert list(result.lost) == [forgotten.execution_id]

    async def test_a_numbered_heartbeat_says_nothing_about_unnumbered_claims(
        self, stage: Stage
    ) -> None:
        await stage.enqueue(2)
        session = await opened(stage)
        [unnumbered] = await stage.dispatch.claim(session, 0, 1)
        [numbered] = await stage.dispatch.claim(session, 1, 1)
        await stage.dispatch.heartbeat(session, [numbered.execution_id], 1)
        both = ids_of([unnumbered, numbered])
        assert list((await stage.dispatch.heartbeat(session, both, 1)).lost) == []
        await stage.wait(stage.lease_seconds * 0.7)
        await stage.dispatch.heartbeat(session, [numbered.execution_id], 1)
        await stage.wait(stage.lease_seconds * 0.7)
        await stage.dispatch.heartbeat(session, [numbered.execution_id], 1)
        result = await stage.dispatch.heartbeat(session, both, 1)
        assert list(result.lost) == [unnumbered.execution_id]

    async def test_asking_extends_a_session_that_holds_nothing_and_no_other(
        self, stage: Stage
    ) -> None:
        await stage.enqueue()
        idle = await opened(stage, queues=["mail", "empty"])
        busy = await opened(stage)
        [claimed] = await stage.dispatch.claim(busy, 1, 1)
        for _ in range(2):
            await stage.wait(stage.lease_seconds * 0.4)
            assert (await stage.dispatch.renew(idle)).queues == ("empty", "mail")
            await stage.dispatch.renew(busy)
        await stage.wait(stage.lease_seconds * 0.4)
        await stage.dispatch.renew(idle)
        with pytest.raises(SessionLost):
            await stage.dispatch.renew(busy)
        assert await status(stage, claimed.execution_id) is not ExecutionStatus.RUNNING

    async def test_what_is_held_can_be_asked_for(self, stage: Stage) -> None:
        await stage.enqueue(3)
        session, other = await opened(stage), await opened(stage)
        mine = await stage.dispatch.claim(session, 1, 2)
        theirs = await stage.dispatch.claim(other, 1, 1)
        found = await stage.dispatch.claimed_by(session, ids_of([*mine, *theirs]))
        assert sorted(found, key=by_id) == sorted(mine, key=by_id)
        await settle(stage, session, succeeded(mine[0]))
        assert await stage.dispatch.claimed_by(session, ids_of(mine)) == [mine[1]]
        await stage.dispatch.close(session)
        assert await stage.dispatch.claimed_by(session, ids_of(mine)) == []

    async def test_progress_is_kept_while_it_is_held_under_its_fence(self, stage: Stage) -> None:
        [number] = await stage.enqueue()
        session, other = await opened(stage), await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        note = stage.dispatch.note_progress
        assert await note(session, number, claimed.fence, '{"done": 3}')
        assert not await note(session, number, claimed.fence - 1, "1")
        assert not await note(other, number, claimed.fence, "2")
        assert (await stage.read(number)).progress == {"done": 3}
        await settle(stage, session, succeeded(claimed))
        assert not await note(session, number, claimed.fence, "3")
        assert (await stage.read(number)).progress is None

    @pytest.mark.parametrize("kind", [RETRY, RELEASED, INTERRUPTED, SNOOZED])
    async def test_a_checkpoint_comes_with_the_next_claim(self, stage: Stage, kind: int) -> None:
        number, plain = await stage.enqueue(2)
        session, other = await opened(stage), await opened(stage)
        claimed = {one.execution_id: one for one in await stage.dispatch.claim(session, 1, 2)}
        fence = claimed[number].fence
        keep = stage.dispatch.set_checkpoint
        assert await keep(session, number, fence, '{"done": 3}')
        assert await keep(session, number, fence, '{"done": 4}')
        assert not await keep(session, number, fence - 1, "1")
        assert not await keep(other, number, fence, "2")
        outcomes = [Settlement(one.execution_id, one.fence, kind) for one in claimed.values()]
        assert list(await stage.dispatch.settle(session, outcomes)) == []
        assert not await keep(session, number, fence, "3")
        await stage.dispatch.admit()
        again = {one.execution_id: one for one in await stage.dispatch.claim(other, 1, 2)}
        assert decode_spec(again[number].spec).checkpoint == msgspec.Raw(b'{"done": 4}')
        assert decode_spec(again[plain].spec).checkpoint == NO_CHECKPOINT
        repeated = {one.execution_id: one for one in await stage.dispatch.claim(other, 1, 2, True)}
        assert decode_spec(repeated[number].spec) == decode_spec(again[number].spec)
        assert not await keep(session, number, fence, "4")
        assert await keep(other, number, again[number].fence, "5")

    @pytest.mark.parametrize("kind", [SUCCEEDED, RETRY, DEAD, RELEASED, INTERRUPTED, SNOOZED])
    async def test_an_outcome_that_was_already_settled_is_known(
        self, stage: Stage, kind: int
    ) -> None:
        await stage.enqueue(2)
        session, other = await opened(stage), await opened(stage)
        first, second = await stage.dispatch.claim(session, 1, 2)
        outcomes = [
            Settlement(one.execution_id, one.fence, kind, None, 5, 60.0, "non_retryable", "Boom.")
            for one in (first, second)
        ]
        known = stage.dispatch.already_settled
        assert list(await known(session, outcomes)) == []
        await settle(stage, session, outcomes[0])
        assert list(await stage.dispatch.settle(session, outcomes[:1])) == [first.execution_id]
        assert list(await known(session, outcomes)) == [first.execution_id]
        another = msgspec.structs.replace(outcomes[0], fence=first.fence - 1)
        assert list(await known(session, [another])) == []
        other_kind = SUCCEEDED if kind != SUCCEEDED else RETRY
        otherwise = msgspec.structs.replace(outcomes[0], kind=other_kind)
        assert list(await known(session, [otherwise])) == []
        if kind in (SUCCEEDED, RETRY, DEAD):  # which session gave it back is not stored
            assert list(await known(other, outcomes)) == []
        guessed = msgspec.structs.replace(session, token=other.token)
        assert list(await known(guessed, outcomes)) == []
        await stage.dispatch.close(session)
        assert list(await known(session, outcomes[:1])) == [first.execution_id]
        assert list(await known(guessed, outcomes)) == []

    @pytest.mark.parametrize("at_most_once", [False, True])
    async def test_what_the_reaper_wrote_was_brought_by_nobody(
        self, stage: Stage, at_most_once: bool
    ) -> None:
        await stage.enqueue(at_most_once=at_most_once)
        session = await opened(stage)
        [claimed] = await stage.dispatch.claim(session, 1, 1)
        await stage.wait(stage.lease_seconds * 1.1)
        for kind in (SUCCEEDED, RETRY, DEAD):
            outcome = Settlement(claimed.execution_id, claimed.fence, kind)
            assert list(await stage.dispatch.already_settled(session, [outcome])) == []

    async def test_an_outcome_that_has_just_ended_began_when_it_says_and_not_before_its_claim(
        self, stage: Stage
    ) -> None:
        ids = await stage.enqueue(2)
        session = await opened(stage)
        claimed = await stage.dispatch.claim(session, 1, 2)
        await stage.wait(10)
        outcomes = [
            Settlement(one.execution_id, one.fence, SUCCEEDED, None, took_ms)
            for one, took_ms in zip(claimed, (4_000, 60_000), strict=True)
        ]
        await settle(stage, session, *outcomes)
        took = {}
        for number in ids:
            ended = await stage.read(number)
            assert ended.started_at is not None
            assert ended.finished_at is not None
            took[number] = round((ended.finished_at - ended.started_at).total_seconds())
        assert [took[one.execution_id] for one in claimed] == [4, 10]

    async def test_what_an_expired_session_held_comes_back_as_another_attempt(
        self, stage: Stage
    ) -> None:
        await stage.enqueue()
        lost = await opened(stage)
        [before] = await stage.dispatch.claim(lost, 1, 1)
        await stage.wait(stage.lease_seconds * 1.1)
        session = await opened(stage)
        [after] = await stage.dispatch.claim(session, 1, 1)
        assert after.execution_id == before.execution_id
        assert after.attempt == 2
        assert after.fence > before.fence
        assert await stage.dispatch.settle(lost, [succeeded(before)]) == [before.execution_id]
        await settle(stage, session, succeeded(after))

    async def test_what_runs_at_most_once_is_dead_when_its_session_is_lost(
        self, stage: Stage
    ) -> None:
        [execution_id] = await stage.enqueue(at_most_once=True)
        await stage.dispatch.claim(await opened(stage), 1, 1)
        await stage.wait(stage.lease_seconds * 1.1)
        ended = await stage.read(execution_id)
        assert ended.status is ExecutionStatus.DEAD
        assert ended.reason is Reason.LOST
        assert await stage.dispatch.claim(await opened(stage), 1, 1) == []

    async def test_what_kills_its_workers_is_found_out_and_it_alone(self, stage: Stage) -> None:
        ids = await stage.enqueue(6)
        killer = ids[2]
        for _ in range(MAX_LOSSES):
            session = await opened(stage)
            for number in range(1, 2 * len(ids)):
                claimed = await stage.dispatch.claim(session, number, 10)
                if not claimed or killer in ids_of(claimed):
                    break
                await settle(stage, session, *map(succeeded, claimed))
            if not claimed:
                break
            await stage.wait(stage.lease_seconds * 1.1)  # the worker died
        ended = [await stage.read(number) for number in ids]
        assert ended[2].status is ExecutionStatus.DEAD
        assert ended[2].reason is Reason.CRASHED
        del ended[2]
        assert {one.status for one in ended} == {ExecutionStatus.SUCCEEDED}


async def opened(stage: Stage, queues: Sequence[str] = (QUEUE,)) -> Session:
    return await stage.dispatch.open("worker", queues, 100)


async def settle(stage: Stage, session: Session, *batch: Settlement) -> None:
    """Settle, and assert that nothing is rejected."""
    assert list(await stage.dispatch.settle(session, batch)) == []


async def failure_of(
    stage: Stage, session: Session, batch: Sequence[Settlement]
) -> Exception | None:
    """The exception that settling the batch raises; its type depends on the implementation."""
    try:
        await stage.dispatch.settle(session, batch)
    except Exception as error:
        return error
    return None


async def status(stage: Stage, execution_id: int) -> ExecutionStatus:
    return (await stage.read(execution_id)).status


def succeeded(claimed: Claimed) -> Settlement:
    return Settlement(claimed.execution_id, claimed.fence, SUCCEEDED)


def ids_of(claimed: Sequence[Claimed]) -> list[int]:
    return [one.execution_id for one in claimed]


def by_id(claimed: Claimed) -> int:
    return claimed.execution_id
