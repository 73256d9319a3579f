"""About the code itself: what no linter knows and every reader relies on."""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from hourbell import __version__
from hourbell.failpoints import NAMES
from hourbell.model.log_levels import COMPONENTS
from hourbell.settings import Settings, Switch, variable_name
from hourbell.store.function_set import function_set

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "hourbell"
SQL = SOURCE / "store"
GENERATED = (
    ".git",
    ".venv",
    ".hypothesis",
    "__pycache__",
    "dist",
    "node_modules",
    ".node",
    "ui_files",
    "artefacts",
)

# Who may import whom. `compose`, the composition root, may import everybody; only the command
# that starts the system may import it.
BELOW_THE_ENGINE = {"model", "timing", "security", "documents", "failpoints"}
MAY_IMPORT = {
    "model": set[str](),
    "timing": {"model"},
    "security": {"model"},
    "documents": {"model", "timing", "security"},
    "failpoints": {"model"},
    "environment": {"model"},
    "settings": {"model", "security", "failpoints", "environment"},
    "observe": {"model", "store"},
    "store": {"model", "timing", "failpoints"},
    "actions": {"model", "timing", "security", "failpoints", "observe"},
    "engine": BELOW_THE_ENGINE | {"store", "observe"},
    "dispatch": BELOW_THE_ENGINE | {"store", "engine"},
    "worker": BELOW_THE_ENGINE | {"store", "engine", "dispatch", "actions", "observe"},
    "api": BELOW_THE_ENGINE | {"store", "engine", "dispatch", "observe"},
    # Tests of users run the parts of a worker.
    "testing": BELOW_THE_ENGINE
    | {"store", "engine", "dispatch", "worker", "observe", "sdk", "errors", "environment"},
    "guard": set[str](),  # for receivers, who may have nothing else of ours
    "client": set[str](),  # for programs that have no server
    "errors": {"model"},
    # `app.worker()` runs the parts of a worker in the user's process. Processes for tasks have logs. The guard has the
    # adapters of drivers, because it may import nothing.
    "sdk": BELOW_THE_ENGINE
    | {"errors", "guard", "store", "engine", "dispatch", "actions", "worker", "compose", "observe"}
    | {"environment"},
    # Hourbell as a part of a framework: a backend is a library and a command at once.
    "contrib": {"model", "errors", "sdk", "engine", "store", "cli"},
    "__main__": {"cli"},
    "cli": BELOW_THE_ENGINE
    | {"store", "engine", "dispatch", "settings", "observe", "compose", "sdk", "errors", "client"}
    | {"environment"},
}


def test_a_package_says_what_each_of_its_modules_is() -> None:
    missing = []
    for mouth in sorted(SOURCE.rglob("__init__.py")):
        folder = mouth.parent
        if folder == SOURCE or "contrib" in folder.parts:  # docs/architecture.md; that of Django
            continue
        essay = ast.get_docstring(ast.parse(mouth.read_text())) or ""
        packages = [path.parent.name for path in folder.glob("*/__init__.py")]
        modules = [path.stem for path in folder.glob("*.py") if path != mouth]
        words = set(re.findall(r"\w+", essay))
        missing += [f"{folder.name}: {name}" for name in modules + packages if name not in words]
    assert missing == []


def test_imports_point_in_one_direction() -> None:
    wrong = []
    for path, tree in parsed_sources():
        part = part_of(path)
        if part in ("__init__", "compose"):
            continue
        assert part in MAY_IMPORT, f"{part} is new: say in MAY_IMPORT whom it may import"
        for line, imported in imported_parts(tree):
            if imported != part and imported not in MAY_IMPORT[part]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {imported}")
    assert not wrong


def test_every_setting_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    documented = dict(re.findall(r"^\| `(HOURBELL_\w+)` \| (.+?) \|", text, re.MULTILINE))
    expected = {
        variable_name(field.name): "none"
        if field.default in (None, "")
        else f"`{str(field.default).lower() if field.type is Switch else field.default}`"
        for field in msgspec.structs.fields(Settings)
    }
    expected["HOURBELL_DATA_DIR"] = "`~/.local/share/hourbell`"  # depends on the environment
    assert documented == expected
    assert list(documented) == list(expected)


def test_every_failpoint_is_in_the_list_and_every_listed_one_is_used() -> None:
    used, unknown = set(), []
    for path, tree in parsed_sources():
        if path.name == "failpoints.py":
            continue
        for node in ast.walk(tree):
            if is_text(node) and node.value in NAMES:
                used.add(node.value)
            elif is_text(node) and re.fullmatch(r"\w+\.(before_\w+|after_\w+|answer)", node.value):
                unknown.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.value}")
    assert not unknown
    assert sorted(set(NAMES) - used) == []


def test_every_logger_names_a_component_that_has_a_level() -> None:
    named = set()
    for path, tree in parsed_sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "structlog.get_logger":
                values = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert values.keys() == {"component"}, where
                assert values["component"] in COMPONENTS, where
                named.add(values["component"])
    assert named == set(COMPONENTS)


