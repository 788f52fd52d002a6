"""The batch script of a run, or of an array of runs, for Slurm.

It starts the ranks with `srun`, and puts its job back into the queue when they have to start again.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.clusters.job import Job, SweepJob
from lockstep.files import write_atomically
from lockstep.processes.exit_codes import BAD_INPUT, DONE, IN_USE, REPRODUCIBLE, STOPPED_BY_SIGNAL
from lockstep.processes.parent import own_command

__all__ = ["array_script", "batch_script", "faults_file", "write_array"]

_SET_BY_LOCKSTEP = (
    *("array", "chdir", "error", "job-name", "mincpus", "no-requeue", "ntasks", "ntasks-per-node", "open-mode"),
    *("output", "requeue", "signal", "wrap"),
)
"""Options of sbatch that the script sets itself, or that would make it another kind of job."""
_NOTICE = 120
"""Seconds before the time limit of the job at which the ranks are asked to stop. A clean stop takes at most 20."""
_PAUSE = 60
"""Seconds before a job starts again that has found its run in use."""
_LEAST_MINUTES = 5
"""Minimum time limit. With less, most of the time would be the notice."""

_BODY = """\
export PYTHONUNBUFFERED=1
missing=$(srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 bash -c 'test -f "$0" || hostname' {script})
if [ -n "$missing" ]; then
    echo lockstep: {folder} is not on $missing: it must be on a file system that all hosts of the job share >&2
    exit {bad_input}
fi
{choice}for ranks in {sizes}; do
    if [ "$ranks" -le {slots} ]; then break; fi
done
srun --ntasks="$ranks"{cpus} "${{command[@]}}"
code=$?
case $code in
    {final}) exit $code ;; # complete, or an error that would occur again
    {stopped}) ;; # stopped by a signal
    {in_use}) sleep {pause} ;; # another process trains the run, such as one of an earlier start that has not ended yet
    *)
        echo "$(date +%s) exit code $code" >> "$faults"
        if [ "$(awk -v since="$(($(date +%s) - 3600))" '$1 > since' "$faults" | wc -l)" -gt {restarts} ]; then
            echo 'lockstep: not started again: the limit of {restarts} restarts within an hour was reached' >&2
            exit $code
        fi
        ;;
esac
scontrol requeue "$SLURM_JOB_ID" || exit $code
"""

_CHOICE = """\
IFS=$'\\t' read -r name arguments < <(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {runs})
exec >> {logs}/"$name.log" 2>&1
eval "command=($arguments)"
faults={files}/"$name.faults"
"""


def batch_script(job: Job) -> str:
    """Return the batch script of a run. Raises ValueError for an option of `--job` that can't be used."""
    choice = f"command=({shlex.join(own_command(*job.arguments))})\nfaults={shlex.quote(str(faults_file(job)))}\n"
    return _script(job, job.sizes, choice, {"job-name": job.folder.path.name})


def array_script(runs: SweepJob) -> str:
    """Return the batch script of an array of runs, which `write_array` describes. Raises ValueError as `batch_script` does."""
    choice = _CHOICE.format(
        runs=shlex.quote(str(_array_file(runs))),
        logs=shlex.quote(str(runs.logs)),
        files=shlex.quote(str(runs.files)),
    )
    at_once = "" if runs.at_once is None else f"%{runs.at_once}"
    names = {"job-name": runs.folder.path.name, "array": f"0-{len(runs.arguments) - 1}{at_once}"}
    return _script(runs, [runs.ranks], choice, names)


def write_array(runs: SweepJob) -> None:
    """Write the file from which a task of the array reads its run, and remove the faults of an earlier submission."""
    lines = [f"{name}\t{shlex.join(own_command(*arguments))}\n" for name, arguments in runs.arguments.items()]
    write_atomically(_array_file(runs), "".join(lines).encode())
    for name in runs.arguments:
        (runs.files / f"{name}.faults").unlink(missing_ok=True)
    runs.logs.mkdir(exist_ok=True)


def _array_file(runs: SweepJob) -> Path:
    return runs.files / "runs.tsv"


