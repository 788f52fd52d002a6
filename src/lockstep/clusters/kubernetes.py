"""Runs on Kubernetes: the manifests for `kubectl apply`."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import yaml

from lockstep.clusters.job import SweepJob, check_options
from lockstep.clusters.manifests import FOLDER, KINDS, RankPods
from lockstep.clusters.request import Request
from lockstep.processes.exit_codes import DONE
from lockstep.runtime.settings import RESTARTS

__all__ = ["manifest", "submit", "sweep_manifests", "write_manifests"]

_QUANTITY = r"(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?\d+)?"
_FORMS = {
    "image": (r"[a-zA-Z0-9][\w.:/@-]*", "registry/lockstep:0.1"),
    "claim": (r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "runs"),
    "cpu": (_QUANTITY, "2 or 500m"),
    "memory": (_QUANTITY, "4Gi"),
    "gpus": (r"[1-9]\d*", "1"),
    "kind": ("|".join(KINDS), ", ".join(KINDS)),
}
"""Patterns of the options, and examples."""
_LONGEST_NAME = 40
"""Largest length of a name. Names of pods, which end with up to 23 more characters, may have 63."""


class _Dumper(yaml.SafeDumper):
    """Writer of YAML without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def submit(request: Request) -> int:
    """Print the manifest and return the exit code. Raises ValueError if Kubernetes can't run the request."""
    write_manifests([manifest(request)])
    return DONE


def write_manifests(manifests: Iterable[Mapping[str, object]]) -> None:
    """Print manifests as one stream of YAML documents."""
    print(yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=120), end="")


def manifest(request: Request) -> dict[str, object]:
    """Return the manifest of a run. Raises ValueError in one line for a name, a number of ranks or an option that Kubernetes can't use."""
    name, options = request.resolved.run.name, request.options
    if name is None or len(name) > _LONGEST_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise ValueError(
            f"run.name is {name!r}: --on kubernetes needs one of at most {_LONGEST_NAME} lowercase letters, digits and dashes, such as --name run-1"
        )
    kind = _check(options)
    runs = FOLDER / request.resolved.run.folder
    if kind == "rayjob":
        arguments = [*request.arguments(runs / name, None), *_on_ray(request)]
    elif len(request.sizes) > 1:
        raise ValueError(
            f"--ranks is {request.sizes[-1]}:{request.sizes[0]}: a Job of Kubernetes has a fixed number of pods; give one number, or use --job kind=rayjob"
        )
    else:
        arguments = request.arguments(runs / name, runs / f"{name}.rendezvous")
    return KINDS[kind](RankPods(name, arguments, runs, request.sizes[0], request.restarts, options))


def sweep_manifests(job: SweepJob) -> list[dict[str, object]]:
    """Return the manifests of the runs of a sweep. Raises ValueError in one line for an option that Kubernetes can't use."""
    kind = _check(job.options)
    if kind == "rayjob":
        raise ValueError("--job kind is 'rayjob': the runs of a sweep can be of kind job or jobset")
    if job.at_once is not None:
        raise ValueError(f"--jobs is {job.at_once}: Kubernetes starts all runs for which it has room; leave it out")
    runs = mount(job.folder.path)
    return [
        KINDS[kind](
            RankPods(_shorten(job.folder.path.name, name), arguments, runs, job.ranks, job.restarts, job.options)
        )
        for name, arguments in job.arguments.items()
    ]


def mount(sweep: Path) -> Path:
    """Return the folder in the pods where the volume is mounted, which holds the folder of the sweep."""
    return FOLDER / sweep.parent


def _on_ray(request: Request) -> list[str]:
    """Return the flags of the process that places the ranks on the cluster whose address is in its environment."""
    ranks = ":".join(str(size) for size in dict.fromkeys((request.sizes[-1], request.sizes[0])))
    restarts = ["--restarts", str(request.restarts)] if request.restarts not in (0, RESTARTS) else []
    gpus = ["--job", f"gpus={request.options['gpus']}"] if "gpus" in request.options else []
    return ["--on", "ray", "--ranks", ranks, *restarts, *gpus]


def _check(options: Mapping[str, str]) -> str:
    """Check the options, and return the kind of the manifest."""
    check_options(options, "kubernetes", tuple(_FORMS))
    for option in ("image", "claim"):
        if not options.get(option):
            raise ValueError(f"--on kubernetes needs --job {option}=…, such as {option}={_FORMS[option][1]}")
    for option, value in options.items():
        pattern, example = _FORMS[option]
        if not re.fullmatch(pattern, value):
            raise ValueError(f"--job {option} is {value!r}: Kubernetes takes values such as {example}")
    if options.get("kind") == "rayjob" and find_spec("ray") is None:
        raise ValueError(
            "--job kind is 'rayjob': the manifest needs the version of Ray, which is not installed; pip install 'lockstep-rl[ray]'"
        )
    return options.get("kind", "job")


def _shorten(sweep: str, run: str) -> str:
    """Return a name for the manifest of a run of a sweep, which differs from those of other runs."""
    full = f"{sweep}-{run}"
    name = re.sub(r"[^a-z0-9]+", "-", full.lower()).strip("-")
    name = name if name[0].isalpha() else f"r-{name}"
    if name == full and len(name) <= _LONGEST_NAME:
        return name
    code = hashlib.sha256(full.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9].strip('-')}-{code}"
