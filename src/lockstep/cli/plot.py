"""`lockstep plot`: runs as pictures."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

if TYPE_CHECKING:
    from lockstep.report.experiments import Recorded
    from lockstep.report.style import Over

__all__ = ["main", "read"]

_KINDS = {
    "return": "mean return",
    "curves": "return, losses, entropy and KL; with curiosity also the intrinsic return",
    "policy": "the policy's action and the value over two numbers of the observation",
    "trajectory": "an episode: what is seen, done, rewarded and expected, and a film of it",
    "timing": "seconds per iteration by phase and role",
}
_OF_METRICS = ("return", "curves", "timing")
_OF_AGENTS = ("policy", "trajectory")
_BELONGS = {
    "over": _OF_METRICS,
    "axes": ("policy",),
    "film": ("trajectory",),
    "seed": ("trajectory",),
    "sample": ("trajectory",),
    "iteration": _OF_AGENTS,
    "module": _OF_AGENTS,
}
"""Flags that belong to some kinds of pictures only."""
_FLAGS = {"module": "env.module"}


def main(argv: Sequence[str]) -> int:
    """Draws, and prints where the pictures are."""
    own = read(argv)
    folders = list({folder.path.resolve(): folder for folder in map(RunFolder.open, map(locate, own.run))}.values())
    if own.what in _OF_METRICS:
        draw = _draw_timing if own.what == "timing" else _draw_learning
        print(draw(folders, own))
        return 0
    if own.out and len(folders) > 1:
        raise ValueError(f"--out is {own.out}: --what {own.what} makes a file for every run; give one run, or no --out")
    for folder in folders:
        for path in (_draw_policy if own.what == "policy" else _draw_trajectory)(folder, own):
            print(path)
    return 0


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The command line. Raises ValueError in one line."""
    own = _parser().read(argv)
    _check(own)
    return own


def _parser() -> Arguments:
    parser = Arguments(
        "plot",
        "Draws runs: by default the mean return over environment steps. Runs that differ only in their seed become one curve, the median "
        "with a band between the quartiles. Pictures are written into plots/ of the run, of several runs into that of the first.",
    )
    parser.add_argument("run", nargs="+", metavar="RUN", help="a run's folder, or its name in runs/")
    kinds = "; ".join(f"{name}: {line}" for name, line in _KINDS.items())
    parser.add_argument("--what", choices=_KINDS, default="return", help=f"{kinds} (default return)")
    parser.add_argument("--over", choices=("steps", "seconds"), help="what curves are drawn over (default steps)")
    parser.add_argument("--format", choices=("png", "svg"), help="of the picture (default that of --out, else png)")
    parser.add_argument("--out", metavar="FILE", help="the picture, a .png or .svg")
    agents = parser.add_argument_group("policy and trajectory")
    agents.add_argument(
        "--axes",
        nargs=2,
        type=whole_number(0),
        metavar=("I", "J"),
        help="numbers of the observation, counted from 0, that go right and up; needed where there are more than 2",
    )
    agents.add_argument(
        "--film", choices=("gif", "mp4", "none"), help="beside the picture (default gif, where the environment draws)"
    )
    agents.add_argument("--iteration", type=whole_number(1), metavar="K", help="the checkpoint (default the newest)")
    agents.add_argument(
        "--sample", action="store_true", default=None, help="draw actions as in training; else the most probable ones"
    )
    agents.add_argument("--seed", type=whole_number(0), metavar="S", help="of the episode (default the run's)")
    agents.add_argument("--env.module", dest="module", metavar="M", help="the module that registers its environment")
    return parser


def _check(own: argparse.Namespace) -> None:
    for name, kinds in _BELONGS.items():
        if getattr(own, name) is not None and own.what not in kinds:
            raise ValueError(
                f"--{_FLAGS.get(name, name)}: it goes with --what {', '.join(kinds)} alone, not with {own.what}"
            )
    ending = Path(own.out).suffix if own.out else ""
    if own.out and ending not in (".png", ".svg"):
        raise ValueError(f"--out is {own.out}: it must end in .png or .svg")
    if ending and own.format and ending != f".{own.format}":
        raise ValueError(f"--format is {own.format}, but --out is {own.out}: leave one of the two out")


