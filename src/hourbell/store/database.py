"""The connection to PostgreSQL: a pool, and a single error when it is unavailable.

Nothing here relies on features that a transaction pooler breaks: behind one, no session state, no
LISTEN and no prepared statements are used.

**No statement is ever cancelled.** A commit that waits for a synchronous standby has taken effect
locally: if its wait is cancelled, other transactions see what a failover may still lose. asyncpg
would send a cancel request after a timeout, and for a task that is cancelled. Here the caller is
released, and the connection stays out of the pool until the server has answered, so that calls
that are given up do not add connections. docs/decisions/0025-durable-answers.md.

After a failover an old primary may come back and be mistaken for the database. PostgreSQL
increments a *timeline* with every promotion; a process remembers the highest timeline that it has
seen and refuses to use a server with a lower one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import asyncpg
import msgspec

from hourbell.failpoints import failpoint
from hourbell.model.errors import StoreUnavailable, UnsafeDatabase
from hourbell.store.function_set import Connection as BuildConnection

OLDEST_VERSION = 15
COMMAND_TIMEOUT_SECONDS = 60.0
PROGRAM = "hourbell"  # in pg_stat_activity, of connections for a moment
_MAX_PROGRAM = 63
GIVEN_UP_SECONDS = 30.0  # how long a connection waits for the answer to what was given up
# A statement of a client that is gone is ended, unless it waits for a standby.
_WATCH_CLIENTS = {"client_connection_check_interval": "10s"}
_WAITS_FOR_STANDBY = (
    "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'SyncRep')"
)
_FOREVER = 1e9  # seconds
_CLOSE_SECONDS = 5.0  # how long a connection in use may delay the end of its pool

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy

# The database is unavailable, or rejected the statement for a temporary reason: retry it later.
_TEMPORARY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate temporary database errors into StoreUnavailable."""
    try:
        yield
    except _TEMPORARY as error:
        raise StoreUnavailable(str(error) or type(error).__name__) from error
    except asyncpg.ObjectNotInPrerequisiteStateError as error:
        if error.severity_en == "FATAL":  # the database accepts no connections now
            raise StoreUnavailable(str(error)) from error
        raise


