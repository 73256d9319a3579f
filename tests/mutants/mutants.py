"""Mutants: the product broken on purpose, one thing at a time, to show that the suite turns red on each.

    python tests/mutants/mutants.py            all of them (`make mutants`)
    python tests/mutants/mutants.py NAME …     only these

A mutant replaces one piece of text in one file and names the tests that must turn red. It is a promise taken back, and it
still runs: text that no database and no interpreter would accept proves nothing about the tests. For each one `src` and
`tests` are copied, changed there, and tested there; the repository is never touched.

First all the named tests run on an unchanged copy, where they have to be green: a test that is red anyway kills nobody.
The exit code is 0 if every mutant was killed, and 1 if one survived or could not be judged.

`test_mutants.py` fails when a line that a mutant replaces has changed: adapt the mutant.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import psutil

ROOT = Path(__file__).parent.parent.parent
COPIED = ("src", "tests", "pyproject.toml")
MAX_SECONDS = 600.0  # of one run; a test of its own has the 120 seconds of --timeout


class Mutant(msgspec.Struct, frozen=True):
    """One thing broken."""

    name: str
    file: str  # relative to the repository
    old: str  # occurs exactly once in the file
    new: str
    killed_by: tuple[str, ...]  # files or node ids: the fewest that turn red
    why: str  # which promise it breaks


ADMIT = "src/hourbell/store/functions/admit.sql"
CLAIM = "src/hourbell/store/functions/claim.sql"
ISOLATION = "src/hourbell/store/functions/isolation.sql"
CHANGE_PY = "src/hourbell/engine/operations/change.py"
JOIN = "src/hourbell/store/functions/join.sql"
LEADERSHIP = "src/hourbell/store/functions/leadership.sql"
BLOCKERS = "src/hourbell/store/functions/blockers.sql"
FAIRNESS = "src/hourbell/store/functions/fairness.sql"
LIMIT_CHANGES = "src/hourbell/store/functions/limit_changes.sql"
PARKING = "src/hourbell/store/functions/parking.sql"
CODES = "src/hourbell/store/functions/codes.sql"
CORE = "src/hourbell/engine/core.py"
RATES = "src/hourbell/store/functions/rates.sql"
TASKS = "src/hourbell/store/functions/tasks.sql"
PLACES = "src/hourbell/store/functions/places.sql"
PLAN = "src/hourbell/store/functions/plan.sql"
MISFIRES = "src/hourbell/store/functions/misfires.sql"
PRODUCE = "src/hourbell/store/functions/produce.sql"
REAP = "src/hourbell/store/functions/reap.sql"
DEADLINES = "src/hourbell/store/functions/deadlines.sql"
RETAIN = "src/hourbell/store/functions/retain.sql"
MANIFESTS = "src/hourbell/store/functions/manifests.sql"
UPSERT = "src/hourbell/engine/operations/upsert.py"
REPLAY = "src/hourbell/store/functions/replay.sql"
RERUNS = "src/hourbell/store/functions/reruns.sql"
SESSIONS = "src/hourbell/store/functions/sessions.sql"
SETTLE = "src/hourbell/store/functions/settle.sql"
MIGRATION = "src/hourbell/store/migrations/0001_tables.sql"
CHANGE_SQL = "src/hourbell/store/functions/change.sql"
DATABASE = "src/hourbell/store/database.py"
DISPATCH = "src/hourbell/dispatch/postgres.py"
LEADER = "src/hourbell/engine/leader/term.py"
SETTINGS = "src/hourbell/engine/operations/limits.py"
SETTLER = "src/hourbell/worker/settler.py"
SESSION_KEEPER = "src/hourbell/worker/session.py"
RUNNERS = "src/hourbell/worker/runners.py"
WATCHDOG = "src/hourbell/worker/watchdog.py"
WRITES = "src/hourbell/engine/operations/idempotency.py"
CREATE_REQUEST = "src/hourbell/engine/life/create/request.py"
CREATE_INSERT = "src/hourbell/engine/life/create/insert.py"
CREATE_SQL = "src/hourbell/store/functions/create.sql"
DURABLE = "src/hourbell/store/functions/durable.sql"
QUOTAS = "src/hourbell/store/functions/quotas.sql"

_LIFE = "tests/integration/life"
CLAIMS_TEST = f"{_LIFE}/test_claims.py"
FAIR_TEST = f"{_LIFE}/test_fair_and_limited.py"
FAIRNESS_TEST = f"{_LIFE}/test_fairness.py"
FAILING_PLANS_TEST = "tests/integration/life/test_failing_plans.py"
UNREADABLE_TEST = "tests/integration/api/test_unreadable_jobs.py"
FAN_OUT_TEST = f"{_LIFE}/test_fan_out.py"
FOUND_TEST = "tests/simulation/test_found.py"
HERDS_TEST = "tests/integration/life/test_herds.py"
GATE_TEST = f"{_LIFE}/test_gate.py"
ISOLATION_TEST = f"{_LIFE}/test_isolation.py"
LEADERSHIP_TEST = f"{_LIFE}/test_leadership.py"
MISFIRES_TEST = f"{_LIFE}/test_misfires.py"
EXCLUDED_TEST = f"{_LIFE}/test_excluded_misfires.py"
LIMIT_CHANGES_TEST = f"{_LIFE}/test_limit_changes.py"
LIMITS_TEST = f"{_LIFE}/test_limits.py"
QUOTAS_TEST = "tests/integration/api/test_quotas.py"
RATES_TEST = "tests/integration/life/test_rates.py"
LOST_TEST = f"{_LIFE}/test_lost_answers.py"
OUTAGE_TEST = f"{_LIFE}/test_outage.py"
POISON_TEST = f"{_LIFE}/test_poison.py"
POLICIES_TEST = f"{_LIFE}/test_policies.py"
REQUESTS_TEST = f"{_LIFE}/test_requests.py"
TASKS_TEST = f"{_LIFE}/test_tasks.py"
WAKE_UPS_TEST = "tests/integration/api/test_wake_ups.py"
WORKER_TEST = f"{_LIFE}/test_worker.py"
RUNNERS_TEST = f"{_LIFE}/test_runners.py"
RERUNS_TEST = f"{_LIFE}/test_reruns.py"
MANIFESTS_TEST = f"{_LIFE}/test_manifests.py"
CHECKPOINTS_TEST = f"{_LIFE}/test_checkpoints.py"
SLABS_TEST = f"{_LIFE}/test_slabs.py"
DUE_SLABS_TEST = f"{_LIFE}/test_due_slabs.py"
ACKNOWLEDGED_TEST = "tests/chaos/test_acknowledged.py"
ONCE_TEST = f"{_LIFE}/test_written_once.py"
DISPATCH_TEST = "tests/conformance/test_dispatch.py::TestPostgresDispatch"
CREATE_JOBS_TEST = "tests/integration/api/test_create_jobs.py"
ENGINE_TEST = "tests/conformance/test_engine.py"
TIMELINE_TEST = "tests/chaos/test_timeline.py"

MUTANTS = [
    # Reruns.
    Mutant(
        "interruption_uses_an_attempt",
        SETTLE,
        "select o.*, o.kind = hourbell.settlement_retry() as failed,",
        "select o.*, o.kind <> hourbell.settlement_released() as failed,",
        (
            f"{RERUNS_TEST}::test_a_run_that_a_stop_interrupts_is_ready_at_once_and_loses_no_attempt",
        ),
        "A run that a deploy interrupts loses no attempt.",
    ),
    Mutant(
        "interrupted_without_end",
        RERUNS,
        "      when r.attempt = excluded.attempt then r.interruptions + 1\n",
        "      when r.attempt = excluded.attempt then r.interruptions\n",
        (f"{RERUNS_TEST}::test_one_interruption_too_many_in_a_row_is_a_failure",),
        "A handler that never fits between two deploys is seen.",
    ),
    Mutant(
        "lost_enqueue_is_repeated",
        "src/hourbell/sdk/app_connections.py",
        "        except StoreUnavailable as error:  # the answer may be lost, so all of them may exist\n",
        "        except ZeroDivisionError as error:\n",
        (
            "tests/integration/library/test_app.py"
            "::test_an_enqueue_whose_answer_is_lost_is_not_repeated",
        ),
        "Jobs whose creation was not acknowledged are not created again.",
    ),
    Mutant(
        "drain_leaves_what_does_not_end",
        "src/hourbell/worker/runtime.py",
        "                self._executions.linger(execution, execution.stopped(), time.monotonic())\n",
        "                pass\n",
        (
            "tests/integration/life/test_worker.py"
            "::test_a_drain_never_gives_back_what_was_started_and_may_run_once_only",
        ),
        "A stopped worker leaves nothing to its lease.",
    ),
    Mutant(
        "apply_of_any_tenant",
        "src/hourbell/cli/reconcile.py",
        "tenant in (None, job.tenant_id)",
        "True",
        (
            "tests/integration/cli/test_apply.py::test_jobs_of_one_name_in_two_tenants_are_told_apart",
        ),
        "A job of another tenant is neither taken for another nor pruned.",
    ),
    Mutant(
        "counts_of_an_earlier_attempt",
        RERUNS,
        "case when r.attempt = e.attempt then r.interruptions else 0 end as interruptions",
        "r.interruptions",
        (f"{RERUNS_TEST}::test_one_interruption_too_many_in_a_row_is_a_failure",),
        "An attempt that has ended begins the row of interruptions again.",
    ),
    Mutant(
        "begun_and_skipped_as_too_late",
        SETTLE,
        "        start_by = case when not t.begun then e.start_by end,  -- it has started in time\n",
        "",
        (f"{RERUNS_TEST}::test_what_was_begun_has_started_in_time",),
        "What was begun in time is not skipped because it runs again later.",
    ),
    Mutant(
        "repeated_interruption_unknown",
        SETTLE,
        "when (o.kind = hourbell.settlement_released() or o.kind = any (hourbell.settlements_rerun()))",
        "when o.kind = hourbell.settlement_released()",
        (f"{RERUNS_TEST}::test_a_report_that_is_repeated_counts_once",),
        "A report whose answer was lost can be repeated.",
    ),
    Mutant(
        "replayed_and_snoozed_too_often_already",
        REPLAY,
        "  delete from hourbell.reruns where id = any (replayed);\n",
        "",
        (f"{RERUNS_TEST}::test_an_execution_that_snoozes_without_end_is_dead",),
        "A replay begins to count again.",
    ),
    # Checkpoints.
    Mutant(
        "checkpoint_written_under_no_lock",
        RERUNS,
        "  perform from hourbell.leased where session = p_session and fence = p_fence and p_id = any (ids) for key share;\n"
        "  if not found then return false; end if;\n",
        "",
        (
            f"{CHECKPOINTS_TEST}::test_a_checkpoint_is_stored_before_its_execution_is_taken_or_refused[succeed]",
        ),
        "A checkpoint that is acknowledged is there for the next run.",
    ),
    Mutant(
        "stale_checkpoint_accepted",
        RERUNS,
        "from hourbell.leases where session = p_session and fence = p_fence and id = p_id\n",
        "from hourbell.leases where fence = p_fence and id = p_id\n"
        "  union all select p_id, p_value::json from hourbell.outcomes where id = p_id\n",
        (
            f"{CHECKPOINTS_TEST}::test_a_checkpoint_is_stored_before_its_execution_is_taken_or_refused[succeed]",
        ),
        "A run that has ended stores no checkpoint.",
    ),
    Mutant(
        "checkpoint_of_a_dead_letter_deleted",
        RERUNS,
        "    where not exists (select from hourbell.dead_letters as d where d.id = i.id offset 0)\n      and (",
        "    where (",
        (f"{CHECKPOINTS_TEST}::test_a_replay_goes_on_from_the_checkpoint_however_late_it_comes",),
        "A replay continues from the checkpoint.",
    ),
    Mutant(
        "checkpoint_not_sent",
        CLAIM,
        "    if last_fence > 0 then specs := hourbell.with_reruns(ids, specs); end if;  -- some were claimed before\n",
        "",
        (
            f"{CHECKPOINTS_TEST}::test_a_checkpoint_is_kept_by_everything_that_does_not_end_the_execution",
        ),
        "The next run has the checkpoint of the last.",
    ),
    # Manifests.
    Mutant(
        "older_revision_leads",
        MANIFESTS,
        "order by m.app, s.key, m.revision desc nulls last, m.first_seen desc, m.id desc",
        "order by m.app, s.key, m.first_seen desc, m.id desc",
        (f"{MANIFESTS_TEST}::test_a_session_that_is_lost_no_longer_declares",),
        "In a rolling deploy the highest revision leads.",
    ),
    Mutant(
        "retired_while_no_worker_lives",
        MANIFESTS,
        "        when not exists (select from live as l where l.app = d.app) then\n",
        "        when false then\n",
        (f"{MANIFESTS_TEST}::test_workers_that_all_stop_retire_nothing",),
        "Workers that are scaled to zero retire nothing.",
    ),
    Mutant(
        "retired_without_a_grace",
        MANIFESTS,
        "        when d.unwanted_since <= p_now - p_grace then 'retire'\n",
        "        when d.unwanted_since <= p_now then 'retire'\n",
        (
            f"{MANIFESTS_TEST}::test_removed_ones_are_retired_after_a_grace_when_nobody_declares_them",
        ),
        "A deploy that is rolled back soon retires nothing.",
    ),
    Mutant(
        "retired_beside_a_session_that_opens",
        MANIFESTS,
        "  perform pg_advisory_xact_lock(hourbell.app_lock(p_app));\n",
        "",
        (
            f"{MANIFESTS_TEST}::test_a_session_that_opens_before_the_retirement_is_decided_prevents_it",
        ),
        "What a live worker declares is not retired.",
    ),
    Mutant(
        "older_view_applied_late",
        UPSERT,
        "    write = msgspec.structs.replace(write, if_versions=frozenset([seen.version]))\n",
        "",
        (
            f"{MANIFESTS_TEST}::test_what_an_older_view_applies_late_does_not_stay[declare.after_commit]",
        ),
        "A process that stood still does not undo what newer code has declared.",
    ),
    Mutant(
        "applied_before_it_is_certain",
        MANIFESTS,
        "  set tenant = p_tenant, applied_digest = null, unwanted_since = null",
        "  set tenant = p_tenant, unwanted_since = null",
        (f"{MANIFESTS_TEST}::test_a_process_that_dies_after_a_late_change_leaves_it_to_the_next",),
        "What a dying process has changed is looked at again.",
    ),
    # Slabs.
    Mutant(
        "taken_out_of_a_due_slab_and_still_in_it",
        CHANGE_SQL,
        "set ids = array_remove(d.ids, w.id),",
        "set ids = d.ids,",
        (f"{DUE_SLABS_TEST}::test_one_of_a_slab_is_changed_and_the_others_are_not",),
        "What was cancelled before its time does not run with the others of its slab.",
    ),
    Mutant(
        "tenants_of_a_due_slab_shifted",
        CHANGE_SQL,
        "tenants = d.tenants[:array_position(d.ids, w.id) - 1] || d.tenants[array_position(d.ids, w.id) + 1:]",
        "tenants = d.tenants[2:]",
        (f"{DUE_SLABS_TEST}::test_the_tenants_of_a_slab_stay_with_their_executions",),
        "A tenant is charged for its own executions.",
    ),
    Mutant(
        "due_slab_under_a_limit_lost",
        ADMIT,
        "    from unnest(not_plain) as s cross join",
        "    from unnest(not_plain[2:]) as s cross join",
        (f"{DUE_SLABS_TEST}::test_slabs_under_a_limit_are_parked_one_by_one",),
        "Every execution of a slab that is taken becomes ready or is parked.",
    ),
    Mutant(
        "due_slab_past_limits",
        ADMIT,
        " and pos <> all (limited) as is_plain",
        " as is_plain",
        (f"{DUE_SLABS_TEST}::test_slabs_under_a_limit_are_parked_one_by_one",),
        "A limit applies to what is created together as well.",
    ),
    Mutant(
        "due_slab_past_tasks",
        ADMIT,
        "hourbell.is_served(p_serving, queue, hourbell.task(target)) and pos",
        "pos",
        (f"{DUE_SLABS_TEST}::test_slabs_of_a_task_that_nobody_serves_wait_under_it",),
        "What no worker can run does not become ready.",
    ),
    Mutant(
        "unique_key_in_a_due_slab",
        CREATE_SQL,
        " or p_unique is not null and id in (select job from json_to_recordset(p_unique) as u(job bigint)) then id end),",
        " then id end),",
        (f"{DUE_SLABS_TEST}::test_what_has_a_unique_key_waits_alone",),
        "A transaction of a user may replace a job by its unique key: it must not lock others.",
    ),
    Mutant(
        "deadline_in_a_due_slab",
        CREATE_SQL,
        " or start_seconds is not null or finish_seconds is not null),",
        "),",
        (f"{DUE_SLABS_TEST}::test_what_has_a_key_or_a_deadline_waits_alone",),
        "A deadline that passes takes its execution out of `due` alone.",
    ),
    Mutant(
        "rest_of_a_slab_lost",
        CLAIM,
        "    insert into hourbell.ready values (last.*);\n",
        "",
        (f"{SLABS_TEST}::test_what_a_claim_does_not_take_of_a_slab_stays_ready",),
        "A claim that takes a part of a slab leaves the rest for others.",
    ),
    Mutant(
        "rest_of_a_slab_before_all_others",
        CLAIM,
        "      last.tag := last.tag + (last.last_tag - last.tag) * kept / (n - 1);\n",
        "      last.tag := 0;\n",
        (f"{SLABS_TEST}::test_what_a_claim_does_not_take_of_a_slab_stays_ready",),
        "Nothing is ready below the virtual time, where no claim looks.",
    ),
    Mutant(
        "left_alive_and_still_in_its_slab",
        SETTLE,
        "  perform hourbell.shrink_slabs(rows, requeued || accepted);\n",
        "  perform hourbell.shrink_slabs(rows, '{}');\n",
        (f"{SLABS_TEST}::test_of_two_reports_of_an_execution_one_counts[failure first]",),
        "What has left its slab for another attempt cannot be ended by the attempt before.",
    ),
    Mutant(
        "retried_after_it_has_ended",
        SETTLE,
        "    where not exists (select from hourbell.outcomes as e where e.id = o.id offset 0)),\n  again as",
        "    ),\n  again as",
        (f"{SLABS_TEST}::test_of_a_success_and_a_retry_at_once_one_counts",),
        "What has ended is not retried.",
    ),
    Mutant(
        "settled_without_a_lock_of_the_slab",
        SETTLE,
        "and l.fence = f.fence\n    for update) as l;",
        "and l.fence = f.fence\n    ) as l;",
        (f"{SLABS_TEST}::test_of_a_success_and_a_retry_at_once_one_counts",),
        "Of two reports of one execution at the same time, the second sees the first.",
    ),
    Mutant(
        "repeated_report_forgets_the_others",
        SETTLE,
        "    exception when unique_violation then null;\n    end;\n  end loop;",
        "    exception when unique_violation then exit;\n    end;\n  end loop;",
        (f"{SLABS_TEST}::test_a_report_that_repeats_some_ends_the_others",),
        "A report of which some were reported before ends the others.",
    ),
    Mutant(
        "partition_dropped_under_a_live_row",
        RETAIN,
        "filter (where o.id is null or o.recorded_at >= $2)",
        "filter (where o.recorded_at >= $2)",
        (f"{ENGINE_TEST}::test_what_lives_or_has_ended_lately_outlives_its_partition[embedded]",),
        "What has not ended outlives its partition.",
    ),
    Mutant(
        "young_outcome_dropped_with_its_partition",
        RETAIN,
        "filter (where o.id is null or o.recorded_at >= $2)",
        "filter (where o.id is null)",
        (f"{ENGINE_TEST}::test_what_lives_or_has_ended_lately_outlives_its_partition[embedded]",),
        "What has ended lately outlives its partition.",
    ),
    Mutant(
        "stale_report_uses_up_a_cancellation",
        SETTLE,
        "        where kind = hourbell.settlement_cancelled() and p_ids[at] = any (ended)));",
        "        where kind = hourbell.settlement_cancelled()));",
        (f"{ONCE_TEST}::test_a_stale_report_does_not_use_up_a_cancellation",),
        "A report that is refused changes nothing.",
    ),
    Mutant(
        "replayed_and_deleted_with_the_old",
        RETAIN,
        "where id = any (p_ids) and recorded_at < p_until returning id)\n"
        "  delete from hourbell.executions where id = any (array(select id from gone));",
        "where id = any (p_ids) and recorded_at < p_until returning id)\n"
        "  delete from hourbell.executions where id = any (p_ids);",
        (f"{ONCE_TEST}::test_what_is_being_replayed_is_not_deleted_with_the_old",),
        "What is live is not deleted.",
    ),
    Mutant(
        "older_version_runs_what_was_taken_over",
        PRODUCE,
        "  if taken_over is not null then\n",
        "  if false then\n",
        (f"{ONCE_TEST}::test_a_run_that_another_transaction_is_creating_is_taken_over",),
        "An occurrence that a newer version of a job has too belongs to that.",
    ),
    Mutant(
        "quota_listed_before_all_have_seen_it",
        QUOTAS,
        "    and quota_ahead <= pg_snapshot_xmin(pg_current_snapshot())\n",
        "",
        (f"{ONCE_TEST}::test_jobs_from_before_a_quota_are_listed_and_counted",),
        "A job of a transaction that has not seen the quota counts too.",
    ),
    Mutant(
        "quota_listed_from_the_end_of_a_snapshot",
        QUOTAS,
        "set quota_ahead = pg_current_xact_id()",
        "set quota_ahead = pg_snapshot_xmax(pg_current_snapshot())",
        (
            f"{ONCE_TEST}::test_a_job_of_a_transaction_that_began_after_the_last_one_that_ended_is_counted",
        ),
        "A transaction after the last one that ended may be open, and counts too.",
    ),
    Mutant(
        "limit_counted_from_the_end_of_a_snapshot",
        LIMIT_CHANGES,
        "then pg_current_xact_id() else",
        "then pg_snapshot_xmax(pg_current_snapshot()) else",
        (f"{LIMITS_TEST}::test_what_is_being_claimed_while_a_limit_is_set_counts",),
        "A claim after the last transaction that ended may be open, and counts too.",
    ),
    Mutant(
        "run_open_after_its_end",
        PLACES,
        "    delete from hourbell.open_runs as r using runs as e\n    where r.job = e.job and r.occurrence",
        "    delete from hourbell.open_runs as r using runs as e\n    where false and r.job = e.job and r.occurrence",
        (f"{GATE_TEST}::test_queue_one_lets_one_wait_and_skips_the_rest",),
        "A run that has ended blocks no other.",
    ),
    Mutant(
        "quota_counts_what_has_ended",
        PLACES,
        "  perform hourbell.leave_quotas(p_ids);\n",
        "",
        (f"{ONCE_TEST}::test_a_job_that_has_ended_leaves_its_room_at_once[is cancelled]",),
        "A job that has ended takes no room.",
    ),
    Mutant(
        "quota_counts_what_has_settled",
        SETTLE,
        "    perform hourbell.leave_quotas(ended);\n",
        "",
        (f"{ONCE_TEST}::test_a_job_that_has_ended_leaves_its_room_at_once[dies]",),
        "A job that has died, or has succeeded, takes no room.",
    ),
    Mutant(
        "quota_forgets_changes_that_are_not_added",
        QUOTAS,
        "    - coalesce((select sum(jobs) from hourbell.quota_changes as c where c.tenant = t.id), 0)\n",
        "",
        (f"{QUOTAS_TEST}::test_a_quota_holds_while_jobs_are_deleted_and_created",),
        "A create is counted by the next one.",
    ),
    Mutant(
        "ends_leave_a_list_without_a_quota",
        QUOTAS,
        "  if exists (select from hourbell.tenants where max_jobs is not null or quota_listed_to is not null) then",
        "  if exists (select from hourbell.tenants where max_jobs is not null) then",
        (f"{QUOTAS_TEST}::test_a_job_that_ends_while_its_tenant_has_no_quota_takes_no_room_later",),
        "A job that ended while there was no quota takes no room in the next one.",
    ),
    Mutant(
        "slab_dropped_with_one_left",
        SETTLE,
        "having count(*) = size)",
        "having count(*) >= size - 1)",
        (f"{SLABS_TEST}::test_a_slab_is_there_as_long_as_one_of_it_runs",),
        "What still runs stays leased.",
    ),
    Mutant(
        "slab_kept_when_empty",
        SETTLE,
        "  delete from hourbell.leased where ctid = any (array(\n    select l.ctid from hourbell.leased as l",
        "  delete from hourbell.leased where false and ctid = any (array(\n    select l.ctid from hourbell.leased as l",
        (f"{SLABS_TEST}::test_a_slab_is_there_as_long_as_one_of_it_runs",),
        "A slab of which nothing is left is deleted.",
    ),
    Mutant(
        "reaper_takes_what_has_ended",
        MIGRATION,
        "where not exists (select from hourbell.outcomes as o where o.id = i.id offset 0);\n\n-- The last progress",
        ";\n\n-- The last progress",
        (f"{SLABS_TEST}::test_what_has_ended_is_not_returned_when_the_worker_is_lost",),
        "What has ended is not returned when the worker is lost.",
    ),
    Mutant(
        "counted_runs_keep_their_hold",
        SETTLE,
        "  if exists (select from unnest(slabs) as s where s.limited) then",
        "  if false then",
        (f"{SLABS_TEST}::test_a_limit_that_comes_while_a_slab_runs_is_counted_and_let_go",),
        "What was counted under a limit while it ran frees its place when it ends.",
    ),
    Mutant(
        "run_that_allowed_overlaps_wakes_nothing",
        "src/hourbell/store/functions/overlaps.sql",
        "  if blocking is null then return; end if;\n",
        "  return;\n",
        (
            "tests/integration/life/test_gate.py"
            "::test_what_waits_for_a_run_of_a_version_that_allowed_overlaps_runs_when_that_has_ended",
        ),
        "What waits for an earlier run proceeds when that has ended, whatever its version allowed.",
    ),
    Mutant(
        "handed_over_and_still_held",
        SETTLE,
        "        where not i.id = any (p_left)\n          and not exists",
        "        where not exists",
        (f"{SLABS_TEST}::test_what_its_target_has_accepted_leaves_its_slab",),
        "What its target has accepted is held by no worker.",
    ),
    Mutant(
        "expired_slab_thrown_away",
        DEADLINES,
        "      where not i.id = any (p_ids)) as r\n    where r.ids is not null),",
        "      where not i.id = any (p_ids)) as r\n    where false),",
        (f"{SLABS_TEST}::test_a_deadline_takes_one_out_of_a_ready_slab",),
        "A statement that takes one execution out of a slab puts back the others.",
    ),
    # Fences, sessions, leases.
    Mutant(
        "success_without_fence",
        SETTLE,
        "        from members as h join reported as o on o.id = h.id and o.fence = h.fence\n        where o.kind",
        "        from members as h join reported as o on o.id = h.id\n        where o.kind",
        (f"{CLAIMS_TEST}::test_one_stale_fence_in_a_batch_spoils_nothing_else[0]",),
        "An outcome under a stale fence changes nothing, and here it ends the execution.",
    ),
    Mutant(
        "retry_without_fence",
        SETTLE,
        "    from members as h join reported as o on o.id = h.id and o.fence = h.fence\n    where not exists",
        "    from members as h join reported as o on o.id = h.id\n    where not exists",
        (f"{CLAIMS_TEST}::test_one_stale_fence_in_a_batch_spoils_nothing_else[1]",),
        "A failure under a stale fence changes nothing, and here it takes the lease away.",
    ),
    Mutant(
        "settle_without_token",
        SETTLE,
        "perform from hourbell.sessions where id = p_session and token = p_token for key share;",
        "perform from hourbell.sessions where id = p_session for key share;",
        (f"{CLAIMS_TEST}::test_a_session_with_the_wrong_token_is_no_session",),
        "Only the worker that opened a session settles by it.",
    ),
    Mutant(
        "counted_run_read_by_claim_number",
        CLAIM,
        "from hourbell.claimed_by(p_session, p_token, popped) as h;",
        "from hourbell.claimed_by(p_session, p_token, array("
        "select i.id from hourbell.leased as l cross join lateral unnest(l.ids) as i(id)"
        " where l.session = p_session and l.claim = p_claim)) as h;",
        (
            f"{CLAIMS_TEST}::test_an_unnumbered_claim_with_a_counted_run_gives_nothing_that_is_still_held",
        ),
        "A claim gives nothing that the session already holds, and here it does when claims have no number.",
    ),
    Mutant(
        "heartbeat_returns_unnumbered_claims",
        SESSIONS,
        "case when claim > 0 and p_resolved is not null",
        "case when p_resolved is not null",
        (f"{DISPATCH_TEST}::test_a_numbered_heartbeat_says_nothing_about_unnumbered_claims",),
        "A number in a heartbeat says nothing about claims without one: their answer may be on its way.",
    ),
    Mutant(
        "claim_without_session_lock",
        CLAIM,
        "where id = p_session and token = p_token for key share;",
        "where id = p_session and token = p_token;",
        (f"{CLAIMS_TEST}::test_a_claim_that_meets_the_reaper_at_work_finds_its_session_gone",),
        "What is claimed belongs to a session that lives, and here the reaper may be ending it.",
    ),
    Mutant(
        "claim_without_token",
        CLAIM,
        "where id = p_session and token = p_token for key share;",
        "where id = p_session for key share;",
        (f"{CLAIMS_TEST}::test_a_session_with_the_wrong_token_is_no_session",),
        "Only the worker that opened a session claims by it.",
    ),
    Mutant(
        "reaper_without_session_lock",
        REAP,
        "where expires_at <= p_now order by expires_at limit 16 for update skip locked",
        "where expires_at <= p_now order by expires_at limit 16",
        (
            f"{CLAIMS_TEST}::test_claims_and_settles_racing_the_reaper_lose_and_double_nothing",
            f"{CLAIMS_TEST}::test_a_settle_under_way_keeps_the_reaper_off_its_session",
        ),
        "A session is ended by one who has it for himself, and here in the middle of a settle.",
    ),
    Mutant(
        "fence_that_does_not_rise",
        CLAIM,
        "greatest(least_fence, last_fence + 1)",
        "greatest(1, last_fence)",
        (f"{CLAIMS_TEST}::test_every_claim_of_an_execution_has_a_higher_fence",),
        "Every claim of an execution has a higher fence than the one before.",
    ),
    Mutant(
        "fence_by_the_clock_alone",
        CLAIM,
        "greatest(least_fence, last_fence + 1)",
        "least_fence",
        (f"{CLAIMS_TEST}::test_a_fence_rises_even_if_the_clock_was_set_back",),
        "A fence rises also when the clock was set back.",
    ),
    Mutant(
        "claims_in_line",
        CLAIM,
        "(p_fitting is null or r.task = any (p_fitting))\n          order by r.tag limit wanted for update skip locked))",
        "(p_fitting is null or r.task = any (p_fitting))\n          order by r.tag limit wanted for update))",
        (f"{CLAIMS_TEST}::test_nobody_waits_for_a_claim_that_has_not_committed",),
        "No claim waits for one that has not committed, and each gets rows of its own.",
    ),
    Mutant(
        "repeated_claim_gets_more",
        CLAIM,
        "if p_repeated and p_claim > 0 then",
        "if false then",
        (f"{LOST_TEST}::test_a_claim_repeated_under_its_number_gives_the_same_rows",),
        "A claim whose answer was lost gives the same rows again.",
    ),
    Mutant(
        "forgotten_claims_kept",
        SESSIONS,
        "if unlisted <> '{}' then",
        "if false then",
        (f"{LOST_TEST}::test_a_heartbeat_releases_what_it_does_not_know_of_resolved_claims",),
        "What a worker does not know that it has comes back with its next heartbeat.",
    ),
    Mutant(
        "give_back_burns_an_attempt",
        SESSIONS,
        "set fence = h.fence, run_at = p_now from returned as h",
        "set fence = h.fence, run_at = p_now, attempt = e.attempt + 1 from returned as h",
        (f"{LOST_TEST}::test_a_heartbeat_releases_what_it_does_not_know_of_resolved_claims",),
        "What was not started burns no attempt.",
    ),
    Mutant(
        "give_back_keeps_the_old_fence",
        SESSIONS,
        "set fence = h.fence, run_at = p_now from returned as h",
        "set run_at = p_now from returned as h",
        (f"{DISPATCH_TEST}::test_every_claim_of_an_execution_has_a_higher_fence[embedded]",),
        "The fence of a claim that was given back counts, however little time has passed.",
    ),
    Mutant(
        "session_opened_by_the_local_clock",
        DISPATCH,
        "        args = (\n            now,\n",
        "        args = (\n            __import__('datetime').datetime.now().astimezone(),\n",
        (f"{DISPATCH_TEST}::test_heartbeats_keep_a_session_alive[embedded]",),
        "Only the database says what time it is, and here a lease begins by a node's own clock.",
    ),
    Mutant(
        "session_renewed_by_the_local_clock",
        DISPATCH,
        "                _HEARTBEAT,\n"
        "                session.id,\n"
        "                session.token,\n"
        "                now,\n",
        "                _HEARTBEAT,\n"
        "                session.id,\n"
        "                session.token,\n"
        "                __import__('datetime').datetime.now().astimezone(),\n",
        (f"{DISPATCH_TEST}::test_heartbeats_keep_a_session_alive[embedded]",),
        "Only the database says what time it is, and here a lease is renewed by a node's own clock.",
    ),
    Mutant(
        "lost_session_works_on",
        SESSION_KEEPER,
        "            self._watchdog.stop(execution, StopReason.LOST)\n",
        "            pass\n",
        (f"{WORKER_TEST}::test_a_lost_session_cancels_all_its_work_and_another_takes_it_up",),
        "A worker that has lost its session stops all its work: others have been given it.",
    ),
    Mutant(
        "worker_without_doubt",
        SESSION_KEEPER,
        "return self._renewed_at + self._settings.lease_seconds",
        "return float('inf')",
        (f"{WORKER_TEST}::test_a_worker_whose_lease_may_have_run_out_starts_nothing",),
        "A worker whose lease may have run out starts nothing.",
    ),
    Mutant(
        "context_variables_leak",
        RUNNERS,
        "            return contextvars.copy_context() != self._context\n",
        "            return False\n",
        (f"{RUNNERS_TEST}::test_context_variables_of_a_handler_do_not_reach_the_next",),
        "What a handler sets in its context variables is not seen by the next execution.",
    ),
    Mutant(
        "runner_never_yields",
        RUNNERS,
        "                if now > self._yield_at:\n                    self._yield()\n",
        "",
        (f"{RUNNERS_TEST}::test_handlers_that_never_wait_let_other_tasks_run_between_them",),
        "Handlers that never wait let heartbeats run between them.",
    ),
    Mutant(
        "watchdog_waits_for_the_first",
        RUNNERS,
        "if stop_at < self._executions.earliest_stop:",
        "if self._executions.earliest_stop == float('inf'):",
        (f"{RUNNERS_TEST}::test_a_short_timeout_counts_although_longer_ones_began_before",),
        "A timeout counts although an execution with a longer one began before.",
    ),
    Mutant(
        "watchdog_looks_once",
        WATCHDOG,
        "        self._executions.earliest_stop = earliest\n",
        "        self._executions.earliest_stop = math.inf\n",
        (f"{RUNNERS_TEST}::test_a_short_timeout_counts_although_longer_ones_began_before",),
        "After one timeout the watchdog looks at the next.",
    ),
    # Reaping and poison.
    Mutant(
        "every_silence_is_death",
        LEADER,
        '        """Whether a session\'s silence until now means that its worker is gone."""\n',
        "        return True\n",
        (
            f"{OUTAGE_TEST}::test_a_database_that_hangs_for_more_than_two_leases_doubles_nothing[long]",
        ),
        "An outage, which silences everybody, doubles nothing that runs.",
    ),
    Mutant(
        "reaper_without_its_wait",
        LEADER,
        "        return renewed_for >= self._engine.times.lease_seconds\n",
        "        return renewed_for >= 0\n",
        (f"{LEADERSHIP_TEST}::test_a_new_leader_trusts_no_silence_before_a_whole_lease",),
        "After an outage nobody's silence means death before a whole lease has passed.",
    ),
    Mutant(
        "reaper_that_trusts_a_broken_silence",
        LEADER,
        "if self.term is None or self._unbroken_since is None or self._is_broken(now):",
        "if self.term is None or self._unbroken_since is None:",
        (f"{LEADERSHIP_TEST}::test_a_leader_trusts_no_silence_across_a_step_of_the_clock",),
        "A step of the database's clock is not the death of every worker.",
    ),
    Mutant(
        "at_most_once_retried_when_lost",
        REAP,
        "      when e.at_most_once then hourbell.fate_dead()\n",
        "",
        (f"{POLICIES_TEST}::test_what_may_run_once_only_is_dead_when_its_lease_is_lost",),
        "What may run at most once is never started a second time.",
    ),
    Mutant(
        "lost_attempt_not_counted",
        REAP,
        "set fence = j.fence, attempt = e.attempt + 1, crashes = e.crashes + 1, run_at = p_now,",
        "set fence = j.fence, crashes = e.crashes + 1, run_at = p_now,",
        (f"{CLAIMS_TEST}::test_an_expired_sessions_work_returns_with_its_attempt_counted",),
        "Attempts have no holes, and a lost worker's is one of them.",
    ),
    Mutant(
        "crashes_not_counted",
        REAP,
        "set fence = j.fence, attempt = e.attempt + 1, crashes = e.crashes + 1, run_at = p_now,",
        "set fence = j.fence, attempt = e.attempt + 1, run_at = p_now,",
        (f"{POISON_TEST}::test_what_was_lost_twice_runs_alone_and_what_is_lost_alone_is_dead",),
        "What kills its workers is found out.",
    ),
    Mutant(
        "quarantine_dropped",
        PLACES,
        "hourbell.flags_of(overlap, crashes) + hourbell.flags_level(",
        "hourbell.flags_of(overlap, 0::smallint) + hourbell.flags_level(",
        (f"{POISON_TEST}::test_what_was_lost_twice_runs_alone_and_what_is_lost_alone_is_dead",),
        "What was lost twice runs with nothing beside it.",
    ),
    Mutant(
        "suspect_beside_others",
        CLAIM,
        "  must_drain := in_hand;\n",
        "",
        (f"{POISON_TEST}::test_what_was_lost_twice_runs_alone_and_what_is_lost_alone_is_dead",),
        "A session in quarantine runs a suspect only with empty hands.",
    ),
    Mutant(
        "level_in_the_wrong_bits",
        "src/hourbell/store/functions/notices.sql",
        "hourbell.flags_level(hourbell.level_of(row_number() over (partition by tenant)))",
        "hourbell.level_of(row_number() over (partition by tenant))",
        ("tests/integration/api/test_groups.py::test_the_callbacks_of_many_groups_become_ready",),
        "Many callbacks of a tenant do not stop the gate.",
    ),
    # Leadership and failover.
    Mutant(
        "epoch_not_checked",
        LEADERSHIP,
        "  if not found then\n    raise exception 'epoch % is over'",
        "  if false then\n    raise exception 'epoch % is over'",
        (f"{ENGINE_TEST}::test_nobody_commits_under_an_epoch_that_is_over[embedded]",),
        "A leader that was stopped and continues in the term of another commits nothing.",
    ),
    Mutant(
        "epoch_not_locked",
        LEADERSHIP,
        "expires_at > hourbell.clock() for key share;",
        "expires_at > hourbell.clock();",
        (
            f"{LEADERSHIP_TEST}::test_no_epoch_begins_while_a_verb_of_the_last_one_has_not_committed",
        ),
        "No epoch begins while a verb of the last one has not committed.",
    ),
    Mutant(
        "campaign_does_not_wait_for_verbs",
        LEADERSHIP,
        "where hourbell.lease_is_free(l) for update;",
        "where hourbell.lease_is_free(l) for no key update;",
        (
            f"{LEADERSHIP_TEST}::test_no_epoch_begins_while_a_verb_of_the_last_one_has_not_committed",
        ),
        "A campaign takes a lock that conflicts with the lock of a verb.",
    ),
    Mutant(
        "renewal_waits_for_verbs",
        LEADERSHIP,
        "expires_at > hourbell.clock() for key share;",
        "expires_at > hourbell.clock() for share;",
        (f"{LEADERSHIP_TEST}::test_a_renewal_does_not_wait_for_an_open_verb_of_the_same_leader",),
        "A renewal never waits for a verb of the same leader.",
    ),
    Mutant(
        "campaign_against_a_leader",
        LEADERSHIP,
        "return l.expires_at <= hourbell.clock() or l.renewed_at >",
        "return true or l.renewed_at >",
        (f"{ENGINE_TEST}::test_one_leads_until_the_lease_runs_out_or_is_given_back[embedded]",),
        "There is one leader at a time, for as long as its lease lasts.",
    ),
    Mutant(
        "renewal_of_an_expired_term",
        LEADERSHIP,
        "where epoch = p_epoch and node = p_node and expires_at > hourbell.clock()\n    returning 1",
        "where epoch = p_epoch and node = p_node\n    returning 1",
        (f"{ENGINE_TEST}::test_a_term_that_ran_out_is_over_also_if_nobody_has_followed[embedded]",),
        "A term that ran out is over, also if nobody has followed.",
    ),
    Mutant(
        "timeline_not_checked",
        DATABASE,
        "        if timeline < self._highest:\n",
        "        if timeline < 0:\n",
        (f"{TIMELINE_TEST}::test_a_server_of_an_older_timeline_is_refused",),
        "An old primary that comes back is not taken for the database.",
    ),
    # The gate.
    Mutant(
        "gate_without_lock",
        ADMIT,
        "if not pg_try_advisory_xact_lock(hashtext('hourbell.gate')) then",
        "if false then",
        (
            f"{GATE_TEST}::test_the_gate_run_twice_at_once_is_busy_the_second_time_and_doubles_nothing",
        ),
        "One pass of the gate at a time: what it counts is exact.",
    ),
    Mutant(
        "overlap_not_checked",
        ADMIT,
        "if may_overlap then rows := hourbell.without_overlap(p_rows, 0::smallint, p_now); end if;",
        "",
        (f"{GATE_TEST}::test_forbid_skips_the_later_run",),
        "A job that forbids overlap never runs twice at once.",
    ),
    Mutant(
        "sweep_dropped",
        ADMIT,
        "if sweeping or retried or swept <= p_now - hourbell.sweep_interval() or swept > p_now then",
        "if sweeping or retried then",
        (f"{GATE_TEST}::test_what_is_committed_with_a_time_long_past_is_found",),
        "What is committed below the gate's mark is found by a sweep.",
    ),
    Mutant(
        "sweep_every_second",
        ADMIT,
        "return interval '1 second' * least(10, 1 + (",
        "return interval '1 second' * least(1, 1 + (",
        (
            f"{GATE_TEST}::test_what_a_long_transaction_keeps_from_vacuum_is_scanned_seldom_and_once",
        ),
        "A long transaction elsewhere does not make every second a scan of all that was admitted.",
    ),
    Mutant(
        "sweep_scans_twice",
        ADMIT,
        "first_due[tier + 1]\n           order by d.run_at limit 1),\n          p_now",
        "coalesce(first_due[tier + 1], '-infinity')\n           order by d.run_at limit 1),\n          p_now",
        (
            f"{GATE_TEST}::test_what_a_long_transaction_keeps_from_vacuum_is_scanned_seldom_and_once",
        ),
        "A pass finds the first row that remains without scanning past all that is gone.",
    ),
    Mutant(
        "recent_dead_rows_scanned_twice",
        ADMIT,
        "tiers[k] and run_at >= first_due[tiers[k] + 1] and",
        "tiers[k] and run_at >= scan_from[tiers[k] + 1] and",
        (f"{GATE_TEST}::test_what_was_just_admitted_under_a_long_transaction_is_scanned_once",),
        "A long transaction elsewhere does not multiply the cost of each pass.",
    ),
    Mutant(
        "late_commit_left_to_the_sweep",
        ADMIT,
        "          p_now - interval '1 second'),",
        "          p_now - interval '250 milliseconds'),",
        (
            f"{GATE_TEST}::test_what_is_committed_within_a_second_of_its_time_is_found_without_a_sweep",
        ),
        "A job that is enqueued in a transaction of half a second starts when it commits.",
    ),
    Mutant(
        "own_announcement_claims_again",
        "src/hourbell/worker/runtime.py",
        "if session is None or by_session != str(session.id):",
        "if session is None or by_session != str(-session.id):",
        (f"{WORKER_TEST}::test_a_worker_ignores_the_announcement_of_its_own_pass",),
        "An idle worker does not claim again because of its own pass.",
    ),
    Mutant(
        "freed_slot_is_no_reason",
        "src/hourbell/worker/claimer.py",
        "            left = claimed_at + FREED_SLOT_SECONDS - time.monotonic()",
        "            left = claimed_at + POLL_SECONDS - time.monotonic()",
        (f"{WORKER_TEST}::test_a_freed_slot_leads_to_a_claim_when_its_time_has_passed",),
        "What a claim had to skip does not wait for the poll.",
    ),
    Mutant(
        "admitted_early",
        ADMIT,
        " and run_at <= p_now\n          order by run_at, id limit share",
        " and run_at <= p_now + interval '1 second'\n          order by run_at, id limit share",
        (f"{GATE_TEST}::test_what_is_not_due_is_not_admitted",),
        "Nothing starts before its time.",
    ),
    # Rows on which the gate fails.
    Mutant(
        "failed_pass_not_isolated",
        "src/hourbell/engine/life/admit.py",
        "min(batch, ISOLATING_BATCH), isolating=True)",
        "min(batch, ISOLATING_BATCH), isolating=False)",
        (f"{ISOLATION_TEST}::test_a_due_row_that_fails_does_not_stop_the_others",),
        "One bad row does not stop the others.",
    ),
    Mutant(
        "bad_row_dropped",
        ISOLATION,
        "        values (hourbell.blocker_failure(), 0, 0, extract(epoch from p_now), (p_rows[done + 1]).id);",
        "        select hourbell.blocker_failure(), 0, 0, 0, 0 limit 0;",
        (f"{ISOLATION_TEST}::test_a_due_row_that_fails_does_not_stop_the_others",),
        "An execution on which the gate fails is not lost.",
    ),
    Mutant(
        "bad_row_not_retried",
        ISOLATION,
        "  perform hourbell.requeue(ids);\n",
        "  perform hourbell.requeue(ids[2:]);\n",
        (f"{ISOLATION_TEST}::test_a_due_row_that_fails_does_not_stop_the_others",),
        "An execution on which the gate failed is admitted once the cause is gone.",
    ),
    Mutant(
        "isolating_pass_unbounded",
        ISOLATION,
        "language sql immutable parallel safe return 24;",
        "language sql immutable parallel safe return 24000;",
        (f"{ISOLATION_TEST}::test_many_bad_rows_do_not_hold_the_lock_for_long",),
        "However many rows are bad, a pass does not hold the gate's lock for long.",
    ),
    Mutant(
        "rest_of_isolating_pass_dropped",
        ISOLATION,
        "insert into hourbell.due select * from unnest(p_rows); end if;",
        "insert into hourbell.due select * from unnest(p_rows) limit 1; end if;",
        (f"{ISOLATION_TEST}::test_many_bad_rows_do_not_hold_the_lock_for_long",),
        "What a bounded pass leaves is decided by the next one.",
    ),
    Mutant(
        "room_of_bad_row_forgotten",
        ISOLATION,
        "    where b.key is not null;",
        "    where b.key is null;",
        (f"{ISOLATION_TEST}::test_a_parked_row_that_fails_does_not_stop_the_others",),
        "The room that a limit had for a bad row is for the next in its line.",
    ),
    Mutant(
        "bad_row_overlaps_others",
        "src/hourbell/store/functions/overlaps.sql",
        "        or (p.kind + 0 = hourbell.blocker_failure() and not hourbell.has_started(e))) offset 0)",
        "        ) offset 0)",
        (f"{ISOLATION_TEST}::test_overlap_is_decided_once_the_cause_is_gone",),
        "An occurrence on which the gate fails does not stop the later ones of its job.",
    ),
    Mutant(
        "older_occurrence_replaces_newer",
        "src/hourbell/store/functions/overlaps.sql",
        "case when pos < n or replaced then",
        "case when pos < n then",
        (f"{ISOLATION_TEST}::test_an_older_occurrence_does_not_replace_a_newer_run",),
        "An occurrence on which the gate failed does not cancel a newer run when it is retried.",
    ),
    Mutant(
        "bad_rows_taken_like_parked_ones",
        PARKING,
        "      where at <= p_now and kind <> hourbell.blocker_failure()",
        "      where at <= p_now",
        (f"{ISOLATION_TEST}::test_rows_on_which_it_failed_are_all_retried_however_many",),
        "Rows on which the gate failed are decided on from the beginning, some in each pass.",
    ),
    Mutant(
        "bad_row_stays_in_its_line",
        ISOLATION,
        "where kind = line_kind and key = line_key\n      order by",
        "where kind = line_kind and key = line_key and false\n      order by",
        (f"{ISOLATION_TEST}::test_a_parked_row_that_cannot_be_taken_out_does_not_stop_the_others",),
        "A row that cannot be taken out of its line does not block the line.",
    ),
    Mutant(
        "bad_limit_tried_without_end",
        ISOLATION,
        "    exit when cardinality(failed) = hourbell.max_failures();\n",
        "    exit when cardinality(failed) = 1000;\n",
        (f"{ISOLATION_TEST}::test_a_limit_that_cannot_be_read_does_not_stop_the_others",),
        "A limit that cannot be read does not keep the gate busy with all rows that wait for it.",
    ),
    Mutant(
        "lock_timeout_blamed_on_rows",
        ISOLATION,
        "or p_sqlstate in ('25006', '55P03');",
        "or p_sqlstate in ('25006');",
        (f"{ISOLATION_TEST}::test_a_lock_timeout_says_nothing_about_the_rows",),
        "An error that is not about the rows parks none of them.",
    ),
    Mutant(
        "levels_forgotten",
        CODES,
        "return case when p_nth <= 16 then 0 ",
        "return 0 * case when p_nth <= 16 then 0 ",
        (f"{HERDS_TEST}::test_retries_of_a_herd_do_not_delay_another_tenant",),
        "The few of one tenant do not wait for the many of another.",
    ),
    Mutant(
        "level_starved",
        ADMIT,
        "share := greatest(budget - n - budget / 8 * (cardinality(tiers) - k), 1);",
        "share := greatest(budget - n, 1);",
        (f"{HERDS_TEST}::test_every_level_moves_on_in_each_pass[rows]",),
        "Every level gets a part of each pass.",
    ),
    Mutant(
        "herd_counted_again",
        PRODUCE,
        "select m.tenant, m.n + coalesce(c.planned, 0) as planned",
        "select m.tenant, m.n as planned",
        (
            f"{HERDS_TEST}::test_planned_herds_are_counted_over_timetables_until_their_moment_has_passed",
        ),
        "A herd may come from several timetables, and in many chunks.",
    ),
    Mutant(
        "lanes_forgotten",
        FAIRNESS,
        "array_agg(base + nth * step) into positions, tags",
        "array_agg(base + step) into positions, tags",
        (f"{DISPATCH_TEST}::test_tenants_get_shares_by_their_weights[embedded]",),
        "Who waits is served by weight, and here by who came first.",
    ),
    Mutant(
        "weights_ignored",
        FAIRNESS,
        "(select 1 / w.weight from hourbell.tenants as w where w.id = tenant)",
        "(select 1 from hourbell.tenants as w where w.id = tenant)",
        (f"{FAIR_TEST}::test_weights_of_three_to_one_give_three_to_one",),
        "A tenant of three times the weight gets three times the share.",
    ),
    Mutant(
        "virtual_time_moved_by_claimers",
        CLAIM,
        "  if cardinality(popped) = 0 then return; end if;\n",
        "  perform hourbell.move_virtual_time(nextval('hourbell.passes'));\n"
        "  if cardinality(popped) = 0 then return; end if;\n",
        (
            f"{GATE_TEST}::test_a_claim_while_the_gate_has_not_committed_does_not_leave_its_rows_behind",
        ),
        "Nothing ready lies below V, and here it does when the gate commits after a claim.",
    ),
    Mutant(
        "unserved_queue_admitted",
        ADMIT,
        "bool_or(r.keyed or not hourbell.is_served(p_serving, r.queue, r.task))",
        "bool_or(r.keyed)",
        (f"{LIMITS_TEST}::test_nothing_is_admitted_to_a_queue_that_nobody_serves",),
        "Nothing is made ready for a queue without a worker.",
    ),
    Mutant(
        "parked_overtaken",
        PARKING,
        "    where l.waited_for or l.room < l.n;\n",
        "    where l.room < l.n;\n",
        (
            f"{LIMITS_TEST}::test_what_falls_due_does_not_overtake_what_is_parked_although_there_is_room",
        ),
        "What has waited for a limit goes before what falls due.",
    ),
    Mutant(
        "skipped_without_the_disk",
        ADMIT,
        "  if hourbell.ended() is null then perform set_config",
        "  if true then perform set_config",
        (f"{GATE_TEST}::test_a_pass_waits_for_the_disk_only_if_it_ends_executions",),
        "How an execution ended is durable before anyone can read it.",
    ),
    Mutant(
        "due_announced_as_ready",
        CORE,
        "return DUE if DUE in payloads else READY",
        "return READY if READY in payloads else DUE",
        (
            f"{WAKE_UPS_TEST}::test_of_announcements_that_are_combined_the_one_that_means_more_work_is_sent",
        ),
        "A worker that is told what is ready does not look for what is due.",
    ),
    Mutant(
        "unserved_task_admitted",
        PARKING,
        "    hourbell.blocker_task(), hourbell.blocker_target(), hourbell.blocker_tenant()",
        "    hourbell.blocker_target(), hourbell.blocker_tenant()",
        (f"{TASKS_TEST}::test_what_no_worker_serves_waits_and_runs_when_one_comes",),
        "What no worker of the queue can run is not made ready.",
    ),
    # Claims.
    Mutant(
        "claims_of_all_tasks",
        CLAIM,
        "r.tag >= v\n            and (p_fitting is null or r.task = any (p_fitting))",
        "r.tag >= v",
        (f"{TASKS_TEST}::test_a_session_that_the_gate_has_not_seen_is_given_its_own_tasks_only",),
        "A session is given only the tasks that it serves.",
    ),
    Mutant(
        "no_claims_by_task",
        CLAIM,
        "mixed := array(select f.queue from hourbell.queue_workers as f where f.mixed and f.queue = any (session.queues));",
        "mixed := '{}';",
        (f"{TASKS_TEST}::test_a_claim_does_not_read_a_backlog_that_another_worker_serves",),
        "A claim costs the same beside a backlog that only another worker serves.",
    ),
    Mutant(
        "blocker_twice_in_a_pass",
        PARKING,
        "union  -- each once",
        "union all  -- each once",
        (f"{TASKS_TEST}::test_many_that_waited_for_a_worker_are_each_admitted_once",),
        "What is parked under a blocker is picked once in a pass, whatever the reasons to look there.",
    ),
    Mutant(
        "locked_rows_left_behind",
        TASKS,
        "or unserved > 0",
        "or unserved < 0",
        (f"{TASKS_TEST}::test_what_is_locked_when_its_last_worker_leaves_waits_again_later",),
        "What a claim had locked when its last worker left is looked at again.",
    ),
    Mutant(
        "urgent_last",
        CLAIM,
        "case when p_lowest_first then '{3,2,1,0}' else '{0,1,2,3}' end",
        "case when p_lowest_first then '{3,2,1,0}' else '{3,2,1,0}' end",
        (f"{DISPATCH_TEST}::test_the_most_urgent_are_claimed_first[embedded]",),
        "The more urgent is served first.",
    ),
    Mutant(
        "low_starves",
        CLAIM,
        "case when p_lowest_first then '{3,2,1,0}' else '{0,1,2,3}' end",
        "case when p_lowest_first then '{0,1,2,3}' else '{0,1,2,3}' end",
        (f"{FAIR_TEST}::test_a_claim_from_below_begins_with_the_least_urgent",),
        "LOW goes on, however much there is of what is more urgent.",
    ),
    Mutant(
        "start_deadline_ignored_at_claim",
        CLAIM,
        "        and (e.start_by is null or e.attempt > 0 or e.start_by >= p_now)\n",
        "",
        (f"{POLICIES_TEST}::test_what_has_not_started_in_time_is_skipped_wherever_it_waits",),
        "What has not started in time does not start at all.",
    ),
    Mutant(
        "deadline_ignored_at_claim",
        CLAIM,
        "        and (e.finish_by is null or e.finish_by >= p_now)\n",
        "",
        (f"{POLICIES_TEST}::test_what_has_not_finished_in_time_is_dead_wherever_it_is",),
        "What should have ended by now is not begun.",
    ),
    Mutant(
        "cancellation_ignored_at_claim",
        CLAIM,
        "        and not (cancelling and exists (select from hourbell.cancellations as c where c.id = e.id offset 0))\n",
        "",
        (f"{REQUESTS_TEST}::test_what_is_ready_is_cancelled_when_somebody_claims_it",),
        "What was cancelled before it is claimed never starts.",
    ),
    Mutant(
        "outdated_version_runs",
        CLAIM,
        "e.version >= j.valid_from and j.max_runs is null and e.queue = j.queue",
        "j.max_runs is null and e.queue = j.queue",
        (f"{ENGINE_TEST}::test_what_is_queued_when_its_job_is_paused_is_superseded[embedded]",),
        "What is queued when its job is paused does not start.",
    ),
    Mutant(
        "runs_not_counted",
        CLAIM,
        "where id = j.id and runs < max_runs;",
        "where id = j.id;",
        (f"{POLICIES_TEST}::test_runs_that_are_due_together_do_not_exceed_the_number_of_runs",),
        "A job has no more runs than it may have.",
    ),
    # Settling.
    Mutant(
        "retry_delay_ignored",
        SETTLE,
        "run_at = p_now + make_interval(secs => coalesce(t.delay, 0)),",
        "run_at = p_now,",
        (f"{DISPATCH_TEST}::test_a_retry_comes_after_its_delay_as_the_next_attempt[embedded]",),
        "A retry comes after its delay.",
    ),
    Mutant(
        "no_dead_letters",
        SETTLE,
        "    if kinds && hourbell.settlements_dead() then\n      perform hourbell.write_dead_letters(",
        "    if false then\n      perform hourbell.write_dead_letters(",
        (f"{ENGINE_TEST}::test_a_failure_is_tried_again_and_then_dead[embedded]",),
        "What has exhausted its tries is kept whole.",
    ),
    Mutant(
        "no_dead_letters_of_the_lost",
        REAP,
        "from judged as j where j.fate = hourbell.fate_dead())",
        "from judged as j where false)",
        (f"{POLICIES_TEST}::test_what_may_run_once_only_is_dead_when_its_lease_is_lost",),
        "What is dead because its worker was lost is kept whole too.",
    ),
    Mutant(
        "no_dead_letters_of_the_late",
        PLACES,
        "    from gone where fate = hourbell.fate_dead()),\n",
        "    from gone where false),\n",
        (f"{POLICIES_TEST}::test_what_has_not_finished_in_time_is_dead_wherever_it_is",),
        "What is dead because it missed its deadline is kept whole too.",
    ),
    Mutant(
        "end_wakes_no_successor",
        PLACES,
        "  perform hourbell.wake_jobs(jobs, p_now);\n",
        "",
        (f"{GATE_TEST}::test_queue_one_lets_one_wait_and_skips_the_rest",),
        "What waits for an earlier run goes when that has ended.",
    ),
    Mutant(
        "unrecorded_outcome_forgotten",
        SETTLER,
        '                log_error("settling", error)\n                await backoff.wait()\n',
        '                log_error("settling", error)\n                return []\n',
        (f"{LOST_TEST}::test_a_worker_that_loses_answers_runs_everything_once",),
        "An outcome is settled until the database has said so, and here one error is enough.",
    ),
    # Limits.
    Mutant(
        "holds_kept_at_a_retry",
        SETTLE,
        "perform hourbell.release_limits(requeued, false, p_now);",
        "",
        (f"{LIMITS_TEST}::test_whatever_becomes_of_a_run_its_place_is_free_again[retry]",),
        "An execution that waits for its retry takes nobody's place.",
    ),
    Mutant(
        "key_let_go_at_a_retry",
        SETTLE,
        "perform hourbell.release_limits(requeued, false, p_now);",
        "perform hourbell.release_limits(requeued, true, p_now);",
        (f"{LIMITS_TEST}::test_a_retrying_head_keeps_its_key",),
        "What shares a key goes in order, and a retrying head keeps it.",
    ),
    Mutant(
        "wakes_lost",
        BLOCKERS,
        "  select p_now, kind, key from released union select p_now, kind, key from unclaimed\n",
        "  select p_now, kind, key from released where false union select p_now, kind, key from unclaimed\n",
        (f"{LIMITS_TEST}::test_a_tenant_has_no_more_at_once_than_it_may_and_others_pass",),
        "What waits for a place goes when one is free.",
    ),
    Mutant(
        "holds_not_counted",
        BLOCKERS,
        "l.max_concurrency - (select count(*) from hourbell.limit_holds as h where h.kind = l.kind and h.key = l.key),",
        "l.max_concurrency,",
        (f"{LIMITS_TEST}::test_a_limit_acts_on_what_is_ready_and_on_what_runs",),
        "A limit counts what runs already.",
    ),
    Mutant(
        "bucket_ignores_offers",
        RATES,
        "    - (select count(*) from hourbell.rate_reservations as o where o.kind = l.kind and o.key = l.key)\n"
        "    + 1e-6",
        "    + 1e-6",
        (f"{LIMITS_TEST}::test_what_was_let_on_and_not_claimed_keeps_its_place_in_the_bucket",),
        "What is offered and not claimed is not offered again.",
    ),
    Mutant(
        "quota_without_its_lock",
        CREATE_SQL,
        "    perform hourbell.lock_quotas(p_limited, p_quotas_ms);\n",
        "",
        (f"{QUOTAS_TEST}::test_those_who_wait_for_a_quota_go_on_when_it_is_free",),
        "Those who create at the same time do not count the same room.",
    ),
    Mutant(
        "quota_as_it_was_looked_at",
        CREATE_SQL,
        "select coalesce(array_agg(id), '{}') into excessive from numbered where nth > room;",
        "select coalesce(array_agg(id), '{}') into excessive from numbered where nth > room and false;",
        (f"{QUOTAS_TEST}::test_a_quota_that_is_lowered_between_look_and_create_counts",),
        "A quota counts when jobs are created.",
    ),
    Mutant(
        "replacing_takes_room",
        CREATE_SQL,
        "unnest(refused || replacing) as known(id)",
        "unnest(refused) as known(id)",
        (f"{CREATE_JOBS_TEST}::test_a_full_quota_leaves_room_for_what_takes_none",),
        "Who replaces another leaves as many jobs as there were.",
    ),
    Mutant(
        "bucket_never_written",
        RATES,
        "b.burst - b.rate * fulls[b.pos], now)",
        "b.burst, now)",
        (f"{LIMITS_TEST}::test_a_rate_outlives_whoever_runs_the_gate",),
        "A token is spent once.",
    ),
    Mutant(
        "start_without_a_token",
        RATES,
        "start := greatest(start, fulls[k] - ((buckets[k]).burst - 1) / (buckets[k]).rate);",
        "start := earliest;",
        (f"{LIMITS_TEST}::test_no_more_start_than_rate_and_burst_allow",),
        "In any T seconds no more start than rate x T + burst.",
    ),
    Mutant(
        "bucket_without_its_lock",
        RATES,
        "    perform pg_advisory_xact_lock(hourbell.tag_space(l.kind, l.key));\n    buckets",
        "    buckets",
        (f"{RATES_TEST}::test_claims_at_one_moment_take_a_token_each",),
        "Two claims do not start by one token.",
    ),
    Mutant(
        "tokens_of_the_unclaimed_lost",
        BLOCKERS,
        "unclaimed as (delete from hourbell.rate_reservations where id = any (p_ids) returning kind, key)",
        "unclaimed as (select kind, key from hourbell.rate_reservations where id = any (p_ids))",
        (f"{LIMITS_TEST}::test_what_was_offered_and_is_cancelled_gives_its_token_back",),
        "What was offered and not claimed takes no token.",
    ),
    Mutant(
        "limit_before_counting",
        LIMIT_CHANGES,
        "select exists (\n"
        "    select from hourbell.limit_recounts as c where c.kind = p_kind and c.key = p_key and c.looked_at is null)",
        "select false",
        (
            f"{LIMIT_CHANGES_TEST}::test_an_old_hold_does_not_start_under_a_limit_that_nobody_has_counted_for",
        ),
        "A limit lets nobody on before what runs under it was counted.",
    ),
    Mutant(
        "weight_below_virtual_time",
        FAIRNESS,
        "    if s.factor < 1 then\n",
        "    if false then\n",
        (f"{FAIRNESS_TEST}::test_a_weight_that_is_raised_leaves_nothing_behind[priority]",),
        "What is ready never comes to lie where no claim looks.",
    ),
    Mutant(
        "key_kept_by_what_was_taken_back",
        CHANGE_SQL,
        "  perform hourbell.release_limits(taken, true, p_now);\n",
        "",
        (f"{LIMITS_TEST}::test_a_key_is_free_when_the_job_that_took_it_meanwhile_is_deleted",),
        "A key is free when the execution that has it is gone.",
    ),
    Mutant(
        "limits_not_reviewed",
        SETTINGS,
        "        if changed is not None:\n"
        '            await connection.execute(_Q["recheck"], kind, key)\n',
        "",
        (f"{LIMITS_TEST}::test_a_limit_acts_on_what_is_ready_and_on_what_runs",),
        "A limit acts on what is ready and on what runs already.",
    ),
    Mutant(
        "claim_under_older_limits",
        CLAIM,
        "          and not (e.id = any (stale) and hourbell.is_limited(e)) as common\n",
        "          as common\n",
        (
            f"{LIMITS_TEST}::test_a_limit_that_was_set_is_respected_by_claims_before_the_gate_has_seen_it",
        ),
        "What was made ready under older limits starts under those of now.",
    ),
    Mutant(
        "plain_claim_under_older_limits",
        CLAIM,
        "  if not cancelling and stale = '{}' then\n",
        "  if not cancelling then\n",
        (
            f"{LIMITS_TEST}::test_a_limit_that_was_set_is_respected_by_claims_before_the_gate_has_seen_it",
        ),
        "What was made ready under older limits is looked at, also if nothing else is special about it.",
    ),
    Mutant(
        "plain_claim_of_the_cancelled",
        CLAIM,
        "  if not cancelling and stale = '{}' then\n",
        "  if stale = '{}' then\n",
        (f"{CLAIMS_TEST}::test_what_is_cancelled_while_it_is_ready_is_not_claimed",),
        "What is to be cancelled does not start, also if nothing else is special about it.",
    ),
    Mutant(
        "plain_claim_without_deadline",
        CLAIM,
        "      and e.finish_by is null and e.replayed_attempt is null)\n",
        "      and e.replayed_attempt is null)\n",
        (f"{CLAIMS_TEST}::test_a_claim_gives_what_it_takes_in_the_order_of_the_tags",),
        "What has a deadline is sent with it.",
    ),
    Mutant(
        "whole_slabs_under_any_fence",
        SETTLE,
        " or p_fences[before + 1:before + n] <> array_fill(slab.fence, array[n])\n",
        "\n",
        (f"{SLABS_TEST}::test_a_whole_slab_under_the_fence_of_another_is_refused",),
        "An outcome counts under its own fence only.",
    ),
    Mutant(
        "running_not_counted_in",
        ADMIT,
        "  if not p_isolating and exists (select from hourbell.limit_recounts) then\n",
        "  if false then\n",
        (f"{LIMITS_TEST}::test_a_limit_acts_on_what_is_ready_and_on_what_runs",),
        "A limit that is set counts what runs.",
    ),
    Mutant(
        "left_queue_keeps_its_holds",
        TASKS,
        "  if p_queues = '{}' then return; end if;\n",
        "  return;\n",
        (f"{LIMITS_TEST}::test_a_queue_that_loses_its_last_worker_lets_go_of_what_it_holds",),
        "A queue that nobody serves any more is in nobody's way.",
    ),
    Mutant(
        "unserved_charged",
        ADMIT,
        "  if exists (select from hourbell.tag_refunds) then perform hourbell.apply_refunds(p_batch, this_pass); end if;\n",
        "",
        (f"{FAIRNESS_TEST}::test_what_left_without_being_served_is_not_charged",),
        "A tenant is not charged for what left without having been served.",
    ),
    # Misfires.
    Mutant(
        "gate_does_not_judge_lateness",
        ADMIT,
        "    if oldest < p_now - p_grace then\n",
        "    if false then\n",
        (f"{MISFIRES_TEST}::test_what_is_late_by_more_than_the_grace_follows_the_policy",),
        "What the gate first sees too late is a misfire.",
    ),
    Mutant(
        "latest_drops_what_is_in_time",
        PRODUCE,
        "(misfires + 1, last, true)",
        "(last, last, true)",
        (f"{MISFIRES_TEST}::test_occurrences_within_the_grace_are_never_dropped_for_newer_ones",),
        "What is late by no more than the grace runs under every policy.",
    ),
    Mutant(
        "what_was_put_back_is_judged_again",
        PLACES,
        "set run_at = e.run_at + interval '1 microsecond'",
        "set run_at = e.run_at",
        (f"{MISFIRES_TEST}::test_what_was_put_back_among_the_due_is_not_judged_again",),
        "The gate judges lateness at its first look only.",
    ),
    Mutant(
        "unplanned_is_not_newer",
        MISFIRES,
        "            (t.next_fire_at > m.since and t.next_fire_at <= m.until and not excluded @> t.next_fire_at)\n",
        "        false\n",
        (f"{MISFIRES_TEST}::test_a_misfire_runs_only_under_all_when_a_newer_occurrence_is_due",),
        "Under `latest` a newer occurrence counts also if it is still to be planned.",
    ),
    Mutant(
        "what_is_excluded_is_made_up",
        PRODUCE,
        " and not p_excluded @> p_occurrences[k]",
        "",
        (f"{EXCLUDED_TEST}::test_planning_makes_up_the_latest_that_is_allowed",),
        "`latest` makes up the latest occurrence that the calendars of a job allow.",
    ),
    Mutant(
        "a_slice_does_not_see_later_days",
        PLAN,
        "returning p_following || newer into after",
        "returning p_following[:1] into after",
        (f"{EXCLUDED_TEST}::test_slices_of_a_gap_make_up_the_latest_that_is_allowed",),
        "Of a long outage one occurrence is made up, also if a slice ends before an excluded date.",
    ),
    # Planning and joining.
    Mutant(
        "unconditional_advance",
        PLAN,
        "where t.id = a.id and t.next_fire_at = a.expected",
        "where t.id = a.id",
        (f"{FAN_OUT_TEST}::test_two_planners_that_saw_one_fire_open_it_once",),
        "Two planners that saw one fire open it once.",
    ),
    Mutant(
        "fire_reaches_who_has_not_joined",
        PLAN,
        "        and joined_through < fire.fire_at and (until is null",
        "        and coalesce(joined_through, active_since) < fire.fire_at and (until is null",
        (
            "tests/property/engine/test_interleavings.py::test_every_occurrence_is_produced_once_whatever_comes_between",
        ),
        "A member that has not joined is left to its join.",
    ),
    Mutant(
        "joined_through_ignored",
        PRODUCE,
        "where o.at > coalesce(m.joined_through, m.active_since) and (m.until is null",
        "where o.at > m.active_since and (m.until is null",
        (
            f"{POLICIES_TEST}::test_what_was_cancelled_ahead_does_not_come_back_with_a_fire_of_the_new_schedule",
        ),
        "An occurrence has one producer: what the join has produced no fire produces again.",
    ),
    Mutant(
        "joined_through_ignored_when_late",
        PRODUCE,
        "width_bucket(coalesce(m.joined_through, m.active_since), p_occurrences) + 1 as first",
        "width_bucket(m.active_since, p_occurrences) + 1 as first",
        (f"{POLICIES_TEST}::test_what_the_job_has_had_is_not_among_what_it_missed",),
        "An occurrence has one fate, also when it is late.",
    ),
    Mutant(
        "late_joiner_missed",
        JOIN,
        "array(select at from unnest(p_occurrences) as at where at <= planned order by at),",
        "array(select at from unnest(p_occurrences) as at where at < p_now order by at),",
        (
            f"{ENGINE_TEST}::test_a_job_that_comes_after_its_fire_was_planned_gets_its_run_too[embedded]",
        ),
        "A job that joins after its fire was planned gets its run too.",
    ),
    Mutant(
        "late_joiner_counted_twice",
        JOIN,
        "set joined_through = greatest(planned, reached_through[a.ordinality], m.active_since)",
        "set joined_through = m.active_since",
        (
            f"{FAN_OUT_TEST}::test_a_join_left_over_from_before_an_outage_completes_during_the_late_fire",
        ),
        "What a join has produced no open fire produces again.",
    ),
    Mutant(
        "had_again_by_a_second_join",
        JOIN,
        "where (m.version > 1 or m.rejoins) and not isempty(had);",
        "where m.version > 1 and not isempty(had);",
        (f"{FAILING_PLANS_TEST}::test_a_member_that_joins_again_gets_nothing_twice",),
        "A member on which planning has failed gets nothing twice when it joins again.",
    ),
    Mutant(
        "stand_ins_stored",
        CHANGE_PY,
        "require_readable(job, set(job.unreadable) - changes.changed)",
        "require_readable(job, ())",
        (f"{UNREADABLE_TEST}::test_an_update_must_replace_all_that_cannot_be_read",),
        "What a newer version has stored is never replaced by a default because it cannot be read.",
    ),
    Mutant(
        "run_again_by_an_update",
        JOIN,
        "where at <= greatest(planned, reached_through[k]) and not already[k] @> at order by at),",
        "where at <= greatest(planned, reached_through[k]) order by at),",
        (
            f"{FOUND_TEST}::test_a_run_that_was_cancelled_ahead_does_not_come_back_by_an_update[same]",
        ),
        "What a job has had is not run again because it was changed.",
    ),
    Mutant(
        "join_without_timetable_lock",
        JOIN,
        "from hourbell.timetables where id = p_timetable for no key update;",
        "from hourbell.timetables where id = p_timetable;",
        (
            f"{FAN_OUT_TEST}::test_a_change_that_commits_inside_a_chunk_leaves_one_execution_at_most[update]",
        ),
        "A join learns how far planning has come while planning stands.",
    ),
    Mutant(
        "joined_through_ignored_by_a_fire",
        PLAN,
        "      select m from hourbell.memberships as m\n"
        "      where timetable = fire.timetable\n"
        "        and (priority, job, version) > (fire.after_priority, fire.after_job, fire.after_version)\n"
        "        and joined_through < fire.fire_at and",
        "      select jsonb_populate_record(m, jsonb_build_object('joined_through', active_since))\n"
        "      from hourbell.memberships as m\n"
        "      where timetable = fire.timetable\n"
        "        and (priority, job, version) > (fire.after_priority, fire.after_job, fire.after_version)\n"
        "        and joined_through is not null and",
        (
            f"{FAN_OUT_TEST}::test_a_join_left_over_from_before_an_outage_completes_during_the_late_fire",
        ),
        "An occurrence has one producer: the join up to joined_through, fires afterwards.",
    ),
    # Writes.
    Mutant(
        "commit_error_of_a_create_swallowed",
        CREATE_INSERT,
        "            if isinstance(error, StoreUnavailable) and not is_lock_conflict(error):\n                raise\n",
        "            if isinstance(error, StoreUnavailable) and not is_lock_conflict(error):\n"
        "                yield rows, {}\n                return\n",
        (
            f"{LOST_TEST}::test_a_create_whose_answer_was_lost_gives_the_same_job_again[before-one_time]",
        ),
        "What is acknowledged is committed, and here also what was rolled back.",
    ),
    Mutant(
        "commit_error_swallowed",
        WRITES,
        "                raise Busy() from error\n            raise\n",
        "                raise Busy() from error\n            self.executed = True\n",
        (
            f"{LOST_TEST}::test_a_change_that_failed_before_its_commit_is_told_so_and_can_be_repeated",
        ),
        "What is acknowledged is committed, and here also what was rolled back.",
    ),
    Mutant(
        "statement_cancelled",
        DATABASE,
        "        sent.set_result(None)\n",
        "        super()._cancel_current_command(sent, *_)  # type: ignore[misc]\n",
        (
            f"{ACKNOWLEDGED_TEST}::test_what_is_answered_survives_a_failover[embedded]",
            f"{ACKNOWLEDGED_TEST}::test_a_call_that_is_cancelled_leaves_what_it_began_to_the_server[embedded]",
        ),
        "What may commit is never cancelled.",
    ),
    Mutant(
        "ended_wait_is_an_answer",
        DATABASE,
        "            self.unconfirmed = True\n",
        "            pass\n",
        (
            f"{ACKNOWLEDGED_TEST}::test_a_commit_whose_wait_was_ended_on_the_server_is_no_answer[embedded]",
        ),
        "A commit that no standby has is not acknowledged.",
    ),
    Mutant(
        "given_up_connections_are_replaced",
        DATABASE,
        "            if not await self._waits_for_standby(backend):\n",
        "            if True:\n",
        (
            f"{ACKNOWLEDGED_TEST}::test_calls_that_are_given_up_add_no_connections_and_end_when_the_standby_is_back[embedded]",
        ),
        "A dead standby does not fill the server with backends.",
    ),
    Mutant(
        "answer_before_its_row_is_durable",
        DURABLE,
        "pg_logical_emit_message(true,",
        "pg_logical_emit_message(false,",
        (f"{ACKNOWLEDGED_TEST}::test_what_is_answered_survives_a_failover[embedded]",),
        "An answer that is read out of a row is preceded by a durable write.",
    ),
    Mutant(
        "answer_not_kept",
        WRITES,
        "                if self.write.key is not None:\n",
        "                if self.write.key == '':\n",
        (f"{LOST_TEST}::test_a_change_whose_answer_was_lost_is_made_once[run]",),
        "A write that is repeated under its key gets its first answer.",
    ),
    Mutant(
        "key_means_any_create",
        CREATE_REQUEST,
        "        if not write.has_fingerprint(fingerprint):\n",
        "        if False:\n",
        (f"{LOST_TEST}::test_one_key_for_two_different_requests_is_refused",),
        "The same key means the same request.",
    ),
    Mutant(
        "key_means_any_request",
        WRITES,
        '    if not fingerprinted.has_fingerprint(known["fingerprint"]):\n',
        "    if False:\n",
        (
            "tests/integration/api/test_idempotency.py::test_another_operation_under_the_same_key_is_refused",
        ),
        "The same key means the same request.",
    ),
    Mutant(
        "pause_leaves_what_was_planned",
        CHANGE_SQL,
        "  perform hourbell.withdraw_planned(p_now, p_job);\n",
        "",
        (
            f"{FAN_OUT_TEST}::test_a_job_paused_while_a_fire_is_fanned_out_does_not_run[planned_already]",
        ),
        "A paused job has nothing planned, and no trace of it.",
    ),
    Mutant(
        "change_of_what_was_not_seen",
        CHANGE_SQL,
        "  if (p_job.version, p_job.status) <> (p_change.seen_version, p_change.seen_status) then return 'moved'; end if;\n",
        "",
        (
            f"{POLICIES_TEST}::test_an_update_does_not_revive_a_job_that_has_had_its_last_run_meanwhile",
        ),
        "A change is made to the job that was read, and to no other state of it.",
    ),
    Mutant(
        "answer_of_a_change_not_kept",
        CHANGE_SQL,
        "  if p_write.key is null or p_outcome = 'changed' then return; end if;\n",
        "  if p_write.key is null then return; end if;\n",
        (f"{LOST_TEST}::test_a_change_that_is_repeated_under_its_key_does_not_undo_a_later_one",),
        "A change that is repeated under its key gets its first answer.",
    ),
]


