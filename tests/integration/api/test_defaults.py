"""Every default that the OpenAPI document names may be sent."""

import copy
from collections.abc import Iterator
from typing import Any

from integration.api.client import Client, one_time, recurring
from integration.api.conforms import problems_of

Path = tuple[str | int, ...]


def defaults_of(
    document: Any, schema: Any, value: Any, path: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Each documented default that could be added to a value, and where."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        yield from defaults_of(document, document["components"]["schemas"][name], value, path)
    for either in schema.get("anyOf", schema.get("oneOf", ())):
        if value == {} or not [*problems_of(document, either, value)]:
            yield from defaults_of(document, either, value, path)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from defaults_of(document, schema["items"], item, (*path, index))
    if isinstance(value, dict):
        for name, one in schema.get("properties", {}).items():
            for each in (one, *one.get("anyOf", ())):
                if "default" in each:
                    yield (*path, name), each["default"]
            yield from defaults_of(document, one, value.get(name, {}), (*path, name))


def with_defaults(body: Any, defaults: list[tuple[Path, Any]]) -> Any:
    body = copy.deepcopy(body)
    for path, default in defaults:
        at = body
        for key in path[:-1]:
            at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
        at.setdefault(path[-1], default)
    return body


LISTED = {"retry_policy": {"delays_seconds": [60]}}
ONCE = {"delivery": "at_most_once"}
JOBS: list[dict[str, Any]] = [
    one_time(),
    recurring(),
    one_time(schedule={"at": "2031-01-01T00:00:00Z"}),
    recurring(schedule={"every_seconds": 60}),
    recurring(action={"type": "WEBHOOK", "url": "https://a.example/"}),
    one_time(**LISTED),
    one_time(retry_policy={"initial_delay_seconds": 7200}),
    one_time(**ONCE),
]


async def test_a_job_may_name_each_default(api: Client):
    schema = {"$ref": "#/components/schemas/NewJob"}
    for job in JOBS:
        defaults = [*defaults_of(api.document, schema, job)]
        assert len(defaults) > 10
        plain = (await api.created(job)) | dict.fromkeys(VARIES)
        for some in (*([each] for each in defaults), defaults):
            document = with_defaults(job, some)
            assert [*problems_of(api.document, schema, document)] == [], document
            answer = await api.post("/api/v1/jobs", document)
            assert answer.status == 201, (document, answer.body)
            assert answer.body | dict.fromkeys(VARIES) == plain


VARIES = ("job_id", "created_at", "updated_at", "path", "next_run_at", "schedule", "schedule_words")


async def test_every_body_may_name_each_default(api: Client):
    action = {"type": "WEBHOOK", "url": "https://a.example/"}  # a patch may be of either type
    job = await api.created(recurring(action=action))
    sent = 0
    for template, operations in api.document["paths"].items():
        for method, operation in operations.items():
            if "requestBody" not in operation or operation["operationId"] == "create_key":
                continue
            path = template
            for each in operation["parameters"]:
                if each["in"] == "path":
                    given = job.get(each["name"], each["example"])
                    path = path.replace(f"{{{each['name']}}}", given)
            content = next(iter(operation["requestBody"]["content"].values()))
            body = content["example"]
            defaults = [*defaults_of(api.document, content["schema"], body)]
            for some in (*([each] for each in defaults), defaults):
                answer = await api.send(method.upper(), path, with_defaults(body, some))
                assert answer.status != 422, (path, some, answer.body)
                sent += 1
    assert sent > 100
