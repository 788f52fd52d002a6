"""The batch script for Slurm, without Slurm."""

import shlex
import subprocess
from pathlib import Path

import pytest

from lockstep.clusters.batch_script import _seconds, array_script, batch_script, write_array
from lockstep.clusters.job import Job, SweepJob
from lockstep.run.folder import RunFolder


def job(folder: Path, sizes: list[int], restarts: int = 3, **options: str) -> Job:
    words = ["train", "cartpole", "--name", "a b", "--resume"]
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return Job(RunFolder(folder), words, sizes, restarts, named)


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH --")]


def test_script_requests_ranks_and_options_and_is_put_back_into_the_queue(tmp_path: Path) -> None:
    script = batch_script(job(tmp_path / "run", [4], partition="gpu", time="08:00:00", cpus_per_task="2", exclusive=""))
    assert directives(script) == [
        "job-name=run",
        f"chdir={Path.cwd()}",
        f"output={tmp_path}/run/job/slurm.log",
        "open-mode=append",
        "requeue",
        "signal=USR1@120",
        "ntasks=4",
        "partition=gpu",
        "time=08:00:00",
        "cpus-per-task=2",
        "exclusive",
    ]
    line = next(line for line in script.splitlines() if line.startswith('srun --ntasks="$ranks"'))
    assert line.startswith('srun --ntasks="$ranks" --cpus-per-task="$SLURM_CPUS_PER_TASK" ')
    assert line.endswith(' "${command[@]}"')
    command = next(line for line in script.splitlines() if line.startswith("command=("))
    words = shlex.split(command.removeprefix("command=(").removesuffix(")"))
    assert words[-6:] == ["lockstep", "train", "cartpole", "--name", "a b", "--resume"]
    assert "    0|2|3|5) exit $code ;;" in script
    assert "    75) ;;" in script
    assert "-gt 3 ]; then\n" in script
    assert script.endswith('\nscontrol requeue "$SLURM_JOB_ID" || exit $code\n')


