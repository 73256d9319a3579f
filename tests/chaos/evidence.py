"""What the database itself keeps for the judge, and the dump that is read when a run is over.

Beside the product's tables the rig makes some of its own, in the schema `chaos`, which the product does not know: who held
leadership and until when, and which process claimed what, written by triggers; and which epochs have committed something,
written by a wrapper around the product's check. All are written in the transaction that they are about, so they are there exactly if it committed.
"""

from __future__ import annotations

import json
import time
from datetime import datetime

import asyncpg

from hourbell.model.ids import execution_text, job_text
from verify.history import (
    Alive,
    Attempt,
    Backends,
    Dump,
    Ended,
    JobRow,
    Seconds,
    Term,
    Written,
)

_INSTALL = """
create schema chaos;
create table chaos.terms (epoch bigint, node text, renewed_at timestamptz, expires_at timestamptz, n bigserial);
create function chaos.note_term() returns trigger language plpgsql as $$
begin
  insert into chaos.terms (epoch, node, renewed_at, expires_at)
  values (new.epoch, case when new.epoch is distinct from old.epoch then current_setting('application_name') end,
    new.renewed_at, new.expires_at);
  return null;
end $$;
create trigger note_term after insert or update on hourbell.leadership
  for each row execute function chaos.note_term();

create table chaos.claims (id bigint, fence bigint, worker text, at timestamptz default clock_timestamp());
create function chaos.note_claim() returns trigger language plpgsql as $$
begin
  -- For workers over HTTP an API claims; they say their names.
  insert into chaos.claims (id, fence, worker)
  select i.id, new.fence, case when name like 'api-%' then s.worker else name end
  from unnest(new.ids) as i(id) cross join current_setting('application_name') as name
  left join hourbell.sessions as s on s.id = new.session;
  return null;
end $$;
create trigger note_claim after insert on hourbell.leased for each row execute function chaos.note_claim();

create table chaos.written (epoch bigint, at timestamptz);
create index on chaos.written (epoch, at);
"""

# Again after every migration: a build that is new to the database brings its own copy, named with a digest.
_WRAP = """
do $wrap$
declare own text;
begin
  for own in
    select proname from pg_proc where pronamespace = 'hourbell'::regnamespace
      and proname ~ '^check_epoch(__[0-9a-f]+)?$' and prosrc not like '%chaos.written%'
  loop
    execute format('drop function if exists hourbell.%I', 'product_' || own);
    execute format('alter function hourbell.%I(uuid, bigint) rename to %I', own, 'product_' || own);
    execute format($create$
      create function hourbell.%I(p_node uuid, p_epoch bigint) returns void language plpgsql as $body$
      begin
        perform hourbell.%I(p_node, p_epoch);
        if p_epoch is not null and not exists (
            select from chaos.written where epoch = p_epoch and at > clock_timestamp() - interval '100 milliseconds') then
          insert into chaos.written (epoch, at) values (p_epoch, clock_timestamp());
        end if;
      end $body$ $create$, own, 'product_' || own);
  end loop;
end $wrap$;
"""

# Of a database that is away, for somebody who looks at it only from time to time.
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InternalClientError,
)

_FATES = ("SUCCEEDED", "DEAD", "CANCELLED", "SUPERSEDED", "SKIPPED")
_JOBS = ("SCHEDULED", "PAUSED", "COMPLETED", "CANCELLED")
_PLACES = {
    "due": "hourbell.due",
    "parked": "hourbell.parked",
    "held": "hourbell.held",
    "ready": "(select unnest(ids) as id from hourbell.ready) as r",
    "suspects": "hourbell.suspects",
    "leased": "hourbell.leases",
}


async def install(dsn: str, *, again: bool = False) -> None:
    """Let the database note who leads, after a migration."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_WRAP if again else _INSTALL + _WRAP)
    finally:
        await connection.close()


async def leader(dsn: str) -> str | None:
    """The process that leads now, if one does; for those who want to hit it."""
    connection = await asyncpg.connect(dsn, timeout=2)
    try:
        name: str | None = await connection.fetchval(
            "select t.node from hourbell.leadership as l join chaos.terms as t using (epoch)"
            " where l.expires_at > clock_timestamp() and t.node is not null limit 1"
        )
        return name
    finally:
        await connection.close()


async def look_at_backends(dsn: str) -> Backends:
    connection = await asyncpg.connect(dsn, timeout=2)
    try:
        rows = await connection.fetch(
            "select application_name as name, count(*) as n, max(extract(epoch from clock_timestamp() - state_change))"
            "   filter (where state like 'idle in transaction%') as idle"
            " from pg_stat_activity where backend_type = 'client backend' and application_name like '%-%' group by 1"
        )
    finally:
        await connection.close()
    return Backends(
        at=time.time(),
        connections={row["name"]: row["n"] for row in rows},
        idle_in_transaction_seconds=float(max((row["idle"] or 0 for row in rows), default=0)),
    )


async def dump(dsn: str) -> Dump:
    """All that the judge needs to see, as of one moment."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            return await _dump(connection)
    finally:
        await connection.close()


