"""GET /api/v1/dead-letters/groups, and `fingerprint` as a filter"""

from typing import Any

import pytest

from hourbell.dispatch import DEAD, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.documents.dead_letters import DeadLetterFilter
from hourbell.engine.core import Engine
from hourbell.engine.operations import dead_letters
from hourbell.engine.views import dead_letter_groups
from hourbell.model.errors import Forbidden
from integration.api.client import Client, one_time

LETTERS = "/api/v1/dead-letters"
GROUPS = LETTERS + "/groups"
WEBHOOK = {"type": "WEBHOOK", "url": "https://api.partner.example/pay"}
TASK = {"type": "TASK", "name": "bill"}


class Undertaker:
    """Whatever is due dies of the error that it is told."""

    def __init__(self, dispatch: PostgresDispatch) -> None:
        self._dispatch = dispatch
        self._session: Any = None
        self._claims = 0

    async def bury(self, api: Client, error: str, kind: str, **fields: Any) -> str:
        document = one_time(schedule={"delay_seconds": 0}, **fields)
        job = await api.created(document)
        if self._session is None:
            self._session = await self._dispatch.open("hand", ["default"], 100)
        await self._dispatch.admit()
        self._claims += 1
        (one,) = await self._dispatch.claim(self._session, self._claims, 100)
        settled = Settlement(
            *(one.execution_id, one.fence, DEAD, 1, 2, None, "retries_exhausted"),
            error=error,
            failure=kind,
        )
        assert await self._dispatch.settle(self._session, [settled]) == []
        return "exe_" + job["job_id"].removeprefix("job_")


@pytest.fixture
def undertaker(dispatch: PostgresDispatch) -> Undertaker:
    return Undertaker(dispatch)


async def three_errors(api: Client, undertaker: Undertaker) -> list[str]:
    return [
        await undertaker.bury(api, "The target answered 503.", "http_503", action=WEBHOOK),
        await undertaker.bury(api, "no order 17", "KeyError", action=TASK, tenant_id="acme"),
        await undertaker.bury(api, "no order 4711", "KeyError", action=TASK, tenant_id="globex"),
    ]


async def test_dead_letters_of_the_same_error_are_one_group(api: Client, undertaker: Undertaker):
    first, second, third = await three_errors(api, undertaker)
    body = (await api.get(GROUPS)).body
    assert (body["looked_at"], body["complete"]) == (3, True)
    orders, target = body["items"]
    assert (orders["count"], orders["jobs"], orders["kind"]) == (2, 2, "KeyError")
    assert (orders["action"], orders["error"]) == ("bill", "no order 4711")
    assert orders["execution_id"] == third
    assert sorted(orders["tenants"]) == ["acme", "globex"]
    letters = {each: (await api.get(f"{LETTERS}/{each}")).body for each in (first, second, third)}
    assert orders["first_died_at"] == letters[second]["died_at"]
    assert orders["last_died_at"] == letters[third]["died_at"]
    assert (target["count"], target["action"]) == (1, "api.partner.example")
    assert body["looked_back_to"] == letters[first]["died_at"]
    assert letters[first]["fingerprint"] == target["fingerprint"]
    assert letters[first]["kind"] == "http_503"


async def test_nothing_is_grouped_of_nothing(api: Client):
    body = (await api.get(GROUPS)).body
    assert body == {"items": [], "looked_at": 0, "looked_back_to": None, "complete": True}


async def test_the_filters_of_the_list_are_those_of_the_groups(api: Client, undertaker: Undertaker):
    await three_errors(api, undertaker)
    (only,) = (await api.get(GROUPS + "?tenant_id=acme")).body["items"]
    assert (only["count"], only["tenants"]) == (1, ["acme"])
    assert (await api.get(GROUPS + "?reason=lost")).body["items"] == []
    answer = await api.get(GROUPS + "?fingerprint=nothing")
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"fingerprint"}


async def test_a_fingerprint_selects_what_is_listed_replayed_and_purged(
    api: Client, undertaker: Undertaker
):
    first, second, third = await three_errors(api, undertaker)
    orders, target = (await api.get(GROUPS)).body["items"]
    listed = await api.pages(f"{LETTERS}?page_size=1&fingerprint={orders['fingerprint']}")
    assert [each["execution_id"] for each in listed] == [third, second]
    assert {each["fingerprint"] for each in listed} == {orders["fingerprint"]}
    replayed = await api.post(LETTERS + "/replay", {"fingerprint": orders["fingerprint"]})
    assert (replayed.status, replayed.body["replayed"]) == (202, 2)
    purged = await api.post(LETTERS + "/purge", {"fingerprint": orders["fingerprint"]})
    assert purged.body["purged"] == 0
    assert (await api.get(f"{LETTERS}/{first}")).status == 200
    purged = await api.post(LETTERS + "/purge", {"fingerprint": target["fingerprint"]})
    assert purged.body["purged"] == 1


async def test_few_at_a_time_are_compared_and_all_are_found(
    api: Client, undertaker: Undertaker, monkeypatch: pytest.MonkeyPatch
):
    first, second, third = await three_errors(api, undertaker)
    orders, target = (await api.get(GROUPS)).body["items"]
    monkeypatch.setattr(dead_letters, "_COMPARED", 1)
    for size in (1, 2, 3):
        path = f"{LETTERS}?page_size={size}&fingerprint="
        listed = await api.pages(path + orders["fingerprint"])
        assert [each["execution_id"] for each in listed] == [third, second]
        listed = await api.pages(path + target["fingerprint"])
        assert [each["execution_id"] for each in listed] == [first]


async def test_a_look_that_ends_early_says_how_far_back_it_was(
    api: Client, undertaker: Undertaker, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    _, second, _ = await three_errors(api, undertaker)
    monkeypatch.setattr(dead_letter_groups, "MAX_LOOKED_AT", 2)
    body = (await api.get(GROUPS)).body
    assert (body["looked_at"], body["complete"]) == (2, False)
    assert body["looked_back_to"] == (await api.get(f"{LETTERS}/{second}")).body["died_at"]


async def test_one_tenant_sees_only_its_own_errors(
    api: Client, undertaker: Undertaker, engine: Engine
):
    await three_errors(api, undertaker)
    acme = engine.scoped_to("acme")
    found = await dead_letter_groups.list_groups(acme, DeadLetterFilter())
    assert [(group.count, group.tenants) for group in found.groups] == [(1, ["acme"])]
    with pytest.raises(Forbidden):
        await dead_letter_groups.list_groups(acme, DeadLetterFilter(tenant_id="globex"))
