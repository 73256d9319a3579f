"""What bodies do to the API: nothing."""

import io
import json
from collections.abc import AsyncIterator

import aiohttp

from integration.api.client import Client, one_time, recurring

JOBS = "/api/v1/jobs"
MEBIBYTE = 1024 * 1024


def job_with(payload: bytes) -> bytes:
    """A good job around the bytes of a payload."""
    document = json.dumps(one_time(action={"type": "TASK", "name": "t", "payload": "HERE"}))
    return document.encode().replace(b'"HERE"', payload)


MALFORMED = {
    "nothing": b"",
    "blanks": b"  ",
    "a half": b'{"name": ',
    "two": b"{} {}",
    "a BOM": b"\xef\xbb\xbf{}",
    "UTF-16": '{"name": "x"}'.encode("utf-16"),
    "a form": b"name=x&type=ONE_TIME",
    "NaN": job_with(b"NaN"),
    "Infinity": job_with(b"-Infinity"),
    "a number beyond doubles": job_with(b"1e400"),
    "a number of 5000 digits": job_with(b"9" * 5000),
    "100000 arrays": job_with(b"[" * 100_000 + b"]" * 100_000),
    "100000 objects": job_with(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "an open nest": b"[" * 500_000,
    "a lone surrogate": job_with(rb'"\ud800"'),
    "a reversed pair": job_with(rb'"\udc00\ud800"'),
    "invalid UTF-8": job_with(b'"\xff\xfe"'),
    "overlong UTF-8": job_with(b'"\xc0\xaf"'),
    "a surrogate in UTF-8": job_with(b'"\xed\xa0\x80"'),
    "a raw control character": job_with(b'"\x01"'),
    "a comment": b'{/* x */"name": 1}',
    "a trailing comma": b'{"name": 1,}',
    "single quotes": b"{'name': 1}",
    "a repeated key": b'{"name": "a", "name": "b"}',
    "a repeated key deep inside": job_with(rb'[{"a": {"b": 1, "\u0062": 2}}]'),
}


async def test_a_malformed_body_is_a_400(api: Client):
    for what, body in MALFORMED.items():
        answer = await api.post(JOBS, body=body)
        assert answer.is_problem(400, "malformed_json"), what


REFUSED = {
    "NUL": (job_with(rb'"\u0000"'), "action.payload"),
    "NUL in a key": (job_with(rb'{"a\u0000": 1}'), r"action.payload.a\x00"),
    "a deep payload": (job_with(b"[" * 200 + b"]" * 200), "action.payload" + "[0]" * 32),
    "a number of 4000 digits": (job_with(b"9" * 4000), "action.payload"),
    "a large payload": (job_with(b'"' + b"x" * 300_000 + b'"'), "action.payload"),
}


async def test_a_body_that_could_not_be_kept_is_a_422_with_its_path(api: Client):
    for what, (body, path) in REFUSED.items():
        answer = await api.post(JOBS, body=body)
        assert answer.is_problem(422, "invalid_input"), what
        assert answer.paths == {path}, what


async def test_odd_values_that_can_be_kept_come_back_unchanged(api: Client):
    payload = {
        "big": 2**900,
        "small": 5e-324,
        "large": 1.7976931348623157e308,
        "negative zero": -0.0,
        "text": "\u2028 \U0001f4a9 \x7f \ufeff",
        "": {"": []},
    }
    for document in (one_time(), recurring()):
        action = {"type": "TASK", "name": "t", "payload": payload}
        job = await api.created(document | {"action": action})
        assert job["action"]["payload"] == payload
        assert (await api.get(job["path"])).body["action"]["payload"] == payload


async def test_a_body_over_the_limit_is_a_413(api: Client):
    over = await api.post(JOBS, body=io.BytesIO(b" " * (MEBIBYTE + 1)))
    assert over.is_problem(413, "body_too_large")
    at_it = await api.post(JOBS, body=io.BytesIO(b" " * MEBIBYTE))
    assert at_it.is_problem(400, "malformed_json")


async def test_a_chunked_body_without_end_is_cut_at_the_limit(api: Client):
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1000 * MEBIBYTE:
            yield b" " * 65_536
            sent += 65_536

    try:
        answer = await api.post(JOBS, body=endless())
    except aiohttp.ClientConnectionError:
        pass  # cut off while still sending, before the answer could be read
    else:
        assert answer.is_problem(413, "body_too_large")
    assert sent < 20 * MEBIBYTE
    assert (await api.get("/livez")).status == 200


async def test_a_body_of_another_type_is_a_415(api: Client):
    for content_type in (
        "application/x-www-form-urlencoded",
        "text/plain",
        "application/merge-patch+json",
        "application/jsonx",
        "multipart/form-data",
        "",
        ";;;=,",
        "\xff",
    ):
        answer = await api.post(JOBS, one_time(), headers={"Content-Type": content_type})
        assert answer.is_problem(415, "unsupported_media_type"), content_type


async def test_a_compressed_body_is_a_415(api: Client):
    answer = await api.post(JOBS, one_time(), headers={"Content-Encoding": "gzip"})
    assert answer.is_problem(415, "unsupported_media_type")


async def test_spellings_of_json_are_json(api: Client):
    for content_type in ("application/json; charset=utf-8", "Application/JSON"):
        answer = await api.post(JOBS, one_time(), headers={"Content-Type": content_type})
        assert answer.status == 201
