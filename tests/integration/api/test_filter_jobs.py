"""GET /api/v1/jobs, by what jobs are."""

from typing import Any
from urllib.parse import quote

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.views import jobs, pages
from hourbell.engine.views.jobs import JobFilter, list_jobs
from hourbell.model.errors import Forbidden
from hourbell.model.ids import job_text
from integration.api.client import Client, one_time, recurring

JOBS = "/api/v1/jobs"


async def ids(api: Client, query: str) -> set[str]:
    return {job["job_id"] for job in await api.pages(f"{JOBS}?{query}")}


async def both(api: Client, **fields: Any) -> set[str]:
    """A one-time and a recurring job; a deleted one beside them is not listed."""
    made = [await api.created(document(**fields)) for document in (one_time, recurring, one_time)]
    await api.delete(made.pop()["path"])
    return {job["job_id"] for job in made}


@pytest.mark.parametrize("of_tenant", ["", "&tenant_id=acme"])
async def test_jobs_are_found_by_queue_name_and_label(api: Client, of_tenant: str):
    wanted = await both(
        api, tenant_id="acme", queue="mail", name="news-letter", labels={"team": "billing"}
    )
    await both(api, tenant_id="acme", queue="other", name="old news", labels={"team": "ops"})
    assert await ids(api, f"queue=mail{of_tenant}") == wanted
    assert await ids(api, f"name_prefix=news{of_tenant}") == wanted
    assert await ids(api, f"label=team:billing{of_tenant}") == wanted
    assert await ids(api, f"label=team:billing&queue=mail&name_prefix=n{of_tenant}") == wanted
    for nothing in ("queue=nowhere", "name_prefix=ews", "label=team:bill", "label=billing:team"):
        assert await ids(api, nothing + of_tenant) == set()
    assert await ids(api, "queue=mail&tenant_id=other") == set()


async def test_a_label_may_have_colons_wherever_it_likes(api: Client):
    job = await api.created(one_time(labels={"a:b": "c:d"}))
    assert await ids(api, "label=a:b:c:d") == {job["job_id"]}


async def test_a_prefix_is_taken_as_it_is(api: Client):
    name = "100%_done'; --"
    job = await api.created(one_time(name=name))
    await api.created(one_time(name="100 done"))
    assert await ids(api, f"name_prefix={quote(name)}") == {job["job_id"]}


async def test_jobs_are_found_by_type(api: Client):
    once, again = await api.created(one_time()), await api.created(recurring())
    assert await ids(api, "type=ONE_TIME") == {once["job_id"]}
    assert await ids(api, "type=RECURRING") == {again["job_id"]}
    assert await ids(api, "type=RECURRING&status=SCHEDULED") == {again["job_id"]}


async def test_a_call_looks_at_a_bounded_number_of_jobs_and_says_how_to_go_on(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    for module in (pages, jobs):
        monkeypatch.setattr(module, "MAX_SCANNED_ROWS", 4)
    wanted = set()
    for number in range(12):
        rare = number in (0, 1)
        document = one_time if number % 2 else recurring
        name = "rare" if rare else "common"
        made = await api.created(document(name=name, labels={"a": name}, tenant_id="acme"))
        wanted |= {made["job_id"]} if rare else set()
    for query in ("label=a:rare", "label=a:rare&tenant_id=acme"):
        first = (await api.get(f"{JOBS}?{query}")).body
        assert first["items"] == []
        assert first["next_page_token"]
        assert await ids(api, query) == wanted
    for query in ("name_prefix=rare", "name_prefix=rare&tenant_id=acme"):
        first = (await api.get(f"{JOBS}?{query}")).body
        assert first["items"][0]["type"] == "RECURRING"  # an index has the names of these
        assert await ids(api, query) == wanted
    everything = [job["job_id"] for job in await api.pages(f"{JOBS}?page_size=3")]
    assert len(everything) == len(set(everything)) == 12
    assert everything == sorted(everything, reverse=True)


async def test_by_name_recurring_jobs_come_first_then_one_time_jobs(api: Client):
    wanted = [await api.created(kind(name="news-1")) for kind in (recurring, one_time) * 3]
    await api.created(recurring(name="new"))
    await api.created(one_time(name="newt"))
    newest_first = wanted[::-1]
    expected = [job["job_id"] for job in newest_first[1::2] + newest_first[::2]]
    for size in (1, 2, 3, 4, 50):
        found = await api.pages(f"{JOBS}?name_prefix=news&page_size={size}")
        assert [job["job_id"] for job in found] == expected


async def test_a_prefix_that_most_jobs_have_is_looked_for_among_the_newest(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    for module in (pages, jobs):
        monkeypatch.setattr(module, "MAX_SCANNED_ROWS", 4)
    wanted = {(await api.created(recurring(name=f"a{number}")))["job_id"] for number in range(9)}
    assert await ids(api, "name_prefix=a") == wanted
    assert await ids(api, "name_prefix=a&tenant_id=default&status=SCHEDULED") == wanted


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("a", "b"),
        ("az", "a{"),
        ("a\U0010ffff", "b"),
        ("\ud7ff", "\ue000"),
        ("\U0010ffff", None),
    ],
)
def test_the_names_with_a_prefix_end_before_the_next_one(prefix: str, end: str | None):
    assert jobs.after_prefix(prefix) == end


async def test_wrong_filters_are_all_named(api: Client):
    wrong = "queue=%00&type=OFTEN&name_prefix=" + "x" * 201 + "&label=team"
    answer = await api.get(f"{JOBS}?{wrong}")
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"queue", "type", "name_prefix", "label"}


