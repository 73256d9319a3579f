"""The dashboard in a real browser, against a real server with something of everything.

Screenshots of every page, in both themes and at two widths, are kept in tests/artefacts. One tab of one browser serves all
tests: a new one costs a process that compiles the whole dashboard, and axe, again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from playwright.sync_api import Browser, Page, Response, Route, expect, sync_playwright

import services
from conftest import in_database
from hourbell.api.dashboard import FILES
from ui.server import NASTY, Server, eventually, key, receiving, seed

ROOT = Path(__file__).parents[2]
ARTEFACTS = ROOT / "tests" / "artefacts"
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
# A small tablet, and a window of 1,280 pixels at a zoom of 400%.
OTHER_WIDTHS = (768, 320)
# What axe calls best practices is not all; these are what people need.
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# axe compares every element with every excluded one, so whole rows are excluded first.
OTHER_CELLS = [
    "tbody tr:not(:has([data-cell][tabindex='0'])):has([data-cell])",
    "[data-cell][tabindex='-1']",
]
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


CLEAR = "rgba(0, 0, 0, 0)"
GO_TO_JOBS = """["g", "j"].forEach((key) =>
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })))"""


GO_TO_EXECUTIONS = """async () => {
  const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const opened = [], push = history.pushState;
  history.pushState = (state, title, path) => (opened.push(path), push.call(history, state, title, path));
  press("g");
  document.querySelector("[aria-label^='Use the']").click();
  await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
  press("e");
  history.pushState = push;
  return opened;
}"""


def execute(dsn: str, statement: LiteralString) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


TWO_DIED_YESTERDAY = """
update hourbell.dead_letters set died_at = now() - interval '1 day'
 where id in (select id from hourbell.dead_letters
               where error like '%Service Unavailable%' order by died_at limit 2)
