"""Functions of users that rank 0 calls after every iteration.

This module imports PyTorch only in functions that need it: `lockstep train` imports the hook before it prints its first line.
"""

import math
import re
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from gymnasium import Space

from lockstep.config import Config
from lockstep.envs.catalog import make_one
from lockstep.envs.functions import attribute, reference
from lockstep.envs.modules import import_environments
from lockstep.randomness import stream

if TYPE_CHECKING:
    from lockstep.algorithm.agent import Agent
    from lockstep.experiment.policy import TrainedPolicy
    from lockstep.run.run import HookResult

__all__ = ["Hook", "HookFailed", "Iteration", "bind_hook", "hook_name", "import_hook", "importable_hook"]

_FUNCTION = "on_iteration"
"""Function of a module that is named without a function."""
_WARN_AFTER = 30.0
"""Seconds after which a hook that has not returned is named in a warning: other ranks wait for rank 0 meanwhile."""


class HookFailed(RuntimeError):
    """A hook raised an error or called `sys.exit`, which is the cause, returned something other than metrics, or changed the agent in training.

    The message is one line.
    """


class Iteration:
    """A finished iteration of training, as a hook receives it."""

    def __init__(self, metrics: Mapping[str, object], path: Path, load: "Callable[[], TrainedPolicy]") -> None:
        self.metrics = dict(metrics)
        """Metrics of the iteration, as in `metrics.jsonl`. docs/metrics.md describes the keys. Changing them does not change the run."""
        self.number = int(str(metrics["iteration"]))
        """Number of the iteration; the first is 1."""
        self.path = path
        """Folder of the run."""
        self.stopped = False
        """True after `stop` was called."""
        self._load = load

    @cached_property
    def policy(self) -> "TrainedPolicy":
        """A copy of the policy after this iteration, which selects the most probable actions. Changing it does not change the run."""
        return self._load()

    def stop(self) -> None:
        """End training. All ranks end together after the next iteration (with `plan.lag` 1, the one after it), and the run is complete."""
        self.stopped = True


Hook = Callable[[Iteration], Mapping[str, float] | None]
"""Function that is called after every iteration. It may return numbers, which are recorded with the metrics of the iteration."""


def import_hook(text: str | None) -> Hook | None:
    """Import the hook that `run.hooks` names: `module`, with the function `on_iteration`, or `module:function`. None for None.

    Importing runs code: call this only with a name that a user or a program gave. Raises ValueError in one line if there is no such
    function, or the import fails.
    """
    if text is None:
        return None
    module, _, name = text.partition(":")
    name = name or _FUNCTION
    import_environments(module, "run.hooks")
    try:
        function = attribute(module, name)
    except AttributeError:
        raise ValueError(f"run.hooks is {text!r}: {module} has no function {name!r}") from None
    if not callable(function):
        raise ValueError(f"run.hooks is {text!r}: {name} is of type {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def importable_hook(hook: Hook, ranks: int) -> str:
    """Return `module:function`, by which another process imports the hook. Raises ValueError if it can't."""
    found = reference(hook)
    if found is None:
        raise ValueError(
            f"ranks is {ranks}: other processes can't find on_iteration, which this program defines; put it into a module that it imports"
        )
    return found


def hook_name(hook: Hook) -> str:
    """Return `module:function`, for messages."""
    return f"{hook.__module__}:{getattr(hook, '__qualname__', type(hook).__name__)}"


def bind_hook(hook: Hook, config: Config, path: Path) -> "Callable[[Mapping[str, object], Agent], HookResult]":
    """Return the function that calls `hook` with the metrics of an iteration and the agent, for the run in the folder `path`."""
    from lockstep.run.run import HookResult

    name = getattr(hook, "__qualname__", type(hook).__name__)
    overdue, policies = _Overdue(name), _Policies(config)

    def call(metrics: Mapping[str, object], agent: "Agent") -> HookResult:
        iteration = Iteration(metrics, path, partial(policies.copy, agent, int(str(metrics["iteration"]))))
        try:
            with overdue:
                returned = hook(iteration)
        except (Exception, SystemExit) as error:
            where = f"after iteration {iteration.number}"
            if isinstance(error, SystemExit):
                text = f"called sys.exit({error}) {where}: to end training, call its argument's method stop()"
            else:
                text = f"failed {where}: {type(error).__name__}: {error}"
            raise HookFailed(f"the hook {name} {' '.join(text.split())}") from error
        if agent.digest() != metrics["digest"]:
            raise HookFailed(
                f"the hook {name} changed the agent in training after iteration {iteration.number}: change iteration.policy, which is a copy"
            )
        return HookResult(_checked(name, returned, metrics), iteration.stopped)

    return call


class _Policies:
    """Copies of the policy in training."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def _spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Observation and action space of a single environment. Creating an environment takes milliseconds."""
        env = make_one(self._config.env)
        env.close()
        return env.observation_space, env.action_space

    def copy(self, agent: "Agent", iteration: int) -> "TrainedPolicy":
        """Return a policy with the present weights of `agent`."""
        from lockstep.experiment.build import make_agent
        from lockstep.experiment.policy import TrainedPolicy

        saved = {name: tensor.detach().cpu() for name, tensor in agent.state().items()}
        copied = make_agent(self._config, spaces=agent.spaces)
        copied.load(saved)
        return TrainedPolicy(
            copied, *self._spaces, stream(self._config.run.seed, "evaluation-actions"), iteration=iteration
        )


def _checked(name: str, returned: object, metrics: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics that a hook returned. Raises HookFailed if they are not finite numbers under new names."""
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise HookFailed(f"the hook {name} returned {returned!r:.80}: it must be a dict of numbers, or None")
    checked = {}
    for key, value in returned.items():
        if not isinstance(key, str) or not re.fullmatch(r"[\w./-]{1,100}", key):
            raise HookFailed(
                f"the hook {name} returned the name {key!r:.80}: it must be 1 to 100 of A-Z a-z 0-9 . _ / -"
            )
        if key in metrics:
            raise HookFailed(f"the hook {name} returned {key!r}, which is a metric of lockstep: choose another name")
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise HookFailed(f"the hook {name} returned {key} = {value!r:.80}: it must be a finite number")
        checked[key] = number
    return checked


class _Overdue:
    """Context manager that prints a warning if its block takes long: other ranks wait for this one, and report only that it does not answer.

    A timer is started at most every 30 s, because starting a thread in every iteration would take longer than most hooks.
    """

    def __init__(self, name: str) -> None:
        self._line = f"lockstep: the hook {name} has not returned for {_WARN_AFTER:g} s; training waits for it"
        self._entered: float | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        self._entered = monotonic()
        if self._timer is None:
            self._start_timer(_WARN_AFTER)

    def __exit__(self, *_: object) -> None:
        self._entered = None

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._check)
        self._timer.daemon = True
        self._timer.start()

    def _check(self) -> None:
        self._timer = None  # before reading _entered: a block that is entered now starts the next timer
        entered = self._entered
        if entered is None:
            return
        remaining = entered + _WARN_AFTER - monotonic()
        if remaining > 0:
            self._start_timer(remaining)
        else:
            print(self._line, file=sys.stderr, flush=True)
