"""Kubernetes CronJobs, as printed by `kubectl get cronjobs -o yaml` or kept in a repository."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hourbell.cli.importers import Import, Imported, NotReadable, job_name, with_distinct_names

_OVERLAPS = {"Allow": "allow", "Forbid": "forbid", "Replace": "replace"}
_CARRIED = {
    "schedule",
    "timeZone",
    "concurrencyPolicy",
    "startingDeadlineSeconds",
    "suspend",
    "jobTemplate",
    "successfulJobsHistoryLimit",  # Hourbell keeps history by days
    "failedJobsHistoryLimit",
}
_MAX_BACKOFF_SECONDS = 360  # the longest wait between retries of a Kubernetes Job


def read_cron_jobs(documents: Sequence[Any]) -> Import:
    """The CronJobs in a file; other kinds are skipped with a note."""
    jobs: list[Imported] = []
    notes: list[str] = []
    for manifest in _manifests(documents):
        kind = manifest.get("kind")
        if kind == "CronJob":
            jobs.append(_job(manifest))
        else:
            notes.append(f"{kind} {_name(manifest)} is not a CronJob")
    if not jobs and not notes:
        raise NotReadable("it contains no Kubernetes manifest (kind: CronJob)")
    return Import(with_distinct_names(jobs), notes)


def _manifests(documents: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "List":
            yield from _manifests(document.get("items") or [])
        elif isinstance(document, dict) and "kind" in document:
            yield document


def _name(manifest: dict[str, Any]) -> str:
    return str((manifest.get("metadata") or {}).get("name", "without a name"))


def _job(manifest: dict[str, Any]) -> Imported:
    metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
    template = (spec.get("jobTemplate") or {}).get("spec") or {}
    pod = (template.get("template") or {}).get("spec") or {}
    name = job_name(_name(manifest))
    namespace = metadata.get("namespace")
    notes: list[str] = []
    schedule: dict[str, Any] = {"cron": str(spec.get("schedule", ""))}
    if spec.get("timeZone"):
        schedule["timezone"] = str(spec["timeZone"])
    else:
        notes.append("has no timeZone: Kubernetes uses its controller's; UTC is assumed here")
    document: dict[str, Any] = {
        "name": name if namespace in (None, "default") else job_name(f"{namespace}.{name}"),
        "schedule": schedule,
        "action": _action(name, pod, notes),
        "overlap_policy": _OVERLAPS.get(spec.get("concurrencyPolicy", "Allow"), "allow"),
        "retry_policy": {
            "max_retries": int(template.get("backoffLimit", 6)),
            "backoff": "EXPONENTIAL",
            "initial_delay_seconds": 10,
            "max_delay_seconds": _MAX_BACKOFF_SECONDS,
        },
    }
    if spec.get("startingDeadlineSeconds"):
        document["start_deadline_seconds"] = int(spec["startingDeadlineSeconds"])
    if template.get("activeDeadlineSeconds"):
        document["deadline_seconds"] = int(template["activeDeadlineSeconds"])
        document["timeout_seconds"] = min(int(template["activeDeadlineSeconds"]), 86_400)
    else:
        document["timeout_seconds"] = 3600
        notes.append("has no activeDeadlineSeconds: an attempt is stopped after 3600 s")
    labels = _labels(metadata, notes)
    if labels:
        document["labels"] = labels
    if spec.get("suspend"):
        notes.append(f"is suspended: after apply, run `hourbell jobs pause {document['name']}`")
    if int(template.get("parallelism", 1)) > 1 or int(template.get("completions", 1)) > 1:
        notes.append("runs several pods (parallelism, completions): here one execution runs")
    notes += [f"spec.{field} is not carried over" for field in sorted(set(spec) - _CARRIED)]
    return Imported(document, [f"{_name(manifest)}: {note}" for note in notes])


def _action(name: str, pod: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    containers = pod.get("containers") or [{}]
    container = containers[0]
    notes.append(
        f"runs a container: a worker must serve the task `{name}`, or call a webhook instead"
    )
    if len(containers) > 1 or pod.get("initContainers"):
        notes.append("has several containers: only the first is in the payload")
    payload = {key: container[key] for key in ("image", "command", "args") if key in container}
    environment = {
        str(one["name"]): str(one["value"]) for one in container.get("env") or () if "value" in one
    }
    if environment:
        payload["environment"] = environment
    for one in container.get("env") or ():
        if "valueFrom" in one:
            notes.append(f"env {one['name']} comes from a secret or a config map: not carried over")
    for field in ("envFrom", "volumeMounts"):
        if container.get(field):
            notes.append(f"{field} of the container is not carried over")
    return {"type": "TASK", "name": name, "payload": payload}


def _labels(metadata: dict[str, Any], notes: list[str]) -> dict[str, str]:
    labels = {}
    for name, value in (metadata.get("labels") or {}).items():
        labels[job_name(str(name))] = str(value)
    if len(labels) > 14:
        notes.append("has more than 14 labels: only these are carried over")
    return dict(list(labels.items())[:14])
