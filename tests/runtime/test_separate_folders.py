"""Ranks of hosts that do not share the folder of the run: here a rank that has a file system of its own in its place."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live_runs import rows

pytestmark = [pytest.mark.slow, pytest.mark.command("unshare")]

ALONE = ("unshare", "--mount", "--map-root-user")


@pytest.mark.skipif(
    subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode != 0,
    reason="no mount namespaces here",
)
@pytest.mark.parametrize("place", [pytest.param("nothing", marks=pytest.mark.exhaustive), "a copy"])
def test_rank_that_does_not_see_the_run_folder_is_named_before_training(
    run_cli, tmp_path: Path, environ: dict[str, str], place: str
) -> None:
    (tmp_path / "runs").mkdir()
    task = ["cartpole", "--plan.shards", "2", "--name", "run", "--run.progress", "off", "--runtime.compile", "off"]
    task += ["--rollout.steps", "32", "--ppo.minibatches", "1"]
    command, copy = ["train", *task, "--runtime.timeout", "8"], "true"
    if place == "a copy":
        assert run_cli("train", *task, "--total-steps", 1024, "--ranks", 1, "--runtime.timeout", 8).rc == 0
        shutil.copytree(tmp_path / "runs", tmp_path / "copy")
        command, copy = ["resume", "runs/run", "--total-steps", "100_000"], f"cp -r {tmp_path}/copy/run {tmp_path}/runs"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    words = [sys.executable, "-m", "lockstep", *command]
    hidden = [*ALONE, "sh", "-c", f"mount -t tmpfs none {tmp_path}/runs && {copy} && exec {shlex.join(words)}"]
    ranks = []
    for rank, command in enumerate((words, hidden)):
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen(command, cwd=tmp_path, env=environ | variables, start_new_session=True, **pipes))
    try:
        printed = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, 9)
    assert [rank.returncode for rank in ranks] == [2, 2], printed
    lines = printed[0][1].splitlines()
    assert lines[-1] == (
        f"lockstep: runs/run on {socket.gethostname()}, the host of rank 1, is not the folder of rank 0: it must be on a file system that all "
        "hosts of the run share; choose such a folder with --out"
    )
    assert printed[1][1] == ""
    assert len(rows(tmp_path / "runs/run")) == (4 if place == "a copy" else 0)
