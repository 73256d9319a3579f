"""Secrets are filled in when something is sent, and struck out of what comes back."""

import base64
import html
import json
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourbell.security.secrets import REDACTED, WITHHELD_WHOLE, Redactor, filled, names_in

SECRET = "s3cr3t/value+with='odd' & ünïcode"
CANARIES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)


def test_placeholders_are_found_wherever_they_are() -> None:
    document = {"a": ["x {{secret:one}} {{secret:two-2}}", 7], "{{secret:key}}": None}
    assert names_in(document) == {"one", "two-2", "key"}
    assert names_in("{{secret:}} {{ secret:x }} {secret:y} {{secret:a b}}") == set()


def test_values_take_their_places_and_nothing_else_changes() -> None:
    document = {"auth": "Bearer {{secret:t}}", "n": [1, None, True, "{{secret:t}}{{secret:t}}"]}
    assert filled(document, {"t": "v{{secret:t}}"}) == {
        "auth": "Bearer v{{secret:t}}",
        "n": [1, None, True, "v{{secret:t}}v{{secret:t}}"],
    }


def test_a_secret_that_there_is_not_is_told() -> None:
    with pytest.raises(KeyError, match="gone"):
        filled("{{secret:gone}}", {})


@pytest.mark.parametrize(
    "echo",
    [
        SECRET,
        SECRET.upper(),
        quote(SECRET),
        quote(SECRET, safe=""),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        json.dumps(SECRET, ensure_ascii=False),
        json.dumps(SECRET),
        quote_plus(SECRET),
        html.escape(SECRET),
        html.escape(SECRET, quote=False),
        SECRET.encode("latin-1").decode("utf-8", "replace"),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"user:{SECRET}".encode()).decode(),
        base64.b64encode(f"a{SECRET}b".encode()).decode(),
        base64.b64encode(f"ab{SECRET}cd".encode()).decode(),
    ],
)
def test_every_disguise_is_struck_out(echo: str) -> None:
    said = Redactor([SECRET]).redacted(f"you sent {echo}, I think")
    assert REDACTED in said
    assert SECRET not in said
    assert said.startswith("you sent ")
    assert said.endswith(", I think")


@given(CANARIES, st.binary(max_size=5), st.binary(max_size=5))
def test_no_disguise_of_any_secret_stays_readable(value: str, before: bytes, after: bytes) -> None:
    redactor = Redactor([value])
    raw = value.encode()
    for echo in (
        value,
        raw.hex(),
        quote(value, safe=""),
        json.dumps(value),
        base64.b64encode(before + raw + after).decode(),
        base64.urlsafe_b64encode(before + raw + after).decode(),
    ):
        assert REDACTED in redactor.redacted(echo)


def test_without_secrets_nothing_is_struck_out() -> None:
    assert Redactor([]).redacted("as it is") == "as it is"


@pytest.mark.parametrize("length", range(1, len(SECRET)))
def test_of_a_text_that_was_cut_off_the_beginning_of_a_value_goes_too(length: int) -> None:
    redactor = Redactor([SECRET, "another-value"])
    begun = redactor.redacted_beginning(f"you sent {SECRET} and {SECRET[:length].upper()}")
    assert begun == f"you sent {REDACTED} and "


@given(st.text("ab", max_size=30), st.text("ab", min_size=8, max_size=30))
def test_the_longest_beginning_goes(text: str, value: str) -> None:
    cut = Redactor([value]).redacted_beginning(text + "|" + value[:-1])
    longest = max(n for n in range(len(value)) if (text + "|" + value[:-1]).endswith(value[:n]))
    assert cut == Redactor([value]).redacted(text + "|") + value[: len(value) - 1 - longest]


def test_of_a_text_that_was_cut_off_a_whole_value_is_struck_out_whatever_has_begun_in_it() -> None:
    redactor = Redactor(["abcdefgh", "ghijklmnop"])
    assert redactor.redacted_beginning("it: abcdefghij") == f"it: {REDACTED}"
    assert redactor.redacted_beginning("it: abcdefgh") == f"it: {REDACTED}"


def test_values_that_overlap_are_struck_out_together() -> None:
    redactor = Redactor(["abcdefgh", "ghijklmnop", "cdefghij"])
    assert redactor.redacted("<abcdefghijklmnop>") == f"<{REDACTED}>"
    assert redactor.redacted("<abcdefghabcdefgh>") == f"<{REDACTED}{REDACTED}>"


@given(st.text(max_size=20), CANARIES, st.text(max_size=20))
def test_what_stands_around_a_value_is_left_as_it_is(before: str, value: str, after: str) -> None:
    redacted = Redactor([value + "~~~~"]).redacted(f"{before}|{value}~~~~|{after}")
    assert redacted == f"{before}|{REDACTED}|{after}"


