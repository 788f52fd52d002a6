"""Overview of many runs: the state and the newest numbers of each, without importing PyTorch, and from the last row of the metrics alone if it is enough."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lockstep.run.evaluations import read_best
from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import Start, read_starts
from lockstep.telemetry.status import RecentReturn, number

__all__ = ["STATES", "ListedRun", "State", "list_run", "list_runs", "run_folders", "state_of"]

State = Literal["running", "done", "pruned", "stopped", "failed", "killed", "new", "broken"]
STATES: tuple[State, ...] = get_args(State)
"""`pruned`: ended early by a search; `stopped`: by a signal; `killed`: rank 0 has ended without a record; `new`: it was never started; `broken`: a file can't be read."""


@dataclass(frozen=True)
class ListedRun:
    """One run in the overview."""

    path: Path
    """Run folder."""
    state: State
    env: str
    """Value of `env.id`; empty for a broken run."""
    seed: int | None
    iteration: int
    """Number of completed iterations."""
    steps: int
    """Environment steps so far."""
    total_steps: int | None
    """Value of `run.total_steps`."""
    share: int
    """Completed percentage of the iterations that `run.total_steps` gives."""
    return_mean: float | None
    """Mean return of the last 20 training episodes; before there are 20, of all of them."""
    best_evaluation: float | None
    """Mean return of the best evaluation during training."""
    steps_per_second: float | None
    """Environment steps per second of training, over the whole run."""
    age: float
    """Seconds since the metrics were last written; without metrics, since the run was created."""
    why: str
    """Reason for which it was pruned, signal that stopped the run, error with which it failed, or file that can't be read; else empty."""


def list_runs(root: Path, state: str | None = None) -> Iterator[ListedRun]:
    """Iterate over the runs in a folder, and over those of the sweeps in it, in alphabetical order. `state` None: in all states."""
    for path in run_folders(root):
        folder = RunFolder(path)
        run_state, why = state_of(folder)
        if state in (None, run_state):
            yield _listed(folder, run_state, why)


def run_folders(root: Path) -> list[Path]:
    """Return the folders of the runs in a folder, which may be that of a sweep, and of those of the sweeps in it, in alphabetical order."""
    configs = [path for pattern in ("*", "runs/*", "*/runs/*") for path in root.glob(f"{pattern}/config.json")]
    return [config.parent for config in sorted(configs)]


def list_run(path: Path) -> ListedRun:
    """Read the state and the newest numbers of the run in the folder `path`."""
    folder = RunFolder(path)
    return _listed(folder, *state_of(folder))


def _listed(folder: RunFolder, state: State, why: str) -> ListedRun:
    config, row = ({}, {}) if state == "broken" else (folder.tree(), folder.last_metrics())
    env, run = _section(config, "env"), _section(config, "run")
    mean, best = number(row.get("return_mean_20")), read_best(folder)
    if mean is None and row:  # fewer than 20 episodes have ended: the mean needs all rows
        mean = RecentReturn(folder.readable_metrics()).mean
    steps, seconds = int(number(row.get("env_steps")) or 0), number(row.get("seconds"))
    return ListedRun(
        path=folder.path,
        state=state,
        env=str(env.get("id", "")),
        seed=_int_or_none(run.get("seed")),
        iteration=int(number(row.get("iteration")) or 0),
        steps=steps,
        total_steps=_int_or_none(run.get("total_steps")),
        share=_share(config, int(number(row.get("iteration")) or 0)),
        return_mean=mean,
        best_evaluation=None if best is None else best.return_mean,
        steps_per_second=steps / seconds if seconds else None,
        age=_age(folder),
        why=why,
    )


def _section(config: Mapping[str, object], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _share(config: Mapping[str, object], iteration: int) -> int:
    """Return the completed percentage of the iterations of a run."""
    total = _int_or_none(_section(config, "run").get("total_steps"))
    count, steps = _section(config, "env").get("count"), _section(config, "rollout").get("steps")
    if not total or not isinstance(count, int) or not isinstance(steps, int) or count * steps < 1:
        return 0
    return min(100, 100 * iteration // max(1, total // (count * steps)))


def _int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) else None


def state_of(folder: RunFolder) -> tuple[State, str]:
    """Return the state of a run, and why it was pruned or stopped or failed, or can't be read."""
    try:
        folder.tree()
    except ValueError as error:
        return "broken", str(error)
    starts, in_use = read_starts(folder), folder.in_use()
    last: Start | None = starts[-1] if starts else None
    if in_use is None:  # a file system without locks: a killed run counts as running
        in_use = last is not None and last.ended is None
    if in_use:
        return "running", ""
    pruned = folder.why_pruned()
    if pruned is not None:  # also if its last iteration was over before it could be ended
        return "pruned", pruned
    if last is None:  # it has not begun, or it is of a version that did not record starts
        saved = folder.checkpoints()
        state: State = "done" if saved and _share(folder.tree(), saved[-1]) == 100 else "stopped"
        return state if saved else "new", ""
    return (last.how, last.why) if last.how in STATES else ("killed", "")


def _age(folder: RunFolder) -> float:
    metrics = folder.path / "metrics.jsonl"
    for path in (metrics, folder.path / "config.json"):
        with suppress(OSError):  # the run may be deleted meanwhile
            return max(0.0, time.time() - path.stat().st_mtime)
    return 0.0
