"""What may cost the judge its evidence: an asynchronous standby, and a database whose clock is set back.

An asynchronous standby does not have the last moments of a primary that dies: what was acknowledged in them may be gone,
and what was done in them may be done again. Nobody can promise more, and nobody may take more. And what the database says
of the time while its clock is off, and for as long before as it is set back, is not the time of the witnesses. So

- a call that was under way in those moments counts as one that was never answered;
- an execution that arrived, was tried or ended in them is left out, and its occurrence is not asked
  for: of a job that says how its runs may overlap or how many there may be, or that has only the
  one, the whole job, as the rest of it cannot be told without that one;
- everything else is judged as always: all other occurrences of recurring jobs up to the first of
  their changes that is in doubt, and all one-time jobs that were quiet then.

What a clock has confused is left out only of the judgements of times: what needs no clock is judged of all (`checker`).
"""

from __future__ import annotations

import msgspec

from verify.case import Occurrence
from verify.history import Alive, Call, Delivery, Ended, History
from verify.promise import Document, Promise, Spans, micros


class Amnesty(msgspec.Struct, frozen=True):
    history: History  # what is left of it
    forgiven: frozenset[Occurrence]  # of which there need be no record


def without_what_may_be_lost(history: History, promise: Promise) -> Amnesty:
    """The whole of it if the standby is synchronous."""
    if promise.standby_lag_seconds == 0:
        return Amnesty(history, frozenset())
    return _left_out(history, _lost_moments(history, promise.standby_lag_seconds))


def without_what_a_clock_confused(history: History, promise: Promise) -> Amnesty:
    """The whole of it if no clock of the database was set back."""
    moments = Spans(
        (fault.began_at - fault.detail["seconds"] - 1.0, fault.ended_at + promise.late_seconds)
        for fault in history.faults
        if fault.kind == "clock_back"
    )
    return _left_out(history, moments) if list(moments) else Amnesty(history, frozenset())


def _left_out(history: History, moments: Spans) -> Amnesty:
    """Without what touches these moments."""
    dump = history.dump
    rows: list[Ended | Alive] = [*dump.ended, *dump.alive]
    arrived = {d.execution_id for d in history.deliveries if _touches(moments, d)}
    arrived |= {alive.execution_id for alive in dump.alive if _was_tried(moments, alive)}
    hit = [row for row in dump.ended if row.execution_id in arrived or _is_hit(moments, row)]
    documents = _documents(history)
    jobs = {row.job_id for row in hit} | {
        alive.job_id for alive in dump.alive if alive.execution_id in arrived
    }
    whole = {job for job in jobs if not _is_plain(documents.get(job))}
    gone = arrived | {row.execution_id for row in hit}
    gone |= {row.execution_id for row in rows if row.job_id in whole}
    return Amnesty(
        msgspec.structs.replace(
            history,
            calls=[
                _in_doubt(call, moments) if _touches(moments, call) or _made(call, gone) else call
                for call in history.calls
                if _job(call) not in whole and call.execution_id not in gone
            ],
            deliveries=[d for d in history.deliveries if d.execution_id not in gone],
            dump=msgspec.structs.replace(
                dump,
                jobs=[job for job in dump.jobs if job.job_id not in whole],
                ended=[row for row in dump.ended if row.execution_id not in gone],
                alive=[row for row in dump.alive if row.execution_id not in gone],
                dead_letters=[letter for letter in dump.dead_letters if letter not in gone],
            ),
        ),
        frozenset(
            (row.job_id, micros(row.scheduled_for)) for row in rows if row.execution_id in gone
        ),
    )


def _lost_moments(history: History, lag: float) -> Spans:
    """From what the standby had when it was promoted, or a lag before, whichever is earlier. An old primary that lives on
    serves the processes that are connected to it, and one that returns those that stray to it, until it is called back."""
    spans = []
    for fault in history.faults:
        if fault.kind not in ("failover", "old_primary_returns"):
            continue
        begins = min(fault.began_at - lag, fault.detail.get("standby_had", fault.began_at))
        lives_on = fault.kind == "old_primary_returns" or fault.detail.get("old") == "alive"
        spans.append((begins, fault.ended_at if lives_on else fault.began_at + lag))
    return Spans(spans)


def _touches(moments: Spans, event: Call | Delivery) -> bool:
    begun = event.asked_at if isinstance(event, Call) else event.at
    return moments.touches(begun, event.answered_at or begun)


def _is_hit(moments: Spans, row: Ended) -> bool:
    """Whether one of its attempts, or its end, was in those moments."""
    return moments.touches(row.recorded_at, row.recorded_at) or _was_tried(moments, row)


def _was_tried(moments: Spans, row: Ended | Alive) -> bool:
    return any(
        moments.touches(*sorted((attempt.started_at, attempt.finished_at)))
        for attempt in row.attempts
    )


def _documents(history: History) -> dict[str, Document]:
    """Of the jobs whose creation was answered."""
    return {
        call.answer["job_id"]: call.document
        for call in history.calls
        if call.operation == "create" and _job(call) is not None
    }


def _is_plain(document: Document | None) -> bool:
    """Whether the occurrences of a job have nothing to do with each other."""
    return (
        document is not None
        and document["type"] == "RECURRING"
        and document.get("overlap_policy", "allow") == "allow"
        and document.get("concurrency_key") is None
        and document["schedule"].get("max_runs") is None
    )


def _job(call: Call) -> str | None:
    if call.operation == "create" and isinstance(call.answer, dict):
        return call.answer.get("job_id")
    return call.job_id


def _made(call: Call, executions: set[str]) -> bool:
    made = call.answer.get("execution_ids", ()) if isinstance(call.answer, dict) else ()
    return not executions.isdisjoint(made)


def _in_doubt(call: Call, moments: Spans) -> Call:
    """It may have had its effect from the beginning of those moments on, by a clock that is off."""
    until = call.answered_at or call.asked_at
    begun = [begin for begin, end in moments if begin <= until and call.asked_at <= end]
    asked_at = min([call.asked_at, *begun])
    return msgspec.structs.replace(
        call, asked_at=asked_at, answered_at=None, status=None, answer=None
    )
