"""Which role may call what: written by hand, and not taken from the routes, so that a wrong one is noticed.

The letters are admin, operator, producer, viewer, worker; `anybody` needs no key.
"""

from hourbell.security.access import KeyRole

_LETTERS = {
    "a": KeyRole.ADMIN,
    "o": KeyRole.OPERATOR,
    "p": KeyRole.PRODUCER,
    "v": KeyRole.VIEWER,
    "w": KeyRole.WORKER,
}

_TABLE = """
anybody  GET     /
anybody  GET     /livez
anybody  GET     /readyz
anybody  GET     /schema/openapi.json
anybody  POST    /api/v1/executions/{execution_id}/complete
anybody  POST    /api/v1/session
anybody  DELETE  /api/v1/session

aopvw    GET     /api/v1/me

aopv-    GET     /metrics

aopv-    GET     /api/v1/jobs
aop--    POST    /api/v1/jobs
aop--    POST    /api/v1/jobs/batch
aopv-    GET     /api/v1/jobs/by-name/{name}
aop--    PUT     /api/v1/jobs/by-name/{name}
aop--    DELETE  /api/v1/jobs/by-name/{name}
aopv-    GET     /api/v1/jobs/by-unique-key
aop--    DELETE  /api/v1/jobs/by-unique-key
ao---    POST    /api/v1/jobs/pause
ao---    POST    /api/v1/jobs/resume
aopv-    GET     /api/v1/jobs/{job_id}
aop--    PATCH   /api/v1/jobs/{job_id}
aop--    DELETE  /api/v1/jobs/{job_id}
aopv-    GET     /api/v1/jobs/{job_id}/audit
aop--    POST    /api/v1/jobs/{job_id}/backfill
aopv-    GET     /api/v1/jobs/{job_id}/executions
aopv-    GET     /api/v1/jobs/{job_id}/explain
aopv-    GET     /api/v1/jobs/{job_id}/next-runs
aop--    POST    /api/v1/jobs/{job_id}/pause
aop--    POST    /api/v1/jobs/{job_id}/resume
aop--    POST    /api/v1/jobs/{job_id}/run

aopv-    POST    /api/v1/schedules/preview

aopv-    GET     /api/v1/executions
aopv-    GET     /api/v1/executions/{execution_id}
aop--    POST    /api/v1/executions/{execution_id}/cancel
aopv-    GET     /api/v1/executions/{execution_id}/explain
ao---    POST    /api/v1/executions/{execution_id}/retry

aopv-    GET     /api/v1/dead-letters
aopv-    GET     /api/v1/dead-letters/groups
ao---    POST    /api/v1/dead-letters/purge
ao---    POST    /api/v1/dead-letters/replay
aopv-    GET     /api/v1/dead-letters/{execution_id}
ao---    DELETE  /api/v1/dead-letters/{execution_id}
ao---    POST    /api/v1/dead-letters/{execution_id}/replay

aopv-    GET     /api/v1/operations
ao---    POST    /api/v1/operations
ao---    POST    /api/v1/operations/preview
aopv-    GET     /api/v1/operations/{operation_id}
ao---    POST    /api/v1/operations/{operation_id}/stop

aopv-    GET     /api/v1/monitors
ao---    POST    /api/v1/monitors
aopv-    GET     /api/v1/monitors/{monitor_id}
ao---    DELETE  /api/v1/monitors/{monitor_id}

ao---    GET     /api/v1/secrets
ao---    PUT     /api/v1/secrets/{name}
ao---    DELETE  /api/v1/secrets/{name}

aop--    POST    /api/v1/groups
aopv-    GET     /api/v1/groups
aopv-    GET     /api/v1/groups/{group_id}
aop--    POST    /api/v1/groups/{group_id}/close
aop--    POST    /api/v1/groups/{group_id}/members

aopv-    GET     /api/v1/calendars
aopv-    GET     /api/v1/calendars/{name}
ao---    PUT     /api/v1/calendars/{name}
ao---    DELETE  /api/v1/calendars/{name}

a----    GET     /api/v1/keys
a----    POST    /api/v1/keys
a----    GET     /api/v1/keys/{key_id}
a----    DELETE  /api/v1/keys/{key_id}

aopv-    GET     /api/v1/tenants
aopv-    GET     /api/v1/tenants/{name}
a----    PUT     /api/v1/tenants/{name}
aopv-    GET     /api/v1/queues
aopv-    GET     /api/v1/queues/{name}
a----    PUT     /api/v1/queues/{name}
aopv-    GET     /api/v1/targets
aopv-    GET     /api/v1/targets/{host}
a----    PUT     /api/v1/targets/{host}
ao---    GET     /api/v1/audit
aopv-    GET     /api/v1/forecast
aopv-    GET     /api/v1/forecast/minute

aopv-    GET     /api/v1/overview
aopv-    GET     /api/v1/workers
aopv-    GET     /api/v1/workers/{session_id}
aopv-    GET     /api/v1/nodes
aopv-    GET     /api/v1/circuits
aopv-    GET     /api/v1/tasks
aopv-    GET     /api/v1/tasks/{name}
aopv-    GET     /api/v1/events

a---w    POST    /internal/v1/executions/claim
a---w    POST    /internal/v1/executions/complete
a---w    POST    /internal/v1/executions/heartbeat
a---w    POST    /internal/v1/executions/{execution_id}/complete
a---w    POST    /internal/v1/executions/{execution_id}/progress
a---w    POST    /internal/v1/executions/{execution_id}/checkpoint
a---w    POST    /internal/v1/executions/{execution_id}/release
a---w    POST    /internal/v1/sessions/close
"""

# What an administrator of one tenant is refused, with the status: this is the cell's.
REFUSED_WITHIN_A_TENANT = {
    "GET /metrics": 403,
    "PUT /api/v1/tenants/{name}": 403,
    "PUT /api/v1/queues/{name}": 404,
    "PUT /api/v1/targets/{host}": 404,
    "POST /internal/v1/executions/claim": 403,
    "POST /internal/v1/executions/complete": 403,
    "POST /internal/v1/executions/heartbeat": 403,
    "POST /internal/v1/executions/{execution_id}/complete": 403,
    "POST /internal/v1/executions/{execution_id}/progress": 403,
    "POST /internal/v1/executions/{execution_id}/checkpoint": 403,
    "POST /internal/v1/executions/{execution_id}/release": 403,
    "POST /internal/v1/sessions/close": 403,
}


def _read() -> dict[str, set[KeyRole] | None]:
    rows = [line.split() for line in _TABLE.splitlines() if line]
    return {
        f"{method} {path}": None
        if who == "anybody"
        else {_LETTERS[letter] for letter in who if letter != "-"}
        for who, method, path in rows
    }


ROLES = _read()  # by operations; None: anybody
