"""Celery beat: a Python file with `beat_schedule`. It is parsed, never executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from hourbell.cli.importers import Import, Imported, NotReadable, job_name, with_distinct_names
from hourbell.timing.errors import InvalidRule
from hourbell.timing.fields import DAY_OF_MONTH, DAY_OF_WEEK, Field, parse_field

_SCHEDULES = ("beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE")
_ZONES = ("timezone", "CELERY_TIMEZONE")
_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
_UNITS = {
    "weeks": 604_800,
    "days": 86_400,
    "hours": 3600,
    "minutes": 60,
    "seconds": 1,
    "milliseconds": 0.001,
}
_POSITIONS = ("days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks")
_ENTRY_FIELDS = {"task", "schedule", "args", "kwargs", "options", "relative"}
_NOT_CONSTANT = object()
_WEEKS = {n: frozenset(range(7 * n - 6, min(7 * n, 31) + 1)) for n in range(1, 6)}  # 1: days 1-7


class _Found(msgspec.Struct):
    """What a file says about its schedule, as expressions."""

    timezone: ast.expr | None = None
    assigned: ast.Dict | None = None
    added: list[tuple[ast.expr | None, ast.expr]] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    has_calls: bool = False  # of add_periodic_task

    def add(self, entries: ast.expr, line: int) -> None:
        """Record entries to merge into the schedule."""
        if isinstance(entries, ast.Dict):
            self.added += zip(entries.keys, entries.values, strict=True)
        else:
            self.notes.append(
                f"line {line}: entries are computed and not carried over: {ast.unparse(entries)}"
            )


def read_beat_schedule(text: str, timezone: str | None = None) -> Import:
    """The entries of a beat schedule. `timezone` overrides the one in the file."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotReadable(f"it is not valid Python: line {error.lineno}: {error.msg}") from None
    found = _found(tree)
    if found.assigned is None and not found.added and not found.has_calls:
        raise NotReadable(f"it assigns no dictionary to {', '.join(_SCHEDULES)}")
    timezone = timezone or _timezone(found)
    entries: dict[str, ast.expr] = {}
    pairs = [*found.added]
    if found.assigned is not None:
        pairs = [*zip(found.assigned.keys, found.assigned.values, strict=True), *pairs]
    for key, value in pairs:
        if key is None:
            found.notes.append(f"** entries are not carried over: {ast.unparse(value)}")
        else:
            entries[_text(key)] = value
    jobs = [_job(name, value, timezone) for name, value in entries.items()]
    if jobs:
        found.notes.append(
            "Celery retries only where a task asks for it (autoretry_for, self.retry): these jobs "
            "do not retry; remove max_retries for Hourbell's retries"
        )
    return Import(with_distinct_names(jobs), found.notes)


def _timezone(found: _Found) -> str | None:
    """The time zone that the file sets; otherwise None, with a note."""
    timezone = _constant(found.timezone)
    if isinstance(timezone, str):
        return timezone
    if found.timezone is None or timezone is None:
        found.notes.append(
            "this file sets no timezone: Celery then uses UTC, and so do the jobs; if another "
            "file sets it, import again with --timezone"
        )
    else:
        found.notes.append(
            f"the timezone is computed: {ast.unparse(found.timezone)}. Import again with "
            f"--timezone; otherwise the rules are in UTC"
        )
    return None


def _found(tree: ast.Module) -> _Found:
    """The time zone and the schedule, wherever in the file they are set."""
    found = _Found()
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.Call))]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if not _adds_entries(node, found):
            for name, value in _settings(node):
                _record(name, value, found)
    return found


def _adds_entries(node: ast.stmt | ast.Call, found: _Found) -> bool:
    """Record the entries that a statement or a call adds; False if it adds none."""
    match node:
        case ast.Assign(targets=[ast.Subscript(value=target, slice=key)]):
            if _last_name(target) in _SCHEDULES:  # beat_schedule["x"] = {…}
                found.added.append((key, node.value))
                return True
            if isinstance(target, ast.Subscript) and _last_name(target.value) in _SCHEDULES:
                note = f"line {node.lineno}: this change is not carried over: {ast.unparse(node)}"
                found.notes.append(note)
                return True
        case ast.AugAssign(target=target, op=ast.BitOr()) if _last_name(target) in _SCHEDULES:
            found.add(node.value, node.lineno)
            return True
        case ast.Call(func=ast.Attribute(value=target, attr="update")):
            if _last_name(target) in _SCHEDULES:  # beat_schedule.update({…}, x={…})
                for argument in node.args:
                    found.add(argument, node.lineno)
                for keyword in node.keywords:
                    name = ast.Constant(keyword.arg) if keyword.arg else None
                    found.added.append((name, keyword.value))
                return True
        case ast.Call(func=function) if _last_name(function) == "add_periodic_task":
            found.has_calls = True
            found.notes.append(f"line {node.lineno}: not carried over: {ast.unparse(node)}")
            return True
    return False


