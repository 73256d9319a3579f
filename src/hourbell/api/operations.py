"""Bulk operations: preview, start, read, stop."""

from __future__ import annotations

from litestar import Response

from hourbell.api.answers import (
    JSON,
    answer,
    render_operation,
    render_operation_preview,
    render_page,
)
from hourbell.api.queries import TenantPageQuery
from hourbell.api.requests import (
    AnyRequest,
    read_bare_write,
    read_call,
    read_tenant_page_request,
    read_write,
    refuse_query,
)
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.engine.operations import bulk_operations
from hourbell.model.ids import operation_text, parse_operation_id
from hourbell.security.access import OPERATE, READ

OPERATIONS = "/api/v1/operations"
OPERATION = "/api/v1/operations/{operation_id}"


async def preview_operation(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document = await read_call(request)
    preview = await bulk_operations.preview_operation(engine, document)
    return answer(render_operation_preview(preview))


async def create_operation(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    operation = await bulk_operations.create_operation(engine, document, write)
    location = {"Location": f"{OPERATIONS}/{operation_text(operation.operation_id)}"}
    return answer(render_operation(operation), 201, location)


async def list_operations(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    tenant_id, part = read_tenant_page_request(request)
    page = await bulk_operations.list_operations(engine, tenant_id, part.page_size, part.page_token)
    return answer(render_page(request, page, render_operation))


async def get_operation(
    engine: EngineDep, request: AnyRequest, operation_id: PathParam
) -> Response[bytes]:
    refuse_query(request)
    number = parse_operation_id(operation_id)
    return answer(render_operation(await bulk_operations.get_operation(engine, number)))


async def stop_operation(
    engine: EngineDep, request: AnyRequest, operation_id: PathParam
) -> Response[bytes]:
    write = await read_bare_write(request)
    number = parse_operation_id(operation_id)
    return answer(render_operation(await bulk_operations.stop_operation(engine, number, write)))


ROUTES = (
    Route(
        method="POST",
        path=OPERATIONS + "/preview",
        handler=preview_operation,
        access=OPERATE,
        summary="Count what a bulk operation would apply to",
        description="Nothing is changed. Counting stops at 10,000.",
        body="OperationPreviewRequest",
        media_types=(JSON,),
        answers={200: "OperationPreview"},
        keyed=False,
    ),
    Route(
        method="POST",
        path=OPERATIONS,
        handler=create_operation,
        access=OPERATE,
        summary="Start a bulk operation",
        description=(
            "Pauses or resumes all jobs, or replays or purges all dead letters, that match the "
            "filter and exist now. Responds immediately; the leader carries out the operation in batches."
        ),
        body="NewOperation",
        media_types=(JSON,),
        answers={201: "Operation"},
    ),
    Route(
        method="GET",
        path=OPERATIONS,
        handler=list_operations,
        access=READ,
        summary="List bulk operations, newest first",
        description="With tenant_id, only operations that apply to this tenant alone.",
        query=TenantPageQuery,
        answers={200: "OperationPage"},
    ),
    Route(
        method="GET",
        path=OPERATION,
        handler=get_operation,
        access=READ,
        summary="Read a bulk operation and its progress",
        answers={200: "Operation"},
    ),
    Route(
        method="POST",
        path=OPERATION + "/stop",
        handler=stop_operation,
        access=OPERATE,
        summary="Stop a bulk operation",
        description="Finished batches are not undone. An operation that has already ended is not changed.",
        answers={200: "Operation"},
    ),
)