def _place(folders: Sequence[RunFolder], own: argparse.Namespace, more: str = "") -> Path:
    """Where the picture goes."""
    if own.out:
        return Path(own.out)
    name = own.what + more + ("-seconds" if own.over == "seconds" else "") + ("-compared" if len(folders) > 1 else "")
    return folders[0].path / "plots" / f"{name}.{own.format or 'png'}"


def _recorded(folder: RunFolder) -> "Recorded":
    from lockstep.report.experiments import Recorded

    return Recorded(folder.path.resolve().name, folder.tree(), folder.metrics())


def _goal(runs: "Sequence[Recorded]") -> float | None:
    """The return to reach, if it is the same for all."""
    goals = {decode({"run": run.tree.get("run")}, Config()).run.solved_return for run in runs}
    return goals.pop() if len(goals) == 1 else None


def _draw_learning(folders: Sequence[RunFolder], own: argparse.Namespace) -> Path:
    from lockstep.report.curve import draw_curve
    from lockstep.report.curves import draw_curves, draw_returns
    from lockstep.report.experiments import group

    runs, path = [_recorded(folder) for folder in folders], _place(folders, own)
    over: Over = "seconds" if own.over == "seconds" else "steps"
    goal = _goal(runs)
    ids = {run.fields.get("env.id"): run.name for run in runs}
    if len(ids) > 1:
        (first, one), (second, other), *_ = ids.items()
        raise ValueError(f"{one} is of {first}, {other} of {second}: a picture compares runs of one environment")
    if own.what == "curves":
        draw_curves(group(runs), path, over, goal)
    elif len(runs) > 1:
        draw_returns(group(runs), path, over, goal)
    else:
        draw_curve(runs[0].metrics, runs[0].name, path, goal, over)
    return path


def _draw_timing(folders: Sequence[RunFolder], own: argparse.Namespace) -> Path:
    from lockstep.report.timing import draw_timing

    path = _place(folders, own)
    draw_timing([_recorded(folder) for folder in folders], path, own.over or "steps")
    return path


def _draw_policy(folder: RunFolder, own: argparse.Namespace) -> list[Path]:
    from lockstep.cli.start import import_again
    from lockstep.envs.catalog import make_one
    from lockstep.experiment.execute import load_agent, open_run, pick_checkpoint
    from lockstep.report.heatmap import draw_map, map_states

    import_again(open_run(folder.path)[1], own.module)
    config, agent = load_agent(folder, pick_checkpoint(folder, own.iteration))
    env = make_one(config.env)
    env.close()
    path = _place([folder], own, "-" + "-".join(map(str, own.axes)) if own.axes else "")
    found = map_states(agent, env.observation_space, own.axes, config.env.id)
    spaces = env.observation_space, env.action_space
    draw_map(found, agent, spaces, config.env.id, path, config.ppo.normalize_rewards)
    return [path]


def _draw_trajectory(folder: RunFolder, own: argparse.Namespace) -> list[Path]:
    from lockstep.cli.agents import Performer
    from lockstep.envs.catalog import make_one
    from lockstep.report.episode import play_and_record, play_trajectory
    from lockstep.report.trajectory import draw_trajectory

    performer = Performer(str(folder.path), own.iteration, bool(own.sample), own.seed, own.module)
    policy, config = performer.policy, performer.config
    path = _place([folder], own)
    shown = None if own.film == "none" else path.with_suffix(f".{own.film or 'gif'}")
    given = (lambda mode: make_one(config.env, mode)), policy.begin, policy.value, performer.seeds(1)[0]
    if own.film or shown is None:
        found = play_trajectory(*given, shown)
    else:
        found, why = play_and_record(*given, shown)
        if why:
            print(f"no film: {why}", file=sys.stderr)
            shown = None
    env = make_one(config.env)
    env.close()
    draw_trajectory(found, env, config.env.id, path, config.ppo.normalize_rewards)
    return [path, *([shown] if shown else [])]
