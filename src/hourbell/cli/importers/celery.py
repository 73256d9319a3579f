"""Celery beat: a Python file with `beat_schedule`. It is parsed, never executed."""

from __future__ import annotations

import ast
from typing import Any

from hourbell.cli.importers import Import, Imported, NotReadable, job_name, with_distinct_names

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


def read_beat_schedule(text: str) -> Import:
    """The entries of a beat schedule."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotReadable(f"it is not Python: line {error.lineno}: {error.msg}") from None
    timezone, entries = _assigned(tree)
    if entries is None:
        raise NotReadable(f"it assigns no dictionary to {', '.join(_SCHEDULES)}")
    notes = []
    if timezone is None:
        notes.append("no timezone is set in this file: Celery then uses UTC, and so do the jobs")
    jobs = [
        _job(str(_constant(key)), value, timezone)
        for key, value in zip(entries.keys, entries.values, strict=True)
        if key is not None
    ]
    if any(key is None for key in entries.keys):
        notes.append("entries that are merged in with ** are not carried over")
    return Import(with_distinct_names(jobs), notes)


def _assigned(tree: ast.Module) -> tuple[str | None, ast.Dict | None]:
    """The time zone and the schedule, wherever the file sets them."""
    timezone: str | None = None
    entries: ast.Dict | None = None
    for node in ast.walk(tree):
        pairs: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(_last_name(target), node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(_last_name(node.target), node.value)]
        elif isinstance(node, ast.Call):  # app.conf.update(beat_schedule={…})
            pairs = [(keyword.arg or "", keyword.value) for keyword in node.keywords]
        for name, value in pairs:
            if name in _SCHEDULES and isinstance(value, ast.Dict):
                entries = value
            elif name in _ZONES and isinstance(_constant(value), str):
                timezone = str(_constant(value))
    return timezone, entries


def _last_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


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
        note = f"{name}: is not a dictionary in this file: {ast.unparse(entry)}"
        return Imported({"name": job_name(name)}, [note], False)
    fields = {
        str(_constant(key)): value
        for key, value in zip(entry.keys, entry.values, strict=True)
        if key is not None
    }
    task = _constant(fields.get("task"))
    schedule = _schedule(fields.get("schedule"), timezone, notes)
    payload: dict[str, Any] = {}
    for field in ("args", "kwargs"):
        value = _constant(fields[field]) if field in fields else None
        if value is _NOT_CONSTANT:
            notes.append(f"{field} are computed: {ast.unparse(fields[field])}")
        elif value:
            payload[field] = list(value) if field == "args" else value
    document: dict[str, Any] = {
        "name": job_name(name),
        "schedule": schedule or {},
        "action": {
            "type": "TASK",
            "name": job_name(task) if isinstance(task, str) else "unknown",
            "payload": payload or None,
        },
    }
    if not payload:
        del document["action"]["payload"]
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
            rule = _crontab(node)
            if rule is not None:
                return {"cron": rule, **zone}
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


def _crontab(node: ast.Call) -> str | None:
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
        values[field] = ",".join(str(one).replace(" ", "") for one in texts)
    return " ".join(values[field] for field in _FIELDS)
