"""Ranks that would compute other bits than rank 0 are refused in one line, before a run folder is created."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.test_modules import FLAGS, MODULE
from tests.live_runs import digests
from tests.warm import Finished, SpawnedProgram, Warm

from lockstep.processes.host_name import host_name

pytestmark = pytest.mark.slow

HOST = host_name()
Start = Callable[..., list[Finished]]


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str], warm: Warm) -> Start:
    """Return `start(words, variables)`, which starts two ranks as a launcher does and returns how they ended.

    `variables` are added to the environment of rank 1, `more` to its words, and `folders` are the working directories.
    """

    def run(
        words: tuple[object, ...],
        variables: dict[str, str],
        more: tuple[object, ...] = (),
        folders: tuple[Path, Path] = (tmp_path, tmp_path),
    ) -> list[Finished]:
        ranks = []
        meeting = ("--out", tmp_path / "runs", "--runtime.rendezvous", f"file://{tmp_path}/rendezvous")
        for rank in range(2):
            place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
            given = environ | {name: str(value) for name, value in place.items()} | (variables if rank else {})
            command = [*words, *meeting, *(more if rank else ())]
            if warm.suits(given):
                ranks.append(warm.start(*command, cwd=folders[rank], environ=given))
            else:
                spawned = [sys.executable, "-m", "lockstep", *map(str, command)]
                ranks.append(SpawnedProgram(spawned, folders[rank], given))
        try:
            return [rank.wait(100) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()

    return run


def test_rank_with_other_cpu_code_is_refused_by_all(start: Start, environ: dict[str, str], tmp_path: Path) -> None:
    words = ("train", "cartpole", "--plan.shards", 2, "--run.progress", "off", "--runtime.compile", "off")
    first, second = start(words, {"OPENBLAS_CORETYPE": "Prescott"})
    assert (first.rc, second.rc) == (2, 2), (first, second)
    assert first.stderr == (
        f"lockstep: rank 1 on host {HOST} computes different bits in NumPy's matrix products than rank 0 on host {HOST}: "
        f"OPENBLAS_CORETYPE is Prescott on rank 1, {environ.get('OPENBLAS_CORETYPE', 'not set')} on rank 0\n"
    )
    assert second.stderr == ""
    assert not [*tmp_path.iterdir()]


def test_rank_with_another_module_is_refused_by_all(start: Start, tmp_path: Path) -> None:
    folders = tmp_path / "first", tmp_path / "second"
    for folder, right in zip(folders, ("float(action)", "float(1 - action)"), strict=True):
        folder.mkdir()
        (folder / "my_envs.py").write_text(MODULE.replace("float(action)", right))
    words = ("train", *FLAGS, "--env.module", "my_envs")
    first, second = start(words, {}, folders=folders)
    assert (first.rc, second.rc) == (2, 2), (first, second)
    assert first.stderr == (
        f"lockstep: rank 1 on host {HOST} has another my_envs.py of the module my_envs than rank 0 on host {HOST}; "
        "all hosts need the same files\n"
    )
    assert second.stderr == ""
    assert not (tmp_path / "runs").exists()
    (folders[1] / "my_envs.py").write_bytes((folders[0] / "my_envs.py").read_bytes())
    assert [rank.rc for rank in start(words, {}, folders=folders)] == [0, 0]
    assert len(digests(tmp_path / "runs" / "run")) == 3


def test_rank_with_another_config_is_refused_by_all(start: Start, tmp_path: Path) -> None:
    first, second = start(("train", "cartpole", "--plan.shards", 2), {}, more=("--seed", 2))
    assert (first.rc, second.rc) == (2, 2), (first, second)
    assert first.stderr == (
        f"lockstep: run.seed is 2 on rank 1 on host {HOST}, but 1 on rank 0 on host {HOST}; start all ranks with the same config\n"
    )
    assert not [*tmp_path.iterdir()]
