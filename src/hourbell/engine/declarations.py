"""What the tasks of apps declare: the options that their jobs have, and the arguments they take.

Workers say it when they open their sessions (`model/manifests.py`). A job that is created without
the library gets it from here. What the manifests of live workers declare counts, or else the last
manifest of an app. Of several versions, the leading one gives the options: that of the highest
revision, or else the one that was first seen last. Arguments may be those of any of them, because
in a deployment some worker will run the job.

The manifests are cached. Each create reads the number of the newest one, so a new version counts at
once; that other workers are live now is noticed within seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from hourbell.documents.common_case import SimpleJob
from hourbell.model.arguments import digest_of_payload, problems_of_payload
from hourbell.model.errors import FieldError, InvalidInput
from hourbell.model.jobs import Action, TaskAction
from hourbell.store.database import Database
from hourbell.store.queries import queries

if TYPE_CHECKING:
    from hourbell.engine.core import Engine

_Q = queries("manifests")
_SECONDS = 2.0  # for which it is not looked which workers are live

log = structlog.get_logger(component="api")


class DeclaredUnique(msgspec.Struct, frozen=True):
    """Jobs with the same arguments exclude each other."""

    on_duplicate: str
    scope: str


class _Declared(msgspec.Struct, frozen=True):
    """A task in a manifest. Manifests of older versions have the aliases only."""

    aliases: tuple[str, ...] = ()
    job: dict[str, Any] = {}  # fields of the documents of its jobs
    unique: DeclaredUnique | None = None
    arguments: dict[str, Any] | None = None  # JSON Schema; None: anything


class DeclaredTask(msgspec.Struct, frozen=True):
    """What the live versions of a task declare."""

    name: str
    job: Mapping[str, Any]
    unique: DeclaredUnique | None
    arguments: Sequence[Mapping[str, Any] | None]  # of each version, the leading one first

    def check(self, payload: object, path: str = "action.payload") -> None:
        """Raise InvalidInput for a payload that fits no version."""
        errors = [
            FieldError(
                f"{path}.{each.path}" if each.path else path,
                each.code,
                f"{each.message}; it is checked against what task {self.name} declares",
            )
            for each in self.problems(payload)
        ]
        if errors:
            raise InvalidInput(errors)

    def problems(self, payload: object) -> Sequence[Any]:
        """What in a payload fits no version."""
        schemas = [each for each in self.arguments if each is not None]
        if len(schemas) < len(self.arguments):
            return ()  # one takes anything
        return problems_of_payload(schemas, payload)

    def complete(self, document: object, has_name: bool) -> object:
        """The document with the declared options that it does not have.

        `has_name`: its name is unique, so it needs no unique key.
        """
        if isinstance(document, SimpleJob):
            if not self.job and self.unique is None:
                self.check(document.payload)
                return document
            document = document.document()
        assert isinstance(document, dict)
        payload = document["action"].get("payload")
        self.check(payload)
        given = {name: value for name, value in document.items() if value is not None}
        declared = dict(self.job)
        if given.get("delivery") == "at_most_once" and "retry_policy" not in given:
            declared.pop("retry_policy", None)
        complete = {**declared, **given}
        labels = declared.get("labels"), given.get("labels")
        if isinstance(labels[0], dict) and isinstance(labels[1], dict):
            complete["labels"] = labels[0] | labels[1]
        unique = self.unique
        is_once = given.get("type") == "ONE_TIME" and not has_name
        if unique is not None and is_once and "unique_key" not in given:
            digest = digest_of_payload({} if payload is None else payload)
            by_task = unique.scope == "task"
            complete["unique_key"] = f"{self.name}:{digest}" if by_task else digest
            complete.setdefault("on_duplicate", unique.on_duplicate)
        return complete


class Declarations:
    """The declared tasks of all apps."""

    def __init__(self) -> None:
        self._tasks: Mapping[str, DeclaredTask] = {}
        self._manifests: Sequence[int] = ()
        self._newest: int | None = None  # manifest when they were read
        self._read_at = -_SECONDS
        self._lock = asyncio.Lock()

    def of(self, document: object) -> DeclaredTask | None:
        """What the task of a document declares; None: it has none, or nothing is declared."""
        name = task_of(document)
        return None if name is None else self._tasks.get(name)

    def of_task(self, name: str) -> DeclaredTask | None:
        """What a task declares."""
        return self._tasks.get(name)

    async def refresh(self, database: Database, newest: int | None, now: float) -> bool:
        """Read them again if that is due; whether they have changed.

        `newest` is the number of the newest manifest (0: not known); `now`, the monotonic time.
        """
        if newest == self._newest and now < self._read_at + _SECONDS:
            return False
        async with self._lock:
            live = await database.value(_Q["declaring_manifests"]) or []
            changed = live != self._manifests
            if changed:
                rows = await database.fetch(_Q["declared_tasks"], live)
                self._tasks = _merged([row["tasks"] for row in rows])
            self._manifests, self._newest, self._read_at = live, newest, now
            return changed


async def require_fitting_payload(engine: Engine, action: Action, path: str) -> None:
    """Raise InvalidInput if the payload of a task does not fit what the task declares.

    `path`: of the payload in the document of the caller.
    """
    if isinstance(action, TaskAction):
        await engine.declarations.refresh(engine.database, 0, engine.clock.monotonic())
        declared = engine.declarations.of_task(action.name)
        if declared is not None:
            declared.check(action.payload, path)


def task_of(document: object) -> str | None:
    """The task that a document names, if any."""
    if isinstance(document, SimpleJob):
        return document.task
    action = document.get("action") if isinstance(document, dict) else None
    if not isinstance(action, dict) or action.get("type") != "TASK":
        return None
    name = action.get("name")
    return name if isinstance(name, str) else None


def _merged(manifests: Sequence[str]) -> dict[str, DeclaredTask]:
    """The tasks of these manifests, the leading one first."""
    found: dict[str, DeclaredTask] = {}
    for tasks in manifests:
        for name, raw in msgspec.json.decode(tasks, type=dict[str, msgspec.Raw]).items():
            try:
                one = msgspec.json.decode(raw, type=_Declared)
            except msgspec.MsgspecError as error:  # of a newer version
                log.warning("declaration not read", task=name, error=str(error))
                continue
            for alias in (name, *one.aliases):
                leading = found.get(alias)
                if leading is None:
                    found[alias] = DeclaredTask(name, one.job, one.unique, [one.arguments])
                else:
                    versions = [*leading.arguments, one.arguments]
                    found[alias] = msgspec.structs.replace(leading, arguments=versions)
    return found
