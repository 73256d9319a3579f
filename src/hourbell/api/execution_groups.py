"""Groups of executions: create, add members, close, read."""

from __future__ import annotations

from litestar import Response

from hourbell.api.answers import JSON, answer, render_page
from hourbell.api.queries import GroupsQuery
from hourbell.api.requests import (
    AnyRequest,
    read_bare_write,
    read_groups_query,
    read_write,
    refuse_query,
)
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.engine.operations import execution_groups
from hourbell.engine.operations.execution_groups import render_group
from hourbell.model.ids import group_text, parse_group_id
from hourbell.security.access import PRODUCE, READ

GROUPS = "/api/v1/groups"
GROUP = "/api/v1/groups/{group_id}"


async def create_group(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    group = await execution_groups.create_group(engine, document, write)
    path = f"{GROUPS}/{group_text(group.group_id)}"
    return answer(render_group(group), 201, {"Location": path})


async def list_groups(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    tenant, state, part = read_groups_query(request)
    page = await execution_groups.list_groups(
        engine, tenant, state, part.page_size, part.page_token
    )
    return answer(render_page(request, page, render_group))


async def get_group(engine: EngineDep, request: AnyRequest, group_id: PathParam) -> Response[bytes]:
    refuse_query(request)
    return answer(render_group(await execution_groups.get_group(engine, parse_group_id(group_id))))


async def add_members(
    engine: EngineDep, request: AnyRequest, group_id: PathParam
) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    number = parse_group_id(group_id)
    return answer(render_group(await execution_groups.add_members(engine, number, document, write)))


async def close_group(
    engine: EngineDep, request: AnyRequest, group_id: PathParam
) -> Response[bytes]:
    write = await read_bare_write(request)
    number = parse_group_id(group_id)
    return answer(render_group(await execution_groups.close_group(engine, number, write)))


ROUTES = (
    Route(
        method="POST",
        path=GROUPS,
        handler=create_group,
        access=PRODUCE,
        summary="Create a group of executions",
        description=(
            "Its callback is sent once, when the group is closed and all its members have ended."
        ),
        body="NewGroup",
        media_types=(JSON,),
        answers={201: "Group"},
    ),
    Route(
        method="GET",
        path=GROUPS,
        handler=list_groups,
        access=READ,
        summary="List groups, newest first",
        query=GroupsQuery,
        answers={200: "GroupPage"},
    ),
    Route(
        method="GET",
        path=GROUP,
        handler=get_group,
        access=READ,
        summary="Read a group",
        answers={200: "Group"},
    ),
    Route(
        method="POST",
        path=GROUP + "/members",
        handler=add_members,
        access=PRODUCE,
        summary="Add executions to a group",
        description="Adding a member again has no effect. A closed group accepts no members.",
        body="GroupMembers",
        media_types=(JSON,),
        answers={200: "Group"},
    ),
    Route(
        method="POST",
        path=GROUP + "/close",
        handler=close_group,
        access=PRODUCE,
        summary="Close a group",
        description="No more members can be added. A group without members ends immediately.",
        answers={200: "Group"},
    ),
)
