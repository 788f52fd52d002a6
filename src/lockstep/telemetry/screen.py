"""Text of the live view: the state of a run in about ten lines, for terminals of any width."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from lockstep.messages import counted
from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig
from lockstep.telemetry.attempts import Start, read_starts
from lockstep.telemetry.status import RunStatus, number

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["RunFacts", "clock", "draw", "read_run_facts"]

_LABEL = 11
_GAP = "  "
_LEVELS = "▁▂▃▄▅▆▇█"
_MARKS = {
    "rollout": ("█", "blue"),
    "learn": ("▓", "yellow"),
    "sync": ("▒", "magenta"),
    "wait": ("░", "red"),
    "publish": ("-", "cyan"),
    "record": (".", "white"),
}
"""Character and color of each phase. The characters differ, so the bars are readable without colors."""
_ASCII = str.maketrans("━─█▓▒░▁▂▃▄▅▆▇±…", "=-#+~:_..--==~.")
"""Replacements for terminals that support only ASCII."""
_LEGEND = 42
"""Columns reserved for the names and shares of the three longest phases."""
_NAMED = 8
"""Largest number of ranks whose waiting time is shown rank by rank."""


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that the view shows besides the metrics."""

    name: str
    env: str
    goal: float | None
    """Value of `run.solved_return`."""
    starts: Sequence[Start]
    log_every: float = RunConfig.log_every
    """Value of `run.log_every`."""

    @property
    def last(self) -> int | None:
        """Number of the last iteration; None before all ranks are connected for the first time."""
        return self.starts[-1].last if self.starts else None


def read_run_facts(folder: RunFolder) -> RunFacts:
    """Read the facts from the run folder. Raises ValueError if its config is broken."""
    tree = folder.tree()
    env, run = (value if isinstance(value := tree.get(section), dict) else {} for section in ("env", "run"))
    log_every = number(run.get("log_every"))
    return RunFacts(
        folder.path.name,
        str(env.get("id", "")),
        number(run.get("solved_return")),
        read_starts(folder),
        RunConfig.log_every if log_every is None else log_every,
    )


def draw(status: RunStatus, run: RunFacts, state: str, width: int, ascii_only: bool = False) -> "Text":
    """Return the view as text, at most `width` columns wide, with a line for `state` unless it is empty.

    `ascii_only` replaces all characters that are not ASCII.
    """
    from rich.text import Text

    rows = [
        _title(run),
        _iteration(status, run, width),
        _return_line(status, run, width),
        _evaluation(status, width),
        _speed(status, width),
        _update(status, width),
        _curiosity(status, width),
        *_phases(status, width),
        _waiting(status, width),
        _starts(run, width),
        _faults(status, width),
        _labelled("state", [state], width) if state else None,
    ]
    lines = [row for row in rows if row is not None]
    for row in lines:
        row.truncate(width, overflow="ellipsis")
    view = Text("\n").join(lines)
    if ascii_only:
        view.plain = view.plain.translate(_ASCII)
    return view


