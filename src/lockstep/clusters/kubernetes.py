"""A run as a Job of Kubernetes: the manifest for `kubectl apply`."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from lockstep.clusters.job import check_options
from lockstep.clusters.request import Request
from lockstep.processes.exit_codes import DONE, REPRODUCIBLE, STOPPED_BY_SIGNAL

__all__ = ["manifest", "submit"]

_QUANTITY = r"(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?\d+)?"
_FORMS = {
    "image": (r"[a-zA-Z0-9][\w.:/@-]*", "registry/lockstep:0.1"),
    "claim": (r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "runs"),
    "cpu": (_QUANTITY, "2 or 500m"),
    "memory": (_QUANTITY, "4Gi"),
    "gpus": (r"[1-9]\d*", "1"),
}
"""Patterns of the options, and examples."""
_FOLDER = Path("/lockstep")
"""Working folder of the image that the Dockerfile makes."""
_GROUP = 1000
"""Group of the user of this image, which gets access to the volume."""
_GRACE = 60
"""Seconds between the request to stop and the kill, for example when a node is drained. A clean stop takes at most 20."""


def submit(request: Request) -> int:
    """Print the manifest and return the exit code. Raises ValueError if Kubernetes can't run the request."""
    print(yaml.safe_dump(manifest(request), sort_keys=False, width=120), end="")
    return DONE


def manifest(request: Request) -> dict[str, object]:
    """Return the manifest. Raises ValueError in one line for a name, a number of ranks or an option that Kubernetes can't use."""
    ranks, options = _check(request)
    run = request.resolved.run
    assert run.name is not None
    runs = _FOLDER / run.folder
    container = {
        "name": "rank",
        "image": options["image"],
        "args": request.arguments(runs / run.name, runs / f"{run.name}.rendezvous"),
        "env": [{"name": "JOB_COMPLETIONS", "value": str(ranks)}, {"name": "PYTHONUNBUFFERED", "value": "1"}],
        "resources": _resources(options),
        "volumeMounts": [{"name": "runs", "mountPath": str(runs)}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE,
        "securityContext": {"fsGroup": _GROUP},
        "containers": [container],
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": options["claim"]}}],
    }
    spec = {
        "completionMode": "Indexed",
        "completions": ranks,
        "parallelism": ranks,
        # a fault of one rank ends all of them, and every pod that has failed counts
        "backoffLimit": request.restarts * ranks,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules()},
        "template": {"spec": pod},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": run.name}, "spec": spec}


def _failure_rules() -> list[dict[str, object]]:
    """Return what follows from the end of a pod. All other ends count in `backoffLimit`."""

    def rule(action: str, *codes: int) -> dict[str, object]:
        return {"action": action, "onExitCodes": {"containerName": "rank", "operator": "In", "values": list(codes)}}

    return [
        rule("FailJob", *REPRODUCIBLE),
        rule("Ignore", STOPPED_BY_SIGNAL),  # stopped by a signal: another pod continues
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _resources(options: Mapping[str, str]) -> dict[str, object]:
    requests = {"cpu": options.get("cpu", "1")}
    limits = {}
    if "memory" in options:
        requests["memory"] = limits["memory"] = options["memory"]
    if "gpus" in options:
        limits["nvidia.com/gpu"] = options["gpus"]
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _check(request: Request) -> tuple[int, Mapping[str, str]]:
    """Return the number of ranks and the options."""
    name, options = request.resolved.run.name, request.options
    if name is None or len(name) > 63 or not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
        raise ValueError(
            f"run.name is {name!r}: --on kubernetes needs one of at most 63 small letters, digits and dashes, such as --name run-1"
        )
    if len(request.sizes) > 1:
        raise ValueError(
            f"--ranks is {request.sizes[-1]}:{request.sizes[0]}: a Job of Kubernetes has a fixed number of pods; give one number"
        )
    check_options(options, "kubernetes", tuple(_FORMS))
    for option in ("image", "claim"):
        if not options.get(option):
            raise ValueError(f"--on kubernetes needs --job {option}=…, such as {option}={_FORMS[option][1]}")
    for option, value in options.items():
        pattern, example = _FORMS[option]
        if not re.fullmatch(pattern, value):
            raise ValueError(f"--job {option} is {value!r}: Kubernetes takes values such as {example}")
    return request.sizes[0], options
