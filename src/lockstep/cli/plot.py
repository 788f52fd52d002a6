"""`lockstep plot`: draw figures of runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.agents import add_checkpoint
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.experiment.execute import open_run
from lockstep.files import make_folder
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

if TYPE_CHECKING:
    from lockstep.report.experiments import RecordedRun
    from lockstep.report.style import Over

__all__ = ["main", "read"]

_KINDS = {
    "return": "mean return",
    "evaluation": "mean return of evaluations during training (run.evaluate_every)",
    "curves": "return, losses, entropy and KL; with curiosity also the intrinsic return",
    "policy": "actions, their probabilities and the value over two components of the observation",
    "trajectory": "an episode: observations, actions, rewards and values, with a video",
    "timing": "seconds per iteration by phase and role",
}
_METRIC_KINDS = ("return", "evaluation", "curves", "timing")
_AGENT_KINDS = ("policy", "trajectory")
_KINDS_OF_FLAG = {
    "over": _METRIC_KINDS,
    "axes": ("policy",),
    "video": ("trajectory",),
    "seed": ("trajectory",),
    "sample": ("trajectory",),
    "iteration": _AGENT_KINDS,
    "module": _AGENT_KINDS,
}
"""Flags that go with some values of `--what` only, by their names in the namespace."""
_LONG_FLAGS = {"module": "env.module"}
"""Flags whose name in the namespace is shorter."""
_EPISODES = 20
"""Largest number of episodes that show which states a policy visits."""


def main(argv: Sequence[str]) -> int:
    """Draw the figures and print their paths. Return the exit code."""
    args = read(argv)
    folders = list({path.resolve(): open_run(path)[0] for path in map(locate, args.run)}.values())
    if args.what in _METRIC_KINDS:
        draw = _draw_timing if args.what == "timing" else _draw_learning_curves
        print(draw(folders, args))
        return 0
    if args.out and len(folders) > 1:
        raise ValueError(
            f"--out is {args.out}: --what {args.what} makes a file for every run; give one run, or no --out"
        )
    for folder in folders:
        for path in (_draw_policy if args.what == "policy" else _draw_trajectory)(folder, args):
            print(path)
    return 0


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line. Raises ValueError for bad input. The message is one line."""
    args = _parser().read(argv)
    _check(args)
    return args


def _parser() -> Arguments:
    parser = Arguments(
        "plot",
        "Draws runs: by default the mean return over environment steps. Runs that differ only in their seed become one curve, the median "
        "with a band between the quartiles. Pictures are written into plots/ of the run, of several runs into that of the first.",
    )
    parser.add_argument("run", nargs="+", metavar="RUN", help="run folder, or its name in runs/")
    kinds = "; ".join(f"{name}: {line}" for name, line in _KINDS.items())
    parser.add_argument("--what", choices=_KINDS, default="return", metavar="KIND", help=f"{kinds} (default return)")
    parser.add_argument(
        "--over", choices=("steps", "seconds"), help="quantity on the horizontal axis of curves (default steps)"
    )
    parser.add_argument(
        "--format", choices=("png", "svg"), help="format of the figure (default: that of --out, else png)"
    )
    parser.add_argument("--out", metavar="FILE", help="the figure, a .png or .svg file")
    agents = parser.add_argument_group("policy and trajectory")
    agents.add_argument(
        "--axes",
        nargs=2,
        type=whole_number(0),
        metavar=("I", "J"),
        help="indices of the two components of the observation on the horizontal and the vertical axis (default: those with the largest effect on the policy)",
    )
    agents.add_argument(
        "--video",
        choices=("gif", "mp4", "none"),
        help="format of the video next to the figure (default gif, if the environment can be rendered)",
    )
    add_checkpoint(agents)
    agents.add_argument(
        "--sample",
        action="store_true",
        default=None,
        help="sample actions as in training, instead of the most probable ones",
    )
    agents.add_argument(
        "--seed", type=whole_number(0), metavar="S", help="seed of the episode (default: that of the run)"
    )
    agents.add_argument("--env.module", dest="module", metavar="M", help="module that registers the environment")
    return parser


def _check(args: argparse.Namespace) -> None:
    for name, kinds in _KINDS_OF_FLAG.items():
        if getattr(args, name) is not None and args.what not in kinds:
            flag = "best" if (name, args.iteration) == ("iteration", "best") else _LONG_FLAGS.get(name, name)
            raise ValueError(f"--{flag}: it goes with --what {', '.join(kinds)} alone, not with {args.what}")
    extension = Path(args.out).suffix if args.out else ""
    if args.out and extension not in (".png", ".svg"):
        raise ValueError(f"--out is {args.out}: it must end in .png or .svg")
    if extension and args.format and extension != f".{args.format}":
        raise ValueError(f"--format is {args.format}, but --out is {args.out}: remove one of the two")


