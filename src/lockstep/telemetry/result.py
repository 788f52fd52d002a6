"""Lines about a run at the end of a start: iterations, return, whether the goal was reached, and its folder."""

from lockstep.messages import counted
from lockstep.run.run import TrainingRun

__all__ = ["result_text"]


def result_text(run: TrainingRun, resume: str) -> str:
    """Return the lines. `resume` is the command or the call that continues a run that was stopped."""
    lines, counters, episodes = [], run.counters, run.counters.episodes
    if run.stopped:
        lines.append(f"stopped after iteration {run.done} of {run.last}")
        lines.append(f"continue from iteration {run.saved} with: {resume}")
    else:
        lines.append(
            f"done: {counted(run.done, 'iteration')}, {counters.env_steps:,} steps in {counters.seconds:.1f} s"
        )
    if run.last_iteration.complete:
        reason = "by a hook" if run.ended_by_hook else f"run.stop_at_return ({run.stop_at_return:g}) was reached"
        lines.append(f"ended: {reason}")
    if episodes.mean is not None:
        count = len(episodes.returns)
        over = "that of one episode" if count == 1 else f"mean of the last {count} episodes"
        lines.append(f"return: {episodes.mean:.4g}, {over}")
    if counters.solved_at is not None:
        lines.append(f"solved: it reached {counters.goal:g} after {counters.solved_at:,} steps")
    if counters.env_faults:
        times = counted(counters.env_faults, "time")
        lines.append(
            f"faults: environments failed {times} and were replaced: the config alone does not reproduce this run"
        )
    if counters.preempts:
        lines.append("plan.preempt: slow ranks took fewer steps: the config alone does not reproduce this run")
    lines.append(f"run: {run.folder}")
    return "\n".join(lines)
