"""GET /schema/openapi.json"""

import re
from typing import Any

from litestar.routes import HTTPRoute

from hourbell.api import errors as api_errors
from hourbell.api.app import ROUTES, create_app
from hourbell.api.examples import BODIES
from hourbell.api.problems import STATUSES
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.model import errors as model_errors
from hourbell.model.errors import HourbellError
from integration.api.client import CONTRACT_JOB, KEY_RING, Client, one_time, recurring
from integration.api.conforms import problems_of
from integration.api.conftest import KnownHealth

# And what stands below.
NOT_IN_REQUESTS = {"not_leader", "configuration_error", "embedded_server_failed"}


async def test_the_document_describes_exactly_what_is_served(
    api: Client, engine: Engine, health: KnownHealth, remote: RemoteWorkers
):
    served = {
        (method, route.path_format)
        for route in create_app(engine, health, KEY_RING, remote, local=True).routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method != "OPTIONS"
    }
    served = {
        each for each in served if not re.match(r"/assets/|/[\w-]+\.\w+$", each[1])
    }  # files of the dashboard
    described = {
        (method.upper(), path)
        for path, operations in api.document["paths"].items()
        for method in operations
    }
    assert described == served
    assert len(served) == len(ROUTES)


async def test_every_reference_leads_somewhere_and_every_schema_is_used(api: Client):
    used = set(references(api.document))
    assert used == {
        f"#/components/schemas/{name}" for name in api.document["components"]["schemas"]
    }


async def test_every_operation_has_a_name_of_its_own(api: Client):
    names = [operation["operationId"] for _, _, operation in operations(api.document)]
    assert len(set(names)) == len(names)


async def test_every_write_but_those_of_workers_needs_a_key_and_all_say_how_they_may_be_refused(
    api: Client,
):
    for method, path, operation in operations(api.document):
        headers = [each for each in operation["parameters"] if each["in"] == "header"]
        if method == "get":
            assert headers == [], path
            continue
        needed = [each["name"] for each in headers if each.get("required")]
        # By what they say, or because nothing is changed.
        ends = ("/complete", "/preview", "/session")
        safe = path.startswith("/internal/") or path.endswith(ends)
        assert needed == ([] if safe else ["Idempotency-Key"]), path
        assert {each["name"] for each in headers} <= {"Idempotency-Key", "If-Match"}
        assert operation["responses"].keys() >= {"400", "413", "415", "422", "500", "503"}, path


async def test_every_parameter_of_a_path_is_described(api: Client):
    for _, path, operation in operations(api.document):
        in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert all(f"{{{name}}}" in path for name in in_path)
        assert path.count("{") == len(in_path)


async def test_what_the_schema_takes_is_what_the_api_takes(api: Client):
    good: list[dict[str, Any]] = [
        CONTRACT_JOB,
        one_time(),
        one_time(schedule={"at": "2031-01-01T00:00:00Z", "timezone": None}),
        recurring(schedule={"every_seconds": 300, "max_runs": 3}),
        recurring(retry_policy={"delays_seconds": [60, 300, 1800]}, misfire_policy="all"),
    ]
    bad: list[dict[str, Any]] = [
        {},
        recurring(colour="red"),
        recurring(retry_policy={"max_retries": -1}),
        recurring(schedule={"at": "2031-01-01T00:00:00Z"}),
        one_time(overlap_policy="replace"),
        one_time(schedule={"delay_seconds": 1, "at": "2031-01-01T00:00:00Z"}),
        one_time(priority="URGENT"),
        one_time(tenant_id="no spaces"),
    ]
    schema = {"$ref": "#/components/schemas/NewJob"}
    for document in good:
        assert [*problems_of(api.document, schema, document)] == []
        assert (await api.post("/api/v1/jobs", document)).status == 201
    for document in bad:
        assert [*problems_of(api.document, schema, document)] != []
        assert (await api.post("/api/v1/jobs", document)).status == 422


async def test_every_body_has_an_example_that_the_schema_and_the_api_take(api: Client):
    job = await api.created(BODIES["NewJob"] | {"name": "another"})
    found = [each for each in operations(api.document) if "requestBody" in each[2]]
    # The first key closes the API to this client.
    found.sort(key=lambda each: each[2]["operationId"] == "create_key")
    for method, path, operation in found:
        content = next(iter(operation["requestBody"]["content"].values()))
        assert [*problems_of(api.document, content["schema"], content["example"])] == [], path
        for parameter in operation["parameters"]:
            if parameter["in"] == "path":
                given = job.get(parameter["name"], parameter["example"])
                path = path.replace(f"{{{parameter['name']}}}", given)
        answer = await api.send(method.upper(), path, content["example"])
        # It may name what does not exist here, or be a call of a browser; its body is not wrong.
        assert answer.status in (200, 201, 202, 401, 403, 404, 409), (path, answer.body)
    assert {
        operation["requestBody"]["content"].popitem()[1]["schema"]["$ref"]
        for *_, operation in found
    } == {f"#/components/schemas/{name}" for name in BODIES}


def test_every_error_that_a_request_can_meet_has_a_status():
    def below(root: type[HourbellError]) -> set[type[HourbellError]]:
        if root.code in NOT_IN_REQUESTS:
            return set()
        return {root}.union(*(below(child) for child in root.__subclasses__()))

    trees = (model_errors.__name__, api_errors.__name__)
    codes = {kind.code for kind in below(HourbellError) if kind.__module__ in trees}
    assert codes - {"error"} == STATUSES.keys()


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (method, path, operation)
        for path, described in document["paths"].items()
        for method, operation in described.items()
    ]


def references(part: Any) -> list[str]:
    if isinstance(part, list):
        return [found for item in part for found in references(item)]
    if not isinstance(part, dict):
        return []
    own = [part["$ref"]] if "$ref" in part else []
    return own + [found for item in part.values() for found in references(item)]
