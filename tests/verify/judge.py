"""An independent judge of a recorded run, of the simulation or of the chaos rig.

It gets what was recorded outside of the system and one dump of the database at the end (`history`), and holds the one
against the other. It knows what was promised and nothing of how the promise is kept: no line of the product is used here,
and when a job should have run is worked out by an oracle of its own (`oracle`).

    judge(case, more)    the violations: one function a promise

Where people and the system act at the same moment, both orders are right: a change counts as made from its answer on, and as
not yet made until it was asked for. The margins have names, in `Promise`.

The judgements look at a `Case`, the evidence put in order (`case`), in which every job has its story (`stories`). Those here
need nothing but calls, deliveries and the dump. What only one kind of run can know is judged by `more`: faults, processes
and lateness by `chaos.checker`, the order of calls by `simulation.checker`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from verify.attempts import attempts_are_as_promised, fences_only_rise, leases_exclude_each_other
from verify.case import Case
from verify.ends import nothing_is_stuck
from verify.occurrences import (
    creates_are_idempotent,
    nothing_acknowledged_is_lost,
    nothing_is_spurious,
    occurrences_have_one_row,
    tenants_are_apart,
)
from verify.promise import Violation
from verify.times import nothing_is_early, pauses_and_deletes_are_respected

C = TypeVar("C", bound=Case)

JUDGEMENTS: tuple[Callable[[Case], Iterator[Violation]], ...] = (
    nothing_acknowledged_is_lost,  # I1
    occurrences_have_one_row,  # I2
    nothing_is_early,  # I4
    leases_exclude_each_other,  # I5
    fences_only_rise,  # I6
    attempts_are_as_promised,  # I8
    pauses_and_deletes_are_respected,  # I9
    nothing_is_stuck,  # I10
    nothing_is_spurious,  # I11
    creates_are_idempotent,  # I12
    tenants_are_apart,  # I13
)


def judge(case: C, more: Iterable[Callable[[C], Iterator[Violation]]]) -> list[Violation]:
    """Everything in a run that breaks a promise."""
    return [violation for judgement in (*JUDGEMENTS, *more) for violation in judgement(case)]