def _script(job: Job | SweepJob, sizes: Sequence[int], choice: str, names: Mapping[str, str]) -> str:
    """Return the script of a job. `choice` sets the variables `command` and `faults`, and `names` are options that identify the job."""
    nodes, per_node = _check(job.options, sizes)
    files = job.files
    header = {
        **names,
        "chdir": str(Path.cwd()),
        "output": str(files / "slurm.log").replace("%", "%%"),
        "open-mode": "append",
        "requeue": "",
        "signal": f"USR1@{_NOTICE}",
        **_placement(job.options, sizes, nodes, per_node),
        **{name: value for name, value in job.options.items() if name != "nodes"},
    }
    body = _BODY.format(
        choice=choice,
        script=shlex.quote(str(files / "slurm.sh")),
        folder=shlex.quote(str(job.folder.path)),
        sizes=" ".join(map(str, sizes)),
        slots="$SLURM_NTASKS" if nodes is None else f"$((SLURM_JOB_NUM_NODES * {per_node}))",
        # since Slurm 22.05, srun does not take it from the batch script
        cpus=' --cpus-per-task="$SLURM_CPUS_PER_TASK"' if "cpus-per-task" in job.options else "",
        final="|".join(map(str, (DONE, *REPRODUCIBLE))),
        stopped=STOPPED_BY_SIGNAL,
        in_use=IN_USE,
        pause=_PAUSE,
        bad_input=BAD_INPUT,
        restarts=job.restarts,
    )
    return "#!/bin/bash\n" + "".join(_directive(name, value) for name, value in header.items()) + "\n" + body


def faults_file(job: Job) -> Path:
    """Return the path of the file with a line for every fault since the submission."""
    return job.files / "slurm.faults"


def _seconds(time: str) -> int | None:
    """Return the seconds of a time limit in one of the forms of `sbatch --time`; None if it has another form."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", time)
    if match is None:
        return None
    days, *fields = (int(field) for field in match.groups(default="0"))
    if match[1] is None and match[4] is None:  # MINUTES or MINUTES:SECONDS
        fields = [0, *fields[:2]]
    hours, minutes, seconds = fields
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds


def _check(options: Mapping[str, str], sizes: Sequence[int]) -> tuple[int | None, int]:
    """Return the number of nodes, None if Slurm is to choose it, and the number of ranks per node."""
    for name, value in options.items():
        if name in _SET_BY_LOCKSTEP:
            raise ValueError(f"--job {name}: lockstep sets this option of sbatch itself; leave it out")
        if not value.isprintable():
            raise ValueError(f"--job {name} is {value!r}: it must be printable text")
        if name in ("nodes", "cpus-per-task") and not re.fullmatch(r"[1-9]\d{0,5}", value):
            raise ValueError(f"--job {name} is {value!r}: it must be a whole number, at least 1")
    seconds = _seconds(options.get("time", ""))
    if seconds is not None and 0 < seconds < 60 * _LEAST_MINUTES:  # Slurm reads 0 as no limit
        raise ValueError(
            f"--job time is {options['time']!r}: Slurm reads a number as minutes, and ranks stop {_NOTICE} seconds before its end; "
            f"use at least {_LEAST_MINUTES}, or hours:minutes:seconds"
        )
    nodes, largest = options.get("nodes"), sizes[0]
    if nodes is None:
        if len(sizes) > 1:
            raise ValueError(
                f"--ranks is {sizes[-1]}:{largest}: Slurm reserves a range of nodes, not of ranks; add --job nodes=N with the most nodes"
            )
        return None, largest
    if int(nodes) > largest:
        raise ValueError(f"--job nodes is {nodes}: there are at most {largest} ranks, and every node needs one")
    return int(nodes), -(-largest // int(nodes))


def _placement(options: Mapping[str, str], sizes: Sequence[int], nodes: int | None, per_node: int) -> Mapping[str, str]:
    if nodes is None:
        return {"ntasks": str(sizes[0])}
    fewest = -(-sizes[-1] // per_node)
    if fewest == nodes:
        return {"nodes": str(nodes), "ntasks-per-node": str(per_node)}
    # With ntasks-per-node, Slurm waits for as many tasks as the job had before it was put back into the queue, whatever the range of nodes.
    cpus = per_node * int(options.get("cpus-per-task", 1))
    return {"nodes": f"{fewest}-{nodes}", "mincpus": str(cpus)}


def _directive(name: str, value: str) -> str:
    text = re.sub(r'([\\"])', r"\\\1", value)
    quoted = value if re.fullmatch(r"[\w@%+=:,./-]*", value) else f'"{text}"'
    return f"#SBATCH --{name}={quoted}\n" if value else f"#SBATCH --{name}\n"
