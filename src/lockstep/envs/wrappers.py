"""Wrappers that `env.wrappers` names: those of Gymnasium, and classes or functions of the user's module."""

import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import gymnasium as gym

from lockstep.envs.wrapper_calls import WrapperCall
from lockstep.messages import one_line

__all__ = ["wrap"]

_GYMNASIUM = (
    "ClipAction",
    "ClipReward",
    "DelayObservation",
    "DiscretizeAction",
    "DiscretizeObservation",
    "FilterObservation",
    "FlattenObservation",
    "FrameStackObservation",
    "GrayscaleObservation",
    "MaxAndSkipObservation",
    "RepeatAction",
    "RescaleAction",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
    "StickyAction",
    "TimeAwareObservation",
    "TimeLimit",
)
"""Wrappers of Gymnasium that a config may name: they write no files, open no window, and keep no state across episodes."""
_REPLACED = {
    "NormalizeObservation": "policy.normalize_observations",
    "NormalizeReward": "ppo.normalize_rewards",
    "RecordEpisodeStatistics": "the metrics return_mean and length_mean, which every run records",
    "RecordVideo": "run.capture_video",
}


def wrap(env: gym.Env[Any, Any], call: WrapperCall, module: str | None) -> gym.Env[Any, Any]:
    """Apply a wrapper: that of the imported `module` if it has one of this name, else that of Gymnasium.

    Raises ValueError in one line if there is no such wrapper, or it does not accept its arguments or this environment.
    """
    make = _find(call.name, module)
    try:
        wrapped = make(env, **call.arguments)
    except Exception as error:
        raise ValueError(
            f"env.wrappers has {call.name}, which can't wrap this environment: {one_line(error)}"
        ) from error
    if not isinstance(wrapped, gym.Env):
        raise ValueError(f"env.wrappers has {call.name}, which returned {type(wrapped).__name__}, not a gymnasium.Env")
    return wrapped


def _find(name: str, module: str | None) -> Callable[..., Any]:
    own = None if module is None else getattr(sys.modules.get(module.partition(":")[0]), name, None)
    if own is not None and callable(own):
        return own  # type: ignore[no-any-return]
    if name in _REPLACED:
        raise ValueError(f"env.wrappers has {name!r}: use {_REPLACED[name]} instead")
    if name in _GYMNASIUM:
        found = getattr(gym.wrappers, name, None)
        if found is None:
            raise ValueError(f"env.wrappers has {name!r}, which gymnasium {gym.__version__} does not have; upgrade it")
        return found  # type: ignore[no-any-return]
    nearest = get_close_matches(name, _GYMNASIUM, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"the wrappers of Gymnasium are {', '.join(_GYMNASIUM)}"
    location = "env.module is not given" if module is None else f"{module} has no {name!r}"
    raise ValueError(f"env.wrappers has {name!r}, which is not known, and {location}; {hint}")
