"""The Helm chart, rendered: `make deploy-test`. Needs helm, which is built from its Go module in about five minutes."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "hourbell"
EXAMPLE = ROOT / "docs" / "monitoring" / "keda.yaml"
MAIL = """
settings: {HOURBELL_EGRESS_ALLOW: "10.0.0.0/8"}
imagePullSecrets: [{name: registry}]
networkPolicy: {enabled: false}
workers:
  - name: webhooks
    args: [worker]
    drainSeconds: 30
    replicas: 0
  - name: mail
    image: registry.example.com/shop:42
    args: [worker, "shop:app", --queues, mail, --drain, "120", --health, "0.0.0.0:8080"]
    drainSeconds: 120
    resources: {limits: {memory: 2Gi}}
    keda: {queues: [mail], slots: 200, finishWithinSeconds: 30, minReplicas: 0, maxReplicas: 20}
"""


@cache
def helm() -> str:
    program = shutil.which("helm")
    if program is None:
        pytest.skip("helm is not in the PATH: go install helm.sh/helm/v3/cmd/helm@v3.22.0")
    return program


@pytest.fixture
def rendered(tmp_path: Path) -> dict[tuple[str, str], Any]:
    """The chart with values that use what the defaults leave out."""
    values = tmp_path / "values.yaml"
    values.write_text(MAIL)
    command = [helm(), "template", "cell", str(CHART), "--kube-version", "1.33.0"]
    done = subprocess.run(
        [*command, "--values", str(values)], check=True, capture_output=True, text=True
    )
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_helm_finds_no_fault() -> None:
    lint = [helm(), "lint", "--strict", "--quiet", str(CHART)]
    done = subprocess.run(lint, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_manifests_are_those_of_the_chart() -> None:
    helm()
    done = subprocess.run([ROOT / "scripts" / "manifests"], check=True, capture_output=True)
    stored = (ROOT / "deploy" / "kubernetes" / "hourbell.yaml").read_bytes()
    assert done.stdout == stored, "run: scripts/manifests > deploy/kubernetes/hourbell.yaml"


def test_what_is_rendered_with_other_values_is_valid(rendered: dict[tuple[str, str], Any]) -> None:
    for (kind, _), each in rendered.items():
        if kind != "ScaledObject":  # not of Kubernetes itself
            kubernetes_validate.validate(each, "1.33", strict=True)
    assert not [name for kind, name in rendered if kind == "NetworkPolicy"]


def test_the_worker_of_an_app_has_its_image_and_its_time_to_drain(
    rendered: dict[tuple[str, str], Any],
) -> None:
    pod = rendered["Deployment", "cell-mail-worker"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/shop:42"
    assert container["args"][:2] == ["worker", "shop:app"]
    assert {"name": "HOURBELL_EGRESS_ALLOW", "value": "10.0.0.0/8"} in container["env"]
    assert pod["terminationGracePeriodSeconds"] == 150
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_keda_decides_how_many_workers_there_are(rendered: dict[tuple[str, str], Any]) -> None:
    assert "replicas" not in rendered["Deployment", "cell-mail-worker"]["spec"]
    assert rendered["Deployment", "cell-webhooks-worker"]["spec"]["replicas"] == 0
    scaled = rendered["ScaledObject", "cell-mail-worker"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == "cell-mail-worker"
    # The example is what docs/metrics.md explains, and is tested there.
    example = yaml.safe_load(EXAMPLE.read_text())["spec"]
    for trigger in scaled["triggers"]:
        query = trigger["metadata"]["query"].replace('queue=~"mail"', 'queue="mail"')
        trigger["metadata"]["query"] = query
    scaled["scaleTargetRef"] = example["scaleTargetRef"]
    assert scaled == example
