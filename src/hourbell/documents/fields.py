"""Documents and their fields: each field is declared once.

A document is a class; its attributes are the fields that it may have:

    class RateLimitDocument(Document):
        per_second = Field(Number(MIN_RATE, MAX_RATE), required=REQUIRED)
        burst = Field(Integer(1, MAX_BURST), description="…")

Three things come from this declaration, so they cannot differ:

- Reading. An instance wraps one decoded JSON object, and `document.burst` is its checked value. If
  the value is invalid, or missing although it is required, a problem is recorded with the path, and
  the default is returned, so that reading continues with the next field. `finish` rejects the
  fields that are not declared. At the end, `Problems.raise_if_any` raises all problems together.
- Rendering. `RateLimitDocument.render(rate_limit)` is the document that a value would be read from.
- The JSON Schema. `request_object(RateLimitDocument)` describes it in a request,
  `response_object(…)` in a response.

Rules that involve several fields are plain code next to the class. `null` means "not given"
everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

from hourbell.documents.kinds import Kind, Schema
from hourbell.documents.problems import MAX_PROBLEMS, Problems, json_type, shown_key, suggestion
from hourbell.model.errors import FieldCode, FieldError, InvalidInput

MAX_SUGGESTIONS = 10  # for the unknown fields of one object; each suggestion is expensive
REQUIRED = "is required"

_Renderer = Callable[[Any], object]
T = TypeVar("T")
V = TypeVar("V")
D = TypeVar("D", bound="Document")


class Field(Generic[T]):
    """A field of a document, named after its attribute unless a name is given."""

    __slots__ = ("default", "description", "kind", "name", "omit_default", "required")

    @overload
    def __init__(
        self: Field[V | None],
        kind: Kind[V],
        *,
        required: str = "",
        description: str = "",
        omit_default: bool = False,
        name: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: Field[V],
        kind: Kind[V],
        *,
        default: V,
        description: str = "",
        omit_default: bool = False,
        name: str = "",
    ) -> None: ...
    def __init__(
        self,
        kind: Kind[Any],
        *,
        default: Any = None,
        required: str = "",  # the message if it is missing; empty: it may be omitted
        description: str = "",
        omit_default: bool = False,  # rendered only if it differs from the default
        name: str = "",
    ) -> None:
        self.kind = kind
        self.default = default
        self.required = required
        self.description = description
        self.omit_default = omit_default
        self.name = name

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @overload
    def __get__(self, document: None, owner: type) -> Self: ...
    @overload
    def __get__(self, document: Document, owner: type) -> T: ...
    def __get__(self, document: Document | None, owner: type) -> Any:
        if document is None:
            return self
        name = self.name
        value = document.values.get(name)
        if value is None:
            if self.required:
                document.wrong(name, "required", self.required)
            return self.default
        document.accessed.add(name)
        found = self.kind.read(value, document.prefix + name, document.problems)
        return self.default if found is None else found

    def render(self, value: object) -> object:
        """A value as JSON; null for None."""
        return None if value is None else self.kind.render(value)

    def is_default(self, value: object) -> bool:
        """Whether a JSON value is that of the default; 1 is neither true nor 1.0."""
        default = self.render(self.default)
        default = list(default) if isinstance(default, tuple) else default
        return type(value) is type(default) and value == default

    @property
    def schema(self) -> Schema:
        """The JSON Schema of the field in a request, if it is given."""
        shown = {} if self.default in (None, ()) else {"default": self.render(self.default)}
        return self._described(self.kind.schema) | shown

    @property
    def response_schema(self) -> Schema:
        """The JSON Schema of the field in a response."""
        never_null = self.required or self.default is not None
        return self.shown_schema if never_null else or_null(self.shown_schema)

    @property
    def shown_schema(self) -> Schema:
        """The JSON Schema of the field in a response that omits it instead of showing null."""
        return self._described(self.kind.response_schema)

    def _described(self, schema: Schema) -> Schema:
        return schema | ({"description": self.description} if self.description else {})


class Document:
    """A JSON object that is read field by field; subclasses declare its fields."""

    __slots__ = ("accessed", "prefix", "problems", "values")

    FIELDS: ClassVar[Mapping[str, Field[Any]]] = {}
    _RENDERED: ClassVar[Sequence[tuple[str, _Renderer | None]]] = ()
    _OMITTED: ClassVar[Sequence[tuple[str, object]]] = ()  # with the rendered default

    def __init_subclass__(cls) -> None:
        declared = [each for base in reversed(cls.__mro__) for each in vars(base).values()]
        cls.FIELDS = {each.name: each for each in declared if isinstance(each, Field)}
        cls._RENDERED = [(name, _renderer(field.kind)) for name, field in cls.FIELDS.items()]
        cls._OMITTED = [
            (name, field.render(field.default))
            for name, field in cls.FIELDS.items()
            if field.omit_default
        ]

    def __init__(self, values: Mapping[str, object], prefix: str, problems: Problems) -> None:
        self.values = values
        self.prefix = prefix  # of the paths of its fields: empty, or a path and a dot
        self.problems = problems
        self.accessed: set[str] = set()

    @classmethod
    def open(cls, document: object, problems: Problems) -> Self:
        """A whole document; raises InvalidInput if it is not an object."""
        if not isinstance(document, dict):
            message = f"must be an object, not {json_type(document)}"
            raise InvalidInput([FieldError("", "wrong_type", message)])
        return cls(document, "", problems)

    def narrow(self, kind: type[D]) -> D:
        """The same object, read as a document of another class."""
        document = kind(self.values, self.prefix, self.problems)
        document.accessed = self.accessed
        return document

    def path(self, key: str) -> str:
        """The path of a field of this object."""
        return self.prefix + shown_key(key)

    def wrong(self, key: str, code: FieldCode, message: str) -> None:
        """Record a problem with a field."""
        self.problems.add(self.prefix + shown_key(key), code, message)

    def given(self, key: str) -> bool:
        """Whether the field is present and not null."""
        if self.values.get(key) is None:
            return False
        self.accessed.add(key)
        return True

    def departs(self, key: str) -> bool:
        """Whether the field is given with another value than its default."""
        if not self.given(key):
            return False
        field = self.FIELDS.get(key)
        return field is None or field.default is None or not field.is_default(self.values[key])

    def require(self, key: str, message: str) -> None:
        """Record a problem if the field is missing."""
        if not self.given(key):
            self.wrong(key, "required", message)

    def forbid(self, key: str, message: str) -> None:
        """Record a problem if the field is given, because it conflicts with others.

        A client may send every default, so a field with its default counts as omitted.
        """
        if self.departs(key):
            self.wrong(key, "conflict", message)

    def finish(self) -> None:
        """Record unknown fields, up to MAX_PROBLEMS of them."""
        if self.values.keys() <= self.accessed:
            return
        if self.values.keys() <= self.FIELDS.keys():  # some are null
            given = len(self.values) - [*self.values.values()].count(None)
            # A declared field that is given has an effect, or has already been rejected.
            assert len(self.accessed) == given, self.values.keys() - self.accessed
            return
        unknown = (key for key in self.values if key not in self.FIELDS)
        for index, key in enumerate(islice(unknown, MAX_PROBLEMS)):
            hint = suggestion(key, self.FIELDS) if index < MAX_SUGGESTIONS else ""
            self.wrong(key, "unknown_field", f"is not a known field{hint}")

    @classmethod
    def render(cls, value: object, **overrides: object) -> dict[str, Any]:
        """The document of a value with the fields as attributes, except those in `overrides`."""
        shown = {}
        for name, render in cls._RENDERED:
            if name in overrides:
                shown[name] = overrides[name]
            else:
                one = getattr(value, name)
                shown[name] = one if one is None or render is None else render(one)
        for name, default in cls._OMITTED:
            if shown[name] == default:
                del shown[name]
        return shown


def _renderer(kind: Kind[Any]) -> _Renderer | None:
    """How values of a kind are rendered; None: unchanged."""
    return None if type(kind).render is Kind.render else kind.render


class Object(Kind[D]):
    """An object inside a document; `name` is the name of its schema, if it has one of its own."""

    def __init__(self, document: type[D], name: str = "") -> None:
        self.document, self.name = document, name

    def read(self, value: object, path: str, problems: Problems) -> D | None:
        if not isinstance(value, dict):
            problems.add_wrong_type(path, "an object", value)
            return None
        return self.document(value, path + ".", problems)

    @property
    def schema(self) -> Schema:
        return ref(self.name) if self.name else request_object(self.document)

    @property
    def response_schema(self) -> Schema:
        return response_object(self.document)

    def render(self, value: object) -> object:
        return self.document.render(value)


# JSON Schemas of objects.


def with_defaults(schema: Schema, document: type[Document]) -> Schema:
    """An object in a request that may also have fields of another document, with their defaults.

    They do not apply to it, but a client may send every default.
    """
    allowed = {
        name: or_null(
            {"const": default, "default": default}
            if field.default != ()
            else {"type": "array", "maxItems": 0}
        )
        for name, field in document.FIELDS.items()
        if field.default is not None and name not in schema["properties"]
        for default in [field.render(field.default)]
    }
    return schema | {"properties": schema["properties"] | allowed}


def request_object(
    *documents: type[Document], required: Collection[str] | None = None, **overrides: Schema
) -> Schema:
    """An object in a request: unknown fields are rejected; null means omitted.

    `required` replaces what the fields themselves require; `overrides` has the schemas of fields
    that differ from their declaration.
    """
    fields = {name: field for document in documents for name, field in document.FIELDS.items()}
    needed = [
        name for name in fields if (fields[name].required if required is None else name in required)
    ]
    properties = {name: overrides.get(name, field.schema) for name, field in fields.items()}
    schema = {
        "type": "object",
        "properties": {
            name: described if name in needed else or_null(described)
            for name, described in properties.items()
        },
        "additionalProperties": False,
    }
    return schema | ({"required": needed} if needed else {})


def response_object(
    document: type[Document], optional: Collection[str] = (), **overrides: Schema
) -> Schema:
    """An object in a response; the fields in `optional` may be missing."""
    fields = document.FIELDS
    omitted = {*optional, *(name for name in fields if fields[name].omit_default)}
    properties = {
        name: field.shown_schema if name in omitted else field.response_schema
        for name, field in fields.items()
    }
    return response_object_of(properties | overrides, omitted)


def response_object_of(properties: Mapping[str, Schema], optional: Collection[str] = ()) -> Schema:
    """An object in a response, from the schemas of its fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def or_null(schema: Schema) -> Schema:
    """The schema of a value or null; a schema of any value already includes null."""
    return {"anyOf": [schema, {"type": "null"}]} if schema.keys() - {"description"} else schema


def ref(name: str) -> Schema:
    """A reference to the schema of this name."""
    return {"$ref": f"#/components/schemas/{name}"}