def clock(seconds: float) -> str:
    """Format a duration as H:MM:SS, or as M:SS below one hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _title(run: RunFacts) -> "Text":
    from rich.text import Text

    ranks = [f"{run.starts[-1].plan}, {counted(run.starts[-1].ranks, 'rank')}"] if run.starts else []
    return Text(run.name, style="bold").append(_GAP + ", ".join([run.env, *ranks]), style="not bold dim")


def _iteration(status: RunStatus, run: RunFacts, width: int) -> "Text":
    from rich.text import Text

    done = number(status.newest.get("iteration"))
    if done is None:
        phase = f"none of {run.last:,} is done" if run.last else "waiting until all ranks are connected"
        return _labelled("iteration", [phase], width)
    if not run.last:
        return _labelled("iteration", [f"{done:,.0f}"], width)
    share, seconds_left = min(1.0, done / run.last), status.seconds_left(run.last)
    elapsed = clock(number(status.newest.get("seconds")) or 0.0)
    remaining = f", {clock(seconds_left)} left" if seconds_left else ""
    head, tail = f"{done:,.0f}/{run.last:,}{_GAP}", f"{_GAP}{share:4.0%}{_GAP}{elapsed}{remaining}"
    columns = max(0, min(60, width - _LABEL - len(head) - len(tail)))
    filled = round(columns * share)
    bar = Text("━" * filled, style="green").append("─" * (columns - filled), style="dim")
    return Text.assemble(_label("iteration"), head, bar, tail)


def _return_line(status: RunStatus, run: RunFacts, width: int) -> "Text | None":
    if status.mean_return is None:
        return _labelled("return", ["no episode has ended yet"], width) if status.newest else None
    parts = [f"{status.mean_return:.4g}"]
    parts += [f"best {status.best:.4g}"] if status.best is not None else []
    parts += [f"goal {run.goal:.4g}"] if run.goal is not None else []
    line = _labelled("return", parts, width)
    columns = min(40, width - len(line) - len(_GAP))
    if columns >= len(_LEVELS) and len(status.history) > 1:
        line.append(_GAP).append(sparkline(status.history, columns), style="green")
    return line


def _evaluation(status: RunStatus, width: int) -> "Text | None":
    newest, best = status.evaluation, status.best_evaluation
    mean, sampled = number(newest.get("return_mean")), number(newest.get("sampled_return_mean"))
    if mean is None:
        return None
    parts = [f"{mean:.4g} at {newest['iteration']}"]
    parts += [f"sampled {sampled:.4g}"] if sampled is not None else []
    parts += [f"best {number(best.get('return_mean')):.4g} at {best['iteration']}"]
    return _labelled("evaluated", parts, width)


def _speed(status: RunStatus, width: int) -> "Text | None":
    rate, newest = status.steps_per_second, status.newest
    if rate is None:
        return None
    steps, length = number(newest.get("env_steps")), number(newest.get("length_mean"))
    parts = [f"{rate:,.0f} steps/s"]
    parts += [f"{steps:,.0f} steps"] if steps is not None else []
    parts += [f"{length:,.0f} steps per episode"] if length is not None else []
    return _labelled("speed", parts, width)


def _update(status: RunStatus, width: int) -> "Text | None":
    newest = status.newest
    if "warmup" in newest:
        return _labelled("update", ["warmup: no training yet"], width)
    names = {
        "kl": ("approx_kl", ".2g"),
        "clipped": ("clip_frac", ".1%"),
        "entropy": ("entropy", ".3g"),
        "explained variance": ("explained_variance", ".2f"),
        "rate": ("learning_rate", ".2g"),
    }
    parts = [
        f"{name} {value:{form}}"
        for name, (metric, form) in names.items()
        if (value := number(newest.get(metric))) is not None
    ]
    return _labelled("update", parts, width) if parts else None


def _curiosity(status: RunStatus, width: int) -> "Text | None":
    mean, deviation, weight, episode_return = (
        number(status.newest.get(name))
        for name in ("intrinsic_reward_mean", "intrinsic_reward_std", "curiosity_weight", "intrinsic_return")
    )
    if mean is None:
        return None
    parts = [f"reward {mean:.3g}" + (f" ± {deviation:.2g}" if deviation is not None else "") + " per step"]
    parts += [f"weight {weight:.3g}"] if weight is not None else []
    parts += [f"{episode_return:.3g} per episode"] if episode_return is not None else []
    return _labelled("curiosity", parts, width)


def _phases(status: RunStatus, width: int) -> "list[Text]":
    from rich.text import Text

    roles = [
        (name, shares) for name, role in (("time", "t_"), ("players", "player_t_")) if (shares := status.shares(role))
    ]
    if len(roles) > 1:
        roles[0] = ("rank 0", roles[0][1])
    lines = []
    for name, shares in roles:
        line = Text.assemble(_label(name))
        columns = max(8, min(40, width - _LABEL - _LEGEND))
        for phase, cells in _cells(shares, columns).items():
            line.append(_MARKS[phase][0] * cells, style=_MARKS[phase][1])
        for phase in sorted(shares, key=lambda phase: -shares[phase]):
            entry = f" {phase} {shares[phase]:.0%}"
            if shares[phase] < 0.005 or len(line) + len(_GAP) + 1 + len(entry) > width:
                break
            line.append(_GAP).append(*_MARKS[phase]).append(entry)
        lines.append(line)
    return lines


def _cells(shares: dict[str, float], columns: int) -> dict[str, int]:
    """Divide `columns` cells among the phases by their shares. The cells add up to `columns` if the shares add up to 1."""
    ends, total = [0], 0.0
    for share in shares.values():
        total += share
        ends.append(round(columns * min(total, 1.0)))
    return {name: end - start for name, (start, end) in zip(shares, pairwise(ends), strict=True)}


def _waiting(status: RunStatus, width: int) -> "Text | None":
    idle = status.idle
    if len(idle) < 2:
        return None
    most = max(range(len(idle)), key=lambda rank: idle[rank])
    parts = [f"rank {rank} {share:.0%}" for rank, share in enumerate(idle)]
    if len(idle) > _NAMED or _LABEL + len(_GAP.join(parts)) > width:
        mean = sum(idle) / len(idle)
        parts = [f"mean {mean:.0%}", f"most {idle[most]:.0%} (rank {most})"]
        cells = "".join(_LEVELS[min(7, int(8 * share))] for share in idle)
        parts += [cells] if len(idle) <= width // 2 else []
    return _labelled("waiting", parts, width)


def _starts(run: RunFacts, width: int) -> "Text | None":
    """Return the line with the number of restarts and how the earlier attempts ended; None for a run started once."""
    if len(run.starts) < 2:
        return None
    ends = [start.how for start in run.starts[:-1]]
    parts = [f"resumed {counted(len(ends), 'time')}, last from {run.starts[-1].iteration:,}"]
    labels = {"stopped": "stopped", "failed": "failed", None: "killed"}
    parts += [f"{label} {ends.count(how)}" for how, label in labels.items() if how in ends]
    return _labelled("starts", parts, width)


def _faults(status: RunStatus, width: int) -> "Text | None":
    count = number(status.newest.get("env_faults"))
    parts = [f"{counted(round(count), 'environment')} replaced", "not reproducible from the config"] if count else []
    return _labelled("faults", parts, width) if parts else None


def sparkline(values: Sequence[float], columns: int) -> str:
    """Draw `values` as at most `columns` bars, each the mean of one of equally long parts."""
    count = min(columns, len(values))
    bounds = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(bounds)]
    low, span = min(means), max(means) - min(means)
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round(top * (mean - low) / span) if span else top // 2] for mean in means)


def _label(name: str) -> "tuple[str, str]":
    return f"{name:<{_LABEL}}", "dim"


def _labelled(name: str, parts: Sequence[str], width: int) -> "Text":
    """Return a line with the label and as many parts as fit into `width` columns, at least the first."""
    from rich.text import Text

    shown, *rest = parts
    for part in rest:
        if _LABEL + len(shown) + len(_GAP) + len(part) > width:
            break
        shown += _GAP + part
    return Text.assemble(_label(name), shown)
