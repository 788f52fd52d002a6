"""Tests of ranks with a secret at MASTER_ADDR and MASTER_PORT, beside strangers who connect to their ports."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.live_runs import digests, open_ports, reached, wait_for
from tests.warm import Warm

pytestmark = pytest.mark.slow

SECRET = "0123456789abcdef"
TASK = ["train", "--env", "CartPole-v1", "--plan.shards", "2", "--rollout.steps", "64", "--ppo.epochs", "1"]
TASK += ["--ppo.minibatches", "2", "--total-steps", "25_600", "--run.progress", "off", "--runtime.compile", "off"]


@pytest.fixture(name="start_ranks")
def fixture_start_ranks(tmp_path: Path, environ: dict[str, str], warm: Warm):
    """Return `start_ranks(*secrets)`, which starts one rank for each secret, all at one port of a host, and returns them.

    A rank with None has no secret; `missing` is a rank that is not started.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started: list[subprocess.Popen[str]] = []

    def start(
        *secrets: str | None, timeout: int = 60, host: str = "127.0.0.1", missing: int | None = None
    ) -> list[subprocess.Popen[str]]:
        for rank, secret in enumerate(secrets):
            if rank == missing:
                continue
            variables = {"RANK": str(rank), "WORLD_SIZE": str(len(secrets))}
            variables |= {} if secret is None else {"LOCKSTEP_SECRET": secret}
            variables |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
            words = [*TASK, "--name", "run", "--runtime.backend", "gloo", "--runtime.timeout", str(timeout)]
            started.append(warm.begin(*words, cwd=tmp_path, environ=environ | variables))
        return started

    yield start
    for rank in started:
        if rank.poll() is None:
            os.kill(rank.pid, signal.SIGKILL)
        rank.communicate()


def test_strangers_do_not_disturb_the_ranks(start_ranks, run_cli, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    ranks = start_ranks(SECRET, SECRET)
    wait_for(lambda: len(open_ports([ranks[0].pid])) >= 2, "the ports of the store and of gloo")
    strangers = []
    while not reached(run, 20)():
        assert ranks[0].poll() is None, ranks[0].communicate()
        for port in open_ports([rank.pid for rank in ranks if rank.poll() is None]):
            with suppress(OSError):
                stranger = socket.create_connection(("127.0.0.1", port), timeout=1)
                stranger.sendall(os.urandom(100))
                strangers.append(stranger)
        time.sleep(0.05)
    for rank in ranks:
        assert rank.wait(60) == 0, rank.communicate()
    for stranger in strangers:
        stranger.close()
    assert run_cli(*TASK, "--name", "alone", "--ranks", 1).rc == 0
    assert digests(run) == digests(tmp_path / "runs" / "alone")


def test_rank_with_another_secret_is_refused(start_ranks, tmp_path: Path) -> None:
    rank, stranger = start_ranks(SECRET, "another secret..", timeout=8)
    printed = stranger.communicate(timeout=60)[1].splitlines()
    assert stranger.returncode not in (None, 0)
    assert len(printed) == 1
    assert printed[0].startswith("lockstep: rank 0 is lost in phase 'start': 127.0.0.1:")
    assert printed[0].endswith(" has another secret: LOCKSTEP_SECRET must be the same for all ranks")
    printed = rank.communicate(timeout=60)[1].splitlines()
    assert rank.returncode not in (None, 0)
    assert len(printed) == 1
    assert "rank 1" in printed[0]
    assert not (tmp_path / "runs").exists()


NO_ADDRESS = "lost in phase 'start': the host no-such-host.invalid has no address: "
LATE = "rank 1 is lost in phase 'start': no connection within 4 s (see runtime.timeout)"


@pytest.mark.parametrize(
    ("secrets", "options", "problems"),
    [
        ((None, None), {"missing": 0}, ("rank 0 is lost in phase 'start': no connection to 127.0.0.1:",)),
        ((None, None), {"missing": 1}, (LATE,)),
        ((SECRET, SECRET), {"missing": 1}, (f"{LATE}; LOCKSTEP_SECRET must be the same for all ranks",)),
        ((None, None), {"host": "no-such-host.invalid"}, (NO_ADDRESS, "no connection to no-such-host.invalid:")),
        ((SECRET, None), {}, (LATE, " asks for a secret: LOCKSTEP_SECRET must be the same for all ranks")),
        ((None, SECRET), {}, (LATE, " does not ask for the secret: LOCKSTEP_SECRET must be the same for all ranks")),
    ],
)
def test_ranks_that_do_not_connect_end_in_one_line(
    secrets: tuple[str | None, ...], options: dict[str, object], problems: tuple[str, ...], start_ranks
) -> None:
    """PyTorch's own store would print stack traces of C++, after up to three times the timeout."""
    for rank, problem in zip(start_ranks(*secrets, timeout=4, **options), problems, strict=True):
        printed = rank.communicate(timeout=60)[1].splitlines()
        assert rank.returncode == 4, printed
        assert len(printed) == 1
        assert problem in printed[0]


def test_short_secret_is_refused(start_ranks, tmp_path: Path) -> None:
    (rank,) = start_ranks("short")
    printed = rank.communicate(timeout=60)[1]
    assert rank.returncode == 2
    assert printed.splitlines() == [
        "lockstep: LOCKSTEP_SECRET has 5 characters: it must have at least 16, such as the output of `openssl rand -hex 16`"
    ]
    assert not (tmp_path / "runs").exists()
