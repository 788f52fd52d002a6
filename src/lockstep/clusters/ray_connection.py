"""The connection to a cluster of Ray, and the resources of its ranks."""

import os
import re
import socket
from collections.abc import Mapping
from importlib.util import find_spec

from lockstep.clusters.job import check_options
from lockstep.run.folder import DRIVEN

__all__ = ["connect", "disconnect", "process_variables", "rank_capacity", "read_address", "read_resources"]

_OPTIONS = ("address", "cpu", "gpu")
_CONNECT = 10.0
"""Seconds to wait for an answer of a cluster's address."""


def read_address(options: Mapping[str, str]) -> str | None:
    """Return the address of the cluster, from the options of `--job`; None: start one.

    Raises ValueError in one line if an option is wrong, or Ray is not installed.
    """
    if find_spec("ray") is None:
        raise ValueError("--on is 'ray': Ray is not installed; pip install 'lockstep-rl[ray]'")
    check_options(options, "ray", _OPTIONS)
    address = options.get("address")
    if address is not None and not re.fullmatch(r"[^/]+:\d{1,5}", address):
        raise ValueError(f"--job address is {address!r}: it must be HOST:PORT, such as head:6379")
    return address


def read_resources(options: Mapping[str, str]) -> dict[str, float]:
    """Return the resources of a rank by Ray's names. Raises ValueError in one line if an option is wrong."""
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


def connect(address: str | None) -> None:
    """Connect to the cluster at `address`; None: start one that ends with this process.

    Raises ValueError in one line if there is none, or it does not start.
    """
    # the first one: Ray must not hide GPUs from ranks, whose devices runtime.device chooses
    variables = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    if address is not None:
        variables["RAY_NUM_REDIS_GET_RETRIES"] = "1"  # of 40 seconds; Ray's default is 20
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    import ray

    options = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        try:
            ray.init("local", include_dashboard=False, **options)
        except Exception as error:  # Ray raises this class itself
            raise ValueError(f"--on is 'ray': Ray did not start on this host ({_one_line(error)})") from None
        return
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT):
            pass
        ray.init(address, **options)
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"--job address is {address!r}: there is no cluster of Ray ({_one_line(error)})") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]


def disconnect() -> None:
    """Leave the cluster, and end it if `connect` has started it."""
    import ray

    ray.shutdown()


def process_variables() -> dict[str, str]:
    """Return the environment variables that processes on other hosts get from this one."""
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {"PYTHONUNBUFFERED": "1", DRIVEN: "1", **path}


def rank_capacity(resources: Mapping[str, float]) -> int:
    """Return the number of ranks that the nodes of the cluster can hold, if each needs these resources and nothing else ran."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(int(node.get(name, 0) / number + 1e-9) for name, number in resources.items()) for node in nodes)
