"""Next-step autoreset for vector environments of every autoreset mode, with checks of what they return."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from lockstep.envs.layout import ContractViolation
from lockstep.envs.spaces import MASK, batch_entry

__all__ = ["NextStepBatch", "space_of_one"]

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
BatchStep = tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
"""Observations `[B, …]` in the structure of their space, rewards `[B]`, terminated `[B]`, truncated `[B]`, infos."""

_MODE = "metadata['autoreset_mode']"


class NextStepBatch:
    """B environments of a vector environment, with next-step autoreset.

    With next-step autoreset, calls are passed on. In the other modes, an environment has no step in which it only resets, but the others step
    on. It takes that step with whatever action it gets, and `reset(options={"reset_mask": mask})` then begins its episode again. Its first
    observation is the one after this reset, so the discarded step is part of no episode.

    Methods raise ContractViolation for results that Gymnasium's API does not allow, as far as they show it.
    """

    def __init__(self, env: VectorEnv, env_id: str, count: int) -> None:
        """Wrap `env`. Raises ValueError if its mode is not set or if it does not consist of `count` environments."""
        self.env = env
        self._count = count
        if getattr(env, "num_envs", None) != count:
            raise ValueError(
                f"env.id is {env_id!r}: its vector environment has num_envs {getattr(env, 'num_envs', None)}, but {count} were asked for"
            )
        mode = (env.metadata or {}).get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ValueError(
                f"env.id is {env_id!r}: {_MODE} of its vector environment is {mode!r}; it must be a gymnasium.vector.AutoresetMode"
            )
        self.mode = mode
        self.check: Callable[[Any], None] = lambda observations: None
        """Function that raises ContractViolation for invalid observations; called with those of every reset and step."""
        self.waiting = np.zeros(count, dtype=np.bool_)
        """`[B]`: the next step is a reset."""

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments and return observations and infos."""
        self.waiting = np.zeros(self._count, dtype=np.bool_)
        return self._reset(seed=seed)

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**arguments)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise ContractViolation(f"returned {type(result).__name__} from reset, expected (observations, infos)")
        observations = _arrays(result[0])
        self.check(observations)
        return observations, result[1]

    def step(self, actions: Any) -> BatchStep:
        """Take a step in every environment, or reset it if its episode ended in the step before."""
        result = self.env.step(actions)
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
            raise ContractViolation("returned no (observations, rewards, terminated, truncated, infos) from step")
        observations = _arrays(result[0])
        self.check(observations)
        rewards = self._column("rewards", result[1], "fiu")
        terminated, truncated = (
            self._column(name, value, "b") for name, value in zip(("terminated", "truncated"), result[2:4], strict=True)
        )
        step = observations, rewards, terminated, truncated, result[4]
        step = self._checked(step) if self.mode == AutoresetMode.NEXT_STEP else self._with_reset_rows(step)
        self.waiting = step[2] | step[3]
        return step

    def _column(self, name: str, value: Any, kinds: str) -> NDArray[Any]:
        column = np.asarray(value)
        if column.shape != (self._count,) or column.dtype.kind not in kinds:
            expected = "bool" if kinds == "b" else "real numbers"
            raise ContractViolation(
                f"returned {name} of shape {column.shape} and type {column.dtype}, expected ({self._count},) {expected}"
            )
        return column

    def _checked(self, step: BatchStep) -> BatchStep:
        """Return the step. Raises ContractViolation if it shows that there is no next-step autoreset."""
        _, rewards, terminated, truncated, infos = step
        if "final_obs" in infos:
            raise ContractViolation(
                f"returned final_obs, which belongs to same-step autoreset, but {_MODE} is NEXT_STEP"
            )
        stepped = self.waiting & ((rewards != 0) | terminated | truncated)
        if stepped.any():
            raise ContractViolation(
                f"returned a reward or an end from the step after the end of an episode (environment {stepped.argmax()} of the batch): "
                f"{_MODE} is NEXT_STEP, so this step must only reset"
            )
        return step

    def _with_reset_rows(self, step: BatchStep) -> BatchStep:
        """Return the step with final observations where episodes end, and a reset where they ended in the step before."""
        observations, rewards, terminated, truncated, infos = step
        same_step, waiting = self.mode == AutoresetMode.SAME_STEP, self.waiting
        ended = (terminated | truncated) & ~waiting
        if not same_step and "final_obs" in infos:
            raise ContractViolation(
                f"returned final_obs, which belongs to same-step autoreset, but {_MODE} is DISABLED"
            )
        shown, infos = _copy(observations), dict(infos)
        if same_step and ended.any():
            final = infos.get("final_obs")
            if final is None:
                raise ContractViolation(f"returned no final_obs at the end of an episode, but {_MODE} is SAME_STEP")
            for index in np.flatnonzero(ended).tolist():
                _assign(shown, index, batch_entry(final, index))
            final_infos = infos.get("final_info") or {}
            others = {key: value for key, value in final_infos.items() if key != MASK}
            infos = _with_masks(infos | others, final_infos, ended)
        # copies, because a reset may overwrite the arrays that step has returned
        rewards, terminated, truncated = np.where(waiting, 0, rewards), terminated & ~waiting, truncated & ~waiting
        mask = waiting if same_step else waiting | ended
        if mask.any():
            first, first_infos = self._reset(options={"reset_mask": mask.copy()})
            self._check_untouched(observations, first, ~mask)
            for index in np.flatnonzero(waiting).tolist():
                _assign(shown, index, batch_entry(first, index))
            infos = _with_masks(infos, first_infos, waiting)
        return shown, rewards, terminated, truncated, infos

    def _check_untouched(self, before: Any, after: Any, others: NDArray[np.bool_]) -> None:
        pairs = zip(_leaves(before), _leaves(after), strict=True)
        if any(old[others].tobytes() != new[others].tobytes() for old, new in pairs):
            raise ContractViolation(
                "ignored options['reset_mask'] of reset: the observations of other environments changed; lockstep needs it unless "
                f"{_MODE} is NEXT_STEP"
            )