# The runner.


class Verdict(msgspec.Struct, frozen=True):
    """What came of testing a copy."""

    red: list[tuple[str, str]]  # tests that failed, each with the first line of why
    trouble: str | None  # why nothing can be said, if that is so
    seconds: float


# A mutant that fails with one of these is no program, and its tests would kill anything.
NO_PROGRAM = (
    "SyntaxError",
    "NameError",
    "ImportError",
    "IndentationError",
    "UnboundLocalError",
    "UndefinedColumnError",
    "UndefinedFunctionError",
    "UndefinedTableError",
    "AmbiguousColumnError",
    "DatatypeMismatchError",
    "IndeterminateDatatypeError",
)
# Within the process that tests: the code of the copy is what is imported there.
TESTING = """
import importlib.util, sys, pytest
found = importlib.util.find_spec("hourbell").origin  # pytest imports it, as a plugin
assert found == sys.argv[1], f"{found} would be imported"
sys.exit(pytest.main(sys.argv[2:]))
"""


def main(names: Sequence[str]) -> int:
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        say(f"no such mutant: {', '.join(sorted(unknown))}")
        return 2
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hourbell-mutants-") as folder:
        unchanged = Path(folder) / "unchanged"
        copy(ROOT, unchanged)
        if not is_green(unchanged, sorted({test for one in chosen for test in one.killed_by})):
            return 1
        killed = [is_killed(mutant, unchanged, Path(folder)) for mutant in chosen]
    alive = [mutant.name for mutant, dead in zip(chosen, killed, strict=True) if not dead]
    say(f"{sum(killed)} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    if alive:
        say(f"not killed: {', '.join(alive)}")
    return 1 if alive else 0


def is_green(unchanged: Path, tests: Sequence[str]) -> bool:
    """Whether the tests pass where nothing is broken, all in one run."""
    verdict = tested(unchanged, tests, "--maxfail=5")
    for name, why in verdict.red:
        say(f"RED WITHOUT A MUTANT  {name}: {why}")
    if verdict.trouble is not None:
        say(f"NOT RUN  the tests of the unchanged copy: {verdict.trouble}")
    green = not verdict.red and verdict.trouble is None
    if green:
        say(f"unchanged: green in {verdict.seconds:.0f} s")
    return green


def is_killed(mutant: Mutant, unchanged: Path, folder: Path) -> bool:
    """Break a copy, test it, and say what came of it."""
    with changed(mutant, unchanged, folder) as broken:
        verdict = tested(broken, mutant.killed_by, "-x")
    after = f"{verdict.seconds:5.1f} s"
    if verdict.trouble is not None:
        say(f"{'NOT RUN':8}  {after}  {mutant.name}: {verdict.trouble}")
    elif not verdict.red:
        say(f"{'SURVIVED':8}  {after}  {mutant.name}: {mutant.why}")
    else:
        name, why = verdict.red[0]
        say(f"{'killed':8}  {after}  {mutant.name} by {name}: {why}")
    return verdict.trouble is None and bool(verdict.red)


@contextmanager
def changed(mutant: Mutant, unchanged: Path, folder: Path) -> Iterator[Path]:
    """A copy in which this one thing is broken."""
    broken = folder / mutant.name
    copy(unchanged, broken)  # with its compiled files: they are found to be up to date, but for one
    path = broken / mutant.file
    text = path.read_text("utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.name}: its text is not there exactly once"
    path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        yield broken
    finally:
        shutil.rmtree(broken)


def copy(source: Path, target: Path) -> None:
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        else:
            shutil.copy2(source / name, target / name)


def tested(folder: Path, tests: Sequence[str], stop: str) -> Verdict:
    """Run these tests of a copy on the code of that copy."""
    report = folder / "report.xml"
    code = folder / "src" / "hourbell" / "__init__.py"
    options = [stop, "-q", "-p", "no:cacheprovider", "--timeout=120", f"--junitxml={report}"]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", TESTING, str(code), *options, *tests],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = process.communicate(timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        end_with_children(process)
        return Verdict([], f"no end within {MAX_SECONDS:g} s", time.monotonic() - began)
    seconds = time.monotonic() - began
    if process.returncode not in (0, 1) or not report.exists():
        last = output.decode(errors="replace").strip().splitlines()[-1:]
        return Verdict([], f"pytest ended with {process.returncode}: {' '.join(last)}", seconds)
    return judged(report, seconds)


def judged(report: Path, seconds: float) -> Verdict:
    """The verdict from what pytest has reported."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    red = problems(cases, "failure")
    broken = [why for _, why in red if why.split(":")[0].endswith(NO_PROGRAM)]
    errors = problems(cases, "error")  # of a fixture, not of a test
    trouble = None
    if broken:
        trouble = f"it is no program: {broken[0]}"
    elif errors and not red:
        trouble = f"before or after {errors[0][0]}: {errors[0][1]}"
    elif all(case.find("skipped") is not None for case in cases):
        trouble = "no test has run"
    return Verdict(red, trouble, seconds)


def problems(cases: Sequence[ElementTree.Element], kind: str) -> list[tuple[str, str]]:
    """Tests that have one of this kind, each with the first line of what it says."""
    return [
        (str(case.get("name")), str(problem.get("message")).partition("\n")[0][:160])
        for case in cases
        for problem in case.iter(kind)
    ]


def end_with_children(process: subprocess.Popen[bytes]) -> None:
    """A run that hangs takes with it what it has started: its servers have sessions of their own."""
    everybody = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for one in everybody:
        one.kill()
    psutil.wait_procs(everybody, timeout=10)
    process.communicate()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
