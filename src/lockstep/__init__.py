"""Distributed PPO that gives the same policy, bit for bit, on any number of processes.

`train`, `resume`, `evaluate` and `check_env` do what the commands `train`, `resume`, `eval` and `check` do; `load` loads a trained policy.
`Config`, `register_core`, `register_encoder`, `register_head` and `register_distribution`, for a subclass of `ContinuousDistribution`, define an
experiment. These functions return a `Run`, a `TrainedPolicy` or an `Evaluation`; `Run.summary` is a `RunSummary`.

Example:
    >>> import lockstep
    >>> run = lockstep.train("cartpole", seed=2)
    >>> policy = lockstep.load(run)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.api import Run, evaluate, load, resume, train
    from lockstep.config import Config
    from lockstep.distributions.continuous import ContinuousDistribution
    from lockstep.envs.checking import check_env
    from lockstep.experiment.hooks import Iteration
    from lockstep.experiment.policy import TrainedPolicy
    from lockstep.models.registry import register_core, register_distribution, register_encoder, register_head
    from lockstep.report.evaluate import Evaluation
    from lockstep.report.summary import RunSummary

__version__ = "0.1.0"
__all__ = [
    "Config",
    "ContinuousDistribution",
    "Evaluation",
    "Iteration",
    "Run",
    "RunSummary",
    "TrainedPolicy",
    "__version__",
    "check_env",
    "evaluate",
    "load",
    "register_core",
    "register_distribution",
    "register_encoder",
    "register_head",
    "resume",
    "train",
]

_MODULES = {
    **dict.fromkeys(("Run", "evaluate", "load", "resume", "train"), "lockstep.api"),
    **dict.fromkeys(
        ("register_core", "register_distribution", "register_encoder", "register_head"), "lockstep.models.registry"
    ),
    "check_env": "lockstep.envs.checking",
    "Config": "lockstep.config",
    "ContinuousDistribution": "lockstep.distributions.continuous",
    "Evaluation": "lockstep.report.evaluate",
    "Iteration": "lockstep.experiment.hooks",
    "RunSummary": "lockstep.report.summary",
    "TrainedPolicy": "lockstep.experiment.policy",
}
"""Modules that define the public names."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: importing PyTorch takes seconds, and not all commands need it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the public names without importing them."""
    return sorted(__all__)
