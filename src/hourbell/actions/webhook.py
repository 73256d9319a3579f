"""WEBHOOK: an HTTP request; any 2xx is success.

This is the first, plain form: no redirects are followed, the client never retries by itself, the answer is read up to a
bound and cut such that the result which holds it is kept. The execution id is the same over all attempts and goes along
as an idempotency key, with the fence.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Self

import aiohttp
import msgspec

from hourbell.actions import Run
from hourbell.model.executions import Failed, Outcome, Succeeded
from hourbell.model.ids import execution_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import WebhookAction

MOST_RESULT_BYTES = 16 * 1024  # as JSON; the worker keeps no larger result
_JSON = {"Content-Type": "application/json"}
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}


class WebhookRunner:
    """Sends webhooks over pooled connections."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @classmethod
    def open(cls, connections: int) -> Self:
        connector = aiohttp.TCPConnector(limit=connections, limit_per_host=0)
        return cls(
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        )

    async def close(self) -> None:
        await self._session.close()

    async def run(self, action: WebhookAction, run: Run) -> Outcome:
        headers, body = _request(action, run)
        try:
            async with self._session.request(
                action.method, action.url, headers=headers, data=body, allow_redirects=False
            ) as response:
                if 200 <= response.status < 300:
                    return Succeeded(_result(response.status, await _beginning(response.content)))
                return Failed(
                    f"The target answered {response.status}.",
                    f"http_{response.status}",
                    _retry_after(response.headers.get("Retry-After")),
                )
        except aiohttp.ClientPayloadError as error:
            return Failed(
                f"The target broke off in the middle of its answer: {error}", "connection"
            )
        except ValueError as error:  # among them InvalidURL, and UnicodeError for a host's name
            return Failed(f"No request can be sent to {action.url}: {error}", "connection")
        except aiohttp.ClientError as error:
            return Failed(f"The target could not be reached: {error}", "connection")


def _request(action: WebhookAction, run: Run) -> tuple[dict[str, str], bytes | None]:
    claimed = run.claimed
    execution_id = execution_text(claimed.execution_id)
    ours = {
        "Idempotency-Key": execution_id,
        "Hourbell-Execution-Id": execution_id,
        "Hourbell-Fence-Token": str(claimed.fence),
        "Hourbell-Attempt": str(claimed.attempt),
        "Hourbell-Scheduled-For": format_instant(claimed.scheduled_for),
    }
    body = _encoded(action.body)
    usual = {"User-Agent": "Hourbell"}
    if body is not None:
        usual |= _TEXT if isinstance(action.body, str) else _JSON
    # Of one name, the last stands: a job may choose what is usual, not what the target trusts us to say.
    last = {name.lower(): (name, value) for name, value in (usual | action.headers | ours).items()}
    return dict(last.values()), body


def _encoded(body: Any) -> bytes | None:
    if body is None:
        return None
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    """What was answered, to its end or as far as a result could hold it; one read gives only what has arrived."""
    answer = b""
    while len(answer) < MOST_RESULT_BYTES:
        piece = await content.read(MOST_RESULT_BYTES - len(answer))
        if not piece:
            break
        answer += piece
    return answer


def _result(status: int, answer: bytes) -> dict[str, Any]:
    """Status and body, with as many characters of the body as fit."""
    text = answer.decode("utf-8", "replace")

    def size(characters: int) -> int:
        return len(msgspec.json.encode({"status": status, "body": text[:characters]}))

    if size(len(text)) > MOST_RESULT_BYTES:
        text = text[: bisect_right(range(len(text)), MOST_RESULT_BYTES, key=size) - 1]
    return {"status": status, "body": text}


def _retry_after(value: str | None) -> float | None:
    """Seconds only; a date would need our clock to agree with theirs."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
