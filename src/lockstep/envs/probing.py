"""Random actions, and a short probe of the autoreset mode that a vector environment declares."""

from collections.abc import Callable

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from lockstep.envs.engine import Engine
from lockstep.envs.spaces import Spaces
from lockstep.envs.vector import VectorEngine
from lockstep.randomness import stream

__all__ = ["mask_of", "probe_autoreset", "probe_reset_mask", "random_actions"]

_STEPS = 200
"""Number of steps in which the probe waits for the end of an episode."""
_SEEDS = 3
"""Number of episodes that must show that an environment resets at once: a single last observation may equal a first one by chance."""
_UNBOUNDED = 1e3
"""Greatest distance of random actions from zero, or from the other bound, on a side where their space has no bound."""


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
    low, high = spaces.action_low.astype(np.float64), spaces.action_high.astype(np.float64)
    high = np.where(np.isinf(high), np.maximum(low, 0) + _UNBOUNDED, high)
    low = np.where(np.isinf(low), np.minimum(high, 0) - _UNBOUNDED, low)
    continuous = generator.uniform(low, high, spaces.continuous_size)
    return np.concatenate([chosen, continuous])[np.newaxis].astype(np.float32)


def mask_of(spaces: Spaces, row: NDArray[np.generic]) -> NDArray[np.generic] | None:
    """Return the action mask in a row `[O]` of an observation; None without masks."""
    return row[spaces.observation_size - spaces.mask_size :] if spaces.mask_size else None


def probe_autoreset(make: Callable[[int], VectorEngine], env_id: str) -> None:
    """Raise ValueError if an environment does not have the autoreset mode that it declares: next-step or disabled.

    `make` creates an engine of one environment from a seed. There is no verdict if no episode ends within 200 steps, or
    if the environment is not deterministic. Raises EnvironmentFailed for errors of the environment.
    """
    engine = make(0)
    mode = engine.autoreset_mode
    engine.close()
    if mode == AutoresetMode.NEXT_STEP:
        _probe_next_step(make, env_id)
    elif mode == AutoresetMode.DISABLED and all(_resets_at_once(make, seed) for seed in range(_SEEDS)):
        raise ValueError(
            f"env.id is {env_id!r}: metadata['autoreset_mode'] of its vector environment is DISABLED, but the step in which an episode ends "
            "returns the first observation of the next one; this step must return the last observation, and must not reset"
        )


def probe_reset_mask(engine: VectorEngine, env_id: str) -> None:
    """Raise ValueError if a vector environment that needs it ignores `options["reset_mask"]`. `engine` has two environments, and is closed."""
    try:
        if engine.autoreset_mode == AutoresetMode.NEXT_STEP:
            return
        rows, generator, spaces = engine.reset(), stream(0, "check-actions", 0), engine.spaces
        rows, *_ = engine.step(
            np.concatenate([random_actions(spaces, generator, mask_of(spaces, row)) for row in rows])
        )
        before = rows[1].tobytes() + engine.pixels[1].tobytes()
        rows = engine.reset_by_mask(np.array([True, False]))
        if rows[1].tobytes() + engine.pixels[1].tobytes() != before:
            raise ValueError(
                f"env.id is {env_id!r}: reset of its vector environment begins new episodes also where options['reset_mask'] is False; "
                f"it may ignore this mask only if metadata['autoreset_mode'] is NEXT_STEP, and it is {engine.autoreset_mode.name}"
            )
    finally:
        engine.close()


def _probe_next_step(make: Callable[[int], VectorEngine], env_id: str) -> None:
    """Raise ValueError if the step after an end depends on its action.

    Two engines, one after the other, get equal seeds and actions, except in that step.
    """
    first, second = _play_to_reset(make(0), False), _play_to_reset(make(0), True)
    equal = [row == other for row, other in zip(first, second, strict=False)]
    if len(first) == len(second) and all(equal[:-1]) and not equal[-1]:
        raise ValueError(
            f"env.id is {env_id!r}: metadata['autoreset_mode'] of its vector environment is NEXT_STEP, but the step after the end of an "
            "episode depends on the action; this step must only reset"
        )


def _resets_at_once(make: Callable[[int], VectorEngine], seed: int) -> bool:
    """Return True if the step in which an episode ends returns the observation of a reset.

    A second engine with equal seeds and actions is reset instead of taking that step. Where all episodes begin with the
    same observation, return False: it may also be the last one of an episode.
    """
    engine, twin = make(seed), make(seed)
    try:
        seen, ended = _play(engine, seed, _STEPS)
        if not ended:
            return False
        _play(twin, seed, len(seen) - 2)
        return _content(twin, twin.reset_by_mask(np.ones(1, dtype=np.bool_))) == seen[-1] != seen[0]
    finally:
        engine.close()
        twin.close()


def _play_to_reset(engine: Engine, other_action: bool) -> list[bytes]:
    """Play random actions until the step after the first end, for which `other_action` selects another action. Return all observations."""
    try:
        seen, ended = _play(engine, 0, _STEPS)
        if ended:
            generator = stream(0, "check-actions", 1)
            actions = [random_actions(engine.spaces, generator) for _ in range(20)]
            others = [action for action in actions if (action != actions[0]).any()]
            seen.append(_content(engine, engine.step(others[0] if other_action and others else actions[0])[0]))
        return seen
    finally:
        engine.close()


def _play(engine: Engine, seed: int, steps: int) -> tuple[list[bytes], bool]:
    """Play random actions until the first end, at most `steps` of them. Return all observations, and True if the episode has ended."""
    spaces, generator = engine.spaces, stream(seed, "check-actions", 0)
    rows, ended = engine.reset(), False
    seen = [_content(engine, rows)]
    while len(seen) <= steps and not ended:
        rows, _, terminated, truncated = engine.step(random_actions(spaces, generator, mask_of(spaces, rows[0])))
        seen.append(_content(engine, rows))
        ended = bool(terminated[0] | truncated[0])
    return seen, ended


def _content(engine: Engine, rows: NDArray[np.generic]) -> bytes:
    return rows.tobytes() + engine.pixels.tobytes()
