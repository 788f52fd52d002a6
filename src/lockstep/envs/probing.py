"""Random actions, and a short probe of the autoreset mode that a vector environment declares."""

from collections.abc import Callable

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from lockstep.envs.engine import Engine
from lockstep.envs.spaces import Spaces
from lockstep.envs.vector import VectorEngine
from lockstep.randomness import stream

__all__ = ["mask_of", "probe_autoreset", "random_actions"]

_STEPS = 200
"""Number of steps in which the probe waits for the end of an episode."""
_UNBOUNDED = 1e3
"""Bound of random actions whose space has none."""


def random_actions(
    spaces: Spaces, generator: np.random.Generator, mask: NDArray[np.generic] | None = None
) -> NDArray[np.generic]:
    """Sample one random action, `[1]` or `[1, A]`, as engines take it. `mask` holds 1 for the options of choices that are allowed."""
    chosen, end = [], 0
    for count in spaces.choices:
        allowed = np.arange(count) if mask is None else np.flatnonzero(mask[end : end + count])
        chosen.append(generator.choice(allowed if allowed.size else count))
        end += count
    if spaces.discrete_actions is not None:
        return np.array(chosen, dtype=np.int64)
    low, high = np.maximum(spaces.action_low, -_UNBOUNDED), np.minimum(spaces.action_high, _UNBOUNDED)
    continuous = generator.uniform(low, high, spaces.continuous_size)
    return np.concatenate([chosen, continuous])[np.newaxis].astype(np.float32)


def mask_of(spaces: Spaces, row: NDArray[np.generic]) -> NDArray[np.generic] | None:
    """Return the action mask in a row `[O]` of an observation; None without masks."""
    return row[spaces.observation_size - spaces.mask_size :] if spaces.mask_size else None


def probe_autoreset(make: Callable[[], VectorEngine], env_id: str) -> None:
    """Raise ValueError if an environment that declares next-step autoreset uses the action of the step after an end.

    `make` creates an engine of one environment. Two of them, one after the other, get equal seeds and actions, except in that step. There is
    no verdict if no episode ends within 200 steps, or if the environment is not deterministic. Raises EnvironmentFailed for errors of the
    environment.
    """
    engine = make()
    if engine.autoreset_mode != AutoresetMode.NEXT_STEP:
        engine.close()
        return
    first, second = _play_to_reset(engine, False), _play_to_reset(make(), True)
    equal = [row == other for row, other in zip(first, second, strict=False)]
    if len(first) == len(second) <= _STEPS and all(equal[:-1]) and not equal[-1]:
        raise ValueError(
            f"env.id is {env_id!r}: metadata['autoreset_mode'] of its vector environment is NEXT_STEP, but the step after the end of an "
            "episode depends on the action; this step must only reset"
        )


def _play_to_reset(engine: Engine, other_action: bool) -> list[bytes]:
    """Play random actions until the step after the first end, for which `other_action` selects another action. Return all observations."""
    spaces, generator = engine.spaces, stream(0, "check-actions", 0)
    try:
        rows, ended = engine.reset(), False
        seen = [rows.tobytes() + engine.pixels.tobytes()]
        while len(seen) <= _STEPS:
            action = random_actions(spaces, generator, mask_of(spaces, rows[0]))
            if ended and other_action:
                action = next(
                    (other for _ in range(20) if ((other := random_actions(spaces, generator)) != action).any()), action
                )
            rows, _, terminated, truncated = engine.step(action)
            seen.append(rows.tobytes() + engine.pixels.tobytes())
            if ended:
                break
            ended = bool(terminated[0] | truncated[0])
        return seen
    finally:
        engine.close()