def _settings(node: ast.stmt | ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The names and values that a statement or a call sets."""
    match node:
        case ast.Assign():
            for target in node.targets:
                yield _last_name(target), node.value
        case ast.AnnAssign(value=ast.expr() as value):
            yield _last_name(node.target), value
        case ast.Call():
            # app.conf.update(beat_schedule={…}). Other calls have parameters with the same names, as in
            # DateTime(timezone=True), so only a literal of the right type counts.
            for keyword in node.keywords:
                value = keyword.value
                fits = isinstance(value, ast.Dict) or isinstance(_constant(value), str)
                if fits or _last_name(node.func) == "update":
                    yield keyword.arg or "", value


def _record(name: str, value: ast.expr, found: _Found) -> None:
    if name in _ZONES:
        found.timezone = value
    elif name in _SCHEDULES and isinstance(value, ast.Dict):
        if found.assigned is not None and found.assigned.keys:
            found.notes.append(
                f"line {value.lineno}: {name} is assigned again: the entries of line "
                f"{found.assigned.lineno} are not carried over"
            )
        found.assigned = value
    elif name in _SCHEDULES:
        found.notes.append(
            f"line {value.lineno}: {name} is computed and not carried over: {ast.unparse(value)}"
        )


def _last_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    """A key as a string; its source if it is computed."""
    constant = _constant(node)
    return ast.unparse(node) if constant is _NOT_CONSTANT else str(constant)


def _constant(node: ast.expr | None) -> Any:
    """The value of a literal expression; `_NOT_CONSTANT` if it would have to be executed."""
    try:
        return ast.literal_eval(node) if node is not None else _NOT_CONSTANT
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add)):
        left, right = _constant(node.left), _constant(node.right)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return left * right if isinstance(node.op, ast.Mult) else left + right
    return _NOT_CONSTANT


def _job(name: str, entry: ast.expr, timezone: str | None) -> Imported:
    notes: list[str] = []
    if not isinstance(entry, ast.Dict):
        note = f"{name}: not a dictionary in this file: {ast.unparse(entry)}"
        return Imported({"name": job_name(name)}, [note], False)
    fields: dict[str, ast.expr] = {}
    for key, value in zip(entry.keys, entry.values, strict=True):
        if key is None:
            notes.append(f"** fields are not carried over: {ast.unparse(value)}")
        else:
            fields[_text(key)] = value
    task = _constant(fields.get("task"))
    schedule = _schedule(fields.get("schedule"), timezone, notes)
    payload = _payload(fields, notes)
    document: dict[str, Any] = {
        "name": job_name(name),
        "schedule": schedule or {},
        "action": {
            "type": "TASK",
            "name": job_name(task) if isinstance(task, str) else "unknown",
        },
        "retry_policy": {"max_retries": 0},
    }
    if payload:
        document["action"]["payload"] = payload
    if not isinstance(task, str):
        notes.append(
            f"its task is computed: {ast.unparse(fields['task'])}"
            if "task" in fields
            else "has no task"
        )
    if "options" in fields:
        _options(document, _constant(fields["options"]), fields["options"], notes)
    if _constant(fields.get("relative")) is True:
        notes.append("relative=True (counted from the start of beat) is not carried over")
    notes += [f"{field} is not carried over" for field in sorted(set(fields) - _ENTRY_FIELDS)]
    usable = schedule is not None and isinstance(task, str)
    return Imported(document, [f"{name}: {note}" for note in notes], usable)


def _payload(fields: dict[str, ast.expr], notes: list[str]) -> dict[str, Any]:
    """The arguments by parameter name, as in a payload."""
    given: dict[str, Any] = {}
    for field, kinds in (("args", (list, tuple)), ("kwargs", dict)):
        value = _constant(fields[field]) if field in fields else None
        if isinstance(value, kinds):
            given[field] = value
        elif value is not None:
            why = "computed" if value is _NOT_CONSTANT else "of another type"
            notes.append(f"{field} are {why}: {ast.unparse(fields[field])}")
    payload = dict(given.get("kwargs", {}))
    if given.get("args"):
        notes.append(
            f"args {ast.unparse(fields['args'])} have no names: replace `args` in the payload with "
            f"the names of the task's parameters"
        )
        payload.setdefault("args", list(given["args"]))
    return payload


def _options(document: dict[str, Any], options: Any, node: ast.expr, notes: list[str]) -> None:
    if not isinstance(options, dict):
        notes.append(f"options are computed: {ast.unparse(node)}")
        return
    for option, value in options.items():
        if option == "queue":
            document["queue"] = job_name(str(value))
        elif option == "expires" and isinstance(value, (int, float)):
            document["start_deadline_seconds"] = max(1, int(value))
        else:
            notes.append(f"option {option}={value!r} is not carried over")


def _schedule(
    node: ast.expr | None, timezone: str | None, notes: list[str]
) -> dict[str, Any] | None:
    if node is None:
        notes.append("has no schedule")
        return None
    zone = {"timezone": timezone} if timezone else {}
    number = _constant(node)
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        return _every(number, notes)
    if isinstance(node, ast.Call):
        kind = _last_name(node.func)
        if kind == "crontab":
            values = _crontab(node)
            days = _days(values) if values is not None else None
            if values is not None and days is not None:
                return {"cron": " ".join((values | days)[field] for field in _FIELDS), **zone}
            if values is not None:
                notes.append(
                    "Celery runs it on days that match both day_of_month and day_of_week; a rule "
                    "with both runs on days that match either"
                )
        elif kind in ("timedelta", "schedule"):
            seconds = _seconds(node)
            if seconds is not None:
                return _every(seconds, notes)
    notes.append(f"its schedule cannot be carried over: {ast.unparse(node)}")
    return None


def _every(seconds: float, notes: list[str]) -> dict[str, Any] | None:
    whole = max(1, round(seconds))
    if whole != seconds:
        notes.append(f"runs every {seconds:g} s: rounded to {whole} s")
    return {"every_seconds": whole}


def _seconds(node: ast.Call) -> float | None:
    if _last_name(node.func) == "schedule":  # schedule(run_every=…)
        inner = [*node.args, *(word.value for word in node.keywords if word.arg == "run_every")]
        if not inner:
            return None
        number = _constant(inner[0])
        if isinstance(number, (int, float)):
            return float(number)
        return _seconds(inner[0]) if isinstance(inner[0], ast.Call) else None
    total = 0.0
    given = [*zip(_POSITIONS, node.args, strict=False)]
    given += [(word.arg or "", word.value) for word in node.keywords]
    for unit, value in given:
        number = _constant(value)
        if unit not in _UNITS or not isinstance(number, (int, float)):
            return None
        total += number * _UNITS[unit]
    return total


def _crontab(node: ast.Call) -> dict[str, str] | None:
    """The five fields; None if they cannot be read."""
    values = dict.fromkeys(_FIELDS, "*")
    order = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
    given = [*zip(order, node.args, strict=False)]
    given += [(word.arg or "", word.value) for word in node.keywords]
    for field, value in given:
        constant = _constant(value)
        if field not in values or not isinstance(constant, (int, str, list, tuple, set)):
            return None
        texts: list[object] = [constant]
        if isinstance(constant, (list, tuple, set)):
            texts = sorted(constant) if isinstance(constant, set) else list(constant)
        text = ",".join(str(one).replace(" ", "") for one in texts)
        # Celery reads only the first three letters of a name.
        values[field] = re.sub("[A-Za-z]+", lambda name: name[0][:3], text)
    return values


def _days(values: dict[str, str]) -> dict[str, str] | None:
    """The day fields as a rule here expresses them; None if it cannot.

    Celery combines the two fields with AND. A rule here does so only if one begins with `*`, as in cron.
    Weekdays in whole weeks of the month, such as Saturday in days 1-7, are written as SAT#1.
    """
    month, week = values["day_of_month"], values["day_of_week"]
    if month.startswith("*") or week.startswith("*"):
        return {}
    days, weekdays = _numbers(DAY_OF_MONTH, month), _numbers(DAY_OF_WEEK, week)
    weeks = [number for number, of_week in _WEEKS.items() if of_week <= days]
    if (
        not weekdays
        or not weeks
        or days != frozenset().union(*(_WEEKS[number] for number in weeks))
    ):
        return None
    names = [DAY_OF_WEEK.names[weekday] for weekday in sorted(weekdays)]
    both = ",".join(f"{name}#{number}" for name in names for number in weeks)
    return {"day_of_month": "*", "day_of_week": both}


def _numbers(field: Field, text: str) -> frozenset[int]:
    """The values of a field; empty if it cannot be read."""
    try:
        return parse_field(field, text.upper()).values()
    except InvalidRule:
        return frozenset()
