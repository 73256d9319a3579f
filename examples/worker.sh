#!/bin/sh
# A worker in plain sh and curl: it claims executions of the task `greet` over HTTP, runs them, and reports their outcomes.
#
# It needs no library, no open port and no database. A claim waits up to 20 seconds for the next execution, so an idle worker sends one
# request in that time. While a task runs, a heartbeat every 5 seconds keeps the lease; if this process dies, another worker gets the
# execution, and after Ctrl-C at once. sed is enough to read the few fields.
#
#     hourbell up                                            # in one terminal
#     sh worker.sh                                           # in another; EXECUTIONS=1 stops after one
#     curl -s http://127.0.0.1:8080/api/v1/jobs -H 'Idempotency-Key: greet-1' -H 'Content-Type: application/json' -d '{
#       "name": "greeting", "type": "ONE_TIME", "schedule": {"delay_seconds": 1},
#       "action": {"type": "TASK", "name": "greet", "payload": {"person": "Ada"}}}'
set -eu
url=${HOURBELL_URL:-http://127.0.0.1:8080}/internal/v1/executions
session=null # a text in quotes, once a claim has returned an execution
execution= # the one that runs now, and the process of its heartbeats
beating=
left=${EXECUTIONS:-1000000}

greet() { # the task; if it fails, the execution is retried by the policy of its job
    echo "Hello, $1!"
}

post() { # PATH JSON
    curl --silent --show-error --fail --max-time 60 "$url/$1" -H 'Content-Type: application/json' \
        ${HOURBELL_API_KEY:+-H "Authorization: Bearer $HOURBELL_API_KEY"} -d "$2"
}

field() { # NAME: the text or number of this name in the claim
    echo "$claim" | sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p; t; s/.*\"$1\": *\([0-9]*\).*/\1/p"
}

heartbeats() {
    while sleep 5 && kill -0 $$ 2>/dev/null; do # not for longer than the worker lives
        post heartbeat "{\"session_token\": $session, \"execution_ids\": [\"$execution\"]}" || return
    done
}

stop() { # return the unfinished execution to the queue; no attempt is used
    trap '' INT TERM
    if [ -n "$execution" ]; then
        kill $beating 2>/dev/null || true
        post "$execution/release" "{\"session_token\": \"$(field session_token)\", \"fence_token\": $(field fence_token),
            \"interrupted\": true}" >/dev/null || true # unanswered, it is returned when the lease ends
    fi
    exit 130
}

trap stop INT
trap 'left=0' TERM # finish what runs, and start no more
echo "waiting for executions of greet at $url"
while [ "$left" -gt 0 ]; do
    claim=$(post claim "{\"worker_id\": \"sh-$$\", \"capacity\": 1, \"tasks\": [\"greet\"],
        \"wait_seconds\": 20, \"session_token\": $session}") || { session=null; sleep 1; continue; }
    execution=$(field execution_id)
    [ -n "$execution" ] || continue # nothing was due
    session="\"$(field session_token)\""
    heartbeats >/dev/null 2>&1 & beating=$!
    if result=$(greet "$(field person)"); then
        outcome="\"status\": \"SUCCEEDED\", \"result\": \"$result\""
    else
        outcome="\"status\": \"FAILED\", \"error\": \"greet has failed\", \"error_kind\": \"exit\""
    fi
    kill $beating 2>/dev/null || true
    echo "$execution: $result"
    post "$execution/complete" "{\"session_token\": $session, \"fence_token\": $(field fence_token),
        \"duration_ms\": 0, $outcome}" >/dev/null || session=null # it belongs to another worker by now
    execution=
    left=$((left - 1))
done
