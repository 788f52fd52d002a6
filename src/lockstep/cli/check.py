"""`lockstep check`: check an environment before training on it."""

import dataclasses
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from lockstep.cli.arguments import Arguments
from lockstep.config import Config
from lockstep.config.compose import import_env_module, load
from lockstep.config.flags import parse_flags
from lockstep.envs.parallel import is_parallel_id
from lockstep.envs.settings import EngineName, EnvConfig
from lockstep.processes.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    from lockstep.envs.checking import Finding

__all__ = ["main"]

_SECONDS = 1.0
"""Duration of the measurement of each engine."""
_FASTER = 2.0
"""Minimum ratio of the speeds of an engine and that of `auto` for naming the engine: short measurements vary, and training keeps cores busy as well."""


def main(argv: Sequence[str]) -> int:
    """Print the findings and the speed of every engine. Return the exit code: 1 if a check failed."""
    parser = Arguments(
        "check",
        "Checks an environment with random actions: Gymnasium's API, spaces, values, determinism, resuming and rendering; and measures the "
        "speed of every engine that has it. Exit code 1 if a check failed.",
    )
    parser.add_argument("env", nargs="?", metavar="ENV", help="environment; the same as --env")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="config file (.yaml, .json or .gin), whose section env is used"
    )
    parser.add_argument("--no-speed", action="store_true", help="do not measure the speed")
    parser.epilog = "Takes the flags --env.… of `lockstep train`."
    flags, rest = parse_flags(argv, ("--config", "--no-speed"))
    args = parser.read(rest)
    wrong = [f"{section}.{field}" for section, fields in flags.items() for field in fields if section != "env"]
    if wrong:
        raise ValueError(f"{wrong[0]}: check takes only the fields of the section env")
    if args.env is not None:
        if "id" in flags.get("env", {}):
            raise ValueError(f"{args.env}: the environment is given twice, also as --env")
        flags.setdefault("env", {})["id"] = args.env
    config = _with_whole_games(load(None, args.config, import_env_module(None, args.config, flags)))
    failed = _print_findings(config.env)
    if not args.no_speed and not failed:
        _print_speeds(config)
    return FAILED if failed else DONE


def _with_whole_games(config: Config) -> Config:
    """Return the config with a number of environments that the agents of a game divide."""
    from lockstep.envs.catalog import agents_of

    if config.env.engine != "pettingzoo" and not is_parallel_id(config.env.id):
        return config
    agents = len(agents_of(config.env))
    count = agents * max(1, config.env.count // agents)
    return dataclasses.replace(config, env=dataclasses.replace(config.env, count=count))


def _print_findings(config: EnvConfig) -> bool:
    """Print each finding when it is known. Return True if a check failed."""
    from lockstep.envs.checking import check_environment

    failed = False
    for finding in chain(check_environment(config), map(_check_rendering, [config])):
        if finding.name == "spaces":  # the first one: the environment could be created
            print(config.id)
        failed = failed or finding.level == "fail"
        level = finding.level.upper() if finding.level == "fail" else finding.level
        print(f"  {level:<4}  {finding.name:<12}  {finding.text}", flush=True)
    return failed


def _check_rendering(config: EnvConfig) -> "Finding":
    from lockstep.envs.catalog import make_one
    from lockstep.envs.checking import Finding
    from lockstep.envs.engine import EnvironmentFailed
    from lockstep.report.rendering import choose_renderer, render_frame

    choose_renderer()
    try:
        env = make_one(config, "rgb_array")
        try:
            env.reset(seed=0)
            height, width, _ = render_frame(env).shape
        finally:
            env.close()
    except (ValueError, EnvironmentFailed) as error:
        return Finding("rendering", "note", f"no videos: {error}")
    return Finding("rendering", "ok", f"frames of {width} × {height} pixels")


def _print_speeds(config: Config) -> None:
    from lockstep.bench.stepping import engine_rate
    from lockstep.cli.benchmarks import resolve_config
    from lockstep.processes.children import ProcessFailed

    automatic, rates = resolve_config(config, 1)[0].env.engine, dict[str, float]()
    print(f"steps per second of {config.env.count} environments, in one process, without training")
    for engine in get_args(EngineName)[1:]:
        try:
            chosen = dataclasses.replace(config, env=dataclasses.replace(config.env, engine=engine))
            rate = engine_rate(resolve_config(chosen, 1)[0], 1, _SECONDS)
        except ValueError:
            continue  # this engine does not have the environment
        except ProcessFailed as error:
            print(f"{engine}: {error}", file=sys.stderr)
            continue
        rates[engine] = rate
        print(f"  {engine:<16}  {rate:>11,.0f}{'  (env.engine auto)' * (engine == automatic)}", flush=True)
    fastest = max(rates, key=rates.__getitem__, default=automatic)
    if automatic in rates and rates[fastest] > _FASTER * rates[automatic]:
        ratio = rates[fastest] / rates[automatic]
        print(
            f"{fastest} is {ratio:.1f} times as fast here as the choice of auto; --env.engine {fastest} selects it, if its observations are the same"
        )
