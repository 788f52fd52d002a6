"""The config of an experiment: a tree of frozen dataclasses.

Each section is defined in the package that reads it. Order of precedence: defaults < preset < file < flags.
"""

from dataclasses import dataclass, field

from lockstep.algorithm.plan import PlanConfig
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.settings import EnvConfig, RolloutConfig
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.run.settings import RunConfig
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["VERSION", "Config"]

VERSION = 2
"""Version of the format of config files. It increases when an existing file would get a different meaning. The changes
are in `versions.py`.
"""


@dataclass(frozen=True)
class Config:
    """Config of an experiment, one field per section."""

    env: EnvConfig = field(default_factory=EnvConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    curiosity: CuriosityConfig = field(default_factory=CuriosityConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    run: RunConfig = field(default_factory=RunConfig)
