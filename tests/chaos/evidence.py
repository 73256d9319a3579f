"""What the database itself keeps for the judge, and the dump that is read when a run is over.

Beside the product's tables the rig makes some of its own, in the schema `chaos`, which the product does not know: who held
leadership and until when, and which process claimed what, written by triggers; and which epochs have committed something,
written by a wrapper around the product's check. All are written in the transaction that they are about, so they are there exactly if it committed.

Their times are those of the machine, by how long it has been up, and not of the server, whose clock a fault sets back.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

import dumps
from verify.history import Backends, Dump, Term, Written

_INSTALL = """
create schema chaos;
create table chaos.booted (at timestamptz);
create function chaos.clock() returns timestamptz language sql volatile as $$
  -- The time since the boot is exact to 10 ms only. The server's clock is exact, and off by whole seconds.
  select server.at + interval '1 second' * round(extract(epoch from
    booted.at + interval '1 second' * split_part(pg_read_file('/proc/uptime'), ' ', 1)::float8 - server.at))
  from chaos.booted, (select clock_timestamp() as at) as server
$$;
create table chaos.terms (epoch bigint, node text, renewed_at timestamptz, expires_at timestamptz, n bigserial);
create function chaos.note_term() returns trigger language plpgsql as $$
begin
  insert into chaos.terms (epoch, node, renewed_at, expires_at)
  values (new.epoch, case when new.epoch is distinct from old.epoch then current_setting('application_name') end,
    chaos.clock(), chaos.clock() + (new.expires_at - hourbell.clock()));
  return null;
end $$;
create trigger note_term after insert or update on hourbell.leadership
  for each row execute function chaos.note_term();

create table chaos.claims (id bigint, fence bigint, worker text, at timestamptz default chaos.clock());
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
            select from chaos.written where epoch = p_epoch and at > chaos.clock() - interval '100 milliseconds') then
          insert into chaos.written (epoch, at) values (p_epoch, chaos.clock());
        end if;
      end $body$ $create$, own, 'product_' || own);
  end loop;
end $wrap$;
"""

# Of a database that is unavailable, for an observer that looks at it only from time to time.
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InternalClientError,
)


async def install(dsn: str, *, again: bool = False) -> None:
    """Let the database note who leads, after a migration."""
    connection = await asyncpg.connect(dsn)
    try:
        if not again:
            await connection.execute(_INSTALL)
            up_seconds = float(Path("/proc/uptime").read_text().split()[0])
            booted_at = datetime.fromtimestamp(time.time() - up_seconds, UTC)
            await connection.execute("insert into chaos.booted (at) values ($1)", booted_at)
        await connection.execute(_WRAP)
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


async def replace_in_document(dsn: str, job: int, text: str, other: str) -> int:
    """Write directly into the document of a one-time job; how many were changed."""
    connection = await asyncpg.connect(dsn)
    try:
        status: str = await connection.execute(
            "update hourbell.executions set spec = replace(spec, $2, $3)"
            " where id = $1 and position($2 in spec) > 0",
            job,
            text,
            other,
        )
        return int(status.removeprefix("UPDATE "))
    finally:
        await connection.close()


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
    claims = await connection.fetch("select * from chaos.claims")
    first = await connection.fetch("select id, min(at) as at from chaos.claims group by id")
    terms = await connection.fetch(
        "select epoch, max(node) as node, min(renewed_at) as began_at,"
        " (array_agg(expires_at order by n desc))[1] as ended_at from chaos.terms group by epoch order by epoch"
    )
    written = await connection.fetch("select * from chaos.written")
    noted = dumps.Noted(
        workers={(row["id"], row["fence"]): row["worker"] for row in claims},
        claimed_at={row["id"]: row["at"].timestamp() for row in first},
        terms=[
            Term(
                epoch=row["epoch"],
                node=row["node"] or "nobody knows",
                began_at=row["began_at"].timestamp(),
                ended_at=row["ended_at"].timestamp(),
            )
            for row in terms
        ],
        written=[Written(epoch=row["epoch"], at=row["at"].timestamp()) for row in written],
    )
    return await dumps.read(connection, at, noted)
