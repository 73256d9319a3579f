"""The parameters of a task: arguments → payload for a caller, payload → arguments for a worker.

A payload is a JSON object keyed by parameter name, positional arguments included, so it can be read
in SQL and the order of parameters may change. It contains only what was given: adding a parameter
with a default is safe for jobs enqueued before.

Arguments are encoded and then decoded with the task's own types, so what passes is what the worker will
see. `"7"`, `True` and `7.0` are not an `int`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, time
from functools import cached_property
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from hourbell.errors import InvalidArguments, InvalidTask
from hourbell.sdk.values import Options

MAX_PAYLOAD_BYTES = 256 * 1024
_MAX_SCHEMA_BYTES = 16 * 1024  # each worker sends that of all its tasks
_OPTIONS = frozenset(Options.__annotations__)
_PLAIN = (int, str, bool, type(None))
_EXPECTED = re.compile(r"^Expected `(?P<expected>[^`]*)`, got `[^`]*`")
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


class Codec(msgspec.Struct, frozen=True):
    """How to encode types that msgspec does not know; see msgspec's `enc_hook` and `dec_hook`."""

    enc_hook: Callable[[Any], Any] | None = None
    dec_hook: Callable[[type[Any], Any], Any] | None = None


class Arguments(msgspec.Struct, frozen=True):
    """What a function is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dropped: tuple[str, ...] = ()  # names in the payload that are not parameters


class Mismatch(Exception):
    """A stored payload does not fit the parameters of the function."""


def parameters_of(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; types that are not defined yet stay unresolved."""
    if sys.version_info >= (3, 14):
        # There, annotations are evaluated on first read, which would be too early: a type may be defined below the
        # function, or imported only for type checkers.
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.FORWARDREF).parameters
    return inspect.signature(fn).parameters


