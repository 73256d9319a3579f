"""Dead letters: list, read, replay, purge."""

from __future__ import annotations

import msgspec
from litestar import Response

from hourbell.api.answers import (
    JSON,
    answer,
    render_dead_letter,
    render_groups,
    render_page,
    render_purged,
    render_replayed,
)
from hourbell.api.page_tokens import position_in
from hourbell.api.queries import DeadLetterGroupsQuery, DeadLettersQuery
from hourbell.api.requests import (
    AnyRequest,
    read_bare_write,
    read_dead_letter_group_query,
    read_dead_letter_query,
    read_write,
    refuse_query,
)
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.documents.dead_letters import parse_purge, parse_replay
from hourbell.documents.render import render_execution
from hourbell.engine.operations import dead_letters
from hourbell.engine.views import dead_letter_groups
from hourbell.model.ids import parse_execution_id
from hourbell.security.access import OPERATE, READ

LETTERS = "/api/v1/dead-letters"
LETTER = "/api/v1/dead-letters/{execution_id}"


async def list_dead_letters(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    wanted, part = read_dead_letter_query(request)
    page = await dead_letters.list_dead_letters(engine, wanted, part.page_size, part.page_token)
    return answer(render_page(request, page, render_dead_letter))


async def list_dead_letter_groups(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    wanted = read_dead_letter_group_query(request)
    return answer(render_groups(await dead_letter_groups.list_groups(engine, wanted)))


async def get_dead_letter(
    engine: EngineDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    refuse_query(request)
    letter = await dead_letters.get_dead_letter(engine, parse_execution_id(execution_id))
    return answer(render_dead_letter(letter))


async def replay_dead_letter(
    engine: EngineDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    write = await read_bare_write(request)
    execution = await dead_letters.replay_dead_letter(
        engine, parse_execution_id(execution_id), write
    )
    return answer(render_execution(execution), 202)


async def replay_dead_letters(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    bulk = parse_replay(document)
    bulk = msgspec.structs.replace(bulk, token=position_in(request, bulk.token))
    replayed = await dead_letters.replay_dead_letters(engine, bulk, write)
    return answer(render_replayed(request, replayed), 202)


async def purge_dead_letter(
    engine: EngineDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    write = await read_bare_write(request)
    purged = await dead_letters.purge_dead_letter(engine, parse_execution_id(execution_id), write)
    return answer(render_purged(request, purged))


async def purge_dead_letters(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    bulk = parse_purge(document)
    bulk = msgspec.structs.replace(bulk, token=position_in(request, bulk.token))
    purged = await dead_letters.purge_dead_letters(engine, bulk, write)
    return answer(render_purged(request, purged))


ROUTES = (
    Route(
        method="GET",
        path=LETTERS,
        handler=list_dead_letters,
        access=READ,
        summary="List dead letters, latest first",
        description=(
            "Omits attempts and job. `from` and `to` filter by died_at. Each call examines a "
            "bounded number of dead letters, so a page may have fewer than page_size items "
            "even if more pages follow."
        ),
        query=DeadLettersQuery,
        answers={200: "DeadLetterPage"},
    ),
    Route(
        method="GET",
        path=LETTERS + "/groups",
        handler=list_dead_letter_groups,
        access=READ,
        summary="List dead letters grouped by error, most frequent first",
        description=(
            "Dead letters with the same action, kind and error form one group; differences in numbers, "
            "ids and quoted text are ignored. Examines a bounded number of the newest dead letters: "
            "looked_at, looked_back_to and complete say how far back."
        ),
        query=DeadLetterGroupsQuery,
        answers={200: "DeadLetterGroups"},
    ),
    Route(
        method="POST",
        path=LETTERS + "/replay",
        handler=replay_dead_letters,
        access=OPERATE,
        summary="Replay many dead letters",
        description=(
            "Replays the dead letters that match the filter, latest first, at most `limit` of "
            "them, spread over time if a rate is given. Continue with next_page_token, but with a "
            "rate not before last_run_at."
        ),
        body="Replay",
        media_types=(JSON,),
        answers={202: "Replayed"},
    ),
    Route(
        method="POST",
        path=LETTERS + "/purge",
        handler=purge_dead_letters,
        access=OPERATE,
        summary="Remove many dead letters",
        description=(
            "Removes the dead letters that match the filter, at most `limit` of them. "
            "Their execution history is kept."
        ),
        body="Purge",
        media_types=(JSON,),
        answers={200: "Purged"},
    ),
    Route(
        method="GET",
        path=LETTER,
        handler=get_dead_letter,
        access=READ,
        summary="Read a dead letter with all its attempts and the job definition at that time",
        answers={200: "DeadLetter"},
    ),
    Route(
        method="POST",
        path=LETTER + "/replay",
        handler=replay_dead_letter,
        access=OPERATE,
        summary="Replay a dead letter",
        description=(
            "The execution becomes due again under the same id, with the current job definition. "
            "Attempt and fence numbers continue; retries and deadlines start over."
        ),
        answers={202: "Execution"},
        conflicts=True,
        error_codes=("duplicate_job",),
    ),
    Route(
        method="DELETE",
        path=LETTER,
        handler=purge_dead_letter,
        access=OPERATE,
        summary="Remove a dead letter",
        description="Its execution history is kept.",
        answers={200: "Purged"},
    ),
)
