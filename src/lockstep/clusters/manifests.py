"""Manifests for Kubernetes: the ranks of a run as a Job, as a JobSet, or as a RayJob."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from lockstep.processes.exit_codes import REPRODUCIBLE, STOPPED_BY_SIGNAL

__all__ = ["FOLDER", "KINDS", "RankPods"]

FOLDER = Path("/lockstep")
"""Working folder of the image that the Dockerfile makes."""
_GROUP = 1000
"""Group of the user of this image, which gets access to the volume."""
_GRACE = 60
"""Seconds between the request to stop and the kill, for example when a node is drained. A clean stop takes at most 20."""
_KEPT = 600
"""Seconds for which the cluster of a RayJob, with its output, exists after the end of the job."""

Manifest = dict[str, object]


@dataclass(frozen=True)
class RankPods:
    """A run whose ranks are pods."""

    name: str
    """Name of the manifest."""
    arguments: Sequence[str]
    """Arguments of `lockstep` with which every rank runs. For a RayJob, those of the process that places the ranks."""
    runs: Path
    """Folder in the pods where the volume is mounted."""
    ranks: int
    restarts: int
    """Number of restarts after faults."""
    options: Mapping[str, str]
    """Options of the image, the volume and the resources of a rank, from `--job`."""

    def container(self, name: str, **fields: object) -> Manifest:
        """Return a container that has the volume."""
        mount = {"name": "runs", "mountPath": str(self.runs)}
        return {"name": name, "image": self.options["image"], **fields, "volumeMounts": [mount]}

    def pod(self, container: Manifest, **fields: object) -> Manifest:
        """Return the template of a pod with this container."""
        spec = {
            **fields,
            "terminationGracePeriodSeconds": _GRACE,
            "securityContext": {"fsGroup": _GROUP},
            "containers": [container],
            "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": self.options["claim"]}}],
        }
        return {"spec": spec}

    def resources(self) -> Manifest:
        """Return the resources of a rank."""
        requests = {"cpu": self.options.get("cpu", "1")}
        limits = {}
        if "memory" in self.options:
            requests["memory"] = limits["memory"] = self.options["memory"]
        if "gpus" in self.options:
            limits["nvidia.com/gpu"] = self.options["gpus"]
        return {"requests": requests, **({"limits": limits} if limits else {})}

    def indexed(self, backoff_limit: int) -> Manifest:
        """Return the specification of a Job with a pod for every rank."""
        env = _variables(JOB_COMPLETIONS=str(self.ranks), PYTHONUNBUFFERED="1")
        container = self.container("rank", args=[*self.arguments], env=env, resources=self.resources())
        return {
            "completionMode": "Indexed",
            "completions": self.ranks,
            "parallelism": self.ranks,
            "backoffLimit": backoff_limit,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": self.pod(container, restartPolicy="Never"),
        }


def job(pods: RankPods) -> Manifest:
    """Return a Job. Its pods are replaced one by one."""
    # a fault of one rank ends all of them, and every pod that has failed counts
    return _manifest("batch/v1", "Job", pods, pods.indexed(pods.restarts * pods.ranks))


def job_set(pods: RankPods) -> Manifest:
    """Return a JobSet with one Job. After a fault, all pods are replaced together, which counts as one restart."""
    failure = {
        "maxRestarts": pods.restarts,
        "rules": [{"name": "reproducible", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }
    ranks = {"name": "ranks", "replicas": 1, "template": {"spec": pods.indexed(0)}}
    return _manifest("jobset.x-k8s.io/v1alpha2", "JobSet", pods, {"failurePolicy": failure, "replicatedJobs": [ranks]})


def ray_job(pods: RankPods) -> Manifest:
    """Return a RayJob: a cluster of Ray with a pod for every rank, and a process on its head that places the ranks.

    The version of Ray is that of this host. Raises PackageNotFoundError if it has none.
    """
    env = _variables(PYTHONUNBUFFERED="1", RAY_worker_niceness="0")
    head = pods.container("ray-head", env=env, resources={"requests": {"cpu": "1", "memory": "2Gi"}})
    worker = pods.container("ray-worker", env=env, resources=pods.resources())
    group = {
        "groupName": "ranks",
        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), pods.ranks),
        "rayStartParams": {"num-cpus": "1"},
        "template": pods.pod(worker),
    }
    cluster = {
        "rayVersion": version("ray"),
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": pods.pod(head)},
        "workerGroupSpecs": [group],
    }
    spec = {
        "entrypoint": shlex.join(["lockstep", *pods.arguments]),
        "submissionMode": "HTTPMode",  # the others quote the entrypoint for a shell a second time
        "backoffLimit": pods.restarts,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": _KEPT,
        "rayClusterSpec": cluster,
    }
    return _manifest("ray.io/v1", "RayJob", pods, spec)


KINDS: Mapping[str, Callable[[RankPods], Manifest]] = {"job": job, "jobset": job_set, "rayjob": ray_job}
"""Values of `--job kind`, and the functions that return their manifests."""


def _failure_rules() -> list[Manifest]:
    """Return what follows from the end of a pod. All other ends count in `backoffLimit`."""

    def rule(action: str, *codes: int) -> Manifest:
        return {"action": action, "onExitCodes": {"containerName": "rank", "operator": "In", "values": list(codes)}}

    return [
        rule("FailJob", *REPRODUCIBLE),
        rule("Ignore", STOPPED_BY_SIGNAL),  # stopped by a signal: another pod continues
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _variables(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _manifest(version_: str, kind: str, pods: RankPods, spec: Manifest) -> Manifest:
    return {"apiVersion": version_, "kind": kind, "metadata": {"name": pods.name}, "spec": spec}
