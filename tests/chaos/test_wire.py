"""Commits are seen however the network cuts the stream, and where there are none, none are seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.wire import GSS_REQUEST, KEPT_BYTES, SSL_REQUEST, Conversation, Passed

STARTUP = (3 << 16).to_bytes(4) + b"user\0postgres\0\0"
IDLE, OPEN = b"I", b"T"


def untyped(body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4) + body


def message(letter: bytes, body: bytes = b"") -> bytes:
    return letter + untyped(body)


def query(text: str) -> bytes:
    return message(b"Q", text.encode() + b"\0")


def ready(status: bytes) -> bytes:
    return message(b"Z", status)


def begun(status: bytes = IDLE) -> Conversation:
    """A conversation whose startup is behind it."""
    conversation = Conversation()
    assert not list(conversation.requested(untyped(STARTUP)))
    conversation.answered(message(b"R", bytes(4)) + ready(status))
    return conversation


def seen(conversation: Conversation, data: bytes) -> list[Passed]:
    return [passed for passed, _ in conversation.requested(data)]


@pytest.mark.parametrize(
    "text", ["COMMIT", "COMMIT;", "commit", " Commit ; ", "end", "COMMIT WORK"]
)
def test_a_commit_is_seen_in_whatever_words(text: str) -> None:
    assert seen(begun(OPEN), query(text)) == [Passed.COMMIT]


@pytest.mark.parametrize(
    "text", ["", "BEGIN;", "ROLLBACK;", "select 'commit'", "commit prepared 'x'"]
)
def test_what_commits_nothing_is_no_commit(text: str) -> None:
    assert not seen(begun(), query(text))
    assert not seen(begun(OPEN), query(text))


def test_a_text_that_writes_commits_by_itself_only_outside_of_a_transaction() -> None:
    long_insert = query("insert into t\nvalues ('" + "x" * 2 * KEPT_BYTES + "')")
    assert seen(begun(), long_insert) == [Passed.COMMIT_BY_ITSELF]
    assert not seen(begun(OPEN), long_insert)


def test_an_execution_commits_with_its_sync_only_outside_of_a_transaction() -> None:
    unit = message(b"B", b"\0\0") + message(b"E", bytes(5)) + message(b"S")
    assert seen(begun(), unit) == [Passed.EXECUTE, Passed.COMMIT_BY_ITSELF]
    assert not seen(begun(OPEN), unit)


def test_a_sync_without_an_execution_commits_nothing() -> None:
    assert not seen(begun(), message(b"P", b"\0select 1\0\0\0") + message(b"S"))


def test_the_server_says_when_a_transaction_is_over() -> None:
    conversation = begun(OPEN)
    conversation.answered(message(b"C", b"COMMIT\0") + ready(IDLE))
    assert seen(conversation, query("delete from t")) == [Passed.COMMIT_BY_ITSELF]


@given(st.lists(st.integers(min_value=1, max_value=7), min_size=1))
def test_it_does_not_matter_where_the_network_cuts(sizes: list[int]) -> None:
    before = query("insert into t values (1)") + message(b"P", b"x" * 100) + message(b"S")
    data = untyped(STARTUP) + before + query("COMMIT;") + query("select 1")
    conversation = Conversation()
    ends = []
    at = 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        ends += [(passed, at + end) for passed, end in conversation.requested(data[at : at + size])]
        at += size
    assert ends == list(Conversation().requested(data))
    assert ends[-1] == (Passed.COMMIT, len(data) - len(query("select 1")))


@pytest.mark.parametrize("question", [SSL_REQUEST, GSS_REQUEST])
def test_a_question_for_encryption_comes_before_the_startup(question: int) -> None:
    conversation = Conversation()
    assert not seen(conversation, untyped(question.to_bytes(4)))
    conversation.answered(b"N")
    assert not seen(conversation, untyped(STARTUP))
    conversation.answered(ready(OPEN))
    assert seen(conversation, query("COMMIT;")) == [Passed.COMMIT]


def test_an_encrypted_stream_is_not_read() -> None:
    conversation = Conversation()
    assert not seen(conversation, untyped(SSL_REQUEST.to_bytes(4)))
    conversation.answered(b"S")
    assert not seen(conversation, untyped(STARTUP) + query("COMMIT;"))


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_stream_of_anything_is_let_pass(requests: bytes, answers: bytes) -> None:
    conversation = Conversation()
    conversation.answered(answers)
    list(conversation.requested(b"POST / HTTP/1.1\r\n" + requests))
    assert not seen(conversation, untyped(STARTUP) + query("COMMIT;"))
