"""The pictures of the README: `make pictures` takes them again, from a real server.

It runs for a quarter of an hour first, so that the charts have something to show.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

import services
from ui.server import BERLIN, NO_RETRY, Server, receiving, recurring, webhook

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
# As wide as the README shows them; at a scale of 1 they stay small.
SIZE = {"width": 1200, "height": 940}
PATIENCE_MS = 120_000
DRAWN_MS = 1_000  # charts are drawn after their data has come


def jobs(target: str) -> list[Any]:
    """A shop: mostly well, with something to look into."""
    ok, flaky, down = (webhook(f"{target}/{path}") for path in ("ok", "flaky", "503"))
    nightly = {"cron": "0 2 * * *", "timezone": BERLIN}
    retry = {"max_retries": 3, "backoff": "FIXED", "initial_delay_seconds": 5}
    found = [
        recurring("price-sync", {"every_seconds": 2}, ok, tenant_id="shop", priority="HIGH"),
        recurring("stock-levels", {"every_seconds": 3}, ok, tenant_id="shop"),
        recurring("cart-reminders", {"every_seconds": 5}, ok, tenant_id="marketing"),
        recurring("mail-digest", {"every_seconds": 7}, flaky, tenant_id="mail", retry_policy=retry),
        recurring(
            "partner-export",
            {"every_seconds": 30},
            down,
            tenant_id="shop",
            retry_policy=NO_RETRY,
        ),
        recurring(
            "ledger-compaction",
            {"every_seconds": 2},
            webhook(f"{target}/slow"),
            tenant_id="billing",
            overlap_policy="forbid",
        ),
    ]
    for number in range(900):
        found.append(recurring(f"invoice-{number:04}", nightly, ok, tenant_id="billing"))
    for number in range(60):
        hourly = {"cron": f"{number} * * * *"}
        found.append(recurring(f"report-{number:02}", hourly, ok, tenant_id="analytics"))
    return found


def take(server: Server, job: str, secret: str) -> None:
    program = services.chromium()
    if program is None:
        sys.exit("Chromium is needed: install Debian's package `chromium`.")
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, path, theme in (
            ("overview", "/?window=15m", "dark"),
            ("job", f"/jobs/{job}", "light"),
        ):
            page = browser.new_page(viewport=SIZE, color_scheme=theme, locale="en-GB")
            page.set_default_timeout(PATIENCE_MS)
            page.goto(server.url + path)
            page.get_by_label("API key").fill(secret)
            page.get_by_role("button", name="Sign in").click()
            page.locator("main h1[tabindex]").wait_for()
            loading = page.get_by_role("status", name="Loading")
            expect(loading).to_have_count(0, timeout=PATIENCE_MS)
            if name == "overview":
                page.get_by_text("Busiest minute").wait_for()
            page.mouse.move(0, 0)  # what it is over is marked
            page.wait_for_timeout(DRAWN_MS)
            page.screenshot(path=PICTURES / f"{name}.png")
        browser.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=15)
    minutes = options.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder, receiving() as target:
        server = Server(os.path.join(folder, "data"))
        try:
            server.until_ready()
            made = jobs(target)
            results = [
                result
                for begin in range(0, len(made), 300)
                for result in server.ask("POST", "/api/v1/jobs/batch", made[begin : begin + 300])[
                    "results"
                ]
            ]
            ids = {job["name"]: each["job_id"] for job, each in zip(made, results, strict=True)}
            time.sleep(minutes * 60)
            pause = {"reason": "partner is down, ticket 812"}
            server.ask("POST", f"/api/v1/jobs/{ids['partner-export']}/pause", pause)
            secret = server.ask("POST", "/api/v1/keys", {"name": "ops", "role": "admin"})["key"]
            take(server, ids["ledger-compaction"], secret)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