def test_every_character_keeps_its_place_when_case_is_ignored() -> None:
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)])) + "ΑΣ Σ"
    assert Redactor(["secret-value"]).redacted(text + "SECRET-VALUE!") == text + REDACTED + "!"


@pytest.mark.parametrize(
    "tail", ["b{:05d}", "b" + "a" * 4000 + "{:05d}", "\u00fc" * 4000 + "{:05d}"]
)
def test_many_large_values_take_no_longer_than_it_takes_to_read_them(tail: str) -> None:
    """It is done in the loop. 10 to 70 ms; the bound has room for machines that do something else."""
    values = [("a" * 8192 + tail.format(number))[-8192:] for number in range(30)]
    began = time.process_time()
    Redactor(values).redacted_beginning("a" * 16_384)
    assert time.process_time() - began < 0.5


def test_of_a_document_keys_and_texts_are_searched_and_the_rest_stays() -> None:
    redactor = Redactor(["secret-value"])
    document = {"a": ["<secret-value>", "", 7, None, {"SECRET-VALUE": "secret-"}], "value": [[]]}
    assert redactor.redacted_document(document) == {
        "a": [f"<{REDACTED}>", "", 7, None, {REDACTED: "secret-"}],
        "value": [[]],
    }
    assert redactor.redacted_document([1, [], None]) == [1, [], None]
    assert redactor.redacted_document("secret-value") == REDACTED


@pytest.mark.parametrize(
    "document",
    [
        {"pin": 1234567890},
        ["\0", "1234567890"],
        ["1234\n567890", "x"],
        ["x", "MTIz\nNDU2\nNzg5\nMA=="],
    ],
)
def test_a_document_that_cannot_be_searched_text_by_text_goes_as_a_whole(document: object) -> None:
    assert Redactor(["1234567890"]).redacted_document(document) == WITHHELD_WHOLE


def test_a_value_that_goes_from_one_text_to_the_next_takes_all_along() -> None:
    assert Redactor(['abcd","efgh']).redacted_document(["abcd", "efgh"]) == WITHHELD_WHOLE
    assert Redactor(["abcd\0efgh"]).redacted_document(["abcd", "efgh"]) == WITHHELD_WHOLE


def test_many_texts_take_no_longer_than_one() -> None:
    """It is done in the loop. About 5 ms; text by text it would be half a second."""
    values = [f'{number:04}/+&<\u00e9"' + chr(97 + number % 26) * 290 for number in range(100)]
    redactor = Redactor(values)
    began = time.process_time()
    assert redactor.redacted_document([""] * 5400) == [""] * 5400
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize("value", ["abcabcabcabc", "aaaaaaaa", "aabaaaabaa"])
def test_a_value_that_overlaps_itself_leaves_no_rest(value: str) -> None:
    redactor = Redactor([value])
    for overlap in range(1, len(value)):
        if value[:overlap] == value[-overlap:]:
            chain = value + value[overlap:] * 3
            assert redactor.redacted(f"<{chain}>") == f"<{REDACTED}>"


@given(st.text("ab", max_size=60), st.text("ab", min_size=8, max_size=12))
def test_whatever_belongs_to_a_value_anywhere_goes(text: str, value: str) -> None:
    text = f"{text}{value}|{text}"
    starts = [at for at in range(len(text)) if text.startswith(value, at)]
    covered = {place for at in starts for place in range(at, at + len(value))}
    left = "".join(each for place, each in enumerate(text) if place not in covered)
    assert Redactor([value]).redacted(text).replace(REDACTED, "") == left


@pytest.mark.parametrize("unit", ["a", "ab", "aab"])
def test_values_that_overlap_themselves_take_no_longer(unit: str) -> None:
    """It is done in the loop. About 5 ms; place by place it would be half a second."""
    redactor = Redactor([(unit * 300)[: 200 + number] for number in range(100)])
    began = time.process_time()
    assert redactor.redacted(unit * 5_000) == REDACTED
    assert time.process_time() - began < 0.3


