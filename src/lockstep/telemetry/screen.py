"""The live view: a run's state in about ten lines, for terminals of any width."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import Start, read_starts
from lockstep.telemetry.status import RunStatus, number

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["About", "about", "clock", "draw"]

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
"""Of phases. They differ without colours too."""
_PLAIN = str.maketrans("━─█▓▒░▁▂▃▄▅▆▇±…", "=-#+~:_..--==~.")
"""For terminals that have ASCII alone."""
_TOLD = 42
"""Columns for the three largest phases' names and shares."""
_NAMED = 8
"""Ranks that are told one by one."""


@dataclass(frozen=True)
class About:
    """What a run's folder says besides its metrics."""

    name: str
    env: str
    goal: float | None
    """`run.solved_return`."""
    starts: Sequence[Start]

    @property
    def last(self) -> int | None:
        """The iteration that it goes to; None before its ranks have met."""
        return self.starts[-1].last if self.starts else None


def about(folder: RunFolder) -> About:
    """Reads it. Raises ValueError if the config is broken."""
    tree = folder.tree()
    env, run = (own if isinstance(own := tree.get(section), dict) else {} for section in ("env", "run"))
    return About(folder.path.name, str(env.get("id", "")), number(run.get("solved_return")), read_starts(folder))


def draw(standing: RunStatus, known: About, state: str, width: int, ascii_only: bool = False) -> "Text":
    """The view, `width` columns wide at most. `state` is what is to be said of the run as a whole, if anything."""
    from rich.text import Text

    rows = [
        _title(known),
        _iteration(standing, known, width),
        _return_line(standing, known, width),
        _speed(standing, width),
        _update(standing, width),
        _curiosity(standing, width),
        *_phases(standing, width),
        _waiting(standing, width),
        _starts(known, width),
        _labelled("state", [state], width) if state else None,
    ]
    lines = [row for row in rows if row is not None]
    for row in lines:
        row.truncate(width, overflow="ellipsis")
    picture = Text("\n").join(lines)
    if ascii_only:
        picture.plain = picture.plain.translate(_PLAIN)
    return picture