class Signature:
    """The parameters of one function, without its context. Types are resolved on first use."""

    def __init__(
        self, fn: Callable[..., Any], task: str, takes_context: bool, codec: Codec | None = None
    ) -> None:
        self._fn = fn
        self._task = task
        self._takes_context = takes_context
        self._codec = codec or Codec()

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The JSON payload of a call; raises InvalidArguments."""
        decoder = self._decoder
        values = self._bind(args, kwargs)
        for name, value in values.items():
            if type(value) not in _PLAIN:
                self._check_value(value, name)
        try:
            encoded = self._encoder.encode(values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._cannot_encode(values, error) from None
        try:
            decoder.decode(encoded)
        except msgspec.ValidationError as error:
            raise self._invalid(values, error) from None
        except (TypeError, ValueError) as error:  # raised by a hook
            raise InvalidArguments(f"{self._task}: {error}. Nothing was enqueued.") from None
        if b"\\u0000" in encoded:
            self._refuse_nul(msgspec.json.decode(encoded))
        if len(encoded) > MAX_PAYLOAD_BYTES:
            raise InvalidArguments(
                f"{self._task}: the arguments have {len(encoded)} bytes as JSON; the maximum is "
                f"{MAX_PAYLOAD_BYTES}. Store the data elsewhere and pass its id. Nothing was enqueued."
            )
        return encoded.decode()

    def key(self, of: Callable[..., str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """What a function of the user computes from the arguments of a call, all of them by name."""
        return of(**{**self._defaults, **self._bind(args, kwargs)})

    def arguments(self, payload: object) -> Arguments:
        """The arguments of a stored payload; raises Mismatch."""
        if not isinstance(payload, dict):
            raise Mismatch(f"The payload of {self._task} must be an object.")
        if self._plain_types is not None and len(payload) == len(self._plain_types):
            for name, kind in self._plain_types.items():
                if type(payload.get(name)) is not kind:
                    break
            else:
                return Arguments((), payload)  # what `convert` would return, in a third of the time
        if self._all_by_name:
            try:
                decoded = msgspec.convert(
                    payload, self._struct, str_keys=True, dec_hook=self._dec_hook
                )
            except (msgspec.ValidationError, TypeError, ValueError) as error:
                raise self._mismatch(error) from None
            kwargs = msgspec.structs.asdict(decoded)
            for name in self._optional:
                if kwargs[name] is UNSET:
                    del kwargs[name]
            if len(kwargs) == len(payload):
                return Arguments((), kwargs)
            return Arguments((), kwargs, tuple(payload.keys() - kwargs.keys()))
        return self._arguments_in_order(payload)

    def _arguments_in_order(self, payload: dict[str, Any]) -> Arguments:
        """For functions with parameters that cannot be passed by name."""
        known = self._parameters.keys()
        extra = {name: value for name, value in payload.items() if name not in known}
        try:
            decoded = msgspec.convert(payload, self._struct, str_keys=True, dec_hook=self._dec_hook)
            rest: dict[str, Any] = {}
            if self._keywords is not None:
                kind: Any = dict.__class_getitem__((str, self._types[self._keywords]))
                rest = msgspec.convert(extra, kind, dec_hook=self._dec_hook)
                extra = {}
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise self._mismatch(error) from None
        args: list[Any] = []
        kwargs: dict[str, Any] = dict(rest)
        for name, parameter in self._parameters.items():
            value = getattr(decoded, name, UNSET)
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += () if value is UNSET else value
            elif parameter.kind is parameter.VAR_KEYWORD:
                continue
            elif value is UNSET:
                if parameter.kind is not parameter.KEYWORD_ONLY and self._star is not None:
                    args.append(parameter.default)
            elif parameter.kind is parameter.KEYWORD_ONLY or self._star is None:
                kwargs[name] = value
            else:
                args.append(value)
        if self._positional_only:
            args = [
                kwargs.pop(n, self._parameters[n].default) for n in self._positional_only
            ] + args
        return Arguments(tuple(args), kwargs, tuple(extra))

    def result(self, value: object) -> object:
        """A stored result, converted to the function's return type; raises InvalidTask."""
        kind = self._hints.get("return", Any)
        if kind is Any or kind is type(None) or value is None:
            return value
        try:
            return msgspec.convert(value, kind, str_keys=True, dec_hook=self._dec_hook)
        except (TypeError, ValueError, NotImplementedError) as error:
            why = str(error) or f"a {kind!r} cannot be made from JSON"
            raise InvalidTask(
                f"{self._task}: the stored result does not fit the return type: {why}. Correct the "
                f"return type; job.get() has the result as it is stored."
            ) from None

    def storable(self, value: object) -> object:
        """A result as plain JSON values; unchanged if that is not possible.

        The run has succeeded, and is not repeated because of its result.
        """
        if type(value) in _PLAIN:
            return value
        try:
            return msgspec.to_builtins(value, str_keys=True, enc_hook=self._enc_hook)
        except (TypeError, ValueError, RecursionError):
            return value

    def schema(self) -> dict[str, Any] | None:
        """The arguments of a payload as JSON Schema; None: it cannot be said, or is too long.

        Types that msgspec does not know allow anything.
        """
        try:
            kinds = [*self._types.values()]
            shown, defs = msgspec.json.schema_components(
                kinds, schema_hook=lambda kind: {}, ref_template="#/$defs/{name}"
            )
        except Exception:  # a worker that cannot resolve the types says why
            return None
        arguments: dict[str, Any] = dict(zip(self._types, shown, strict=True))
        others: Any = False
        if self._star is not None:
            arguments[self._star] = {"type": "array", "items": arguments[self._star]}
        if self._keywords is not None:
            others = arguments.pop(self._keywords)
        schema = {
            "type": "object",
            "properties": arguments,
            "required": self._required,
            "additionalProperties": others,
            "$defs": defs,
        }
        return schema if len(msgspec.json.encode(schema)) <= _MAX_SCHEMA_BYTES else None

    def check(self) -> None:
        """Resolve the types; raises InvalidTask."""
        _ = self._decoder

    # Reading the function, once.

    @cached_property
    def _parameters(self) -> dict[str, inspect.Parameter]:
        found = dict(parameters_of(self._fn))
        if self._takes_context:
            found.pop(next(iter(found)))
        return found

    @cached_property
    def _star(self) -> str | None:
        return self._first(inspect.Parameter.VAR_POSITIONAL)

    @cached_property
    def _keywords(self) -> str | None:
        return self._first(inspect.Parameter.VAR_KEYWORD)

    @cached_property
    def _positional_only(self) -> list[str]:
        if self._star is not None:
            return []
        return [n for n, p in self._parameters.items() if p.kind is p.POSITIONAL_ONLY]

    def _first(self, kind: Any) -> str | None:
        return next((name for name, p in self._parameters.items() if p.kind is kind), None)

    @cached_property
    def _positional(self) -> list[str]:
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        return [name for name, p in self._parameters.items() if p.kind in kinds]

    @cached_property
    def _required(self) -> list[str]:
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        return [
            name
            for name, p in self._parameters.items()
            if p.default is p.empty and p.kind not in several
        ]

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        return {n: p.default for n, p in self._parameters.items() if p.default is not p.empty}

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return self._function_hints()

    def _function_hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._fn, include_extras=True)
        except NameError as error:
            raise InvalidTask(
                f"{self._task}: the type {error.name!r} of a parameter cannot be found. Import it "
                f"in the function's module, not only under TYPE_CHECKING."
            ) from error

    @cached_property
    def _types(self) -> dict[str, Any]:
        types = {}
        for name in self._parameters:
            types[name] = kind = self._hints.get(name, Any)
            self._check_type(name, kind)
        return types

    @cached_property
    def _struct(self) -> type[msgspec.Struct]:
        fields: list[tuple[str, Any, Any]] = []
        for name, parameter in self._parameters.items():
            kind = self._types[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                kind = list[kind]  # type: ignore[valid-type]
            elif parameter.kind is parameter.VAR_KEYWORD:
                continue
            # Missing arguments are detected when they are bound; a worker uses the default.
            required = parameter.default is parameter.empty and (
                parameter.kind is not parameter.VAR_POSITIONAL
            )
            if required:
                fields.append((name, kind, msgspec.NODEFAULT))
            else:
                fields.append((name, kind | UnsetType, UNSET))
        return msgspec.defstruct(
            "Payload",
            [
                (name, kind) if default is msgspec.NODEFAULT else (name, kind, default)
                for name, kind, default in fields
            ],
            kw_only=True,
        )

    @cached_property
    def _all_by_name(self) -> bool:
        """Whether all arguments can be passed by name."""
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        return all(parameter.kind in kinds for parameter in self._parameters.values())

    @cached_property
    def _plain_types(self) -> Mapping[str, type] | None:
        """The types of the parameters, if all are plain JSON types and passed by name."""
        kinds = self._types.values()
        if self._all_by_name and all(kind in (bool, int, str) for kind in kinds):
            return self._types
        return None

    @cached_property
    def _optional(self) -> list[str]:
        return [name for name in self._parameters if name not in self._required]

    def _mismatch(self, error: Exception) -> Mismatch:
        return Mismatch(
            f"The payload does not match the parameters of {self._task}: {error}. It was created "
            f"by another version of the code, or not by the library."
        )

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        struct = self._struct
        try:
            return msgspec.json.Decoder(struct, dec_hook=self._dec_hook)
        except TypeError as error:
            raise InvalidTask(f"{self._task}: {error}") from None

    @cached_property
    def _encoder(self) -> msgspec.json.Encoder:
        return msgspec.json.Encoder(enc_hook=self._enc_hook)

    def _check_type(self, name: str, kind: Any) -> None:
        try:
            info = msgspec.inspect.type_info(kind)
        except TypeError as error:
            raise InvalidTask(
                f"{self._task}: the type of {name} cannot be encoded: {error}"
            ) from None
        for custom in _custom_types(info):
            if custom is object:
                continue  # any JSON value, as for Any
            if not hasattr(custom, "model_validate") and self._codec.dec_hook is None:
                raise InvalidTask(
                    f"{self._task}: a {custom.__name__} ({name}) cannot be sent to a worker. "
                    f"{_PASS_ID if _is_row(custom) else _USE_CODEC}"
                )

    # Hooks.

    def _enc_hook(self, value: Any) -> Any:
        if self._codec.enc_hook is not None:
            try:
                return self._codec.enc_hook(value)
            except NotImplementedError:
                pass
        if hasattr(value, "model_dump"):  # pydantic
            return value.model_dump(mode="json")
        raise TypeError(f"a {type(value).__name__} cannot be sent to a worker")

    def _dec_hook(self, kind: type[Any], value: Any) -> Any:
        if kind is object:
            return value
        if hasattr(kind, "model_validate"):
            return kind.model_validate(value)
        if self._codec.dec_hook is not None:
            return self._codec.dec_hook(kind, value)
        raise NotImplementedError

    # Arguments.

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name. `inspect.Signature.bind` takes ten times as long."""
        positional = self._positional
        values = dict(zip(positional, args, strict=False))
        if len(args) > len(positional):
            if self._star is None:
                takes = len(positional)
                raise InvalidArguments(
                    f"{self._task} takes {takes} positional argument{'' if takes == 1 else 's'} but "
                    f"got {len(args)}. Nothing was enqueued."
                )
            values[self._star] = args[len(positional) :]
        for name, value in kwargs.items():
            if name in values:
                raise InvalidArguments(
                    f"{self._task}: {name} was given twice. Nothing was enqueued."
                )
            if name not in self._parameters and self._keywords is None:
                raise self._unknown(name)
            values[name] = value
        missing = [name for name in self._required if name not in values]
        if missing:
            raise InvalidArguments(
                f"{self._task}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. "
                f"Nothing was enqueued."
            )
        return values

    def _unknown(self, name: str) -> InvalidArguments:
        text = f"{self._task} has no parameter {name}."
        if name in _OPTIONS:
            function = self._fn.__name__
            text += f" Options go into configure: {function}.configure({name}=…).enqueue(…)."
        return InvalidArguments(f"{text} Nothing was enqueued.")

    def _refuse_nul(self, payload: dict[str, Any]) -> None:
        for name, value in payload.items():
            if _has_nul([name, value]):
                raise InvalidArguments(
                    f"{self._task}: {name} contains the character U+0000, which PostgreSQL cannot store. "
                    f"Remove it, or pass bytes. Nothing was enqueued."
                )

    def _check_value(self, value: object, path: str) -> None:
        """Reject what would arrive as another value: NaN, and times without a zone."""
        if isinstance(value, float):
            if value != value or value in (float("inf"), float("-inf")):
                raise InvalidArguments(
                    f"{self._task}: {path} is {value}, which JSON cannot represent. Nothing was enqueued."
                )
        elif isinstance(value, datetime | time):
            if value.tzinfo is None:
                raise InvalidArguments(
                    f"{self._task}: {path} has no time zone: use a datetime with tzinfo. Nothing was "
                    f"enqueued."
                )
        else:
            for name, inner in _inside(value):
                if type(inner) not in _PLAIN:
                    self._check_value(inner, f"{path}{name}")

    def _invalid(
        self, values: Mapping[str, Any], error: msgspec.ValidationError
    ) -> InvalidArguments:
        text = str(error)
        found, path = _EXPECTED.match(text), _PATH.search(text)
        name = "" if path is None else path["path"].partition(".")[0].partition("[")[0]
        if path is None or name not in values:
            return InvalidArguments(f"{self._task}: {text}. Nothing was enqueued.")
        if found is None:  # such as a value that is not in an enum
            text = text.partition(" - ")[0]
            return InvalidArguments(f"{self._task}: {path['path']}: {text}. Nothing was enqueued.")
        value = values[name]
        if path["path"] != name:
            return InvalidArguments(
                f"{self._task}: {path['path']} must be {found['expected']}: {text.partition(' - ')[0]}. "
                f"Nothing was enqueued."
            )
        if value is None:
            return InvalidArguments(
                f"{self._task}: {name} must be {found['expected']}, not None. An object that "
                f"SQLAlchemy has not flushed has no id yet; flush before you enqueue."
            )
        where = ""
        if name in self._positional:
            where = f" (argument {self._positional.index(name) + 1})"
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return InvalidArguments(
            f"{self._task}: {name} must be {found['expected']}, not {type(value).__name__} "
            f"{shown}{where}. Nothing was enqueued."
        )

    def _cannot_encode(self, values: Mapping[str, Any], error: Exception) -> InvalidArguments:
        for name, value in values.items():
            try:
                self._encoder.encode(value)
            except Exception:
                advice = _PASS_ID if _is_row(type(value)) else _USE_CODEC
                return InvalidArguments(
                    f"{self._task}: {name} cannot be sent to a worker: {error}. {advice} Nothing was "
                    f"enqueued."
                )
        return InvalidArguments(f"{self._task}: {error}. Nothing was enqueued.")


_PASS_ID = "Pass its id, and load it in the task."
_USE_CODEC = "Use a dataclass, a msgspec.Struct or a pydantic model, or give the app a Codec."


def _is_row(kind: type[Any]) -> bool:
    """Whether it is a SQLAlchemy mapped class or a Django model."""
    return hasattr(kind, "__mapper__") or hasattr(kind, "objects")


def _inside(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f".{key}", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    elif hasattr(value, "model_dump"):  # pydantic, which writes NaN as null
        try:
            dumped = value.model_dump(warnings=False)
        except Exception:  # encoding it fails in the same way, and is reported
            return
        yield from _floats(dumped)


def _floats(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """All floats in the values of a model, with their place in it."""
    if isinstance(value, float):
        yield path, value
    else:
        for name, inner in _inside(value):
            yield from _floats(inner, path + name)


def _custom_types(info: Any) -> Iterator[type[Any]]:
    """The types inside a type that msgspec does not know, except those inside structs."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    for part in ("type", "item_type", "key_type", "value_type", "types", "item_types"):
        inner = getattr(info, part, None)
        for each in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(each, msgspec.inspect.Type):
                yield from _custom_types(each)


def _has_nul(value: object) -> bool:
    """Whether a text of a JSON value contains U+0000."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(map(_has_nul, value)) or any(map(_has_nul, value.values()))
    return isinstance(value, list) and any(map(_has_nul, value))
