"""As much of PostgreSQL's protocol as one must know to see a commit pass by.

Both directions are streams of messages: a letter, a length, a body. Only the very first messages of
a client have no letter: the startup packet, and before it perhaps a question for encryption, which
the server answers with a single byte. A client commits in one of three ways:

    Query "COMMIT"             the end of an explicit transaction, as asyncpg sends it
    Query "insert …"           a text that writes, outside of a transaction: it commits by itself
    Bind, Execute, …, Sync     the same for a statement with parameters: its Sync is its commit

Whether a transaction is open, the server says with each ReadyForQuery. What a message holds is not
kept beyond the first bytes. A stream that is not PostgreSQL's, or is encrypted, is recognised as
such and looked at no further: nothing commits in it as far as we can tell. Not recognised either is
a COMMIT that is itself prepared and executed; asyncpg never sends one.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

KEPT_BYTES = 64  # of the body of each message; enough for COMMIT and for the first word of any text
LONGEST_STARTUP_BYTES = 10_000  # the server's own limit

PROTOCOL_3 = 3
SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
PLAIN = b"N"  # the answer to a question for encryption that is declined

COMMITS = {"commit", "commit work", "commit transaction", "end", "end work", "end transaction"}
WRITING_WORDS = {"insert", "update", "delete", "merge", "with", "call", "do"}


class Passed(Enum):
    """What has been said in full."""

    COMMIT = "an explicit transaction is to be committed"
    EXECUTE = "a statement is executed outside of a transaction; it commits with its Sync"
    COMMIT_BY_ITSELF = (
        "what was asked since the last Sync, outside of a transaction, is to be committed"
    )


class Conversation:
    """What the two ends of a connection say to each other, as far as commits go."""

    def __init__(self) -> None:
        self._requests = _Messages(first_without_letter=True)
        self._answers = _Messages(first_without_letter=False)
        self._in_transaction = False
        self._executed = False  # since the last Sync, and outside of a transaction
        self._questions = 0  # for encryption, not answered yet
        self._opaque = False

    def requested(self, data: bytes) -> Iterator[tuple[Passed, int]]:
        """What these bytes of the client complete, each with the number of bytes up to its end."""
        if self._opaque:
            return
        for letter, body, end in self._requests.feed(data):
            match letter:
                case b"":
                    self._start(body)
                case b"Q":
                    text = body.rstrip(b"\0").decode("latin-1").strip().rstrip("; ").lower()
                    if text in COMMITS:
                        yield Passed.COMMIT, end
                    elif not self._in_transaction and WRITING_WORDS & set(text.split()[:1]):
                        yield Passed.COMMIT_BY_ITSELF, end
                case b"E" if not self._in_transaction:
                    self._executed = True
                    yield Passed.EXECUTE, end
                case b"S" if self._executed:
                    self._executed = False
                    yield Passed.COMMIT_BY_ITSELF, end
        self._opaque |= self._requests.strange

    def answered(self, data: bytes) -> None:
        """Take note of these bytes of the server."""
        if self._questions and data:
            self._questions -= 1
            self._opaque |= data[:1] != PLAIN
            data = data[1:]
        if self._opaque:
            return
        for letter, body, _ in self._answers.feed(data):
            if letter == b"Z":
                self._in_transaction = body != b"I"
        self._opaque |= self._answers.strange

    def _start(self, body: bytes) -> None:
        code = int.from_bytes(body[:4])
        if code in (SSL_REQUEST, GSS_REQUEST):
            self._questions += 1
        elif code >> 16 == PROTOCOL_3:
            self._requests.letters_from_here()
        else:
            self._opaque = True  # a request to cancel, after which nothing comes; or something else


class _Messages:
    """Divides one direction into messages, however the network has cut it."""

    def __init__(self, *, first_without_letter: bool) -> None:
        self._letter_bytes = 0 if first_without_letter else 1
        self._head = b""  # letter and length, as far as they have come
        self._body = b""  # its first bytes
        self._missing = 0  # bytes of the body that have not come
        self.strange = False  # these are no such messages

    def letters_from_here(self) -> None:
        self._letter_bytes = 1

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        """The messages that end in these bytes: letter, beginning of the body, where they end."""
        at = 0
        while not self.strange:
            head_bytes = self._letter_bytes + 4
            if len(self._head) < head_bytes:
                piece = data[at : at + head_bytes - len(self._head)]
                self._head += piece
                at += len(piece)
                if len(self._head) < head_bytes:
                    return
                self._measure()
                continue
            kept = min(self._missing, KEPT_BYTES - len(self._body))
            self._body += data[at : at + kept]
            passed = min(self._missing, len(data) - at)
            at += passed
            self._missing -= passed
            if self._missing:
                return
            letter, body = self._head[: self._letter_bytes], self._body
            self._head = self._body = b""
            yield letter, body, at

    def _measure(self) -> None:
        length = int.from_bytes(self._head[self._letter_bytes :])
        if self._letter_bytes:
            self.strange = length < 4
        else:
            self.strange = not 8 <= length <= LONGEST_STARTUP_BYTES
        self._missing = length - 4
