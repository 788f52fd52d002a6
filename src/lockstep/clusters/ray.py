"""Training on a cluster of Ray: this process places the ranks, and starts all of them again after a fault."""

import os
import socket
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from lockstep.clusters.job import Job, check_options
from lockstep.clusters.request import Request, reserved
from lockstep.experiment.supervise import RestartLimit
from lockstep.processes.exit_codes import BAD_INPUT, DONE, FAILED, IN_USE, NON_FINITE, PREEMPTED, REPLICAS_DIFFER
from lockstep.processes.parent import own_command
from lockstep.run.stop import asked_to_stop, listen
from lockstep.telemetry.attempts import record_fault

__all__ = ["submit"]

_OPTIONS = ("address", "cpu", "gpu")
_FINAL = (BAD_INPUT, IN_USE, NON_FINITE, REPLICAS_DIFFER)
"""Exit codes after which the ranks do not start again: the same error would come back."""
_PLACEMENT = 30.0
"""Seconds to wait until all ranks are placed, if a smaller number can be tried. For up to a minute, Ray offers the cores of a lost node."""
_LAST_PLACEMENT = 120.0
"""Seconds to wait at the first start, and if no smaller number can be tried."""
_CONNECT = 10.0
"""Seconds to wait for an answer of a cluster's address."""


def submit(request: Request) -> int:
    """Train on the cluster until training has ended, and return the exit code.

    Raises ValueError in one line if Ray is missing, does not answer, or has fewer cores than the smallest number of ranks needs.
    """
    if find_spec("ray") is None:
        raise ValueError("--on is 'ray': Ray is not installed; pip install 'lockstep-rl[ray]'")
    check_options(request.options, "ray", _OPTIONS)
    resources = _resources(request.options)
    with reserved(request) as job:
        _connect(request.options.get("address"))
        try:
            _check_capacity(job, resources)
        except BaseException:
            _disconnect()
            raise
    # from here on, rank 0 locks the run
    try:
        listen()
        return _train(job, resources)
    finally:
        _disconnect()


def _resources(options: Mapping[str, str]) -> dict[str, float]:
    """Return the resources of a rank by Ray's names."""
    resources = {}
    for option, default in (("cpu", "1"), ("gpu", "0")):
        text = options.get(option, default)
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e6 or (option == "cpu" and not number):
            raise ValueError(f"--job {option} is {text!r}: it must be a number of {option.upper()}s per rank")
        if number:
            resources[option.upper()] = number
    return resources


def _connect(address: str | None) -> None:
    """Connect to the cluster: the one at `address`, else one that runs on this host, else one of this process alone."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # devices of ranks are chosen by runtime.device
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    options = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        try:
            ray.init("auto", **options)
        except ConnectionError:
            ray.init("local", include_dashboard=False, **options)
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT):
            pass
        ray.init(address, **options)
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise ValueError(
            f"--job address is {address!r}: there is no cluster of Ray ({reason}); use HOST:PORT"
        ) from None


def _disconnect() -> None:
    import ray

    ray.shutdown()


def _check_capacity(job: Job, resources: Mapping[str, float]) -> None:
    fits = _fitting(resources)
    if fits < job.sizes[-1]:
        needs = " and ".join(f"{number:g} {name}" for name, number in resources.items())
        raise ValueError(f"--ranks is at least {job.sizes[-1]}: the cluster has room for {fits}, with {needs} per rank")


def _fitting(resources: Mapping[str, float]) -> int:
    """Return the number of ranks for which the cluster has resources, free or not."""
    import ray

    total = ray.cluster_resources()
    return min(int(total.get(name, 0) // number) for name, number in resources.items())


def _train(job: Job, resources: Mapping[str, float]) -> int:
    """Run the ranks until training has ended. After a fault, start all of them again, with as many as can be placed."""
    from lockstep.clusters.ray_group import NotPlaced, run_group

    limit = RestartLimit(job.restarts)
    command, folder = own_command(*job.words), str(Path.cwd())
    variables = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ} | {"PYTHONUNBUFFERED": "1"}
    unplaced: set[int] = set()
    patience = _LAST_PLACEMENT
    while True:
        sizes = [size for size in job.sizes if size <= _fitting(resources) and size not in unplaced]
        if not sizes:
            _say("no allowed number of ranks could be placed (--ranks)")
            return FAILED
        if len(sizes) == 1:
            patience = _LAST_PLACEMENT
        try:
            ended = run_group(sizes[0], resources, command, variables, folder, _write, asked_to_stop, patience)
        except NotPlaced as error:
            _say(str(error))
            unplaced.add(sizes[0])
            patience = _PLACEMENT
            if asked_to_stop():
                return PREEMPTED
            continue
        unplaced.clear()
        patience = _PLACEMENT
        code = next((code for code in ended.codes if code in _FINAL), max(ended.codes))
        if code in (DONE, *_FINAL) or asked_to_stop():
            return code
        if code != PREEMPTED and not _restarts(job, limit, ended.problem):
            return code


def _restarts(job: Job, limit: RestartLimit, fault: str) -> bool:
    """Record a fault, and return True after the pause before the next start; False if the ranks do not start again."""
    reached = job.folder.last_metrics().get("iteration")
    iteration = reached + 1 if isinstance(reached, int) else 0
    saved = max(job.folder.checkpoints(), default=0)
    record_fault(job.folder, fault, iteration)
    problem = limit.problem(iteration, saved)
    if problem is not None:
        _say(f"{fault}; not started again: {problem}")
        return False
    _say(
        f"{fault}; starting again from {f'iteration {saved}' if saved else 'the start'} (restart {limit.used} of {job.restarts})"
    )
    time.sleep(limit.pause)
    return True


def _say(text: str) -> None:
    print(f"lockstep: {text}", file=sys.stderr, flush=True)


def _write(line: str) -> None:
    print(line, flush=True)
