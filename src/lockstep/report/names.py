"""Names of the components of observations and actions, for the labels of figures."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatdim

from lockstep.envs.families import base_of
from lockstep.envs.spaces import feature_leaves, leaves, place_of
from lockstep.envs.tasks.no_velocity import NO_VELOCITY_TASKS

__all__ = ["action_names", "observation_names", "option_names"]

# Source: the documentation pages of Gymnasium's environments.
_OBSERVATIONS: dict[str, tuple[str, ...]] = {
    "CartPole": ("cart position", "cart velocity", "pole angle (rad)", "pole velocity (rad/s)"),
    "MountainCar": ("position", "velocity (per step)"),
    "MountainCarContinuous": ("position", "velocity (per step)"),
    "Pendulum": ("cos(angle)", "sin(angle)", "angular velocity (rad/s)"),
    "Acrobot": ("cos(θ₁)", "sin(θ₁)", "cos(θ₂)", "sin(θ₂)", "velocity of θ₁ (rad/s)", "velocity of θ₂ (rad/s)"),
    "LunarLander": ("x", "y", "velocity x", "velocity y", "angle (rad)", "angular velocity", "left leg", "right leg"),
    "Hopper": (
        *("height", "torso angle", "thigh angle", "leg angle", "foot angle"),
        *("velocity x", "velocity z", "torso velocity", "thigh velocity", "leg velocity", "foot velocity"),
    ),
}
_ACTIONS: dict[str, tuple[str, ...]] = {
    "MountainCarContinuous": ("force",),
    "Pendulum": ("torque (N m)",),
    "LunarLander": ("main engine", "side engines"),
    "LunarLanderContinuous": ("main engine", "side engines"),
    "Hopper": ("thigh torque", "leg torque", "foot torque"),
}
_OPTIONS: dict[str, tuple[str, ...]] = {
    "CartPole": ("push left", "push right"),
    "MountainCar": ("push left", "none", "push right"),
    "Acrobot": ("torque -1", "torque 0", "torque 1"),
    "LunarLander": ("none", "left engine", "main engine", "right engine"),
}


def observation_names(env_id: str, space: Space[Any], single: bool = False) -> list[str]:
    """Return one name per component of an observation, without images and action masks.

    A discrete component is one number per option (one-hot), as for the networks. With `single` it is one number, as
    returned by the environment.
    """
    names = []
    for path, leaf in feature_leaves(space):
        count = int(np.prod(leaf.shape)) if single or isinstance(leaf, Box) else flatdim(leaf)
        prefix = f"observation{place_of(path)}"
        names += [prefix] if count == 1 else [f"{prefix}[{index}]" for index in range(count)]
    known = _known(_OBSERVATIONS, env_id)
    if env_id in NO_VELOCITY_TASKS and known:
        known = tuple(known[column] for column in NO_VELOCITY_TASKS[env_id].columns)
    return list(known) if len(known) == len(names) else names


def action_names(env_id: str, space: Space[Any]) -> list[str]:
    """Return one name per component of an action, in the order of the parts of the action space."""
    names = []
    for path, leaf in leaves(space):
        count, prefix = int(np.prod(leaf.shape)), f"action{place_of(path)}"
        names += [prefix] if count == 1 else [f"{prefix}[{index}]" for index in range(count)]
    known = _known(_ACTIONS, env_id)
    return list(known) if len(known) == len(names) and isinstance(space, Box) else names


def option_names(env_id: str, count: int) -> Sequence[str]:
    """Return the names of the options of a discrete action with `count` options."""
    known = _known(_OPTIONS, env_id)
    return known if len(known) == count else [str(number) for number in range(count)]


def _known(table: dict[str, tuple[str, ...]], env_id: str) -> tuple[str, ...]:
    name = re.sub(r"-v\d+$", "", base_of(env_id))
    return table.get({"pendulum-dense": "Pendulum", "pendulum-sparse": "Pendulum"}.get(name, name), ())