SPELT_OTHERWISE = [
    ("sk/live/9f8e7d6c", r"{\"e\":\"sk\/live\/9f8e7d6c\"}"),  # PHP: json_encode
    (
        "sk/live/9f8e7d6c",
        r"{\"e\":\"{\\\"e\\\":\\\"sk\\\/live\\\/9f8e7d6c\\\"}\"}",
    ),  # of what is JSON already
    ("p&ss<w0rd>12", r"{\"e\":\"p\u0026ss\u003cw0rd\u003E12\"}"),  # Go, .NET
    ("t\u00f6k/\U0001f511-secret", r"t\u00f6k\/\uD83D\uDD11-secret"),
    ("pa!ss/w(0)rd", "k=pa!ss%2Fw(0)rd&"),  # JavaScript: encodeURIComponent
    ("pa*ss w(0)rd", "k=pa*ss+w%280%29rd"),  # URLSearchParams
    ("pa!ss/w(0)rd", r"{\"url\":\"https:\/\/x\/?k=pa!ss%2Fw(0)rd\"}"),
    ("t\u00f6k-s\u00e9cret-1", "t%F6k-s%E9cret-1"),
    ("t\u00f6k-s\u00e9cret-1", "t%c3%b6k-s\u00e9cret-1"),
    ("it's-a-secret", "it&#039;s-a-secret"),  # PHP: htmlspecialchars
    ("it's-a-secret", "it&#39;s-a-secret"),  # Go
    ("it's-a-secret", "it&#X27;s&#45;a&hyphen;secret, or it&apos;s-a-secret"),
    ("x" * 5 + "0123456789" * 8, base64.encodebytes(b"xxxxx" + b"0123456789" * 8).decode()),
    (
        "x" * 5 + "0123456789" * 8,
        json.dumps(base64.encodebytes(b"ab:xxxxx" + b"0123456789" * 8).decode()),
    ),
    ("0123456789-abc/_~?>", quote(base64.b64encode(b"k=0123456789-abc/_~?>").decode(), safe="/")),
    ("0123456789-abc", b"0123456789-abc".hex(" ")),
    ("0123456789-abc", "01234567\r\n 89-abc"),
]


@pytest.mark.parametrize(("value", "echo"), SPELT_OTHERWISE)
def test_a_text_that_has_a_value_in_another_spelling_is_withheld(value: str, echo: str) -> None:
    redactor = Redactor(["another-value", value])
    assert redactor.redacted(f"you sent {echo}, I think") == WITHHELD_WHOLE
    assert redactor.redacted_beginning(f"you sent {echo}, I think") == WITHHELD_WHOLE
    assert redactor.redacted_document({"a": [1, "x", f"sent {echo}"]}) == WITHHELD_WHOLE
    assert redactor.redacted_document({f"sent {echo}": ""}) == WITHHELD_WHOLE


@pytest.mark.parametrize(
    ("value", "begun"),
    [
        ("sk/live/9f8e7d6c", r"sk\/live\/"),
        ("sk/live/9f8e7d6c", r"sk\/live\/9f8e7d6"),
        ("p&ss<w0rd>12", r"p\u0026ss\u003cw0rd\u003"),
        ("p&ss<w0rd>12", r"p\u0026ss\u003cw0rd\\"[:-1]),
        ("pa!ss/w(0)rd", "pa!ss%2Fw(0)r"),
        ("pa!ss/w(0)&d", "pa!ss%2Fw(0)%2"),
        ("it's-a-secret-isn't-it", "it&#039;s-a-secret-isn&#03"),
        (
            "x" * 5 + "0123456789" * 8,
            base64.encodebytes(b"xxxxx" + b"0123456789" * 8).decode()[:90],
        ),
    ],
)
def test_of_a_text_that_was_cut_off_the_beginning_of_another_spelling_counts_too(
    value: str, begun: str
) -> None:
    assert Redactor([value]).redacted_beginning(f"you sent {begun}") == WITHHELD_WHOLE


def test_a_text_that_was_cut_off_within_a_character_is_searched_to_its_end() -> None:
    cut = "you sent s\u00e9cr\u00e9t-\u00e9 or so".encode()[: len("you sent s_cr_t-") + 3]
    redactor = Redactor(["s\u00e9cr\u00e9t-\u00e9\u00e9"])
    assert redactor.redacted_beginning(cut.decode("utf-8", "replace")) == "you sent "


def test_what_only_looks_encoded_is_left_as_it_is() -> None:
    said = (
        r"100 % of \"C:\new\u12\" &amp; &#39; &#xyz; &&#; %zz %F6 a-b_c+d= \ud800 \\"
        + "&#"
        + "9" * 9_000
    )
    assert Redactor(["secret-value"]).redacted(said) == said
    assert Redactor(["secret-value"]).redacted_document([said, "x"]) == [said, "x"]


def test_a_value_that_is_short_without_its_spaces_and_dashes_withholds_nothing_innocent() -> None:
    redactor = Redactor(["a - b - c"])
    assert redactor.redacted("abc a-b-c <a - b - c>") == f"abc a-b-c <{REDACTED}>"


@pytest.mark.parametrize(
    "text", ["\\n", "\\u0041", "%41", "&#39;", "&ab", "\u00fc%fc", " +-", "\\"]
)
def test_other_spellings_of_many_values_take_no_longer_than_it_takes_to_read_them(
    text: str,
) -> None:
    """It is done in the loop. About 50 ms; the bound has room for machines that do something else."""
    redactor = Redactor(
        [f'{number:04}/+&<\u00e9"' + chr(97 + number % 26) * 290 for number in range(100)]
    )
    text = (text * 16_384)[:16_383] + "|"
    began = time.process_time()
    assert redactor.redacted_beginning(text) == text
    assert time.process_time() - began < 0.5