async def _dump(connection: asyncpg.Connection) -> Dump:
    at = time.time()
    tenants = {
        row["id"]: row["name"] for row in await connection.fetch("select * from hourbell.tenants")
    }
    workers = {
        (row["id"], row["fence"]): row["worker"]
        for row in await connection.fetch("select * from chaos.claims")
    }
    claimed_at = {
        row["id"]: row["at"].timestamp()
        for row in await connection.fetch("select id, min(at) as at from chaos.claims group by id")
    }
    leases = {
        row["id"]: row["expires_at"].timestamp()
        for row in await connection.fetch(
            "select l.id, s.expires_at from hourbell.leases as l join hourbell.sessions as s on s.id = l.session"
        )
    }
    places: dict[int, str] = {}
    for place, table in _PLACES.items():
        for row in await connection.fetch(f"select id from {table}"):  # noqa: S608
            places[row["id"]] = place
    return Dump(
        at=at,
        jobs=[
            JobRow(
                job_id=job_text(row["id"]),
                name=row["name"],
                tenant=tenants[row["tenant"]],
                status=_JOBS[row["status"]],
                type="RECURRING",
            )
            for row in await connection.fetch("select * from hourbell.jobs")
        ],
        ended=[
            _ended(row, tenants, workers, claimed_at)
            for row in await connection.fetch("select * from hourbell.ledger")
        ],
        alive=[
            Alive(
                execution_id=execution_text(row["id"]),
                job_id=job_text(row["job"] or row["id"]),
                origin=row["origin"],
                scheduled_for=row["occurrence"].timestamp(),
                place=places.get(row["id"], "nowhere"),
                run_at=row["run_at"].timestamp(),
                planned_ahead=row["occurrence"].timestamp() > at,
                lease_until=leases.get(row["id"]),
                claimed_at=claimed_at.get(row["id"]),
            )
            for row in await connection.fetch("select * from hourbell.executions")
        ],
        dead_letters=[
            execution_text(row["id"])
            for row in await connection.fetch("select id from hourbell.dead_letters")
        ],
        terms=[
            Term(
                epoch=row["epoch"],
                node=row["node"] or "nobody knows",
                began_at=row["began_at"].timestamp(),
                ended_at=row["ended_at"].timestamp(),
            )
            for row in await connection.fetch(
                "select epoch, max(node) as node, min(renewed_at) as began_at,"
                " (array_agg(expires_at order by n desc))[1] as ended_at from chaos.terms group by epoch order by epoch"
            )
        ],
        written=[
            Written(epoch=row["epoch"], at=row["at"].timestamp())
            for row in await connection.fetch("select * from chaos.written")
        ],
    )


def _ended(
    row: asyncpg.Record,
    tenants: dict[int, str],
    workers: dict[tuple[int, int], str],
    claimed_at: dict[int, Seconds],
) -> Ended:
    attempts = [
        Attempt(
            attempt=one["attempt"],
            fence=one["fence"],
            started_at=datetime.fromisoformat(one["started_at"]).timestamp(),
            finished_at=datetime.fromisoformat(one["finished_at"]).timestamp(),
            reason=one["reason"],
            worker=workers.get((row["id"], one["fence"])),
        )
        for one in json.loads(row["history"] or "[]")
    ]
    if row["session"] is not None:  # the session that the last attempt ended with
        attempts.append(
            Attempt(
                attempt=row["attempt"],
                fence=row["fence"],
                started_at=row["started_at"].timestamp(),
                finished_at=row["finished_at"].timestamp(),
                reason=row["reason"],
                session=row["session"],
                worker=workers.get((row["id"], row["fence"])),
            )
        )
    return Ended(
        execution_id=execution_text(row["id"]),
        job_id=job_text(row["job"]),
        tenant=tenants[row["tenant"]],
        priority=row["priority"],
        origin=row["origin"],
        scheduled_for=row["scheduled_for"].timestamp(),
        status=_FATES[row["status"]],
        reason=row["reason"],
        recorded_at=row["recorded_at"].timestamp(),
        started_at=attempts[0].started_at if attempts else None,
        attempts=attempts,
        counted=row["attempt"],
        missed=row["missed"],
        missed_through=_seconds(row["missed_through"]),
        claimed_at=claimed_at.get(row["id"]),
    )


def _seconds(moment: datetime | None) -> Seconds | None:
    return None if moment is None else moment.timestamp()
