"""A client for the REST API, for programs that have no access to Hourbell's database.

    async with Client("https://hourbell.example.com", api_key) as client:
        job = await client.jobs.create(
            NewJob(name="hello", schedule=delay(5), action=Webhook(url="https://example.com/hello"))
        )

    with SyncClient("https://hourbell.example.com", api_key) as client:
        for execution in client.executions.each(status="DEAD"):
            ...

Both have the same resources and methods. A call is retried if its response is lost or the server is
unavailable; a write keeps one Idempotency-Key across all its retries.

    values       what is sent and returned, as frozen structs
    errors       what calls raise
    resources    the methods; each returns a description of its call
    calls        requests and retries, without I/O
    methods      turns a method into an async or a blocking one
    connections  the I/O
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Self

from hourbell.client.connections import (
    AioConnections,
    BlockingConnections,
    PooledConnections,
    endpoint_of,
)
from hourbell.client.errors import (
    AccessDenied,
    ClientError,
    Conflict,
    FieldError,
    InvalidRequest,
    NotFound,
    ProblemError,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
)
from hourbell.client.methods import AsyncRunner, R, SyncRunner
from hourbell.client.resources import (
    Calendars,
    Cell,
    DeadLetters,
    Executions,
    Groups,
    Jobs,
    Keys,
    Monitors,
    Operations,
    Queues,
    Secrets,
    Targets,
    Tenants,
)
from hourbell.client.values import (
    Attempt,
    AuditEntry,
    BulkPaused,
    BulkResumed,
    Calendar,
    CreatedJob,
    DeadLetter,
    DeadLetterGroup,
    DeadLetterGroups,
    DueJob,
    Execution,
    Explanation,
    Forecast,
    ForecastDelay,
    ForecastMinute,
    Group,
    Job,
    Key,
    LastOutcome,
    MadeKey,
    Monitor,
    NewJob,
    NextRun,
    NextRuns,
    Notification,
    Operation,
    OperationPreview,
    Page,
    PauseDetails,
    Purged,
    Queue,
    QueueSettings,
    RateLimit,
    RefusedJob,
    Replayed,
    Requested,
    RetryPolicy,
    Schedule,
    SchedulePreview,
    Secret,
    StoredSecret,
    Target,
    TargetSettings,
    Task,
    Tenant,
    TenantSettings,
    Webhook,
    at,
    cron,
    delay,
    every,
)

__all__ = [
    "AccessDenied",
    "Attempt",
    "AuditEntry",
    "BulkPaused",
    "BulkResumed",
    "Calendar",
    "Client",
    "ClientError",
    "Conflict",
    "CreatedJob",
    "DeadLetter",
    "DeadLetterGroup",
    "DeadLetterGroups",
    "DueJob",
    "Execution",
    "Explanation",
    "FieldError",
    "Forecast",
    "ForecastDelay",
    "ForecastMinute",
    "Group",
    "InvalidRequest",
    "Job",
    "Key",
    "LastOutcome",
    "MadeKey",
    "Monitor",
    "NewJob",
    "NextRun",
    "NextRuns",
    "NotFound",
    "Notification",
    "Operation",
    "OperationPreview",
    "Page",
    "PauseDetails",
    "ProblemError",
    "Purged",
    "Queue",
    "QueueSettings",
    "RateLimit",
    "RefusedJob",
    "Replayed",
    "Requested",
    "RetryPolicy",
    "Schedule",
    "SchedulePreview",
    "Secret",
    "StoredSecret",
    "SyncClient",
    "Target",
    "TargetSettings",
    "Task",
    "Tenant",
    "TenantSettings",
    "Unavailable",
    "UnexpectedAnswer",
    "Unreachable",
    "Webhook",
    "at",
    "cron",
    "delay",
    "every",
]

DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_RETRIES = 5


class _Resources(Generic[R]):
    """The resources of the API."""

    def __init__(self, runner: R) -> None:
        self.jobs = Jobs(runner)
        self.executions = Executions(runner)
        self.dead_letters = DeadLetters(runner)
        self.tenants = Tenants(runner)
        self.queues = Queues(runner)
        self.targets = Targets(runner)
        self.secrets = Secrets(runner)
        self.keys = Keys(runner)
        self.calendars = Calendars(runner)
        self.monitors = Monitors(runner)
        self.operations = Operations(runner)
        self.groups = Groups(runner)
        self.cell = Cell(runner)


class Client(_Resources[AsyncRunner]):
    """A client for the API of a server, for asyncio."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: int = DEFAULT_RETRIES,
    ) -> None:
        self._connections = AioConnections(endpoint_of(url, api_key, retries), timeout_seconds)
        super().__init__(self._connections)

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class SyncClient(_Resources[SyncRunner]):
    """A blocking client for the API of a server. Safe to share between threads."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: int = DEFAULT_RETRIES,
    ) -> None:
        self._use(PooledConnections(endpoint_of(url, api_key, retries), timeout_seconds))

    def _use(self, connections: BlockingConnections) -> None:
        self._connections = connections
        super().__init__(connections)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
