"""The document of a calendar: a named list of dates."""

import re
from datetime import date

import msgspec

from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import LABEL, LABEL_IS, Array, Kind, Label, Schema
from hourbell.documents.problems import Problems
from hourbell.model.errors import FieldError, InvalidInput

MAX_DATES = 2_000  # per calendar
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class NewCalendar(msgspec.Struct, frozen=True):
    """A checked request to set a calendar."""

    dates: tuple[date, ...]
    tenant_id: str | None


class _Date(Kind[date]):
    """A date without a time."""

    def read(self, value: object, path: str, problems: Problems) -> date | None:
        if not isinstance(value, str):
            problems.add_wrong_type(path, "a string", value)
            return None
        try:
            if _DATE.fullmatch(value):
                return date.fromisoformat(value)
        except ValueError:
            pass
        problems.add(path, "bad_format", "must be a valid date like 2027-12-25")
        return None

    @property
    def schema(self) -> Schema:
        return {"type": "string", "format": "date"}

    def render(self, value: date) -> object:
        return value.isoformat()


class CalendarDocument(Document):
    dates = Field(
        Array(_Date(), 0, MAX_DATES, distinct=True),
        required=REQUIRED,
        description="Dates, in the time zone of each schedule that excludes them.",
    )
    tenant_id = Field(Label())


def parse_calendar(document: object) -> NewCalendar:
    """The calendar that a document sets; raises InvalidInput with every invalid field."""
    calendar = CalendarDocument.open(document, Problems())
    dates, tenant_id = calendar.dates, calendar.tenant_id
    calendar.finish()
    calendar.problems.raise_if_any()
    assert dates is not None  # it is required
    return NewCalendar(tuple(sorted(dates)), tenant_id)


def check_calendar_name(name: str) -> None:
    """Raise InvalidInput if this is not a valid calendar name."""
    if not LABEL.fullmatch(name):
        raise InvalidInput([FieldError("name", "bad_format", f"must be {LABEL_IS}")])