def test_only_what_makes_spans_imports_opentelemetry_and_is_imported_when_there_are_traces() -> (
    None
):
    wrong = []
    for path, tree in parsed_sources():
        name = str(path.relative_to(SOURCE))
        for node in tree.body:  # what is imported with the module
            imported = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
            if "hourbell.observe.spans" in imported or (
                "opentelemetry" in imported and name != "observe/spans.py"
            ):
                wrong.append(f"{name}:{node.lineno} {imported}")
    assert wrong == []


# Words of a dialect that readers had to translate (`nobody` in quotes is an account of Unix), and references that lead nowhere.
# Migrations stay as they were applied.
DIALECT = re.compile(
    r"(?<![`\"])\b(somebody|nobody|whoever|whomever|everybody|anybody|anew|afresh|for ever|reckon(?:s|ed)?|he who|his|him"
    r"|(?:goes|go|went) on|lets? (?:go|on)|set aside|struck out|puts? off|taken back|burns? (?:no|an|its)|as usual again"
    r"|by a hair|mends|lately|owes|whilst|wish(?:es)?|DESIGN §|R\d{1,2})\b",
    re.IGNORECASE,
)
# For pages: words of a laboratory notebook.
DIALECT_OF_PAGES = re.compile(
    DIALECT.pattern + r"|\b(tried again|goal of|part \d|(?:commit )?that adds this)\b",
    re.IGNORECASE,
)
# For tests: processes are not persons, and what a name or a text of a test says is its own matter.
DIALECT_OF_TESTS = re.compile(r"\b(whoever|whomever|anew|for ever|he|his|him|R\d{1,2})\b")
PAGES = [
    page
    for part in (
        ROOT.glob("*.md"),
        (ROOT / "docs").rglob("*.md"),
        (ROOT / "examples").rglob("*.md"),
        (ROOT / "deploy").rglob("*.md"),
    )
    for page in sorted(part)
]


def test_prose_is_plain() -> None:
    sources = [
        *SOURCE.rglob("*.py"),
        *(SQL / "queries").glob("*.sql"),
        *(SQL / "functions").glob("*.sql"),
        *(SQL / "public").glob("*.sql"),
        *(ROOT / "examples").rglob("*.py"),
        *(ROOT / "ui" / "src").rglob("*.ts*"),
    ]
    tests = [path for part in ("tests", "bench") for path in (ROOT / part).rglob("*.py")]
    tests.remove(Path(__file__))
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}"
        for dialect, files in (
            (DIALECT, sources),
            (DIALECT_OF_PAGES, PAGES),
            (DIALECT_OF_TESTS, tests),
        )
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if dialect.search(line)
    ]
    assert not found


def test_paragraphs_of_pages_are_wrapped() -> None:
    long = [
        f"{page.relative_to(ROOT)}: {line[:60]}"
        for page in PAGES
        for line in re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL).splitlines()
        if len(line) > 120 and not line.startswith(("|", "    ", "![", "["))
    ]
    assert long == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            name, _, anchor = link.partition("#")
            if name.startswith("https:"):
                continue
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in anchors_of(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_the_changelog_has_each_version_once_and_begins_with_what_is_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.+)\]", text, re.MULTILINE)
    released = [tuple(map(int, version.split("."))) for version in versions[1:]]
    assert versions[0] == "Unreleased"
    assert released == sorted(set(released), reverse=True)
    # git merges this file line by line; a section must not come back with a branch that is older than its release.
    sections = [re.findall(r"^### (.+)$", part, re.MULTILINE) for part in text.split("\n## ")[1:]]
    assert [part for part in sections if len(set(part)) < len(part)] == []
    assert sections[-1] == ["Added"]  # the first release has nothing to change


def test_the_version_is_the_newest_one_in_the_changelog() -> None:
    first = re.search(r"^## \[(\d.*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == __version__


def test_the_glossary_names_tables_that_exist() -> None:
    _, _, glossary = (ROOT / "docs" / "concepts.md").read_text().partition("## Glossary")
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", glossary)) - {"scheduled_for"}
    migrations = "\n".join(path.read_text() for path in (SQL / "migrations").glob("*.sql"))
    tables = set(re.findall(r"create table hourbell\.(\w+)", migrations))
    assert "limit_holds" in named
    assert named - tables == set()


def test_the_architecture_lists_every_table() -> None:
    _, _, section = (ROOT / "docs" / "architecture.md").read_text().partition("## The tables")
    listed = re.findall(r"`(\w+)`", section.partition("\n## ")[0])
    migrations = "\n".join(path.read_text() for path in (SQL / "migrations").glob("*.sql"))
    tables = re.findall(r"create table hourbell\.(\w+) \(", migrations)
    assert sorted(listed) == sorted([*tables, "ledger", "migrations"])


def test_migrations_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (SQL / "migrations").glob("*.sql"))
    numbers = [int(name.partition("_")[0]) for name in names]
    assert numbers == list(range(1, len(names) + 1))
    assert all(re.fullmatch(r"\d{4}_[a-z0-9_]+\.sql", name) for name in names)


