"""GET /api/v1/jobs"""

import base64
from urllib.parse import quote

from integration.api.client import Client, one_time, recurring

JOBS = "/api/v1/jobs"


async def test_an_empty_list_has_no_next_page(api: Client):
    assert (await api.get(JOBS)).body == {"items": [], "next_page_token": None}


async def test_pages_give_every_job_once_newest_first(api: Client):
    made = []
    for number in range(8):
        document = one_time() if number % 2 else recurring()
        made.append((await api.created(document))["job_id"])
    await api.delete(f"{JOBS}/{made.pop(1)}")  # leaves the list
    found: list[str] = []
    path = f"{JOBS}?page_size=3"
    sizes = []
    while path:
        page = (await api.get(path)).body
        sizes.append(len(page["items"]))
        found += [job["job_id"] for job in page["items"]]
        token = page["next_page_token"]
        path = f"{JOBS}?page_size=3&page_token={token}" if token else ""
    assert found == made[::-1]
    assert sizes == [3, 3, 1]


async def test_a_page_has_fifty_jobs_unless_told(api: Client):
    for _ in range(51):
        await api.created(one_time())
    page = (await api.get(JOBS)).body
    assert len(page["items"]) == 50
    assert page["next_page_token"]


async def test_the_list_can_be_of_one_tenant(api: Client):
    await api.created(one_time(tenant_id="a"))
    mine = [
        (await api.created(recurring(tenant_id="b")))["job_id"],
        (await api.created(one_time(tenant_id="b")))["job_id"],
    ]
    page = (await api.get(f"{JOBS}?tenant_id=b")).body
    assert [job["job_id"] for job in page["items"]] == mine[::-1]
    assert (await api.get(f"{JOBS}?tenant_id=nobody")).body["items"] == []


async def test_the_list_can_be_of_one_status(api: Client):
    expected: dict[str, set[str]] = {"SCHEDULED": set(), "PAUSED": set(), "CANCELLED": set()}
    for document in (one_time(), recurring()):
        for status in expected:
            job = await api.created(document)
            if status == "PAUSED":
                await api.post(job["path"] + "/pause")
            if status == "CANCELLED":
                await api.delete(job["path"])
            expected[status].add(job["job_id"])
    for status, ids in expected.items():
        items = (await api.get(f"{JOBS}?status={status}")).body["items"]
        assert {job["job_id"] for job in items} == ids
        assert {job["status"] for job in items} == {status}
    assert (await api.get(f"{JOBS}?status=COMPLETED")).body["items"] == []


async def test_a_page_size_out_of_bounds_is_refused(api: Client):
    for size in ("0", "501", "-1", "x", "", "1.5", "1e2", "+1", "１", "9" * 40):
        answer = await api.get(f"{JOBS}?page_size={quote(size)}")
        assert answer.is_problem(422, "invalid_input"), size
        assert answer.paths == {"page_size"}


def token(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


STRANGE_POSITIONS = [
    "",
    "x",
    "%00",
    "%FF",
    "é",
    token(b"null"),
    token(b"-1"),
    token(b"1.5"),
    token(b"9223372036854775808"),
    token(b"9" * 300),
    token(b"[" * 3000),
    token(b'["0001-01-01T00:00:00",1]'),
    token(b'["2026-01-01T00:00:00Z"]'),
]


def strange_tokens(operation: str) -> list[str]:
    """Tokens that a list did not return, as they are and as if they were its own."""
    return STRANGE_POSITIONS + [f"{operation}.{position}" for position in STRANGE_POSITIONS]


async def test_a_page_token_that_no_list_gave_is_refused(api: Client):
    for text in strange_tokens("list_jobs"):
        answer = await api.get(f"{JOBS}?page_token={text}")
        assert answer.is_problem(422, "invalid_input"), text
        assert answer.paths == {"page_token"}


async def test_all_wrong_parameters_are_named_at_once(api: Client):
    answer = await api.get(f"{JOBS}?page_size=0&status=OPEN&tenant=a&tenant_id=%00&page_size=1")
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"page_size", "status", "tenant", "tenant_id"}
