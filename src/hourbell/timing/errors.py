"""Errors of rules and zones.

    TimingError (a ValueError)   field, reason
    ├── InvalidRule              a rule that cannot be parsed, or that can never match
    └── UnknownZone              the tzdata package has no such zone

`field` says where to look: `second`, `minute`, `hour`, `day-of-month`, `month`, `day-of-week`,
`expression` (the rule as a whole) or `timezone`. `reason` says what is wrong and what to do,
phrased to follow the field's name. `hourbell.documents` turns both into a FieldError.
"""


class TimingError(ValueError):
    """The base class of timing errors."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class InvalidRule(TimingError):
    """A rule that cannot be parsed, or that can never match."""


class UnknownZone(TimingError):
    """There is no such zone; `suggestions` are the nearest names that exist, best first."""

    def __init__(self, reason: str, suggestions: tuple[str, ...] = ()) -> None:
        super().__init__("timezone", reason)
        self.suggestions = suggestions
