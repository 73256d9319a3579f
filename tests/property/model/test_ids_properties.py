from hypothesis import given
from hypothesis import strategies as st

from hourbell.model.errors import UnknownId
from hourbell.model.ids import (
    MAX_ID,
    execution_text,
    job_text,
    parse_execution_id,
    parse_job_id,
)

NUMBERS = st.integers(0, MAX_ID)
NEARLY_IDS = st.from_regex(r"(job_|exe_)?[0-9a-zA-Z_-]{12,14}", fullmatch=True)


@given(NUMBERS)
def test_an_id_survives_being_shown(number: int):
    assert parse_job_id(job_text(number)) == number
    assert parse_execution_id(execution_text(number)) == number


@given(NUMBERS, NUMBERS)
def test_the_order_of_texts_is_the_order_of_numbers(one: int, other: int):
    assert (job_text(one) < job_text(other)) == (one < other)


@given(st.text() | NEARLY_IDS)
def test_a_text_is_the_one_text_of_its_number_or_nobodys_id(text: str):
    try:
        number = parse_job_id(text)
    except UnknownId:
        return
    assert job_text(number) == text