def clock(seconds: float) -> str:
    """Like 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _title(known: About) -> "Text":
    from rich.text import Text

    ranks = [f"{known.starts[-1].plan}, {_count(known.starts[-1].ranks, 'rank')}"] if known.starts else []
    return Text(known.name, style="bold").append(_GAP + ", ".join([known.env, *ranks]), style="not bold dim")


def _iteration(standing: RunStatus, known: About, width: int) -> "Text":
    from rich.text import Text

    done = number(standing.newest.get("iteration"))
    if done is None:
        going = f"the first of {known.last:,} goes on" if known.last else "its ranks have not met yet"
        return _labelled("iteration", [going], width)
    if not known.last:
        return _labelled("iteration", [f"{done:,.0f}"], width)
    share, left = min(1.0, done / known.last), standing.seconds_left(known.last)
    times = clock(number(standing.newest.get("seconds")) or 0.0)
    ahead = f", {clock(left)} left" if left else ""
    head, tail = f"{done:,.0f}/{known.last:,}{_GAP}", f"{_GAP}{share:4.0%}{_GAP}{times}{ahead}"
    room = max(0, min(60, width - _LABEL - len(head) - len(tail)))
    full = round(room * share)
    bar = Text("━" * full, style="green").append("─" * (room - full), style="dim")
    return Text.assemble(_label("iteration"), head, bar, tail)


def _return_line(standing: RunStatus, known: About, width: int) -> "Text | None":
    if standing.mean_return is None:
        return _labelled("return", ["no episode has ended yet"], width) if standing.newest else None
    parts = [f"{standing.mean_return:.4g}"]
    parts += [f"best {standing.best:.4g}"] if standing.best is not None else []
    parts += [f"goal {known.goal:.4g}"] if known.goal is not None else []
    line = _labelled("return", parts, width)
    room = min(40, width - len(line) - len(_GAP))
    if room >= len(_LEVELS) and len(standing.history) > 1:
        line.append(_GAP).append(sparkline(standing.history, room), style="green")
    return line


def _speed(standing: RunStatus, width: int) -> "Text | None":
    rate, newest = standing.steps_per_second, standing.newest
    if rate is None:
        return None
    steps, length = number(newest.get("env_steps")), number(newest.get("length_mean"))
    parts = [f"{rate:,.0f} steps/s"]
    parts += [f"{steps:,.0f} steps"] if steps is not None else []
    parts += [f"{length:,.0f} steps an episode"] if length is not None else []
    return _labelled("speed", parts, width)


def _update(standing: RunStatus, width: int) -> "Text | None":
    newest = standing.newest
    if "warmup" in newest:
        return _labelled("update", ["warming up: nothing is trained yet"], width)
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


def _curiosity(standing: RunStatus, width: int) -> "Text | None":
    mean, deviation, weight, whole = (
        number(standing.newest.get(name))
        for name in ("intrinsic_reward_mean", "intrinsic_reward_std", "curiosity_weight", "intrinsic_return")
    )
    if mean is None:
        return None
    parts = [f"reward {mean:.3g}" + (f" ± {deviation:.2g}" if deviation is not None else "") + " a step"]
    parts += [f"weight {weight:.3g}"] if weight is not None else []
    parts += [f"{whole:.3g} an episode"] if whole is not None else []
    return _labelled("curiosity", parts, width)


def _phases(standing: RunStatus, width: int) -> "list[Text]":
    from rich.text import Text

    roles = [
        (name, shares) for name, role in (("time", "t_"), ("players", "player_t_")) if (shares := standing.shares(role))
    ]
    if len(roles) > 1:
        roles[0] = ("rank 0", roles[0][1])
    lines = []
    for name, shares in roles:
        line = Text.assemble(_label(name))
        room = max(8, min(40, width - _LABEL - _TOLD))
        for phase, cells in _cells(shares, room).items():
            line.append(_MARKS[phase][0] * cells, style=_MARKS[phase][1])
        for phase in sorted(shares, key=lambda phase: -shares[phase]):
            words = f" {phase} {shares[phase]:.0%}"
            if shares[phase] < 0.005 or len(line) + len(_GAP) + 1 + len(words) > width:
                break
            line.append(_GAP).append(*_MARKS[phase]).append(words)
        lines.append(line)
    return lines


def _cells(shares: dict[str, float], room: int) -> dict[str, int]:
    """How many of `room` cells each part gets; together all of them."""
    ends, whole = [0], 0.0
    for share in shares.values():
        whole += share
        ends.append(round(room * min(whole, 1.0)))
    return {name: end - start for name, (start, end) in zip(shares, pairwise(ends), strict=True)}


def _waiting(standing: RunStatus, width: int) -> "Text | None":
    idle = standing.idle
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


def _starts(known: About, width: int) -> "Text | None":
    """Restarts and what made them necessary."""
    if len(known.starts) < 2:
        return None
    ends = [start.how for start in known.starts[:-1]]
    parts = [f"resumed {_count(len(ends), 'time')}, last from {known.starts[-1].iteration:,}"]
    told = {"stopped": "stopped", "failed": "failed", None: "killed"}
    parts += [f"{word} {ends.count(how)}" for how, word in told.items() if how in ends]
    return _labelled("starts", parts, width)


def sparkline(values: Sequence[float], room: int) -> str:
    """Means of equal parts of `values` as bars, `room` at most."""
    count = min(room, len(values))
    cuts = [place * len(values) // count for place in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(cuts)]
    low, span = min(means), max(means) - min(means)
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round(top * (mean - low) / span) if span else top // 2] for mean in means)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _label(name: str) -> "tuple[str, str]":
    return f"{name:<{_LABEL}}", "dim"


def _labelled(name: str, parts: Sequence[str], width: int) -> "Text":
    """The parts that fit, at least the first."""
    from rich.text import Text

    shown, *rest = parts
    for part in rest:
        if _LABEL + len(shown) + len(_GAP) + len(part) > width:
            break
        shown += _GAP + part
    return Text.assemble(_label(name), shown)