def shown_dsn(dsn: str) -> str:
    """The name of a database and where its server is, without the password."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return "?"
    # Another form of DSN, or a password with an unescaped / or #, would be shown as a part of the name.
    if (
        parts.scheme not in ("postgres", "postgresql")
        or "@" in f"{parts.path}{parts.query}{parts.fragment}"
    ):
        return "?"
    name = parts.path.removeprefix("/") or "?"
    where = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", [""])[0]
    return f"{name} on {where}" if where else name


def why_unusable(error: BaseException) -> str:
    """Why a database cannot be used, in a few words; the text of StoreUnavailable is about writes."""
    cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
    if isinstance(cause, FileNotFoundError):
        return "the socket of the server does not exist"
    if isinstance(cause, ConnectionRefusedError):
        return "the connection was refused"  # without the addresses that were tried
    return str(cause).rstrip(".") or type(cause).__name__


@asynccontextmanager
async def committing(before: str, after: str) -> AsyncIterator[None]:
    """Wrap an auto-committed statement in failpoints: before it is sent and after its response."""
    with translate_errors():
        await failpoint(before)
        yield
        await failpoint(after)


def server_settings(dsn: str, program: str = PROGRAM) -> dict[str, str]:
    """The settings of a new session: the name of the program, unless the DSN has one."""
    if "application_name" in parse_qs(dsn.partition("?")[2]):
        return {}
    # PostgreSQL cuts a longer name, and shows a question mark for a byte that is not ASCII.
    return {"application_name": program.encode("ascii", "replace").decode()[:_MAX_PROGRAM]}


async def connect_once(dsn: str, program: str = PROGRAM) -> asyncpg.Connection:
    """A connection for a few statements, which may lead through a transaction pooler."""
    return await asyncpg.connect(
        dsn, statement_cache_size=0, server_settings=server_settings(dsn, program)
    )


class Unconfirmed(ConnectionError):
    """The wait for a synchronous standby was ended on the server; a failover may lose the commit."""


class _PoolConnection(BuildConnection):
    """A connection that never asks the server to cancel a statement."""

    unconfirmed = False  # the server has ended a wait for a standby since it left the pool
    _protocol: Any  # of asyncpg

    def _cancel_current_command(self, sent: asyncio.Future[None], *_: object) -> None:
        """In place of a cancel request: nothing is sent, and the answer is awaited as if it were."""
        sent.set_result(None)

    @property
    def given_up(self) -> bool:
        """Whether the answer to a statement is awaited that the caller has given up."""
        return self._protocol is not None and bool(self._protocol._is_cancelling())

    def _process_log_message(self, fields: dict[str, str], last_query: str) -> None:
        if fields.get("R") == "SyncRepWaitForLSN":  # the server's routine: its text is translated
            self.unconfirmed = True
        super()._process_log_message(fields, last_query)  # type: ignore[misc]


@asynccontextmanager
async def transaction(connection: Connection) -> AsyncIterator[None]:
    """A transaction, or a savepoint within one.

    If a statement was given up, the transaction is rolled back when the server has answered it, and
    the caller gets its own error, such as CancelledError, not one of the connection.
    """
    block = connection.transaction()
    await block.__aenter__()
    try:
        yield
    except BaseException as error:
        if not getattr(connection, "given_up", False):
            with suppress(*_TEMPORARY):
                await block.__aexit__(type(error), error, error.__traceback__)
        raise
    await block.__aexit__(None, None, None)


class OldTimeline(ConnectionError):
    """This server is a former primary; another server has been promoted since."""


class Timeline:
    """The highest timeline that this pool has seen."""

    def __init__(self) -> None:
        self._highest = 0
        self.pool: asyncpg.Pool | None = None

    async def check(self, connection: asyncpg.Connection) -> None:
        """Check a new connection. OldTimeline is temporary: the DSN may reach the primary later."""
        try:
            file = await connection.fetchval(
                "select case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end"
            )
        except (asyncpg.FeatureNotSupportedError, asyncpg.InsufficientPrivilegeError):
            return  # a PostgreSQL-compatible service that hides its WAL; it handles failovers
        if file is None:
            raise OldTimeline("this server is a standby")
        timeline = int(file[:8], 16)
        if timeline < self._highest:
            raise OldTimeline(
                f"this server is on timeline {timeline}, but timeline {self._highest} was seen"
                " before: a former primary has come back"
            )
        if timeline > self._highest > 0 and self.pool is not None:
            await self.pool.expire_connections()  # others may still be connected to the old primary
        self._highest = timeline


class PoolState(msgspec.Struct, frozen=True):
    """The connections of a pool."""

    in_use: int
    idle: int
    max_size: int


class Database:
    """A pool of connections to one database."""

    def __init__(
        self, pool: asyncpg.Pool, dsn: str, pooled: bool, timeout_seconds: float, program: str
    ) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds
        self._program = program
        self._returning: set[asyncio.Task[None]] = set()
        self.dsn = dsn
        self.pooled = pooled  # behind a transaction pooler

    @classmethod
    async def open(
        cls,
        dsn: str,
        connections: int = 10,
        program: str = PROGRAM,
        timeout_seconds: float = COMMAND_TIMEOUT_SECONDS,
    ) -> Self:
        """Connect; raises UnsafeDatabase for a database that could lose confirmed data.

        `program` is the name that the connections have in `pg_stat_activity`. `timeout_seconds` is the
        timeout of a statement, and of the wait for a connection.
        """
        timeline = Timeline()
        settings = server_settings(dsn, program)
        with translate_errors():
            probe = await connect_once(dsn, program)
            try:
                await _check(probe)
                # A pooler reports its own process ids.
                pooled = await probe.fetchval("select pg_backend_pid()") != probe.get_server_pid()
                if not pooled:
                    settings |= await _allowed(probe, _WATCH_CLIENTS)
            finally:
                await probe.close()
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=connections,
                command_timeout=timeout_seconds,
                statement_cache_size=0 if pooled else 200,
                max_inactive_connection_lifetime=300,
                connection_class=_PoolConnection,
                init=timeline.check,
                reset=_reset,
                server_settings=settings,
            )
            timeline.pool = pool
        return cls(pool, dsn, pooled, timeout_seconds, program)

    async def close(self) -> None:
        """Close all connections; terminate them if one does not respond or is not released."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._pool.close()
        except (*_TEMPORARY, asyncpg.PostgresError):
            self._pool.terminate()

    @property
    def pool_state(self) -> PoolState:
        """How many connections there are."""
        pool = self._pool
        size, idle = pool.get_size(), pool.get_idle_size()
        return PoolState(in_use=size - idle, idle=idle, max_size=pool.get_max_size())

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        with translate_errors():
            connection = await self._pool.acquire(timeout=self._timeout_seconds)
            unconfirmed = False
            try:
                yield connection
                unconfirmed = getattr(connection, "unconfirmed", False)
            finally:
                if getattr(connection, "given_up", False):  # one that was lost has no attributes
                    self._return_later(connection)
                else:
                    await self._pool.release(connection)
            if unconfirmed:
                raise Unconfirmed("the server ended the wait for the synchronous standby")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.connection() as connection, transaction(connection):
            yield connection

    async def confirm(self) -> None:
        """Wait until all that this process may have read is as durable as a commit of its own.

        For an answer that is read out of a row: the transaction that wrote it may not be confirmed.
        """
        await self.value("select hourbell.confirm()")

    def _return_later(self, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        task = asyncio.create_task(self._return(connection, connection.get_server_pid()))
        self._returning.add(task)  # the event loop keeps only a weak reference
        task.add_done_callback(self._returning.discard)

    async def _return(self, connection: asyncpg.pool.PoolConnectionProxy, backend: int) -> None:
        """Return a connection to the pool when its server has answered what was given up.

        A server that does not answer loses the connection, unless its backend waits for a standby:
        it would continue to wait, and a new connection would add a backend.
        """
        releasing = asyncio.ensure_future(self._pool.release(connection, timeout=_FOREVER))
        while not (await asyncio.wait([releasing], timeout=GIVEN_UP_SECONDS))[0]:
            if not await self._waits_for_standby(backend):
                connection.terminate()
                break
        with suppress(*_TEMPORARY, asyncpg.PostgresError):
            await releasing

    async def _waits_for_standby(self, backend: int) -> bool:
        """Whether the server has a backend with this process id that waits for a standby."""
        with suppress(*_TEMPORARY, asyncpg.PostgresError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                probe = await connect_once(self.dsn, self._program)
                try:
                    return bool(await probe.fetchval(_WAITS_FOR_STANDBY, backend))
                finally:
                    probe.terminate()
        return False

    async def fetch(self, statement: str, *args: object) -> Sequence[asyncpg.Record]:
        async with self.connection() as connection:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *args)
            return rows

    async def row(self, statement: str, *args: object) -> asyncpg.Record:
        """The single row that a statement returns."""
        async with self.connection() as connection:
            row = await connection.fetchrow(statement, *args)
            assert row is not None
            return row

    async def row_or_none(self, statement: str, *args: object) -> asyncpg.Record | None:
        async with self.connection() as connection:
            return await connection.fetchrow(statement, *args)

    async def value(self, statement: str, *args: object) -> Any:
        async with self.connection() as connection:
            return await connection.fetchval(statement, *args)

    async def listen(self, channel: str, callback: Callable[[str], None]) -> Listener:
        """Call `callback` with the payload of each notification.

        Behind a pooler there are none, which costs latency.
        """
        listener = Listener(self.dsn, channel, callback, self._program)
        if not self.pooled:
            await listener.renew()
        return listener


class Listener:
    """A connection that receives notifications; the caller must renew it after an outage."""

    def __init__(
        self, dsn: str, channel: str, callback: Callable[[str], None], program: str
    ) -> None:
        self._dsn = dsn
        self._settings = server_settings(dsn, program)
        self._channel = channel
        self._callback = callback
        self._connection: asyncpg.Connection | None = None

    async def renew(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            return
        with translate_errors():
            self._connection = await asyncpg.connect(
                self._dsn, timeout=5, server_settings=self._settings
            )
            await self._connection.add_listener(
                self._channel, lambda _connection, _pid, _channel, payload: self._callback(payload)
            )

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()


async def _check(connection: asyncpg.Connection) -> None:
    version = connection.get_server_version().major
    if version < OLDEST_VERSION:
        raise UnsafeDatabase(
            f"This is PostgreSQL {version}, but Hourbell needs {OLDEST_VERSION} or newer. Upgrade the"
            " server, or unset HOURBELL_DATABASE_URL to use the embedded one."
        )
    for setting in ("fsync", "full_page_writes"):
        if await connection.fetchval("select current_setting($1)", setting) != "on":
            raise UnsafeDatabase(
                f"The database runs with {setting} = off and may lose confirmed data."
                f" Set {setting} = on and restart it."
            )


async def _allowed(connection: asyncpg.Connection, settings: dict[str, str]) -> dict[str, str]:
    """Those settings of a session that this server allows; it depends on its operating system."""
    allowed = {}
    for name, value in settings.items():
        with suppress(asyncpg.PostgresError):
            await connection.execute("select set_config($1, $2, false)", name, value)
            allowed[name] = value
    return allowed


async def _reset(connection: asyncpg.Connection) -> None:
    """There is no session state to reset, which saves a round trip per release to the pool."""
    assert isinstance(connection, _PoolConnection)
    connection.unconfirmed = False
