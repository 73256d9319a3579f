"""Documents in files: YAML, JSON, or JSON lines.

JSON is tried first, because the YAML parser rejects tabs as indentation, which JSON allows.

The YAML loader produces only plain values and resolves words as YAML 1.2 does: `on`, `no`, `12:30`
and `2026-01-01` are strings. In YAML 1.1 they are true, false, 750 and a date: a notification
would lose its `on`, and a job would get another schedule.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from hourbell.documents.kinds import LABEL, LABEL_IS
from hourbell.model.errors import ConfigurationError

MAX_FILE_BYTES = 64 * 1024 * 1024
_BOOL, _INT, _FLOAT, _NULL = (
    f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null")
)
_INFINITE = "!infinite"  # numbers of YAML that JSON does not have
_HALF_A_PAIR = "a \\u escape is half of a surrogate pair"
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _InfiniteNumber(ValueError):
    """NaN or Infinity in JSON, which would be texts in YAML."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2 words, strings and numbers as keys, and no duplicate keys."""

    yaml_implicit_resolvers = {}  # noqa: RUF012

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """The value; two escapes that form a surrogate pair become one character, as in JSON."""
        value = super().construct_scalar(node)
        if isinstance(value, str) and _SURROGATE.search(value):
            try:
                return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            except UnicodeDecodeError:
                raise yaml.constructor.ConstructorError(
                    None, None, _HALF_A_PAIR, node.start_mark
                ) from None
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    "a key is an object or a list; quote a value that begins with {, as "
                    'in "{{secret:name}}"',
                    key_node.start_mark,
                )
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _refuse_infinite(loader: _Loader, node: yaml.ScalarNode) -> None:
    raise yaml.constructor.ConstructorError(
        None, None, f"{node.value} is not a JSON number; quote it if it is text", node.start_mark
    )


_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_implicit_resolver(_NULL, re.compile(r"^(?:null|~|)$"), ["n", "~", ""])
_Loader.add_implicit_resolver(_INT, re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"^[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    _INFINITE, re.compile(r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"), list("-+.")
)
_Loader.add_constructor(_INFINITE, _refuse_infinite)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^(?:<<)$"), ["<"])


def read_documents(file: str) -> list[Any]:
    """The documents of a YAML, JSON or NDJSON file; `-` is stdin. Raises ConfigurationError."""
    text = read_text(file)
    try:
        return [one for one in _json_values(text) if one is not None]
    except _InfiniteNumber as error:
        raise ConfigurationError(f"{shown(file)} is not valid: {error}.") from error
    except (ValueError, RecursionError) as error:
        not_json = _problem(error)
    try:
        return [one for one in yaml.load_all(text, _Loader) if one is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        not_yaml = _problem(error)
    what = f"not valid YAML: {not_yaml}"
    if text.lstrip().startswith(("{", "[")):
        what = f"neither valid JSON ({not_json}) nor valid YAML ({not_yaml})"
    raise ConfigurationError(f"{shown(file)} is {what}.")


def read_text(file: str) -> str:
    """The text of a file; `-` is stdin. Raises ConfigurationError."""
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigurationError(f"{shown(file)} is larger than {MAX_FILE_BYTES} bytes.")
        return content.decode("utf-8")
    except OSError as error:
        raise ConfigurationError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{shown(file)} is not UTF-8: {error.reason}.") from error


def check_owner(owner: object) -> None:
    """Raise ConfigurationError if this is not a valid owner."""
    if not isinstance(owner, str) or not LABEL.fullmatch(owner):
        raise ConfigurationError(f"The owner {owner!a} is not valid. It must be {LABEL_IS}.")


def with_type(document: Any) -> Any:
    """The document of a job with its type added, which follows from its schedule."""
    schedule = document.get("schedule") if isinstance(document, dict) else None
    if not isinstance(document, dict) or "type" in document:
        return document
    once = isinstance(schedule, dict) and ("at" in schedule or "delay_seconds" in schedule)
    return {"type": "ONE_TIME" if once else "RECURRING", **document}


def shown(file: str) -> str:
    return "Standard input" if file == "-" else file


def _json_values(text: str) -> list[Any]:
    """The value of a JSON file, or one value per line. Raises ValueError."""
    try:
        return [_json_value(text)]
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
    values = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                values.append(_json_value(line))
            except _InfiniteNumber as error:
                raise _InfiniteNumber(f"line {number}: {error}") from None
            except ValueError as error:
                raise ValueError(f"line {number}: {_problem(error)}") from None
    return values


def _json_value(text: str) -> Any:
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    if _ESCAPED_SURROGATE.search(text) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError(_HALF_A_PAIR)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"the key {key!r} appears twice")
        made[key] = value
    return made


def _no_constant(name: str) -> None:
    raise _InfiniteNumber(f"{name} is not a JSON number; quote it if it is text")


def _problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error).partition("\n")[0].rstrip(".")


class _Dumper(yaml.SafeDumper):
    """Quotes what either YAML version would not read as a string, and indents lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


for _tag, _pattern, _first in (
    (_INT, r"^[-+]?[0-9]+$", "-+0123456789"),
    (_FLOAT, r"^[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?$", "-+0123456789"),
):
    _Dumper.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


def yaml_text(value: object) -> str:
    """A plain value as YAML."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text
