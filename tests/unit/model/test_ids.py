import pytest

from hourbell.model.errors import NotFound, UnknownId
from hourbell.model.ids import (
    MAX_ID,
    execution_text,
    job_text,
    parse_execution_id,
    parse_job_id,
)


def test_an_id_is_a_prefix_and_thirteen_characters():
    assert job_text(0) == "job_0000000000000"
    assert execution_text(38) == "exe_0000000000016"
    assert job_text(MAX_ID) == "job_7zzzzzzzzzzzz"


def test_a_one_time_job_and_its_execution_show_the_same_number():
    assert job_text(12345).removeprefix("job_") == execution_text(12345).removeprefix("exe_")


@pytest.mark.parametrize("number", [-1, MAX_ID + 1])
def test_a_number_that_is_no_id_is_a_programmers_error(number: int):
    with pytest.raises(ValueError, match="from 0 to"):
        job_text(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "job_",
        "0000000000016",  # no prefix
        "exe_0000000000016",  # another's prefix
        "JOB_0000000000016",
        "job_000000000016",  # too short
        "job_00000000000016",  # too long
        "job_job_00000000a",
        "job_000000000001I",  # a letter that the alphabet leaves out
        "job_000000000001u",
        "job_000000000001A",  # upper case would be a second text for the number
        "job_8000000000000",  # 2**63
        "job_zzzzzzzzzzzzz",
        "job_00000000000-1",
        "job_00000000000_1",
        "job_000000000001\n",
        " job_000000000016",
        "job_٠٠٠٠٠٠٠٠٠٠٠١٦",  # digits of another script
        "job_00000000000\ud800\x00",
        pytest.param("job_" + "0" * 100_000, id="long"),
        None,
        38,
        b"job_0000000000016",
    ],
)
def test_anything_else_is_nobodys_id(text: object):
    with pytest.raises(UnknownId) as caught:
        parse_job_id(text)  # type: ignore[arg-type]
    assert isinstance(caught.value, NotFound)
    caught.value.message.encode()
    assert len(caught.value.message) < 500


def test_the_kind_of_an_unknown_id_is_said():
    with pytest.raises(UnknownId, match=r"'x' is not an execution id\. Such an id is exe_"):
        parse_execution_id("x")


def test_parsing_undoes_showing():
    assert parse_job_id("job_7zzzzzzzzzzzz") == MAX_ID
    assert parse_execution_id("exe_0000000000016") == 38
