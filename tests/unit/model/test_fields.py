"""One declaration of a field gives its reader, its renderer and its JSON Schema."""

from types import SimpleNamespace
from typing import Any

import pytest

from hourbell.documents.fields import (
    REQUIRED,
    Document,
    Field,
    Object,
    request_object,
    response_object,
)
from hourbell.documents.kinds import Array, Boolean, Integer, Json, Line, String, one_of
from hourbell.documents.problems import Problems
from hourbell.model.errors import FieldError, InvalidInput


class Wheel(Document):
    inches = Field(Integer(10, 30), required=REQUIRED)


class Bicycle(Document):
    name = Field(Line(20), required="is required: every bicycle has a name")
    colour = Field(one_of("red", "blue"), default="red", description="Of its frame.")
    gears = Field(Integer(1, 30))
    wheels = Field(Array(Object(Wheel), 1, 2), default=())
    folds = Field(Boolean(), default=False, omit_default=True)
    since = Field(String(), name="from")
    notes = Field(Json(100), description="Anything.")


def opened(document: Any) -> Bicycle:
    return Bicycle.open(document, Problems())


def errors(bicycle: Bicycle) -> list[FieldError]:
    with pytest.raises(InvalidInput) as caught:
        bicycle.problems.raise_if_any()
    return [*caught.value.errors]


def test_a_field_is_read_as_an_attribute():
    bicycle = opened({"name": "Max", "gears": 7, "wheels": [{"inches": 28}], "from": "Berlin"})
    assert (bicycle.name, bicycle.gears, bicycle.since) == ("Max", 7, "Berlin")
    assert [wheel.inches for wheel in bicycle.wheels] == [28]
    bicycle.problems.raise_if_any()


def test_an_omitted_field_and_null_have_the_default():
    bicycle = opened({"name": "Max", "colour": None})
    assert (bicycle.colour, bicycle.gears, bicycle.wheels, bicycle.folds) == (
        "red",
        None,
        (),
        False,
    )
    bicycle.problems.raise_if_any()


def test_every_invalid_field_is_recorded_with_its_path_and_reading_continues():
    bicycle = opened({"colour": "bleu", "gears": 31, "wheels": [{"inches": 5}, 3]})
    assert (bicycle.name, bicycle.colour, bicycle.gears) == (None, "red", None)
    assert [wheel.inches for wheel in bicycle.wheels] == [None]
    assert errors(bicycle) == [
        FieldError("name", "required", "is required: every bicycle has a name"),
        FieldError("colour", "not_a_choice", "is not an allowed value; did you mean blue?"),
        FieldError("gears", "out_of_range", "must be from 1 to 30"),
        FieldError("wheels[1]", "wrong_type", "must be an object, not a number"),
        FieldError("wheels[0].inches", "out_of_range", "must be from 10 to 30"),
    ]


def test_a_field_that_is_not_declared_is_unknown():
    bicycle = opened({"name": "Max", "color": "red", "bell": None})
    _ = bicycle.name
    bicycle.finish()
    assert errors(bicycle) == [
        FieldError("color", "unknown_field", "is not a known field; did you mean colour?"),
        FieldError("bell", "unknown_field", "is not a known field"),
    ]


def test_a_declared_field_that_is_given_cannot_be_ignored():
    bicycle = opened({"name": "Max", "gears": 7, "colour": None})
    _ = bicycle.name
    with pytest.raises(AssertionError, match="gears"):
        bicycle.finish()
    _ = bicycle.gears
    bicycle.finish()


def test_a_forbidden_field_is_not_ignored():
    bicycle = opened({"name": "Max", "gears": 7})
    _ = bicycle.name
    bicycle.forbid("gears", "are not for beginners")
    bicycle.finish()
    assert errors(bicycle) == [FieldError("gears", "conflict", "are not for beginners")]


def test_a_value_is_rendered_as_the_document_that_it_is_read_from():
    wheel = SimpleNamespace(inches=28)
    value = SimpleNamespace(name="Max", colour="blue", gears=None, wheels=(wheel,), folds=False)
    assert Bicycle.render(value, **{"from": "Berlin", "notes": [1]}) == {
        "name": "Max",
        "colour": "blue",
        "gears": None,
        "wheels": [{"inches": 28}],
        "from": "Berlin",
        "notes": [1],
    }


def test_the_schema_of_a_request():
    assert request_object(Bicycle) == {
        "type": "object",
        "additionalProperties": False,
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20},
            "colour": nullable(
                {"enum": ["red", "blue"], "default": "red", "description": "Of its frame."}
            ),
            "gears": nullable({"type": "integer", "minimum": 1, "maximum": 30}),
            "wheels": nullable(
                {"type": "array", "items": request_object(Wheel), "minItems": 1, "maxItems": 2}
            ),
            "folds": nullable({"type": "boolean", "default": False}),
            "from": nullable({"type": "string"}),
            "notes": {"description": "Anything."},
        },
    }


def test_the_schema_of_a_response_has_null_only_where_there_is_no_default():
    schema = response_object(Bicycle, optional=("from",), gears={"type": "integer"})
    assert schema["required"] == ["name", "colour", "gears", "wheels", "notes"]
    assert schema["properties"]["colour"] == {
        "enum": ["red", "blue"],
        "description": "Of its frame.",
    }
    assert schema["properties"]["gears"] == {"type": "integer"}
    assert schema["properties"]["folds"] == {"type": "boolean"}
    assert schema["properties"]["from"] == {"type": "string"}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}