def test_task_of_an_array_trains_its_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a 'sweep'")
    words = {name: ["train", "cartpole", "--name", name, "--env.options", '{"a b": "$x"}'] for name in ("one", "two")}
    runs = SweepJob(folder, words, 2, 3, 4, {"partition": "cpu"})
    runs.files.mkdir(parents=True)
    stale = runs.files / "two.faults"
    stale.touch()
    write_array(runs)
    assert not stale.exists()
    script = array_script(runs)
    assert {"array=0-1%3", "ntasks=2", "partition=cpu", "requeue"} <= set(directives(script))
    choice = script[script.index("IFS=") : script.index("for ranks")]
    shown = subprocess.run(
        ["bash"],
        input=f'{choice}printf "%s\\n" "$faults" "${{command[@]}}"',
        env={"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert (shown.stdout, shown.stderr) == ("", "")
    faults, *command = (runs.logs / "two.log").read_text().splitlines()
    assert faults == str(stale)
    assert command[-7:] == ["lockstep", *words["two"]]


@pytest.mark.parametrize(
    ("ended", "requeued", "code", "message"),
    [
        ([0], 0, 0, ""),
        ([2], 0, 2, ""),
        ([3], 0, 3, ""),
        ([75, 75, 75, 75, 0], 4, 0, ""),
        ([4, 137, 0], 2, 0, ""),
        ([6, 6, 6, 6, 0], 4, 0, ""),
        ([4, 4, 4], 2, 4, "lockstep: not started again: the limit of 2 restarts within an hour was reached\n"),
    ],
)
def test_exit_code_of_srun_decides_whether_the_job_goes_on(
    tmp_path: Path, ended: list[int], requeued: int, code: int, message: str
) -> None:
    """Programs of the test take the places of srun, scontrol and sleep."""
    programs = {"srun": "exit $SRUN_ENDS_WITH", "sleep": f'test "$1" = 60 && touch {tmp_path}/slept'}
    for program, content in (programs | {"scontrol": f'echo "$*" >> {tmp_path}/requeued'}).items():
        (tmp_path / program).write_text(f"#!/bin/bash\n{content}\n")
        (tmp_path / program).chmod(0o755)
    todo = job(tmp_path / "run", [2], restarts=2)
    todo.files.mkdir(parents=True)
    script = batch_script(todo)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}
    for one in ended:
        words = {"env": {**variables, "SRUN_ENDS_WITH": str(one)}, "text": True, "capture_output": True}
        done = subprocess.run(["bash"], input=script, check=False, **words)
    calls = (tmp_path / "requeued").read_text().splitlines() if requeued else []
    assert (calls, done.returncode, done.stderr) == (["requeue 7"] * requeued, code, message)
    assert (tmp_path / "slept").exists() == (6 in ended)


@pytest.mark.parametrize(
    ("sizes", "nodes", "expected"),
    [
        ([4], "2", ["nodes=2", "ntasks-per-node=2"]),
        ([4, 3, 2], "2", ["nodes=1-2", "mincpus=2"]),
        ([8, 4, 3], "4", ["nodes=2-4", "mincpus=2"]),
        ([5], "2", ["nodes=2", "ntasks-per-node=3"]),
    ],
)
def test_ranks_are_split_between_nodes(tmp_path: Path, sizes: list[int], nodes: str, expected: list[str]) -> None:
    script = batch_script(job(tmp_path, sizes, nodes=nodes))
    assert directives(script)[-2:] == expected
    assert f"for ranks in {' '.join(map(str, sizes))}; do" in script


def test_paths_of_any_characters_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "100% $(touch x) 'a' \"b\""
    script = batch_script(job(folder, [1]))
    quoted = str(folder).replace("%", "%%").replace('"', '\\"')
    assert f'output="{quoted}/job/slurm.log"' in directives(script)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    message = next(line for line in script.splitlines() if "echo lockstep" in line).partition(">&2")[0]
    done = subprocess.run(["bash", "-c", message], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert str(folder) in done.stdout
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("sizes", "options", "error"),
    [
        ([2], {"requeue": ""}, "--job requeue: lockstep sets this option of sbatch itself; leave it out"),
        ([2], {"nodes": "3"}, "--job nodes is 3: there are at most 2 ranks, and every node needs one"),
        ([2], {"nodes": "1-2"}, "--job nodes is '1-2': it must be a whole number, at least 1"),
        ([4, 3, 2], {}, "--ranks is 2:4: Slurm reserves a range of nodes, not of ranks; add --job nodes=N with the most nodes"),
        ([2], {"comment": "a\nb"}, "--job comment is 'a\\nb': it must be printable text"),
        (
            [2],
            {"time": "3:30"},
            "--job time is '3:30': Slurm reads a number as minutes, and ranks stop 120 seconds before its end; use at least 5, or "
            "hours:minutes:seconds",
        ),
    ],
)  # fmt: skip
def test_options_that_can_not_work_are_refused(
    tmp_path: Path, sizes: list[int], options: dict[str, str], error: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        batch_script(job(tmp_path, sizes, **options))
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        *(("0", 0), ("7", 420), ("3:30", 210), ("00:04:00", 240), ("1-0", 86_400), ("1-1:30", 91_800)),
        *(("2-00:00:05", 172_805), ("UNLIMITED", None), ("", None)),
    ],
)
def test_time_limits_have_the_meaning_that_slurm_gives_them(time: str, seconds: int | None) -> None:
    assert _seconds(time) == seconds


@pytest.mark.parametrize("time", ["0", "5", "00:05:00", "1-0", "UNLIMITED"])
def test_long_and_unlimited_times_are_accepted(tmp_path: Path, time: str) -> None:
    assert f"time={time}" in directives(batch_script(job(tmp_path, [1], time=time)))


def test_short_time_in_hours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--job time is '00:04:00'"):
        batch_script(job(tmp_path, [1], time="00:04:00"))
