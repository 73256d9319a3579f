"""A real server with something of everything, for the tests of the dashboard: one for the whole module.

`hourbell up` runs on a database of its own, with its leader and its worker. What is shown was made through the API and by real runs:
a receiver here answers webhooks as their path says.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from answers import opened
from ports import free_port

PATIENCE_SECONDS = 180.0
# In names, labels, errors and results: nothing of it may run or be read as HTML.
NASTY = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
LONG = "a-name-that-is-as-long-as-a-name-may-be-" * 5


class Receiver(BaseHTTPRequestHandler):
    """Answers as the path says."""

    calls = itertools.count()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = 200, b'{"ok": true, "id": 12345678901234567890}'
        match self.path:
            case "/503":
                status, body = 503, b"Service Unavailable: upstream timed out after 30 s"
            case "/nasty":
                status, body = 400, NASTY.encode()
            case "/html":
                body = NASTY.encode()
            case "/flaky":
                status = 503 if next(self.calls) % 3 else 200
            case "/slow":
                time.sleep(2.5)  # longer than the interval of its job
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def receiving() -> Iterator[str]:
    """The URL of a receiver."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Server:
    """A running `hourbell up`."""

    ids: dict[str, str]  # of the seeded jobs, by their names

    def __init__(self, folder: str, database: str = "") -> None:
        self.database = database  # empty: an embedded one
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._keys = itertools.count()
        env = {
            name: value for name, value in os.environ.items() if not name.startswith("HOURBELL_")
        }
        env |= {
            "HOURBELL_DATABASE_URL": database,
            "HOURBELL_DATA_DIR": folder,
            "HOURBELL_PORT": str(self.port),
            "HOURBELL_WORKER_SLOTS": "20",
            "HOURBELL_LOG_LEVEL": "error",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hourbell", "up"],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if method != "GET":
            headers["Idempotency-Key"] = f"seed-{next(self._keys)}"
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        with opened(request, timeout=20) as answer:
            return json.load(answer)

    def until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, "hourbell up has ended"
            try:
                self.ask("GET", "/readyz")
            except OSError:
                return False
            return True

        eventually(ready)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)