def _output_path(folders: Sequence[RunFolder], args: argparse.Namespace, suffix: str = "") -> Path:
    """Return the path of the figure: `--out`, or a file in plots/ of the first run, to whose name `suffix` is added."""
    if args.out:
        return Path(args.out)
    name = (
        args.what + suffix + ("-seconds" if args.over == "seconds" else "") + ("-compared" if len(folders) > 1 else "")
    )
    make_folder(folders[0].path / "plots")
    return folders[0].path / "plots" / f"{name}.{args.format or 'png'}"


def _read_run(folder: RunFolder) -> "RecordedRun":
    from lockstep.report.experiments import RecordedRun

    return RecordedRun(folder.path.resolve().name, folder.tree(), folder.metrics(), folder.evaluations())


def _common_goal(runs: "Sequence[RecordedRun]") -> float | None:
    """Return `run.solved_return` if it is the same for all runs, else None."""
    goals = {decode({"run": run.tree.get("run")}, Config()).run.solved_return for run in runs}
    return goals.pop() if len(goals) == 1 else None


def _draw_learning_curves(folders: Sequence[RunFolder], args: argparse.Namespace) -> Path:
    from lockstep.report.curve import draw_curve
    from lockstep.report.curves import draw_curves, draw_returns
    from lockstep.report.experiments import check_environment, group_by_experiment

    runs, path = [_read_run(folder) for folder in folders], _output_path(folders, args)
    over: Over = "seconds" if args.over == "seconds" else "steps"
    goal = _common_goal(runs)
    check_environment(runs)
    if args.what == "curves":
        draw_curves(group_by_experiment(runs), path, over, goal)
    elif args.what == "evaluation" or len(runs) > 1:
        draw_returns(group_by_experiment(runs), path, over, goal, args.what)
    else:
        draw_curve(runs[0].metrics, runs[0].title, path, goal, over, runs[0].evaluations)
    return path


def _draw_timing(folders: Sequence[RunFolder], args: argparse.Namespace) -> Path:
    from lockstep.report.timing import draw_timing

    path = _output_path(folders, args)
    draw_timing([_read_run(folder) for folder in folders], path, args.over or "steps")
    return path


def _draw_policy(folder: RunFolder, args: argparse.Namespace) -> list[Path]:
    from lockstep.cli.start import import_env_module_of_run
    from lockstep.envs.catalog import make_one
    from lockstep.experiment.execute import load_agent, pick_checkpoint
    from lockstep.experiment.policy import evaluation_seeds
    from lockstep.randomness import stream
    from lockstep.report.heatmap import draw_map
    from lockstep.report.state_map import map_states, visited_states

    import_env_module_of_run(open_run(folder.path)[1], args.module)
    iteration = pick_checkpoint(folder, args.iteration)
    config, agent = load_agent(folder, iteration)
    env, seed = make_one(config.env), config.run.seed
    try:
        visited = visited_states(agent, env, evaluation_seeds(seed, _EPISODES), stream(seed, "evaluation-actions"))
    finally:
        env.close()
    path = _output_path([folder], args, "-" + "-".join(map(str, args.axes)) if args.axes else "")
    state_map = map_states(agent, env.observation_space, args.axes, config.env.id, visited)
    spaces, title = (env.observation_space, env.action_space), f"{folder.path.resolve().name}, {config.env.id}"
    title += f", iteration {iteration}"
    draw_map(state_map, agent, spaces, config.env.id, path, bool(config.ppo.normalize_rewards), title)
    return [path]


def _draw_trajectory(folder: RunFolder, args: argparse.Namespace) -> list[Path]:
    from lockstep.cli.agents import LoadedPolicy
    from lockstep.envs.catalog import make_one
    from lockstep.report.episode import play_and_record, play_trajectory
    from lockstep.report.trajectory import draw_trajectory

    loaded = LoadedPolicy(str(folder.path), args.iteration, bool(args.sample), args.seed, args.module)
    policy, config = loaded.policy, loaded.config
    path = _output_path([folder], args)
    video = None if args.video == "none" else path.with_suffix(f".{args.video or 'gif'}")
    episode = (lambda mode: make_one(config.env, mode)), policy.begin, policy.value, loaded.seeds(1)[0]
    if args.video or video is None:
        trajectory = play_trajectory(*episode, video)
    else:
        trajectory, reason = play_and_record(*episode, video)
        if reason:
            print(f"no video: {reason}", file=sys.stderr)
            video = None
    env = make_one(config.env)
    env.close()
    title = (
        f"{folder.path.resolve().name}, {config.env.id}: an episode of {len(trajectory.rewards)} steps "
        f"with return {trajectory.rewards.sum():.4g}, iteration {policy.iteration}"
    )
    draw_trajectory(trajectory, env, config.env.id, path, bool(config.ppo.normalize_rewards), title)
    return [path, *([video] if video else [])]