def space_of_one(env: VectorEnv, name: str, env_id: str) -> gym.Space[Any]:
    """Return `single_observation_space` or `single_action_space`. Raises ValueError if it is not defined."""
    space = getattr(env, name, None)
    if not isinstance(space, gym.Space):
        raise ValueError(
            f"env.id is {env_id!r}: its attribute {name} is {type(space).__name__}; it must be a gymnasium.spaces.Space"
        )
    return space


def _with_masks(infos: dict[str, Any], first_infos: Mapping[str, Any], reset: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the infos with the masks of `first_infos` for the environments in `reset`."""
    if MASK not in first_infos:
        return infos
    masks = _copy(infos.get(MASK, first_infos[MASK]))
    for index in np.flatnonzero(reset).tolist():
        _assign(masks, index, batch_entry(first_infos[MASK], index))
    return {**infos, MASK: masks}


def _arrays(batch: Any) -> Any:
    """Return a batch with its leaves as NumPy arrays, which may share memory with it."""
    if isinstance(batch, Mapping):
        return {key: _arrays(part) for key, part in batch.items()}
    return tuple(map(_arrays, batch)) if isinstance(batch, tuple) else np.asarray(batch)


def _leaves(batch: Any) -> list[NDArray[Any]]:
    if isinstance(batch, (dict, tuple)):
        parts = batch.values() if isinstance(batch, dict) else batch
        return [leaf for part in parts for leaf in _leaves(part)]
    return [batch]


def _copy(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _copy(part) for key, part in batch.items()}
    return tuple(map(_copy, batch)) if isinstance(batch, tuple) else np.array(batch)


def _assign(batch: Any, index: int, entry: Any) -> None:
    """Set the entry of one environment in place. Raises ContractViolation if it does not fit."""
    if isinstance(batch, (dict, tuple)):
        keys = batch if isinstance(batch, dict) else range(len(batch))
        try:
            for key in keys:
                _assign(batch[key], index, entry[key])
        except (KeyError, IndexError, TypeError):
            raise ContractViolation(
                f"returned an observation without the entry {key!r} at the end or start of an episode"
            ) from None
        return
    if batch.dtype != np.object_ and np.shape(entry) != batch.shape[1:]:
        raise ContractViolation(
            f"returned an observation of shape {np.shape(entry)} at the end or start of an episode, expected {batch.shape[1:]}"
        )
    batch[index] = entry
