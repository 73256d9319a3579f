import pytest

from hourbell.model.traces import read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-03", f"00-{TRACE}-{SPAN}-03"),
        (f" 00-{TRACE}-{SPAN}-01\t", f"00-{TRACE}-{SPAN}-01"),
        # Flags that version 00 does not have are dropped.
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),
        # Of a later version what is known is read: more may follow, and only the first flag is known.
        (f"01-{TRACE}-{SPAN}-03-more", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
    ],
)
def test_a_valid_trace_context_is_read(text: str, read: str) -> None:
    assert read_traceparent(text) == read


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "garbage",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        "0" * 100_000,
    ],
)
def test_anything_else_is_ignored(text: str | None) -> None:
    assert read_traceparent(text) is None