def eventually(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s"
        time.sleep(0.05)


def webhook(url: str) -> dict[str, Any]:
    return {"type": "WEBHOOK", "url": url, "method": "POST", "body": {"kind": "nightly"}}


def recurring(name: str, schedule: dict[str, Any], action: dict[str, Any], **fields: Any) -> Any:
    return {"name": name, "type": "RECURRING", "schedule": schedule, "action": action, **fields}


BERLIN = "Europe/Berlin"
NO_RETRY = {"max_retries": 0}


def jobs(target: str) -> list[Any]:
    """Jobs of all kinds."""
    ok = webhook(f"{target}/ok")
    second = {"every_seconds": 1}
    return [
        recurring(
            "invoice-nightly",
            {"cron": "30 2 * * *", "timezone": BERLIN},
            ok,
            tenant_id="acme",
            overlap_policy="forbid",
            labels={"team": "billing"},
        ),
        recurring("mail-digest", {"cron": "*/5 * * * *"}, ok, tenant_id="beta", queue="mail"),
        recurring(
            "seller-report",
            {"cron": "0 2 * * *", "timezone": "Asia/Kolkata"},
            ok,
            tenant_id="gamma",
            priority="HIGH",
        ),
        recurring("heartbeat", second, ok, tenant_id="acme", labels={"team": "platform"}),
        recurring(
            "price-sync",
            second,
            webhook(f"{target}/flaky"),
            tenant_id="beta",
            retry_policy={"max_retries": 3, "backoff": "FIXED", "initial_delay_seconds": 1},
        ),
        recurring(
            "partner-export",
            second,
            webhook(f"{target}/503"),
            tenant_id="acme",
            retry_policy=NO_RETRY,
        ),
        recurring(
            "ledger-compaction",
            second,
            webhook(f"{target}/slow"),
            tenant_id="gamma",
            overlap_policy="forbid",
        ),
        recurring(
            "thumbnails",
            {"cron": "H 3 1 1 *"},  # not while the tests run, which count what is in its queue
            {"type": "TASK", "name": "shop.resize", "payload": {"width": 320}},
            queue="images",
            priority="LOW",
        ),
        recurring(
            NASTY[:100],
            {"every_seconds": 2},
            webhook(f"{target}/nasty"),
            retry_policy=NO_RETRY,
            labels={"note": NASTY[:60]},
        ),
        recurring(
            LONG[:200],
            {"cron": "15 4 1 * *", "timezone": "America/New_York"},
            ok,
            tenant_id=LONG[:64],
            queue=LONG[:64],
        ),
        *(
            recurring(
                f"settlement-{number:03}",
                {"cron": "0 2 * * *", "timezone": BERLIN},
                ok,
                tenant_id="acme",
            )
            for number in range(40)
        ),
        {
            "name": "welcome-mail",
            "type": "ONE_TIME",
            "schedule": {"delay_seconds": 0},
            "action": ok,
            "tenant_id": "beta",
        },
        {
            "name": "trial-ends",
            "type": "ONE_TIME",
            "schedule": {"delay_seconds": 86_400},
            "action": ok,
        },
        {
            "name": "resize-now",
            "type": "ONE_TIME",
            "schedule": {"delay_seconds": 0},
            "queue": "images",
            "action": {"type": "TASK", "name": "shop.resize"},
        },
    ]


def seed(server: Server, target: str) -> dict[str, str]:
    """Create everything, and wait until it has happened; the ids of the jobs by name."""
    results = server.ask("POST", "/api/v1/jobs/batch", jobs(target))["results"]
    ids = {job["name"]: result["job_id"] for job, result in zip(jobs(target), results, strict=True)}
    pause = {"reason": "partner is down, ticket 812"}
    server.ask("POST", f"/api/v1/jobs/{ids['mail-digest']}/pause", pause)
    server.ask("PUT", "/api/v1/tenants/acme", {"weight": 3, "max_concurrency": 50})
    server.ask("PUT", "/api/v1/queues/mail", {"rate_limit": {"per_second": 20}})
    patch = {"timeout_seconds": 90}
    server.ask("PATCH", f"/api/v1/jobs/{ids['invoice-nightly']}", patch)

    def happened() -> bool:
        letters = server.ask("GET", "/api/v1/dead-letters")["items"]
        skipped = server.ask("GET", "/api/v1/executions?status=SKIPPED")["items"]
        flaky = server.ask("GET", f"/api/v1/jobs/{ids['price-sync']}/executions")["items"]
        return (
            sum(each["kind"] == "http_503" for each in letters) >= 2
            and len(letters) >= 4
            and len(skipped) >= 1
            and any(each["attempt"] > 1 for each in flaky)
            and NASTY in str([each["error"] for each in letters])
        )

    eventually(happened)
    # The busy ones would change every page while it is looked at.
    for name in ("price-sync", "partner-export", "ledger-compaction", NASTY[:100]):
        server.ask("POST", f"/api/v1/jobs/{ids[name]}/pause", {"reason": "seeded"})
    calmer = {"schedule": {"every_seconds": None, "cron": "*/10 * * * *"}}
    server.ask("PATCH", f"/api/v1/jobs/{ids['heartbeat']}", calmer)
    eventually(lambda: server.ask("GET", "/api/v1/overview")["totals"]["started"] > 0)
    return ids


def key(server: Server, role: str, admin: str | None = None, tenant: str | None = None) -> str:
    """A new key of this role."""
    body = {"name": f"{role} of the tests", "role": role} | (
        {"tenant_id": tenant} if tenant else {}
    )
    made: str = server.ask("POST", "/api/v1/keys", body, admin)["key"]
    return made