"""


@pytest.fixture(scope="module")
def server(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not (FILES / "index.html").exists():
        services.unavailable("The build of the dashboard")
    execute(postgres, "create database dashboard")
    server = Server(str(tmp_path_factory.mktemp("data")), in_database(postgres, "dashboard"))
    try:
        server.until_ready()
        with receiving() as target:
            server.ids = seed(server, target)
            yield server
    finally:
        server.stop()
        execute(postgres, "drop database dashboard with (force)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = services.chromium()
    if program is None:
        services.unavailable("Chromium")
    ARTEFACTS.mkdir(exist_ok=True)
    expect.set_options(timeout=40_000)  # of a loaded machine
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            # No page lives long enough to repay optimised code.
            args=["--no-sandbox", "--js-flags=--no-opt"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    with browser.new_context(timezone_id="Europe/Berlin", locale="en-GB") as context:
        context.add_init_script(WATCH)
        yield context.new_page()


class Watched:
    """A page, everything that was written to its console, and its clicks."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page = page
        self.server = server
        self.said: list[str] = []
        self.refused: list[str] = []
        self.clicks = 0
        self._listeners: dict[Any, Any] = {
            "console": self._hear,
            "pageerror": lambda error: self.said.append(f"error: {error}"),
            "response": self._note,
        }
        page.set_viewport_size(WIDE)
        page.emulate_media(color_scheme="light", forced_colors="none")
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def _hear(self, message: Any) -> None:
        # Asked for beside a document that names no icon: the one of `leave`, before this test.
        if not message.location["url"].endswith("/favicon.ico"):
            self.said.append(f"{message.type}: {message.text} {message.location['url']}")

    def _note(self, response: Any) -> None:
        if response.status == 403:
            self.refused.append(f"{response.request.method} {response.url}")

    def leave(self) -> None:
        """Leave nothing to the next test: no routes, no cookie, no settings, no running page."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.unroute_all(behavior="wait")
        self.page.context.clear_cookies()
        self.page.goto(
            self.server.url + "/livez"
        )  # without scripts that could store something again
        self.page.evaluate("localStorage.clear()")

    def open(self, path: str) -> None:
        self.page.goto(self.server.url + path)
        self.settle()

    def settle(self) -> None:
        """Until the page has its heading and nothing is loading."""
        self.page.locator("h1").first.wait_for()
        expect(self.page.get_by_role("status", name="Loading")).to_have_count(0)

    def click(
        self, role: Any, name: str | re.Pattern[str], within: Any = None, exact: bool = False
    ) -> None:
        """A click that counts."""
        self.clicks += 1
        (within or self.page).get_by_role(role, name=name, exact=exact).first.click()

    def problems(self) -> list[str]:
        """What no page may have: messages and violations of its policy."""
        return self.said + self.page.evaluate("window.violations")

    def axe(self, within: str = "html") -> list[str]:
        """What axe finds, each with the element. Of the 1,440 cells of the heat map one is enough."""
        if not self.page.evaluate("'axe' in window"):
            # The policy of the page allows no script of ours, so it runs as the debugger's.
            self.page.evaluate(AXE.read_text())
        found = self.page.evaluate(
            """([context, tags]) =>
                 axe.run(context, {runOnly: {type: "tag", values: tags}, resultTypes: ["violations"]})
                   .then((result) => result.violations)""",
            [{"include": [[within]], "exclude": [[each] for each in OTHER_CELLS]}, STANDARDS],
        )
        return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]


@pytest.fixture
def watched(tab: Page, server: Server) -> Iterator[Watched]:
    watched = Watched(tab, server)
    yield watched
    watched.leave()


PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs-filtered": "/jobs?tenant_id=acme&status=SCHEDULED",
    "jobs-schedules": "/jobs?type=RECURRING",
    "jobs-one-time": "/jobs?type=ONE_TIME",
    "job": "/jobs/{heartbeat}",
    "job-paused": "/jobs/{mail-digest}",
    "job-definition": "/jobs/{invoice-nightly}?tab=definition",
    "job-versions": "/jobs/{invoice-nightly}?tab=versions",
    "job-new": "/jobs/new",
    "job-edit": "/jobs/{invoice-nightly}/edit",
    "executions": "/executions",
    "executions-failed": "/executions?view=failed",
    "dead-letters": "/dead-letters",
    "dead-letters-list": "/dead-letters?view=list",
    "forecast": "/forecast",
    "tenants": "/tenants",
    "tenants-by-name": "/tenants?order=name",
    "tenant": "/tenants/acme",
    "queues": "/queues",
    "queue": "/queues/images",
    "targets": "/targets",
    "fleet": "/fleet",
    "operations": "/operations",
    "tasks": "/tasks",
    "groups": "/groups",
    "calendars": "/calendars",
    "monitors": "/monitors",
    "audit": "/audit",
    "secrets": "/secrets",
    "keys": "/keys",
    "settings": "/settings",
    "more": "/more",
    "reference": "/reference",
}


def address(server: Server, path: str) -> str:
    return re.sub(r"\{(.+?)\}", lambda match: server.ids[match[1]], path)


def scrolls_sideways(page: Page) -> bool:
    wider: bool = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return wider


CUT = """Array.from(document.querySelectorAll("main table[aria-label]"))
  .filter((table) => table.parentElement.scrollWidth > table.parentElement.clientWidth)
  .map((table) => `${table.ariaLabel} is wider than its box`)"""


# On a phone, where a row is a card.
COVERED = """Array.from(document.querySelectorAll("main tbody tr")).flatMap((row) => {
  const name = row.querySelector("a")?.getBoundingClientRect();
  const menu = row.querySelector("button[aria-haspopup]")?.getBoundingClientRect();
  const apart = !name || !menu || menu.left >= name.right || menu.top >= name.bottom || menu.bottom <= name.top;
  return apart ? [] : [`the menu covers ${row.querySelector("a").textContent}`];
})"""


def looked_at(watched: Watched, name: str) -> list[str]:
    """What is wrong with the open page, in both themes and at all widths; screenshots of it are kept."""
    page, found = watched.page, []
    for width, theme in (
        ("wide", "light"),
        ("wide", "dark"),
        ("narrow", "dark"),
        ("narrow", "light"),
    ):
        page.set_viewport_size(WIDE if width == "wide" else NARROW)
        page.emulate_media(color_scheme=theme)
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        # One run for each theme and each width. The frame of the pages is the same on all of them: once is enough.
        if (width, theme) == ("wide", "light"):
            found += [f"{theme}, {width}: {each}" for each in watched.axe()]
            found += page.evaluate(CUT)
        if (width, theme) == ("narrow", "dark"):
            found += page.evaluate(COVERED)
            within = "html" if name == "overview" else "main"
            found += [f"{theme}, {width}: {each}" for each in watched.axe(within)]
        whole = (width, theme) == ("wide", "light")
        page.screenshot(path=ARTEFACTS / f"{name}-{theme}-{width}.png", full_page=whole)
        found += [f"{width}, {theme}: scrolls sideways"] if scrolls_sideways(page) else []
    for pixels in OTHER_WIDTHS:
        page.set_viewport_size({"width": pixels, "height": 900})
        found += [f"{pixels}: scrolls sideways"] if scrolls_sideways(page) else []
    page.set_viewport_size(WIDE)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_accessible_quiet_and_fits_in_both_themes_and_at_both_widths(
    watched: Watched, name: str
) -> None:
    watched.open(address(watched.server, PAGES[name]))
    assert looked_at(watched, name) + watched.problems() == []
    assert watched.page.locator("h1").count() == 1


def test_why_a_job_did_not_run_is_one_click_from_what_needs_attention(watched: Watched) -> None:
    watched.open("/")
    row = watched.page.get_by_role("listitem").filter(has_text="ledger-compaction")
    expect(row).to_contain_text("gamma")  # two tenants may have jobs of one name
    watched.click("link", "Why?", row)
    why = watched.page.get_by_role("region", name="Why?")
    expect(why).to_contain_text("an earlier run")
    expect(why.get_by_role("link", name="Open that run")).to_be_visible()
    assert watched.clicks == 1
    assert watched.problems() == []


def test_why_a_job_did_not_run_is_one_search_away(watched: Watched) -> None:
    watched.open("/")
    watched.click("combobox", "Search jobs, or an id")
    watched.page.keyboard.type("mail-dig")
    watched.click("option", re.compile("mail-digest"))
    why = watched.page.get_by_role("region", name="Why?")
    expect(why).to_contain_text("paused")
    expect(why).to_contain_text("partner is down, ticket 812")
    assert watched.clicks <= 3
    assert watched.problems() == []


def test_jobs_are_found_by_what_is_in_their_name_task_or_label(watched: Watched) -> None:
    page = watched.page
    watched.open("/jobs?tenant_id=acme")
    expect(page.get_by_role("button", name="Pause all…")).to_be_visible()
    table = page.get_by_role("table", name="Jobs")
    field = page.get_by_role("textbox", name="Search", exact=True)
    field.fill("EARTBEA")
    field.press("Enter")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table).to_contain_text("heartbeat")
    assert "q=EARTBEA" in page.url
    # A bulk operation has no such filter: it would pause all jobs of the tenant.
    expect(page.get_by_role("button", name="Pause all…")).to_have_count(0)
    page.screenshot(path=ARTEFACTS / "jobs-search.png", full_page=True)
    watched.click("link", "One-time jobs")
    expect(page.get_by_text("No jobs match.")).to_be_visible()
    watched.click("link", "Schedules")
    for text in ("team:platform", "platform"):
        field.fill(text)
        field.press("Enter")
        expect(table).to_contain_text("heartbeat")
    watched.open("/")
    watched.click("combobox", "Search jobs, or an id")
    page.keyboard.type("shop.resi")
    expect(page.get_by_role("option", name=re.compile("resize-now"))).to_be_visible()
    page.keyboard.press("Escape")
    assert watched.problems() == []


def test_a_search_that_has_not_seen_all_jobs_goes_on(watched: Watched) -> None:
    page = watched.page

    def fulfill(route: Route) -> None:
        if "page_token" in route.request.url or "total=" in route.request.url:
            route.fallback()
        else:
            route.fulfill(
                json={"items": [], "next_page_token": "list_jobs.WzAsOTIyMzM3MjAzNjg1NDc3NTgwN10"}
            )

    page.route("**/api/v1/jobs?*q=heartbeat*", fulfill)
    watched.open("/jobs?q=heartbeat")
    expect(page.get_by_text("No jobs match.")).to_have_count(0)
    watched.click("link", "Search further")
    expect(page.get_by_role("table", name="Jobs")).to_contain_text("heartbeat")
    assert watched.problems() == []


def test_a_dead_one_time_job_is_failed_on_its_page_in_the_list_and_in_the_filter(
    watched: Watched,
) -> None:
    page, server = watched.page, watched.server
    action = server.ask("GET", f"/api/v1/jobs/{server.ids['heartbeat']}")["action"]
    dies = action | {"url": action["url"].rpartition("/")[0] + "/503"}
    once = {"type": "ONE_TIME", "schedule": {"delay_seconds": 0}, "tenant_id": "doomed"}
    retries = {"retry_policy": {"max_retries": 0}}
    job = server.ask(
        "POST", "/api/v1/jobs", once | retries | {"name": "dies-at-once", "action": dies}
    )
    server.ask(
        "POST",
        "/api/v1/jobs",
        once | {"name": "never-runs", "action": {"type": "TASK", "name": "shop.resize"}},
    )
    eventually(lambda: server.ask("GET", f"/api/v1/jobs/{job['job_id']}")["status"] == "FAILED")
    watched.open(f"/jobs/{job['job_id']}")
    expect(page.locator("main")).to_contain_text("Failed")
    watched.open("/jobs?tenant_id=doomed")
    watched.click("link", "One-time jobs")
    table = page.get_by_role("table", name="Jobs")
    expect(table.get_by_role("row", name="dies-at-once")).to_contain_text("Failed")
    expect(table.get_by_role("row", name="never-runs")).to_contain_text("Queued")
    page.get_by_label("Status").select_option("Failed")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table).to_contain_text("dies-at-once")
    watched.click("link", "Schedules")
    expect(page.get_by_text("No jobs match.")).to_be_visible()
    watched.click("button", "Clear filters")
    watched.click("link", "Schedules")
    expect(table).to_contain_text("heartbeat")
    names = table.locator("tbody tr td:nth-child(2)")
    watched.click("button", "Name")
    shown = names.all_inner_texts()
    assert shown == sorted(shown, key=str.casefold)
    assert watched.problems() == []


def test_groups_calendars_and_monitors_have_pages_with_what_they_are_for(watched: Watched) -> None:
    page, server = watched.page, watched.server
    group = {"name": "monthly-statements", "url": "https://api.example/done"}
    server.ask("POST", "/api/v1/groups", group)
    server.ask("PUT", "/api/v1/calendars/holidays", {"dates": ["2031-12-25", "2031-12-26"]})
    watched.open("/groups")
    watched.click("link", "monthly-statements")
    expect(page.get_by_role("heading", name="monthly-statements")).to_be_visible()
    expect(page.locator("main")).to_contain_text("https://api.example/done")
    expect(page.locator("main")).to_contain_text("0 executions")
    watched.open("/groups?state=ENDED")
    expect(page.get_by_text("There are no groups in this state.")).to_be_visible()
    watched.open("/calendars")
    expect(page.get_by_role("row", name="holidays")).to_contain_text("2031-12-25, 2031-12-26")
    watched.open("/monitors")
    watched.click("button", "New monitor")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Job").fill("no such job")
    dialog.get_by_label("URL to call").fill("https://api.example/alarm")
    watched.click("button", "Create monitor", dialog)
    expect(dialog).to_contain_text("No recurring job has this name.")
    dialog.get_by_label("Job").fill("mail-digest")
    assert watched.axe("dialog") == []
    watched.click("button", "Create monitor", dialog)
    expect(page.get_by_role("row", name="mail-digest")).to_contain_text("https://api.example/alarm")
    watched.open("/audit?operation=create_monitor")
    expect(page.get_by_text("1 entry.")).to_be_visible()
    assert watched.problems() == []


def test_tasks_and_hosts_show_their_runs_and_lead_to_workers_and_errors(watched: Watched) -> None:
    page, server = watched.page, watched.server

    def failed() -> Any:
        items = server.ask("GET", "/api/v1/tasks?window=24h&order=failures")["items"]
        return next((item for item in items if item["host"] and item["failures"]), None)

    eventually(lambda: failed() is not None)
    host = failed()["host"]
    watched.open("/tasks?window=24h")
    row = page.get_by_role("table", name="Tasks").get_by_role("row", name=host)
    expect(row).to_contain_text("webhooks")
    expect(row.get_by_role("img", name=re.compile(f"Runs of {host}"))).to_be_visible()
    assert looked_at(watched, "tasks-with-runs") == []
    row.locator("a[href^='/executions/']").click()
    expect(page).to_have_url(re.compile("/executions/exe_"))
    watched.open("/tasks?window=24h&order=waiting")
    first = page.get_by_role("table", name="Tasks").locator("tbody tr").first
    waiting = server.ask("GET", "/api/v1/tasks?window=24h&order=waiting")["items"][0]
    expect(first).to_contain_text(waiting["task"] or waiting["host"])
    watched.click("link", "Name", page.get_by_role("navigation", name="Order"))
    expect(page).to_have_url(re.compile("order=name"))
    served = page.get_by_role("row", name=host).locator("a[href^='/fleet/']").first
    served.click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page).to_have_url(re.compile("/fleet/ses_"))
    assert watched.problems() == []


def test_a_paused_schedule_shows_what_would_run(watched: Watched) -> None:
    watched.open(f"/jobs/{watched.server.ids['mail-digest']}")
    runs = watched.page.get_by_role("heading", name="Next 10 runs, if it is resumed now")
    expect(runs).to_be_visible()
    expect(watched.page.locator("main ol li")).to_have_count(10)
    assert watched.problems() == []


def test_everything_of_a_tenant_is_paused_with_four_clicks(watched: Watched) -> None:
    page = watched.page
    watched.open("/")
    watched.click("link", "Tenants")
    watched.click("button", "Actions for gamma")
    watched.click("menuitem", "Pause everything…")
    dialog = page.get_by_role("dialog")
    # Until they are counted the dialog asks for the name of the tenant, as for more than 100.
    expect(dialog).to_contain_text(re.compile(r"Pause \d+ jobs?: tenant gamma"))
    dialog.get_by_label("Reason").fill("audit of the tenant")
    watched.click("button", re.compile("^Pause "), dialog)
    expect(page.get_by_role("heading", name="Operation")).to_be_visible()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    assert watched.clicks <= 4
    statuses = {
        each["status"]
        for each in watched.server.ask("GET", "/api/v1/jobs?tenant_id=gamma")["items"]
    }
    assert statuses == {"PAUSED"}
    watched.click("button", "Resume them")
    expect(page.get_by_text("The jobs are being resumed.")).to_be_visible()
    (resumed, paused) = watched.server.ask("GET", "/api/v1/operations?page_size=2")["items"]
    assert resumed["act"] == "resume"
    assert resumed["filter"] == {"operation_id": paused["operation_id"]}
    assert resumed["total"] == paused["done"]
    assert watched.problems() == []


def test_yesterdays_dead_letters_of_one_error_are_replayed_with_progress(watched: Watched) -> None:
    page = watched.page
    execute(watched.server.database, TWO_DIED_YESTERDAY)
    watched.open("/")
    watched.click("link", re.compile("^Dead letters"))
    watched.click("link", "Yesterday")
    row = page.get_by_role("row").filter(has_text="http_503")
    watched.click("button", "Replay 2…", row)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("http_503")
    expect(dialog).to_contain_text("died yesterday")
    watched.click("button", "Replay 2", dialog, exact=True)
    progress = page.get_by_role("region", name="Operation")
    expect(progress).to_contain_text("2 of 2 replayed")
    assert watched.clicks == 4
    assert watched.problems() == []


def test_whether_tonight_is_crowded_is_said_at_once(watched: Watched) -> None:
    watched.open("/")
    expect(watched.page.get_by_text(re.compile(r"Busiest minute:"))).to_be_visible()
    watched.click("link", "Forecast")
    expect(watched.page.get_by_role("heading", name="Forecast")).to_be_visible()
    expect(watched.page.get_by_role("grid")).to_be_visible()
    expect(watched.page.get_by_role("table", name="Herds")).to_contain_text("0 2 * * *")
    assert watched.clicks <= 1
    assert watched.problems() == []


def test_a_job_at_half_past_two_in_berlin_shows_both_clock_changes_before_it_is_created(
    watched: Watched,
) -> None:
    page = watched.page
    watched.open("/")
    watched.click("link", "Jobs", exact=True)
    watched.click("link", "New job")
    page.get_by_label("Name", exact=True).fill("berlin-report")
    page.get_by_label("At", exact=True).fill("02:30")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("URL").fill("https://example.com/report")
    changes = page.locator("section").filter(
        has=page.get_by_role("heading", name="When the clocks change")
    )
    expect(changes).to_contain_text("02:30 does not exist")
    expect(changes).to_contain_text("02:30 happens twice")
    watched.click("button", "Create job")
    expect(page.get_by_role("heading", name="berlin-report")).to_be_visible()
    assert watched.clicks <= 3
    assert watched.problems() == []


def test_a_refused_job_says_why_at_the_field(watched: Watched) -> None:
    page = watched.page
    watched.open("/jobs/new")
    page.get_by_role("button", name="Cron rule").click()
    page.get_by_label("Cron rule").fill("0 22-2 * * *")
    expect(page.get_by_text(re.compile("22-2"))).to_be_visible()
    page.get_by_role("button", name="Create job").click()
    expect(page.get_by_role("alert")).to_contain_text("name")
    assert page.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"
    said = [each for each in watched.said if "422" not in each]  # the browser logs refused requests
    assert said == []


def test_nothing_that_users_write_is_read_as_html(watched: Watched) -> None:
    page, server = watched.page, watched.server
    letters = server.ask("GET", "/api/v1/dead-letters?page_size=500")["items"]
    letter = next(each for each in letters if NASTY in (each["error"] or ""))
    job = f"/jobs/{letter['job_id']}"
    for path in (
        "/jobs",
        job,
        f"{job}?tab=definition",
        f"{job}?tab=audit",
        f"{job}/edit",
        "/executions",
        f"/executions/{letter['execution_id']}",
        "/dead-letters",
        "/dead-letters?view=list",
        "/audit",
        f"/jobs?name_prefix={NASTY[:20]}",
    ):
        watched.open(path)
        assert "Hourbell" in page.title(), path
        assert page.locator("main img").count() == 0, path
        assert page.locator("main script").count() == 0, path
    watched.open(f"/executions/{letter['execution_id']}")
    expect(page.get_by_text(NASTY).first).to_be_visible()
    assert watched.problems() == []


def test_numbers_of_users_keep_their_digits(watched: Watched) -> None:
    runs = watched.server.ask(
        "GET", f"/api/v1/jobs/{watched.server.ids['heartbeat']}/executions?status=SUCCEEDED"
    )
    watched.open(f"/executions/{runs['items'][0]['execution_id']}")
    expect(watched.page.get_by_role("region", name="Result", exact=True)).to_contain_text(
        "12345678901234567890"
    )


def test_the_keyboard_reaches_pages_rows_and_acts(watched: Watched) -> None:
    page = watched.page
    watched.open("/")
    # At one moment: the page forgets the first key after a second, and between two calls the machine may stall.
    page.evaluate(GO_TO_JOBS)
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_focused()
    watched.settle()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr') !== null")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Why?")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Search jobs, or an id")).to_be_focused()
    page.keyboard.type("gj?")  # a field takes letters
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert watched.problems() == []


def test_two_keys_are_a_pair_although_the_page_is_drawn_between_them_and_no_single_key(
    watched: Watched,
) -> None:
    page = watched.page
    watched.open(f"/jobs/{watched.server.ids['invoice-nightly']}")
    expect(page.get_by_role("link", name="Edit")).to_be_visible()
    assert page.evaluate(GO_TO_EXECUTIONS) == ["/executions"]  # `e` alone edits a job
    expect(page.get_by_role("heading", name="Executions", level=1)).to_be_focused()


def test_the_choice_of_a_theme_and_of_a_clock_lasts(watched: Watched) -> None:
    page = watched.page
    watched.open("/jobs")
    page.get_by_role("button", name="Use the dark theme").click()
    page.get_by_role("button", name=re.compile("Clock")).click()
    page.get_by_role("menuitem", name=re.compile("Local")).click()
    watched.open("/jobs")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect(page.get_by_role("button", name=re.compile("Clock"))).to_contain_text(
        re.compile("CES?T")
    )


def test_a_second_change_of_a_job_is_not_overwritten(watched: Watched) -> None:
    page, server = watched.page, watched.server
    job = server.ids["seller-report"]
    watched.open(f"/jobs/{job}/edit")
    server.ask("PATCH", f"/api/v1/jobs/{job}", {"priority": "LOW"})
    page.get_by_label("Name", exact=True).fill("seller-report-2")
    page.get_by_role("button", name="Save changes").click()
    expect(page.get_by_role("alert")).to_contain_text("was changed while you were editing it")
    assert server.ask("GET", f"/api/v1/jobs/{job}")["name"] == "seller-report"
    expect(page.get_by_label("Name", exact=True)).to_have_value("seller-report-2")
    page.get_by_role("button", name="Save my changes on top").click()
    expect(page.get_by_role("heading", name="seller-report-2")).to_be_visible()
    saved = server.ask("GET", f"/api/v1/jobs/{job}")
    assert (saved["name"], saved["priority"]) == ("seller-report-2", "LOW")


def test_a_form_with_changes_is_not_left_without_asking(watched: Watched) -> None:
    page = watched.page
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    watched.open("/jobs/new")
    page.get_by_label("Name", exact=True).fill("half-done")
    page.get_by_role("link", name="Executions").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("half-done")
    assert asked == ["You have unsaved changes. Leave the page?"]


def test_a_dialog_gives_back_the_focus(watched: Watched) -> None:
    page = watched.page
    watched.open(f"/jobs/{watched.server.ids['heartbeat']}")
    page.get_by_role("button", name="Pause…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause…")).to_be_focused()


def test_a_page_whose_code_is_gone_leaves_the_frame_standing(watched: Watched) -> None:
    page = watched.page
    watched.open("/")
    page.route("**/assets/reference-*.js", lambda route: route.abort())  # as after an upgrade
    page.get_by_role("link", name="API", exact=True).click()
    expect(page.get_by_role("heading", name="This page cannot be shown")).to_be_visible()
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()


def test_a_refused_read_is_repeated_when_the_server_says_so(watched: Watched) -> None:
    page = watched.page
    problem = {"title": "Too many requests", "detail": "Wait.", "code": "rate_limited"}
    seen = False

    def refuse_until_seen(route: Route) -> None:
        # The stream of events has the page read again too, soon after it is opened.
        if seen:
            route.continue_()
        else:
            route.fulfill(status=429, headers={"Retry-After": "1"}, json=problem)

    page.route("**/api/v1/audit*", refuse_until_seen)
    watched.open("/audit")
    expect(page.get_by_text("Too many requests")).to_be_visible()
    seen = True
    expect(page.get_by_text("by anonymous").first).to_be_visible()
    expect(page.get_by_text("Too many requests")).to_have_count(0)


def test_a_filtered_list_is_exported_and_its_view_is_kept(watched: Watched) -> None:
    page = watched.page
    watched.open("/jobs?tenant_id=acme&name_prefix=settlement")
    page.get_by_role("button", name="Views").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Export as CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("job_id,")
    assert len(lines) == 1 + 40
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="Saved views…").click()
    page.get_by_label("Name of the view").fill("Settlements")
    page.get_by_role("button", name="Save this view").click()
    watched.open("/jobs")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="Settlements").click()
    expect(page.get_by_text("40 jobs.")).to_be_visible()
    assert watched.problems() == []


def test_forced_colours_keep_what_colours_tell(watched: Watched) -> None:
    page = watched.page
    page.emulate_media(forced_colors="active")
    watched.open("/forecast")
    colours = page.evaluate(
        """[...new Set(Array.from(document.querySelectorAll("[data-cell]"),
              (cell) => getComputedStyle(cell).backgroundColor))].length"""
    )
    assert colours > 1
    current = page.locator("nav[aria-label=Pages] [aria-current]")
    assert current.evaluate("(link) => getComputedStyle(link).outlineStyle") == "solid"
    page.screenshot(path=ARTEFACTS / "forecast-forced-colours.png")


def test_one_run_operation_and_worker_and_every_dialog_are_accessible_too(
    watched: Watched,
) -> None:
    page, server = watched.page, watched.server
    job = server.ids["heartbeat"]
    letter = server.ask("GET", "/api/v1/dead-letters?page_size=1")["items"][0]
    pause = {"act": "pause", "filter": {"tenant_id": "gamma"}, "reason": "looked at"}
    operation = server.ask("POST", "/api/v1/operations", pause)["operation_id"]
    worker = server.ask("GET", "/api/v1/workers")["items"][0]["session_id"]
    found: list[str] = []

    def look(name: str) -> None:
        for theme in ("dark", "light"):
            page.emulate_media(color_scheme=theme)
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            page.screenshot(path=ARTEFACTS / f"{name}-{theme}-wide.png")
        found.extend(f"{name}: {each}" for each in watched.axe())

    for name, path in {
        "execution": f"/executions/{letter['execution_id']}",
        "operation": f"/operations/{operation}",
        "worker": f"/fleet/{worker}",
        "job-audit": f"/jobs/{job}?tab=audit",
    }.items():
        watched.open(path)
        look(name)
    for name, path, *names in (
        ("dialog-pause", f"/jobs/{job}", "Pause…"),
        ("dialog-run", f"/jobs/{job}", "Run now…"),
        ("dialog-delete", "/jobs?name_prefix=heartbeat", "Actions for heartbeat", "Delete…"),
        (
            "dialog-purge",
            "/dead-letters?time=all",
            "Actions for all matching",
            "Purge all matching",
        ),
        ("dialog-limits", "/queues/images", "Limits…"),
        ("dialog-key", "/keys", "New key"),
    ):
        watched.open(path)
        page.get_by_role("button", name=names[0]).first.click()
        if len(names) > 1:
            page.get_by_role("menuitem", name=names[1]).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        look(name)
    assert found + watched.problems() == []


def test_no_two_fields_of_the_form_overlap(watched: Watched) -> None:
    page = watched.page
    watched.open("/jobs/new")
    for kind in ("Daily", "Weekly", "Monthly", "Every …", "Once", "Cron rule"):
        page.get_by_role("button", name=kind, exact=True).click()
        boxes = [
            box
            for field in page.locator("form").locator("input, select, textarea").all()
            if field.is_visible() and (box := field.bounding_box()) is not None
        ]
        for index, one in enumerate(boxes):
            for other in boxes[index + 1 :]:
                apart = (
                    one["x"] + one["width"] <= other["x"]
                    or other["x"] + other["width"] <= one["x"]
                    or one["y"] + one["height"] <= other["y"]
                    or other["y"] + other["height"] <= one["y"]
                )
                assert apart, (kind, one, other)


def test_selected_jobs_are_paused_with_a_reason_and_resumed(watched: Watched) -> None:
    page, server = watched.page, watched.server
    names = ("settlement-001", "settlement-002")

    def change(act: str, status: str) -> list[dict[str, Any]]:
        watched.open("/jobs?tenant_id=acme&name_prefix=settlement-00")
        for name in names:
            page.get_by_role("checkbox", name=f"Select {name}").check()
        page.get_by_role("button", name=f"{act}…", exact=True).click()
        if act == "Pause":
            page.get_by_role("dialog").get_by_label("Reason").fill("month end")
        page.get_by_role("dialog").get_by_role("button", name=act).click()
        for name in names:
            row = page.get_by_role("row").filter(has_text=name)
            expect(row).to_contain_text(status)
        return [server.ask("GET", f"/api/v1/jobs/{server.ids[name]}") for name in names]

    paused = change("Pause", "“month end”")
    assert [(job["status"], job["paused"]["reason"]) for job in paused] == [
        ("PAUSED", "month end")
    ] * 2
    assert [job["status"] for job in change("Resume", "Scheduled")] == ["SCHEDULED"] * 2
    others = server.ask("GET", f"/api/v1/jobs/{server.ids['settlement-003']}/audit")["items"]
    assert [entry["operation"] for entry in others] == ["create"]
    assert watched.problems() == []


def test_dead_letters_are_purged_only_after_their_number_was_typed(watched: Watched) -> None:
    page, server = watched.page, watched.server

    def refused() -> int:
        letters = server.ask("GET", "/api/v1/dead-letters?page_size=500")["items"]
        return sum(letter["kind"] == "http_400" for letter in letters)

    count = refused()
    assert count
    watched.open("/dead-letters?time=all")
    row = page.get_by_role("row").filter(has_text="http_400")
    row.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name=f"Purge {count}…").click()
    dialog = page.get_by_role("dialog")
    purge = dialog.get_by_role("button", name=f"Purge {count}", exact=True)
    expect(purge).to_be_disabled()
    dialog.get_by_label(f"Type {count} to confirm").fill(str(count + 1))
    expect(purge).to_be_disabled()
    dialog.get_by_label(f"Type {count} to confirm").fill(str(count))
    assert refused() == count
    purge.click()
    expect(page.get_by_role("region", name="Operation")).to_contain_text(
        f"{count} of {count} purged"
    )
    expect(row).to_have_count(0)
    assert refused() == 0
    assert watched.problems() == []


def test_a_job_is_run_now_and_its_run_appears_by_itself(watched: Watched) -> None:
    page = watched.page
    watched.open(f"/jobs/{watched.server.ids['invoice-nightly']}")
    expect(page.get_by_text("It has not run yet.").first).to_be_visible()
    page.evaluate("window.sameDocument = true")
    page.get_by_role("button", name="Run now…").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Run now").click()
    expect(page.get_by_role("row").filter(has_text="Succeeded")).to_have_count(1)
    assert page.evaluate("window.sameDocument")
    assert watched.problems() == []


def test_the_overview_changes_by_itself(watched: Watched) -> None:
    page = watched.page
    watched.open("/")
    row = page.get_by_role("row").filter(has_text="High")
    expect(row).to_have_text(re.compile(r"^High\s*0\s*0\s*0"))
    page.evaluate("window.sameDocument = true")
    waits = {"type": "TASK", "name": "shop.nobody-has-it"}
    once = {"name": "waits", "type": "ONE_TIME", "schedule": {"delay_seconds": 0}}
    watched.server.ask("POST", "/api/v1/jobs", once | {"action": waits, "priority": "HIGH"})
    expect(row).to_have_text(re.compile(r"^High\s*0\s*1\s*0"))
    expect(page.get_by_role("listitem").filter(has_text="shop.nobody-has-it")).to_be_visible()
    assert page.evaluate("window.sameDocument")
    assert watched.problems() == []


def overview_with(watched: Watched, change: Callable[[Any], None]) -> None:
    """The overview is answered as always, but for this change."""

    def answered(route: Route) -> None:
        answer = route.fetch()
        overview = answer.json()
        change(overview)
        route.fulfill(response=answer, json=overview)

    watched.page.route("**/api/v1/overview*", answered)


def test_the_overview_says_how_far_its_forecast_is_complete(watched: Watched) -> None:
    page = watched.page
    watched.open("/")
    busiest = page.get_by_text(re.compile("Busiest minute:"))
    expect(busiest).not_to_contain_text("Counted in full until")

    def incomplete(overview: Any) -> None:
        at = datetime.fromisoformat(overview["at"]) + timedelta(hours=5, minutes=30)
        overview["peak"]["complete_until"] = at.isoformat()
        overview["peak"]["capacity_per_minute"] = overview["peak"]["executions"]

    def unknown(overview: Any) -> None:
        overview |= {"peak": None, "peak_known": False}

    overview_with(watched, unknown)
    watched.open("/")
    expect(page.get_by_text("The forecast is being computed")).to_be_visible()
    expect(page.get_by_text("Nothing is due")).to_have_count(0)
    page.unroute_all(behavior="wait")
    overview_with(watched, incomplete)
    watched.open("/")
    expect(busiest).to_contain_text("Counted in full until")
    expect(busiest).to_contain_text("so all should start on time")
    bars = page.get_by_role("img", name=re.compile("Runs due in each")).locator("rect")
    assert [bars.nth(index).get_attribute("opacity") for index in (4, 5)] == ["1", "0.4"]
    assert watched.problems() == []


def test_the_figures_are_those_of_the_chosen_window(watched: Watched) -> None:
    page = watched.page

    def known(overview: Any) -> None:
        overview["lateness_ms"] = {"p50": 1_200, "p95": 5_400, "p99": 7_100}
        overview["series"][-2]["started"] = 590  # in 5 minutes
        overview["depth"][0]["ready"] = 77

    overview_with(watched, known)
    watched.open("/?window=24h")
    # The stream of events, which tells of the last 15 minutes, has arrived.
    expect(page.get_by_role("row").filter(has_text="Critical")).not_to_contain_text("77")
    figures = page.locator("main a, main div")
    expect(figures.filter(has_text=re.compile(r"^Lateness p99, 24h7\.1 s$"))).to_be_visible()
    expect(figures.filter(has_text=re.compile(r"^Started per minute118$"))).to_be_visible()
    assert watched.problems() == []


# Figures that reach into the padding of their cells.
OVERFLOWING = """Array.from(document.querySelectorAll("main b:only-of-type")).filter((each) => {
  const cell = each.parentElement;
  const end = cell.getBoundingClientRect().right - parseFloat(getComputedStyle(cell).paddingRight);
  return each.getBoundingClientRect().right > end + 0.5;
}).map((each) => each.textContent)"""


def test_long_durations_fit_their_figures_at_every_width(watched: Watched) -> None:
    def slow(overview: Any) -> None:
        overview["lateness_ms"] = {"p50": 1_003_000, "p95": 3_599_000, "p99": 86_340_000}

    overview_with(watched, slow)
    watched.open("/")
    expect(watched.page.get_by_text("23 h 59 min", exact=True)).to_be_visible()
    for width in (390, 768, 1_000, 1_250, 1_300, 1_390, 1_440):
        watched.page.set_viewport_size({"width": width, "height": 900})
        assert watched.page.evaluate(OVERFLOWING) == [], width
    assert watched.problems() == []


def test_an_empty_column_of_errors_leaves_its_width_to_the_names(watched: Watched) -> None:
    page = watched.page
    page.set_viewport_size({"width": 1_300, "height": 900})
    for status, is_empty in (("SUCCEEDED", True), ("DEAD", False)):
        watched.open(f"/executions?status={status}")
        job, error = (
            page.get_by_role("columnheader", name=name).bounding_box() for name in ("Job", "Error")
        )
        assert job is not None
        assert error is not None
        assert (error["width"] < job["width"]) is is_empty
    assert watched.problems() == []


def test_an_old_event_of_the_stream_does_not_hide_what_was_read_since(watched: Watched) -> None:
    page = watched.page
    row = page.get_by_role("row").filter(has_text="Critical")
    watched.open("/")
    expect(page.get_by_role("button", name="Live")).to_be_visible()

    def later(overview: Any) -> None:
        at = datetime.fromisoformat(overview["at"]) + timedelta(hours=1)
        overview["at"] = at.isoformat()
        overview["depth"][0]["ready"] = 77

    overview_with(watched, later)
    expect(row).to_contain_text("77")  # with the next read, in 10 s
    watched.settle()
    assert watched.problems() == []


def test_names_that_no_put_has_declared_are_noted_in_their_lists(watched: Watched) -> None:
    page, server = watched.page, watched.server
    for kind, field, name in (("tenants", "tenant_id", "acme"), ("queues", "queue", "mail")):
        items = server.ask("GET", f"/api/v1/{kind}?page_size=100")["items"]
        on_use = {each[field] for each in items if each["created_on_use"]}
        assert on_use
        assert name not in on_use
        watched.open(f"/{kind}")
        expect(page.locator("tbody tr").filter(has_text="created on use")).to_have_count(
            len(on_use)
        )
        declared = page.locator("tbody tr").filter(
            has=page.get_by_role("link", name=name, exact=True)
        )
        expect(declared).not_to_contain_text("created on use")
    assert watched.problems() == []


def test_what_waits_of_a_tenant_is_one_click_from_the_tenants(watched: Watched) -> None:
    page, server = watched.page, watched.server
    counts = server.ask("GET", "/api/v1/tenants/default")["counts"]
    assert counts["waiting"] > counts["parked"]  # that of shop.resize has no worker
    for path in ("/tenants", "/tenants/default"):
        watched.open(path)
        waiting = page.locator("main a[href*='tenant_id=default&status=QUEUED']")
        expect(waiting).to_contain_text(str(counts["waiting"]))
        expect(page.locator("main a[href*='tenant_id=gamma&status=QUEUED']")).to_have_count(0)
    waiting.click()
    expect(page.locator("tbody tr")).to_have_count(counts["waiting"])
    row = page.locator("tbody tr").filter(has_text="resize-now")
    expect(row).to_contain_text("Queued: no worker for its task")
    assert watched.problems() == []


def test_the_list_of_executions_says_by_what_it_is_ordered(watched: Watched) -> None:
    page, server = watched.page, watched.server
    job = server.ids["price-sync"]
    for query, field, title in (
        ("", "created_at", "Created"),
        (f"?job_id={job}", "scheduled_for", "Scheduled"),
    ):
        items = server.ask("GET", f"/api/v1/executions{query}")["items"]
        times = [datetime.fromisoformat(item[field]) for item in items]
        assert times == sorted(times, reverse=True)
        watched.open(f"/executions{query}")
        expect(page.locator("th[aria-sort=descending]")).to_have_text(title)
        expect(page.locator("main")).to_contain_text(f"latest {title.lower()} first")
    assert watched.problems() == []


def test_executions_are_filtered_by_reason_queue_and_time(watched: Watched) -> None:
    page = watched.page
    rows = page.locator("tbody tr")
    watched.open("/executions")
    page.get_by_label("Reason").select_option("overlap")
    expect(rows.filter(has_not_text="Skipped: overlap")).to_have_count(0)
    expect(rows.filter(has_text="ledger-compaction").first).to_be_visible()
    page.get_by_role("button", name="Remove the filter reason overlap").click()
    page.get_by_label("Queue").select_option("images")
    expect(rows.filter(has_not_text="resize-now")).to_have_count(0)
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="Yesterday").click()
    expect(page.get_by_text("No executions created in this period match.")).to_be_visible()
    page.get_by_role("link", name="Any time").click()
    page.get_by_label("Tenant").select_option("gamma")
    expect(page.get_by_text("No executions match.")).to_be_visible()
    assert watched.problems() == []


def test_a_run_shows_every_attempt_with_its_error_and_its_fence(watched: Watched) -> None:
    page, server = watched.page, watched.server
    path = f"/api/v1/jobs/{server.ids['price-sync']}/executions?page_size=100"
    run = next(each for each in server.ask("GET", path)["items"] if each["attempt"] > 1)
    attempts = server.ask("GET", f"/api/v1/executions/{run['execution_id']}")["attempts"]
    assert len(attempts) > 1
    watched.open(f"/executions/{run['execution_id']}")
    for attempt in attempts:
        shown = page.get_by_role("listitem").filter(has_text=f"Attempt {attempt['attempt']}")
        expect(shown).to_contain_text(f"fence {attempt['fence_token']}")
        expect(shown).to_contain_text(f"worker {attempt['worker_id']}")
        if attempt["status"] == "FAILED":
            expect(shown).to_contain_text("The target answered 503.")
    assert watched.problems() == []


def test_a_job_shows_its_last_runs_its_next_runs_and_its_versions(watched: Watched) -> None:
    page, server = watched.page, watched.server
    watched.open(f"/jobs/{server.ids['ledger-compaction']}")
    chart = page.get_by_role("group", name=re.compile(r"runs · took p50 .* · late p95 .* skipped"))
    ran = re.compile(r"succeeded, took [\d.]+ s, started [\d.]+ m?s late$")
    expect(chart.get_by_role("link", name=ran).first).to_be_visible()
    wide = "(chart) => chart.clientWidth >= chart.parentElement.clientWidth - 4"
    assert chart.evaluate(wide)  # its line does not end with the last of few runs
    skipped = chart.get_by_role("link", name=re.compile("skipped, overlap$")).first
    skipped.click()
    expect(page.get_by_role("heading", name="Run of ledger-compaction")).to_be_visible()
    watched.open(f"/jobs/{server.ids['invoice-nightly']}?tab=versions")
    upcoming = page.locator("section").filter(has=page.get_by_role("heading", name="Next 10 runs"))
    # In summer CEST; on the day when the clocks go forward 03:00.
    expect(upcoming.get_by_text(re.compile("(02:30|03:00) CES?T"))).to_have_count(10)
    change = page.locator("dl").filter(
        has=page.get_by_role("term").filter(has_text="timeout_seconds")
    )
    expect(change).to_contain_text(re.compile(r"300\s*90"))
    assert watched.problems() == []


def test_what_failed_is_one_click_from_all_executions(watched: Watched) -> None:
    page = watched.page
    watched.open("/executions")
    page.get_by_role("link", name="Failed", exact=True).click()
    expect(page).to_have_url(re.compile("view=failed"))
    expect(page.locator("tbody tr").filter(has_text="Succeeded")).to_have_count(0)
    shown = page.locator("tbody tr td:first-child").all_inner_texts()
    assert shown
    assert {text.partition(":")[0].strip() for text in shown} <= {"Dead", "Retrying"}


def test_the_forecast_says_where_runs_will_wait(watched: Watched) -> None:
    page, server = watched.page, watched.server
    server.ask("PUT", "/api/v1/tenants/acme", {"max_concurrency": 0})
    try:
        watched.open("/forecast")
        expect(page.get_by_role("heading", name="Where runs will wait")).to_be_visible()
        expect(page.get_by_text("The tenant acme runs 0 at once")).to_be_visible()
        expect(page.get_by_text("all should start on time")).to_have_count(0)
        page.screenshot(path=ARTEFACTS / "forecast-delays.png", full_page=True)
    finally:
        server.ask("PUT", "/api/v1/tenants/acme", {})
    assert watched.problems() == []


def test_jitter_spreads_a_herd_over_the_chosen_seconds(watched: Watched) -> None:
    page = watched.page
    watched.open("/forecast")
    page.get_by_role("slider").fill("300")
    table = page.get_by_role("table").filter(has_text="Busiest second")
    before, after = (
        table.get_by_role("row").filter(has_text=name).locator("td").nth(2).inner_text()
        for name in ("current", "300 s")
    )
    assert int(before) >= 40  # the settlements of 02:00 in Berlin
    assert int(after) <= 2
    outside = page.locator("[data-none]").first
    assert outside.evaluate("(cell) => getComputedStyle(cell).backgroundColor") == CLEAR
    assert watched.problems() == []


def test_a_minute_of_the_forecast_opens_its_jobs(watched: Watched) -> None:
    page, server = watched.page, watched.server
    watched.open("/forecast?tenant_id=acme")
    minutes = server.ask("GET", "/api/v1/forecast?tenant_id=acme")["minutes"]
    most = max(minutes, key=lambda minute: minute["executions"])["executions"]
    assert most >= 40  # the settlements of 02:00 in Berlin
    busiest = page.locator("[data-cell][tabindex='0']")
    expect(busiest).to_have_attribute("aria-label", re.compile(f", {most}$"))
    busiest.focus()
    page.keyboard.press("Enter")
    table = page.get_by_role("table", name="Jobs of this minute")
    expect(table.locator("tbody tr")).to_have_count(most)
    page.reload()  # the minute is in the address
    table.get_by_role("link", name="settlement-039").click()
    expect(page.get_by_role("heading", name="settlement-039", level=1)).to_be_visible()
    assert watched.problems() == []


def test_a_minute_of_the_forecast_says_that_there_are_more_jobs(watched: Watched) -> None:
    page = watched.page
    due = {"at": "2099-01-01T00:00:07Z", "job_id": "job_1", "job_name": "a", "tenant_id": "acme"}
    items = [{**due, "execution_id": each} for each in ("exe_1", "exe_2")]
    answer = {"at": "2099-01-01T00:00:00Z", "items": items, "more": True}
    asked: list[str] = []

    def fulfill(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json=answer)

    page.route("**/api/v1/forecast/minute*", fulfill)
    watched.open("/forecast?minute=2099-01-01T00:00:59Z")
    expect(page.get_by_text("The first 2; there are more.")).to_be_visible()
    assert "2099-01-01T00%3A00%3A00.000Z" in asked[0]
    answer["items"] = []
    page.reload()
    expect(page.get_by_text("Choose a tenant, or try again")).to_be_visible()
    watched.open("/forecast?minute=2099-01-01T00:00:59Z&tenant_id=acme")
    expect(page.get_by_text("too many jobs to look up this minute")).to_be_visible()
    expect(page.get_by_text("Choose a tenant")).to_have_count(0)
    assert watched.problems() == []


def test_a_link_to_the_minute_that_is_open_scrolls_to_it(watched: Watched) -> None:
    page = watched.page
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": 300})  # the page is never that short
    try:
        watched.open("/forecast")
        link = page.get_by_role("table", name="Herds").get_by_role("link", name="Jobs").last
        link.click()
        opened = page.get_by_role("heading", name=re.compile("^Due at "))
        expect(page.get_by_role("table", name="Jobs of this minute")).to_be_visible()
        expect(opened).to_be_in_viewport()
        link.evaluate("link => link.scrollIntoView({block: 'start'})")
        expect(opened).not_to_be_in_viewport()
        link.click()
        expect(opened).to_be_in_viewport()
        opened.click(trial=True)  # nothing covers it
    finally:
        page.set_viewport_size(size)
    assert watched.problems() == []


def test_the_api_page_has_an_example_for_every_operation(watched: Watched) -> None:
    page = watched.page
    watched.open("/reference")
    described = watched.server.ask("GET", "/schema/openapi.json")["paths"]
    operations = sum(len(methods) for methods in described.values())
    page.evaluate("document.querySelectorAll('main details').forEach((each) => (each.open = true))")
    expect(page.get_by_role("region", name="With curl")).to_have_count(operations)
    texts = page.get_by_role("region", name="With curl").all_inner_texts()
    assert not any("{" in text.splitlines()[0] for text in texts)
    first = f"curl -s -X POST {watched.server.url}/api/v1/jobs \\\n"
    (create,) = (text for text in texts if text.startswith(first))
    assert '"name":"invoice-nightly"' in create
    prose = page.locator("main p").all_inner_texts()
    assert len(prose) > operations
    assert not [text for text in prose if "`" in text]


def test_reasons_and_results_are_text_too(watched: Watched) -> None:
    page, server = watched.page, watched.server
    ok = server.ask("GET", f"/api/v1/jobs/{server.ids['invoice-nightly']}")["action"]
    once = {"name": "html", "type": "ONE_TIME", "schedule": {"delay_seconds": 0}, "queue": "html"}
    html = ok | {"url": ok["url"].replace("/ok", "/html")}
    job = server.ask("POST", "/api/v1/jobs", once | {"action": html})["job_id"]
    server.ask("POST", f"/api/v1/jobs/{server.ids['trial-ends']}/pause", {"reason": NASTY})
    run = f"/api/v1/executions/{job.replace('job_', 'exe_')}"
    eventually(lambda: NASTY in str(server.ask("GET", run)["result"]))
    for path in (
        run.removeprefix("/api/v1"),
        f"/jobs/{server.ids['trial-ends']}",
        "/jobs?name_prefix=trial-ends",
        "/audit",
    ):
        watched.open(path)
        expect(page.locator("main")).to_contain_text("<img src=x onerror=")
        assert "Hourbell" in page.title(), path
        assert page.locator("main img, main script").count() == 0, path
    assert watched.problems() == []
    server.ask("POST", f"/api/v1/jobs/{server.ids['trial-ends']}/resume")


# From here on the server needs keys: these tests are the last of the module.


@pytest.fixture(scope="module")
def admin(browser: Browser, server: Server) -> str:
    """The first key, created on the page: it is shown once, and its owner is signed in with it."""
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    page.goto(server.url)
    page.get_by_role("link", name="Create the first key").click()
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name", exact=True).fill("admin of the tests")
    # Before its owner is signed in, other reads are refused: they must not replace the page that shows the key.
    signing_in: list[Route] = []
    refused: list[Response] = []

    def hold(route: Route) -> None:
        signing_in.append(route)

    page.route("**/api/v1/session", hold)
    page.on("response", lambda answer: refused.append(answer) if answer.status == 401 else None)
    with page.expect_request("**/api/v1/session"):
        page.get_by_role("button", name="Create").click()

    def is_refused() -> bool:
        page.evaluate("window.dispatchEvent(new Event('visibilitychange'))")  # reads again
        page.wait_for_timeout(50)
        return any(answer.url.endswith("/api/v1/me") for answer in refused)

    eventually(is_refused)
    signing_in[0].continue_()
    made = page.get_by_role("region", name="Key", exact=True).inner_text().strip()
    assert server.ask("GET", "/api/v1/me", key=made)["role"] == "admin"
    page.get_by_role("button", name="I have stored it").click()
    expect(page.get_by_text("(yours)")).to_be_visible()
    context.close()
    return made


def sign_in(watched: Watched, secret: str) -> None:
    page = watched.page
    page.goto(watched.server.url + "/jobs")
    page.get_by_label("API key").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
    watched.settle()


def test_a_key_opens_the_page_that_was_asked_for_and_is_not_kept(
    watched: Watched, admin: str
) -> None:
    page = watched.page
    page.goto(watched.server.url + "/jobs")
    page.get_by_label("API key").fill("hb_" + "x" * 43)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("This key is unknown or was revoked.")).to_be_visible()
    page.get_by_text("How do I get a key?").click()
    assert looked_at(watched, "sign-in") == []
    page.get_by_label("API key").fill(admin)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
    kept = page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    )
    assert "hb_" not in kept
    page.get_by_role("button", name=re.compile("admin of the tests")).click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()


def test_the_keys_are_listed_with_what_is_theirs(watched: Watched, admin: str) -> None:
    server = watched.server
    long = {"name": "a-name-without-a-space-" * 4, "role": "worker"}
    made = server.ask("POST", "/api/v1/keys", long, admin)
    server.ask("DELETE", f"/api/v1/keys/{made['key_id']}", key=admin)
    key(server, "producer", admin, "acme")
    sign_in(watched, admin)
    watched.said.clear()  # before, it was told that it is not signed in
    watched.open("/keys")
    rows = watched.page.locator("tbody tr")
    expect(rows.filter(has_text=long["name"])).to_contain_text("revoked")
    expect(rows.filter(has_text="producer of the tests")).to_contain_text("acme")
    expect(rows.filter(has_text="(yours)")).to_contain_text("admin of the tests")
    assert looked_at(watched, "keys-with-rows") + watched.problems() == []


WRITES = re.compile(
    r"New job|Create job|Run now|Pause|Resume|Edit|Replay|Delete|Revoke|Limits…|New key|Set a secret|"
    r"Retry now|Cancel it|Stop"
)


@pytest.mark.parametrize("role", ["viewer", "producer", "operator"])
def test_a_role_sees_no_button_that_would_fail(watched: Watched, admin: str, role: str) -> None:
    page, server = watched.page, watched.server
    sign_in(watched, key(server, role, admin))
    watched.refused.clear()
    shown: set[str] = set()
    job = server.ids["heartbeat"]
    letter = server.ask("GET", "/api/v1/dead-letters?page_size=1", key=admin)["items"][0]
    waiting = server.ids["resize-now"].replace("job_", "exe_")
    for path in (
        f"/executions/{letter['execution_id']}",
        f"/executions/{waiting}",
        "/operations",
        "/queues/images",
        "/targets",
        "/fleet",
        f"/jobs/{job}",
        f"/jobs/{job}/edit",
        "/jobs",
        "/jobs/new",
        "/dead-letters?time=7d",
        "/tenants/acme",
        "/queues",
    ):
        watched.open(path)
        shown |= set(page.get_by_role("button", name=WRITES).all_inner_texts())
        shown |= set(page.get_by_role("link", name=WRITES).all_inner_texts())
    assert watched.refused == []
    if role == "viewer":
        assert shown == set()
    else:
        assert shown >= {"New job", "Run now…", "Pause…", "Edit"}
    if role != "operator":
        assert not any(text.startswith("Replay") for text in shown)
    assert not any("imits" in text for text in shown)


def test_a_key_that_is_revoked_elsewhere_leads_back_to_the_sign_in(
    watched: Watched, admin: str
) -> None:
    page, server = watched.page, watched.server
    made = server.ask("POST", "/api/v1/keys", {"name": "gone", "role": "operator"}, admin)
    sign_in(watched, made["key"])
    page.get_by_role("button", name="Actions for trial-ends").click()
    page.get_by_role("menuitem", name="Pause…").click()
    pause = page.get_by_role("dialog").get_by_role("button", name="Pause")
    expect(pause).to_be_enabled()
    # A write in the middle of something: the page is left for the sign-in as well. The stream of events leads there
    # too, but seconds later.
    server.ask("DELETE", f"/api/v1/keys/{made['key_id']}", key=admin)
    pause.click()
    expect(page.get_by_label("API key")).to_be_visible()


def test_a_key_of_one_tenant_sees_nothing_of_others(watched: Watched, admin: str) -> None:
    sign_in(watched, key(watched.server, "viewer", admin, "beta"))
    page = watched.page
    for path in ("/", "/jobs", "/executions", "/dead-letters?time=7d", "/forecast", "/queues"):
        watched.open(path)
        text = page.locator("main").inner_text()
        assert not re.search(r"acme|gamma|settlement|partner-export", text), path
    assert watched.refused == []
