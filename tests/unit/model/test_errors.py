import re

import pytest

from hourbell.model import errors
from hourbell.model.errors import FieldError, HourbellError, InvalidInput

EXAMPLES = [
    InvalidInput([FieldError("schedule.cron", "required", "is required")]),
    errors.IdempotencyKeyMissing(),
    errors.NotFound("job", "job_0000000000016"),
    errors.UnknownId("execution", "exe_nonsense"),
    errors.Conflict("It conflicts with something."),
    errors.IdempotencyKeyReused("a-key"),
    errors.QuotaExceeded("acme", 100),
    errors.DuplicateJob("job_0000000000016"),
    errors.PreconditionFailed("Job job_0000000000016", 3),
    errors.JobNotActive("job_0000000000016", "COMPLETED"),
    errors.Unauthenticated("The request has no API key. Send one."),
    errors.TooManyFailures(3),
    errors.Forbidden("A viewer may not do this. Use another key."),
    errors.NoSecretKeys("This process has no key."),
    errors.StaleFence("exe_0000000000016", 7),
    errors.SessionLost(),
    errors.NotLeader("epoch 3 is over"),
    errors.Overloaded(),
    errors.Busy(),
    errors.StoreUnavailable("connection refused"),
    errors.EmbeddedServerFailed("It does not start.", "FATAL: out of disk"),
    errors.ConfigurationError("HOURBELL_PORT must be a number."),
    errors.MissingExtra("The server", ["server", "embedded"]),
    errors.DataFolderBusy("data"),
    errors.UnsafeDatabase("The database runs with fsync = off: set fsync = on."),
    errors.IncompatibleDatabase("0009_newer.sql", "0008_needed.sql", "0007_known.sql"),
    errors.UnreleasedDatabase("0001_core.sql"),
]


def everything_under(root: type[HourbellError]) -> set[type[HourbellError]]:
    return {root}.union(*(everything_under(child) for child in root.__subclasses__()))


def test_every_error_of_the_tree_has_an_example_here():
    here = {kind for kind in everything_under(HourbellError) if kind.__module__ == errors.__name__}
    assert {type(example) for example in EXAMPLES} == here - {HourbellError}


def test_codes_are_snake_case_and_each_its_own():
    # Those of the library that say the same in other words inherit the code.
    codes = [kind.code for kind in everything_under(HourbellError) if "code" in vars(kind)]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_the_drawing_shows_every_error_with_its_code():
    drawn = dict(re.findall(r"[├└]── (\w+) +(\w+)", errors.__doc__ or ""))
    assert drawn == {type(example).__name__: type(example).code for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.code)
def test_every_message_is_whole_sentences_and_is_what_str_shows(example: HourbellError):
    assert str(example) == example.message
    assert example.title
    assert example.message[0].isupper() or example.message[0] == "'"


def test_invalid_input_tells_every_field_in_its_message():
    error = InvalidInput(
        [FieldError("", "wrong_type", "must be an object"), FieldError("name", "required", "is so")]
    )
    assert "2 fields are invalid" in error.message
    assert "document: must be an object" in error.message
    assert "name: is so" in error.message


def test_invalid_input_without_a_wrong_field_is_a_programmers_error():
    with pytest.raises(ValueError, match="at least one"):
        InvalidInput([])


def test_a_message_never_carries_text_that_cannot_be_printed():
    error = errors.IdempotencyKeyReused("\ud800\x00\n" + "x" * 10_000)
    error.message.encode()
    assert "\n" not in error.message
    assert len(error.message) < 500