def sql_lines() -> list[tuple[str, str]]:
    """The lines of the statements of the program, with their places; migrations never change."""
    return [
        (f"{path.relative_to(SQL)}:{number}", line)
        for folder in ("functions", "public", "queries")
        for path in sorted((SQL / folder).glob("*.sql"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


def test_sql_fits_a_screen() -> None:
    assert [place for place, line in sql_lines() if len(line) > 120] == []


def test_codes_have_names_in_sql() -> None:
    # What the numbers mean is in functions/codes.sql.
    bare = re.compile(r"\b(status|fate|kind|space|origin|overlap) *(=|<>) *'?\d")
    lines = [(place, line.partition("--")[0]) for place, line in sql_lines()]
    assert [place for place, code in lines if bare.search(code)] == []


def test_every_sql_function_is_called() -> None:
    defined = re.compile(r"create or replace function hourbell\.(\w+)")
    texts = [path.read_text() for path in sorted(SQL.rglob("*.sql"))]
    python = "\n".join(path.read_text() for path, _ in parsed_sources())
    calls = set(re.findall(r"\bhourbell\.(\w+)", defined.sub("", "\n".join(texts)) + python))
    names = sorted(name for text in texts for name in defined.findall(text))
    assert names
    assert [name for name in names if name not in calls] == []


def test_no_sql_function_has_the_name_of_a_table() -> None:
    # Function sets tell the two apart by name: `hourbell.f (` is renamed, `hourbell.t (` is not.
    texts = [path.read_text() for path in sorted((SQL / "migrations").glob("*.sql"))]
    tables = re.findall(r"create (?:table|sequence) hourbell\.(\w+)", "\n".join(texts))
    assert "executions" in tables
    assert function_set().names.isdisjoint(tables)


def test_every_sql_function_belongs_to_the_function_set() -> None:
    created = re.findall(r"^create\b.*", function_set().text, re.MULTILINE)
    assert len(created) == len(
        function_set().names
    )  # nothing else is created there, and nothing twice


def test_every_named_query_is_used() -> None:
    asked = {
        node.value for path, tree in parsed_sources() for node in ast.walk(tree) if is_text(node)
    }
    unused = []
    for path in sorted((SQL / "queries").glob("*.sql")):
        names = [path.stem, *re.findall(r"^-- name: (\w+)$", path.read_text(), re.MULTILINE)]
        unused += [f"{path.name}: {name}" for name in names if name not in asked]
    assert unused == []


def test_every_sql_file_is_in_a_folder_that_is_loaded() -> None:
    folders = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.sql")}
    loaded = {Path("store") / name for name in ("migrations", "functions", "public", "queries")}
    assert folders <= loaded


def test_locks_hold_names_versions_markers_and_hashes_only() -> None:
    line = re.compile(
        r"[a-z0-9.-]+==[\w.]+( ; [\w.'<>=! ]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
    )
    for lock in ("requirements.lock", "requirements-dev.lock", "deploy/requirements.lock"):
        odd = [text for text in (ROOT / lock).read_text().splitlines() if not line.fullmatch(text)]
        assert odd == []


def test_each_lock_holds_the_smaller_one_at_the_same_versions() -> None:
    server, runtime, development = (
        set(re.findall(r"^\S+==\S+", (ROOT / lock).read_text(), re.MULTILINE))
        for lock in ("deploy/requirements.lock", "requirements.lock", "requirements-dev.lock")
    )
    assert server < runtime < development


def test_no_file_names_a_machine_or_a_registry() -> None:
    # Put together here, so that this file does not contain them.
    forbidden = ["pypi" + ".org", "python" + "hosted.org", "--find" + "-links=", "/opt" + "/wheels"]
    forbidden += [f"{path}/" for path in (Path.home(), ROOT) if len(path.parts) > 1]
    wrong = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in project_files()
        for content in [path.read_text(errors="replace")]
        for text in forbidden
        if text in content
    ]
    assert wrong == []


@cache
def parsed_sources() -> list[tuple[Path, ast.Module]]:
    paths = sorted(SOURCE.rglob("*.py"))
    return [(path, ast.parse(path.read_text(), str(path))) for path in paths]


def part_of(path: Path) -> str:
    """The package or module below `hourbell` to which a file belongs."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            pytest.fail(f"line {node.lineno}: a relative import hides where it points")
        elif isinstance(node, ast.ImportFrom) and node.module == "hourbell":
            names = [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names if not name.startswith("__"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hourbell."):
            yield node.lineno, str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("hourbell.")]
            yield from ((node.lineno, name.split(".")[1]) for name in names)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def anchors_of(page: Path) -> set[str]:
    """The anchors that a renderer makes of a page's headings: lower case, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def project_files() -> Iterator[Path]:
    """Everything but what tools generate; not asked of git, which may be missing."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [each for each in folders if not is_generated(each)]
        yield from (Path(folder, each) for each in files if not is_generated(each))


def is_generated(name: str) -> bool:
    return name in GENERATED or name.endswith("_cache") or name.startswith(".venv-")
