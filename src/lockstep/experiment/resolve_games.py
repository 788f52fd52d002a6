"""Choices and checks for environments with several agents."""

import dataclasses
import re

from lockstep.config import Config
from lockstep.envs.catalog import agents_of
from lockstep.envs.settings import EnvConfig

__all__ = ["check_games", "with_agents"]

_NAMED_AGENTS = 16
"""Maximum number of agents whose returns become metrics by default."""


def with_agents(env: EnvConfig, shards: int) -> EnvConfig:
    """Return the settings with the returns of the agents as metrics. Raises ValueError if shards do not hold whole games."""
    agents = agents_of(env)
    required_multiple = len(agents) * shards
    if env.count % required_multiple:
        next_valid_count = required_multiple * (env.count // required_multiple + 1)
        raise ValueError(
            f"env.count is {env.count}: {env.id} has {len(agents)} agents, each of which counts, and every shard needs whole games; with "
            f"plan.shards {shards} it must be a multiple of {required_multiple}, such as {next_valid_count}"
        )
    names = tuple(f"return/{name}" for name in agents)
    if (
        env.info_metrics
        or len(agents) > _NAMED_AGENTS
        or not all(re.fullmatch(r"[\w./-]{1,80}", name) for name in names)
    ):
        return env
    return dataclasses.replace(env, info_metrics=names)


def check_games(config: Config, env_id: str) -> None:
    """Raise ValueError for options that games of several agents do not support."""
    if config.curiosity.kind != "none":
        raise ValueError(
            f"curiosity.kind is {config.curiosity.kind!r}: it does not support several agents, as in {env_id}"
        )
    for name, value in (("evaluate_every", config.run.evaluate_every), ("capture_video", config.run.capture_video)):
        if value and config.policy.core != "none":
            raise ValueError(
                f"run.{name} is {value}: agents take turns in it, which a policy with memory can't do; leave it out"
            )
