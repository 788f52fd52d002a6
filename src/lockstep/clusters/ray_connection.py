"""The connection to a cluster of Ray, and the resources of its ranks."""

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

from lockstep.clusters.job import check_options
from lockstep.group.group import RankLost

__all__ = ["connected", "process_variables", "rank_capacity", "read_address", "read_resources"]

_OPTIONS = ("address", "cpu", "gpus")
_CLIENT = "ray://"
"""Start of an address to which this process connects as a client, through a process on the head node."""
_CONNECT = 10.0
"""Seconds to wait for an answer of a cluster's address."""
_VARIABLE = "RAY_ADDRESS"
"""Environment variable with the address of the cluster, which Ray sets in its jobs."""


def read_address(options: Mapping[str, str]) -> str | None:
    """Return the address of the cluster, from the options of `--job` or from the environment; None: start one.

    Raises ValueError in one line if an option is wrong, or Ray is not installed.
    """
    if find_spec("ray") is None:
        raise ValueError("--on is 'ray': Ray is not installed; pip install 'lockstep-rl[ray]'")
    check_options(options, "ray", _OPTIONS)
    name, address = "--job address", options.get("address")
    if address is None:
        name, address = _VARIABLE, os.environ.get(_VARIABLE)
        if not address:
            return None
    if not re.fullmatch(rf"({_CLIENT})?[^/]+:\d{{1,5}}", address):
        raise ValueError(
            f"{name} is {address!r}: it must be HOST:PORT, such as head:6379, or ray://HOST:PORT, such as ray://head:10001"
        )
    if address.startswith(_CLIENT) and find_spec("grpc") is None:
        raise ValueError(f"{name} is {address!r}: grpcio is not installed; pip install 'lockstep-rl[ray]'")
    return address


def read_resources(options: Mapping[str, str]) -> dict[str, float]:
    """Return the resources of a rank by Ray's names. Raises ValueError in one line if an option is wrong."""
    resources = {}
    for option, name, default in (("cpu", "CPU", "1"), ("gpus", "GPU", "0")):
        text = options.get(option, default)
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e6 or (option == "cpu" and not number):
            raise ValueError(f"--job {option} is {text!r}: it must be a number of {name}s per rank")
        if number:
            resources[name] = number
    return resources


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to the cluster at `address` for the block; None: start one that ends with the block or with this process.

    In the block, sys.stdout discards what is written: Ray prints there what happens to nodes, with their states. Raises ValueError in one
    line if there is no cluster, or it does not start, and RankLost if a client loses its connection.
    """
    _set_variables(address)
    import ray

    with ExitStack() as stack:
        null = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(null))
        stack.callback(ray.shutdown)
        with _without_stderr():
            _connect(address)
        try:
            yield
        except BrokenPipeError:  # of the own output
            raise
        except ConnectionError:
            raise RankLost.from_message(f"the connection to the cluster of Ray at {address} is lost") from None


def _set_variables(address: str | None) -> None:
    # the first one: Ray must not hide GPUs from ranks, whose devices runtime.device chooses
    variables = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    if address is None:
        variables["RAY_worker_niceness"] = "0"  # Ray's default is 15: other programs could take all of the time
    else:
        variables["RAY_NUM_REDIS_GET_RETRIES"] = "1"  # of 40 seconds; Ray's default is 20
    if address is not None and address.startswith(_CLIENT) and _has_token():
        variables["RAY_AUTH_MODE"] = "token"  # Ray sets this itself, except in clients
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _has_token() -> bool:
    """Return True if there is a token for clusters that demand one; others ignore it."""
    is_named = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return is_named or Path("~/.ray/auth_token").expanduser().is_file()


def _connect(address: str | None) -> None:
    import ray

    options = {"log_to_driver": False, "logging_level": "CRITICAL"}  # errors are raised too
    if address is None:
        try:
            ray.init("local", include_dashboard=False, **options)
        except Exception as error:  # Ray raises this class itself
            raise ValueError(f"--on is 'ray': Ray did not start on this host ({_one_line(error)})") from None
        return
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT):
            pass
        ray.init(address, **options)
    except Exception as error:  # also those of gRPC, which have no other common class
        raise ValueError(f"there is no cluster of Ray at {address!r} ({_one_line(error)})") from None


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what is written to the standard error stream in the block, also by libraries: Ray logs there until it has connected."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def _one_line(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error).strip()
    _, is_remote, trace = text.partition("Traceback (most recent call last)")  # of a server for clients
    cause = [line for line in trace.splitlines() if line and not line.startswith(" ")] if is_remote else []
    return " ".join((cause[-1] if cause else text).split())[:200]


def process_variables() -> dict[str, str]:
    """Return the environment variables that processes on other hosts get from this one."""
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {"PYTHONUNBUFFERED": "1", **path}


def rank_capacity(resources: Mapping[str, float]) -> int:
    """Return the number of ranks that the nodes of the cluster can hold, if each needs these resources and nothing else ran."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(int(node.get(name, 0) / number + 1e-9) for name, number in resources.items()) for node in nodes)
