"""The files of deploy/, as far as they can be checked without a container engine, a cluster or systemd as process 1.

debian_checks.py runs the image's build in an empty Debian root, and helm_checks.py renders the chart: `make deploy-test`.
"""

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import services
from deployment.debian import instructions
from hourbell import __version__
from hourbell.cli.main import main
from hourbell.security.sealing import KeyRing
from hourbell.settings import from_environment
from hourbell.worker.runtime import _STOP_SECONDS
from hourbell.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
UNIT = DEPLOY / "systemd" / "hourbell@.service"
BIN = Path(sys.executable).parent
ROLES = ("api", "scheduler", "worker")
# After the drain, handlers get seconds to clean up, and connections to the database are closed.
DRAIN_SECONDS = WorkerSettings(name="any").drain_seconds + _STOP_SECONDS + 10


def run(*command: str | Path) -> tuple[int, str]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def compose() -> dict[str, Any]:
    services_of: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return {name: one for name, one in services_of.items() if name != "postgres"}


def manifests() -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((DEPLOY / "kubernetes" / "hourbell.yaml").read_text())]


def pods() -> dict[str, dict[str, Any]]:
    """The pods of the manifests, by what makes them."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in manifests()
        if each["kind"] in ("Deployment", "Job")
    }


def unit() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))


def is_a_command(arguments: list[str]) -> bool:
    """Whether `hourbell` accepts these words; raises if it does not."""
    context = main.make_context("hourbell", [*arguments])
    name, command, rest = main.resolve_command(context, arguments)
    assert command is not None
    command.make_context(name, rest, parent=context)
    return True


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    assert run(BIN / "hadolint", DOCKERFILE) == (0, "")


def test_hadolint_would_say_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.read_text() + "RUN cd /tmp\n")
    code, said = run(BIN / "hadolint", tmp_path / "Dockerfile")
    assert (code, "DL3003" in said) == (1, True)


def test_the_build_gets_every_file_that_it_copies_and_no_others() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = [text.split() for name, text in instructions(DOCKERFILE.read_text()) if name == "COPY"]
    sources = {word for words in copied if words[0][0] != "-" for word in words[:-1]}
    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)
    assert lines[1] == "*"
    assert {"**/node_modules", "ui/.node", "src/hourbell/ui_files"} <= set(lines)


def test_the_image_runs_as_a_user_with_a_number_and_takes_signals() -> None:
    last = dict(instructions(DOCKERFILE.read_text().rpartition("\nFROM ")[2].partition("\n")[2]))
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    assert last["ENTRYPOINT"] == '["tini", "--", "hourbell"]'  # no shell between
    assert "curl" not in last["HEALTHCHECK"]
    assert all("SECRET" not in text and "PASSWORD" not in text for text in last.values())


def test_the_compose_file_is_valid() -> None:
    check = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    code, said = run(*check, DEPLOY / "compose.yaml")
    assert code == 0, said


def test_a_wrong_key_in_the_compose_file_would_be_found(tmp_path: Path) -> None:
    text = (DEPLOY / "compose.yaml").read_text().replace("read_only:", "readonly:")
    (tmp_path / "compose.yaml").write_text(text)
    check = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert run(*check, tmp_path / "compose.yaml")[0] == 1


def test_the_compose_file_runs_every_role_after_the_migration() -> None:
    assert [one["command"] for one in compose().values()] == [["migrate"], *([r] for r in ROLES)]
    for name, one in compose().items():
        assert is_a_command(one["command"])
        assert one["read_only"] is True
        awaited = "postgres" if name == "migrate" else "migrate"
        assert [*one["depends_on"]] == [awaited]


def test_compose_waits_for_a_drain_before_it_kills() -> None:
    for one in compose().values():
        assert float(one["stop_grace_period"].removesuffix("s")) >= DRAIN_SECONDS


@pytest.mark.parametrize("version", ["1.33", kubernetes_validate.latest_version()])
def test_the_manifests_are_valid(version: str) -> None:
    kinds = [each["kind"] for each in manifests()]
    assert set(kinds) == {
        *("Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service"),
    }
    for each in manifests():
        kubernetes_validate.validate(each, version, strict=True)


def test_a_wrong_type_in_a_manifest_would_be_found() -> None:
    job = next(each for each in manifests() if each["kind"] == "Job")
    job["spec"]["backoffLimit"] = "many"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.33", strict=True)


def test_the_manifests_run_every_role_after_the_migration() -> None:
    arguments = {name: pod["containers"][0]["args"] for name, pod in pods().items()}
    assert arguments == {
        "hourbell-migrate": ["migrate"],
        "hourbell-api": ["api"],
        "hourbell-scheduler": ["scheduler"],
        "hourbell-webhooks-worker": ["worker"],
    }
    assert all(is_a_command(each) for each in arguments.values())


def test_pods_have_no_rights_and_no_variables_of_services() -> None:
    for pod in pods().values():
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["memory"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_pods_are_checked_and_drain_before_they_are_killed() -> None:
    for name, pod in pods().items():
        if name == "hourbell-migrate":
            continue
        (container,) = pod["containers"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert pod["terminationGracePeriodSeconds"] >= DRAIN_SECONDS


def test_every_component_can_be_evicted_one_pod_at_a_time_and_is_reached_by_few() -> None:
    components = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in manifests()
        if each["kind"] == "Deployment"
    }
    budgets = [each["spec"] for each in manifests() if each["kind"] == "PodDisruptionBudget"]
    selected = {one["selector"]["matchLabels"]["app.kubernetes.io/component"] for one in budgets}
    assert selected == components
    policies = [each["spec"] for each in manifests() if each["kind"] == "NetworkPolicy"]
    (others,) = [one["podSelector"] for one in policies if "matchExpressions" in one["podSelector"]]
    assert others["matchExpressions"][0]["values"] == ["api"]
    assert len(policies) == 2


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    analyze = services.systemd_analyze()
    # What the unit starts is not installed here.
    text = UNIT.read_text().replace("/opt/hourbell/bin/hourbell", str(BIN / "hourbell"))
    copied = tmp_path / UNIT.name
    copied.write_text(text)
    verify = [analyze, "verify", "--man=no", "--recursive-errors=no"]
    for role in ROLES:
        assert run(*verify, tmp_path / f"hourbell@{role}.service") == (0, "")
    copied.write_text(text.replace("TimeoutStopSec=60", "TimeoutStopSec=soon"))
    assert "Failed to parse" in run(*verify, tmp_path / "hourbell@api.service")[1]


def test_the_unit_is_confined() -> None:
    analyze = services.systemd_analyze()
    # The exposure is between 0 and 10; 1.4 when this was written.
    code, said = run(analyze, "security", "--offline=yes", "--threshold=15", "--no-pager", UNIT)
    assert code == 0, said


def test_the_unit_waits_for_a_drain_before_it_kills() -> None:
    assert float(unit()["TimeoutStopSec"]) >= DRAIN_SECONDS
    assert unit()["KillMode"] == "mixed"
    assert unit()["ExecStart"].split()[1:] == ["%i"]
    assert is_a_command(unit()["ExecStartPre"].split()[1:])


def test_all_settings_are_known_and_valid() -> None:
    texts = [path.read_text() for path in sorted((DEPLOY / "systemd").glob("*.env"))]
    lines = re.findall(r"^(HOURBELL_\w+)=(.*)$", "\n".join(texts), re.MULTILINE)
    assert lines
    given = [dict([line]) for line in lines]
    image = dict(instructions(DOCKERFILE.read_text()))["ENV"]
    given.append(dict(re.findall(r"(HOURBELL_\w+)=(\S+)", image)))
    for variables in given:
        from_environment(variables)


@pytest.mark.parametrize("text", ["compose.yaml", "README.md"])
def test_the_secrets_that_the_commands_make_are_those_that_are_read(
    text: str, tmp_path: Path
) -> None:
    page = (DEPLOY / text).read_text()
    if text == "compose.yaml":
        lines = [
            line for line in re.findall(r"^#   (.*)$", page, re.MULTILINE) if "docker" not in line
        ]
    else:
        (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        lines = block.splitlines()
    subprocess.run(["sh", "-euc", "\n".join(lines)], cwd=tmp_path, check=True)
    folder = tmp_path / "secrets"
    environments = [
        {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
        for pod in pods().values()
    ]
    mounted = "/run/hourbell"
    if text == "compose.yaml":
        environments, mounted = [one["environment"] for one in compose().values()], "/run/secrets"
        declared = yaml.safe_load(page)["secrets"]
        assert declared == {
            path.name: {"file": f"secrets/{path.name}"} for path in folder.iterdir()
        }
        for one in compose().values():
            assert {f"{mounted}/{name}" for name in one["secrets"]} == {
                *one["environment"].values()
            }
    for environment in environments:
        read = from_environment(
            {name: value.replace(mounted, str(folder)) for name, value in environment.items()}
        )
        assert read.admin_key is not None
        assert KeyRing.parse(read.secret_keys)
        assert str(read.database_url).startswith("postgresql://hourbell:")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # Users in containers can read them.
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in folder.iterdir())


def test_the_roles_of_one_machine_have_a_port_each() -> None:
    ports = [
        int(re.findall(r"^HOURBELL_PORT=(\d+)$", path.read_text(), re.MULTILINE)[0])
        for path in (DEPLOY / "systemd" / f"{role}.env" for role in ROLES)
    ]
    assert len(set(ports)) == len(ROLES)


def test_images_and_the_chart_have_the_version_of_the_program() -> None:
    chart = yaml.safe_load((DEPLOY / "helm" / "hourbell" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    images = {one["image"] for one in compose().values()}
    images |= {pod["containers"][0]["image"] for pod in pods().values()}
    assert images == {f"hourbell:{__version__}"}
    assert f"--tag hourbell:{__version__} " in DOCKERFILE.read_text()


@pytest.mark.parametrize(
    ("file", "schema"),
    [("bug", "forms"), ("proposal", "forms"), ("config", "config")],
)
def test_the_forms_of_issues_are_valid(file: str, schema: str) -> None:
    form = ROOT / ".github" / "ISSUE_TEMPLATE" / f"{file}.yml"
    check = [BIN / "check-jsonschema", "--builtin-schema", f"vendor.github-issue-{schema}"]
    code, said = run(*check, form)
    assert code == 0, said
