"""Distributed PPO that gives the same policy, bit for bit, however many processes carry it.

`train`, `resume`, `load` and `evaluate` do what the commands of the same names do. `Config`, `register_core` and `register_encoder` define
an experiment. `Run`, `RunSummary`, `TrainedPolicy` and `Evaluation` are what they return.

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
    from lockstep.experiment.policy import TrainedPolicy
    from lockstep.models.registry import register_core, register_encoder
    from lockstep.report.evaluate import Evaluation
    from lockstep.report.summary import RunSummary

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Evaluation",
    "Run",
    "RunSummary",
    "TrainedPolicy",
    "__version__",
    "evaluate",
    "load",
    "register_core",
    "register_encoder",
    "resume",
    "train",
]

_PLACES = {
    **dict.fromkeys(("Run", "evaluate", "load", "resume", "train"), "lockstep.api"),
    **dict.fromkeys(("register_core", "register_encoder"), "lockstep.models.registry"),
    "Config": "lockstep.config",
    "Evaluation": "lockstep.report.evaluate",
    "RunSummary": "lockstep.report.summary",
    "TrainedPolicy": "lockstep.experiment.policy",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: PyTorch takes seconds, and a command that does not train needs none of it."""
    if name not in _PLACES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """List the public names. None of them is imported."""
    return sorted(__all__)
