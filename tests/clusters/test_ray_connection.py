"""Connections to a cluster of Ray, and its size, without a cluster."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.clusters import ray_connection
from lockstep.clusters.ray_connection import connected, rank_capacity, read_address
from lockstep.group.group import RankLost

NICENESS = "RAY_worker_niceness"


@pytest.fixture(name="install")
def fixture_install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return `install(init)`, which replaces Ray by a module with this function, and unsets the variables of Ray for the test."""
    names = (
        "ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
        "USAGE_STATS_ENABLED",
        "NUM_REDIS_GET_RETRIES",
        "AUTH_MODE",
        "AUTH_TOKEN",
    )
    for name in (NICENESS, "RAY_AUTH_TOKEN_PATH", *(f"RAY_{end}" for end in names)):
        monkeypatch.setenv(name, "")  # so that it is restored also if it is not set
        monkeypatch.delenv(name)
    return lambda init: monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, shutdown=lambda: None))


@pytest.fixture(name="address")
def fixture_address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"ray://127.0.0.1:{server.getsockname()[1]}"


def noisy_init(address: str, **_: object) -> None:
    os.write(2, b"rpc_client.h:153: Failed to connect\n")


def failing_init(address: str, **_: object) -> None:
    noisy_init(address)
    raise ConnectionAbortedError(
        'Initialization failure from server:\nTraceback (most recent call last):\n  File "proxier.py", line 1\nRuntimeError: no server\n\n'
    )


def test_messages_of_ray_are_not_shown(
    install: Callable[..., None], address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    install(noisy_init)
    with connected(address):
        print("(raylet) Raylet is terminated")
        print("lockstep: a line", file=sys.stderr)
    print("the end")
    assert capfd.readouterr() == ("the end\n", "lockstep: a line\n")


def test_error_of_a_server_is_its_last_line(
    install: Callable[..., None], address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    install(failing_init)
    with (
        pytest.raises(ValueError, match=r"^there is no cluster of Ray at .* \(RuntimeError: no server\)$"),
        connected(address),
    ):
        pass
    assert capfd.readouterr() == ("", "")


def test_lost_connection_is_a_lost_rank(install: Callable[..., None], address: str) -> None:
    install(noisy_init)
    with (
        pytest.raises(RankLost, match=f"^the connection to the cluster of Ray at {address} is lost$"),
        connected(address),
    ):
        raise ConnectionError("Client is shutting down.")


@pytest.mark.parametrize(("own", "expected"), [(None, "0"), ("7", "7")])
def test_ray_that_the_command_starts_does_not_change_the_niceness(
    own: str | None, expected: str, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(noisy_init)
    if own is not None:
        monkeypatch.setenv(NICENESS, own)
    with connected(None):
        assert os.environ[NICENESS] == expected


def test_niceness_of_a_running_cluster_is_not_set(install: Callable[..., None], address: str) -> None:
    install(noisy_init)
    with connected(address):
        assert NICENESS not in os.environ


def test_client_uses_the_token_of_the_user(
    install: Callable[..., None], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(noisy_init)
    monkeypatch.setenv("HOME", str(tmp_path))
    with connected(address):
        assert "RAY_AUTH_MODE" not in os.environ
    tmp_path.joinpath(".ray").mkdir()
    tmp_path.joinpath(".ray/auth_token").write_text("0" * 64)
    with connected(address.removeprefix("ray://")):
        assert "RAY_AUTH_MODE" not in os.environ
    with connected(address):
        assert os.environ["RAY_AUTH_MODE"] == "token"


def test_address_of_the_environment_is_used_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection, "find_spec", lambda _: object())
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert read_address({}) == "head:6379"
    assert read_address({"address": "other:6379"}) == "other:6379"
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    with pytest.raises(ValueError, match=r"^RAY_ADDRESS is 'http://head:8265': it must be HOST:PORT, such as"):
        read_address({})
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert read_address({}) is None


def test_client_without_grpcio_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection, "find_spec", lambda name: None if name == "grpc" else object())
    assert read_address({"address": "head:6379"}) == "head:6379"
    with pytest.raises(ValueError, match=r"^--job address is 'ray://head:10001': grpcio is not installed; pip install"):
        read_address({"address": "ray://head:10001"})


@pytest.mark.parametrize(
    ("cpu", "expected"), [(0.1, 10 + 25), (1.0, 1 + 2), (0.3, 3 + 8), (2.0, 0 + 1), (4.0, 0)], ids=str
)
def test_number_of_ranks_that_fit_on_the_nodes(cpu: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": cores}} for cores in (1.0, 2.5)]
    nodes.append({"Alive": False, "Resources": {"CPU": 64.0}})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: nodes))
    assert rank_capacity({"CPU": cpu}) == expected