async def test_within_a_scope_there_is_one_tenant(api: Client, engine: Engine):
    mine = await api.created(one_time(tenant_id="mine"))
    await api.created(one_time(tenant_id="theirs"))
    scoped = engine.scoped_to("mine")
    (found,) = (await list_jobs(scoped)).items
    assert job_text(found.job_id) == mine["job_id"]
    with pytest.raises(Forbidden):
        await list_jobs(scoped, JobFilter(tenant_id="theirs"))


async def test_runs_of_other_jobs_do_not_make_a_page_short(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    for module in (pages, jobs):
        monkeypatch.setattr(module, "MAX_SCANNED_ROWS", 4)
    often = await api.created(recurring(name="often"))
    once = [await api.created(one_time(name="once", tenant_id=each)) for each in ("acme", "globex")]
    for _ in range(6):
        await api.post(often["path"] + "/run")
    expected = [job["job_id"] for job in (*reversed(once), often)]
    whole = (await api.get(JOBS)).body
    assert [job["job_id"] for job in whole["items"]] == expected
    assert whole["next_page_token"] is None
    first = (await api.get(f"{JOBS}?page_size=1")).body
    assert [job["job_id"] for job in first["items"]] == expected[:1]
    assert [job["job_id"] for job in await api.pages(f"{JOBS}?page_size=1")] == expected


async def test_a_status_that_few_jobs_have_is_found_among_many_others(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    for module in (pages, jobs):
        monkeypatch.setattr(module, "MAX_SCANNED_ROWS", 4)
    paused = await api.created(recurring(name="paused", tenant_id="acme"))
    once = await api.created(one_time(name="once", tenant_id="acme"))
    for job in (paused, once):
        await api.post(job["path"] + "/pause")
    for number in range(6):
        await api.created(recurring(name=f"other-{number}"))
        await api.created(one_time(name=f"other-{number}"))
    for query, expected in (
        ("status=PAUSED", [once, paused]),
        ("status=PAUSED&type=RECURRING", [paused]),
        ("status=PAUSED&tenant_id=acme", [once, paused]),
        ("status=PAUSED&tenant_id=default", []),
        ("status=PAUSED&name_prefix=onc", [once]),
    ):
        found = (await api.get(f"{JOBS}?{query}")).body
        assert [job["job_id"] for job in found["items"]] == [job["job_id"] for job in expected]
        assert found["next_page_token"] is None
    # Many tenants are not looked at one by one: the list is continued instead.
    monkeypatch.setattr(jobs, "_FEW_TENANTS", 1)
    short = (await api.get(f"{JOBS}?status=PAUSED&type=RECURRING")).body
    assert short["items"] == []
    assert await ids(api, "status=PAUSED&type=RECURRING") == {paused["job_id"]}


@pytest.mark.parametrize("of_tenant", ["", "&tenant_id=acme"])
async def test_jobs_are_found_by_what_a_person_types(api: Client, of_tenant: str):
    hook = {"type": "WEBHOOK", "url": "https://Hooks.Example.com:8443/reports?to=ops"}
    hooked = await both(api, tenant_id="acme", name="Monthly Invoice", action=hook)
    task = {"type": "TASK", "name": "shop.send_mail", "payload": {"secret": "of nobody"}}
    mailed = await both(
        api, tenant_id="acme", name="news", action=task, labels={"team": "Billing-EU"}
    )
    coded = recurring(tenant_id="acme", name="app:shop/nightly", action=task)
    answer = await api.put(
        JOBS + "/by-name/" + quote("app:shop-nightly", safe=""),
        coded | {"name": "app:shop-nightly"},
    )
    mailed_or_coded = mailed | {answer.body["job_id"]}
    for text, found in {
        "invoice": hooked,
        "LY INV": hooked,
        "hooks.example": hooked,
        "EXAMPLE.COM:8443": hooked,
        "send_mail": mailed_or_coded,
        "billing-eu": mailed,
        "team:bill": mailed,
        "shop-night": mailed_or_coded - mailed,
        "reports": set(),  # the path
        "of nobody": set(),
        "TASK": set(),
        'a"b\\c%_': set(),
    }.items():
        assert await ids(api, f"q={quote(text)}{of_tenant}") == found, text
    assert await ids(api, f"q=invoice&type=RECURRING{of_tenant}") < hooked
    assert await ids(api, f"q=send&label=team:Billing-EU{of_tenant}") == mailed
    assert await ids(api, "q=invoice&tenant_id=other") == set()


async def test_a_name_with_quotation_marks_is_found(api: Client):
    job = await api.created(one_time(name='the "best" \\ one'))
    assert await ids(api, "q=" + quote('"BEST" \\')) == {job["job_id"]}


async def test_a_search_among_many_jobs_looks_at_a_bounded_number_for_each_page(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    wanted = await api.created(one_time(name="needle"))
    for number in range(5):
        await api.created(one_time(name=f"hay {number}"))
    monkeypatch.setattr(jobs, "MAX_SCANNED_ROWS", 3)
    monkeypatch.setattr(pages, "MAX_SCANNED_ROWS", 3)
    page = (await api.get(f"{JOBS}?q=needle&tenant_id=default")).body
    assert page["items"] == []
    assert page["next_page_token"] is not None
    assert await ids(api, "q=needle&tenant_id=default") == {wanted["job_id"]}
