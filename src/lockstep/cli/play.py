"""`lockstep play`: show a run's agent in a window or as a video."""

import os
import sys
from collections.abc import Sequence

from lockstep.cli.agents import LoadedPolicy, add_arguments
from lockstep.cli.arguments import Arguments

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Play episodes in a window, or write a video of them with `--video`. Return the exit code."""
    parser = Arguments("play", "Shows the agent of a run in a window, or records a video.")
    add_arguments(parser, episodes=1)
    parser.add_argument(
        "--video", action="store_true", help="record an .mp4 file instead of opening a window; no display is needed"
    )
    args = parser.read(argv)
    if not args.video and not _has_display():
        raise ValueError("there is no display for a window; record a video with `lockstep play RUN --video`")
    loaded = LoadedPolicy(args.run, args.iteration, args.sample, args.seed, args.module, ("play", *argv))
    if args.video:
        _print_results(loaded.record(args.episodes))
        print(f"video: {loaded.video_path}")
    else:
        _play_in_window(loaded, args.episodes)
    return 0


def _has_display() -> bool:
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _play_in_window(loaded: LoadedPolicy, episodes: int) -> None:
    from lockstep.envs.catalog import make_one
    from lockstep.report.evaluate import play_episodes

    env = make_one(loaded.config.env, "human")
    try:
        for result in play_episodes(env, loaded.policy.begin, loaded.seeds(episodes)):
            _print_results([result])
    finally:
        env.close()


def _print_results(results: Sequence[tuple[float, int]]) -> None:
    for total, length in results:
        print(f"return {total:.5g} in {length} steps", flush=True)
