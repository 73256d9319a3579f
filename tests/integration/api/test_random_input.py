"""Whatever is sent, the API answers it: done, or refused with a reason; never an error of its own."""

import copy
import json
from typing import Any
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.api.client import CONTRACT_JOB, Client, one_time, recurring

BOUNDED = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(
        [2**63, -(2**63), 10**300, "\0", "UTC", "* * * * *", "2026-04-07T00:00:00Z", "LIST", "\x7f"]
    )
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
WORDS = st.sampled_from(
    [
        "cron",
        "at",
        "delay_seconds",
        "every_seconds",
        "starts_at",
        "ends_at",
        "max_runs",
        "type",
        "timezone",
        "queue",
        "tenant_id",
        "deadline_seconds",
        "url",
        "headers",
        "payload",
        "name",
    ]
)


@st.composite
def nearly_jobs(draw: st.DrawFn) -> Any:
    """A good job with a few places of it replaced, removed or added."""
    job = copy.deepcopy(draw(st.sampled_from([CONTRACT_JOB, one_time(), recurring()])))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = job
        while True:
            key = draw(st.sampled_from([*place]) | WORDS if place else WORDS)
            if isinstance(place.get(key), dict) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.integers(0, 4)):
                place[key] = draw(JSON)
            else:
                place.pop(key, None)
            break
    return job


@BOUNDED
@given(document=JSON | nearly_jobs())
async def test_any_json_is_created_or_refused(api: Client, document: Any):
    answer = await api.post("/api/v1/jobs", body=json.dumps(document).encode())
    assert answer.status in (201, 400, 422), answer.body
    if answer.status == 201:
        assert (await api.get(answer.headers["Location"])).status == 200


@BOUNDED
@given(patch=JSON | nearly_jobs())
async def test_any_patch_is_applied_or_refused(api: Client, patch: Any):
    job = await api.created(recurring())
    answer = await api.patch(job["path"], body=json.dumps(patch).encode())
    assert answer.status in (200, 400, 422), answer.body


@BOUNDED
@given(body=st.binary())
async def test_any_bytes_are_refused(api: Client, body: bytes):
    answer = await api.post("/api/v1/jobs", body=body)
    assert answer.status in (400, 422), answer.body


@BOUNDED
@given(
    query=st.dictionaries(
        st.sampled_from(["tenant_id", "status", "page_size", "page_token"]) | st.text(),
        st.text() | st.integers().map(str),
        max_size=4,
    ),
    path=st.text(),
)
async def test_any_path_and_query_are_answered(api: Client, query: dict[str, str], path: str):
    text = "&".join(f"{quote(key)}={quote(value)}" for key, value in query.items())
    assert (await api.get(f"/api/v1/jobs?{text}")).status in (200, 422)
    assert (await api.get(f"/api/v1/jobs/x{quote(path, safe='')}")).status in (404, 422)
