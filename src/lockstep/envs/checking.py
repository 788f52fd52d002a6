"""Checks of an environment: Gymnasium's API, spaces, values, determinism and replay."""

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter, each_action
from lockstep.envs.catalog import (
    check_autoreset,
    describe_env,
    has_time_limit,
    make_engine,
    make_one,
    restarts_episodes,
)
from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.episodes import EpisodeLog, SeededEpisodes
from lockstep.envs.families import is_vector_only
from lockstep.envs.functions import Make, register_function, returns_parallel
from lockstep.envs.interface import Interface, failure_text
from lockstep.envs.probing import mask_of, random_actions
from lockstep.envs.settings import EngineName, EnvConfig
from lockstep.envs.spaces import Spaces
from lockstep.messages import counted, one_line
from lockstep.randomness import EnvironmentSeeds, stream

__all__ = ["Finding", "check_env", "check_environment"]

_EPISODES = 3
_STEPS = 1_000
"""Largest number of steps of an episode that is played."""
_SECONDS = 2.0
"""Time after which an episode of a slow environment is cut; it has at least `_LEAST_STEPS` steps."""
_LEAST_STEPS = 100
_RESTORED_AFTER = 50


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    level: Literal["ok", "note", "fail"]
    """`note`: training works, but the user should know; `fail`: training would end with an error or not be exact."""
    text: str


class _Step(NamedTuple):
    row: NDArray[Any]
    reward: float
    ended: tuple[bool, bool]
    """Terminated, truncated."""
    pixels: bytes

    def differs(self, other: "_Step") -> str:
        """Return what differs: "observation", "reward", "end of the episode", or an empty string."""
        if self.row.tobytes() != other.row.tobytes() or self.pixels != other.pixels:
            return "observation"
        if np.float64(self.reward).tobytes() != np.float64(other.reward).tobytes():
            return "reward"
        return "end of the episode" if self.ended != other.ended else ""


def check_env(env: str | Make | gym.Env[Any, Any], **options: bool | int | float | str) -> list[Finding]:
    """Check an environment with random actions, as `lockstep check` does, without rendering and speed.

    Args:
        env: A Gymnasium id, a function that makes the environment, or an environment from `gymnasium.make`, of which new ones are made.
        **options: Keyword arguments of the environment.

    Returns:
        The findings. Training on the environment needs all of them to have another level than `fail`.

    Raises:
        ValueError: The environment can't be created, or its spaces are not supported.

    Example:
        >>> lockstep.check_env("CartPole-v1")
    """
    if isinstance(env, gym.Env) and env.spec is not None:
        env = register_function(partial(gym.make, env.spec), f"{env.spec.id}()")
    env_id = env if isinstance(env, str) else register_function(env)  # type: ignore[arg-type]  # refuses an instance
    config = EnvConfig(env_id, options=options)
    if returns_parallel(config.id, options):
        config = replace(config, engine="pettingzoo")
    return list(check_environment(config))


def check_environment(config: EnvConfig) -> Iterator[Finding]:
    """Check the environment of a config on a few episodes with random actions, and iterate over the findings.

    An environment that has only a vector version is checked as a batch of one, and then as a batch. The agents of a parallel environment take
    turns; resuming is checked with its engine. `config.engine`, `count` and `threads`
    are ignored. Raises ValueError as `describe_env` does if the environment can't be created or its
    spaces are not supported.
    """
    factory = EnvFactory.from_config(config)
    interface = Interface.from_factory(factory)
    yield Finding("spaces", "ok", _describe(interface))
    yield _check_api(config, masked=bool(interface.spaces.mask_size))
    limits = dict.fromkeys(range(_EPISODES), _STEPS)
    try:
        episodes = _play(factory, interface, limits, _SECONDS)
    except Exception as error:
        yield Finding("episodes", "fail", f"{config.id} {failure_text(type(error), error)}")
        return
    env = make_one(config)
    env.close()
    yield from _check_values(episodes, env.observation_space)
    yield _check_length(config, episodes)
    limits = {number: len(steps) - 1 for number, steps in enumerate(episodes)}
    again = _play(factory, interface, limits)
    same = "equal seeds and actions give equal episodes"
    yield (
        determinism := _compare(
            "determinism", episodes, again, same, "in a second environment with equal seeds and actions"
        )
    )
    if determinism.level == "ok":
        alone = [_play(factory, interface, {number: limits[number]})[0] for number in limits]
        independent = "an episode does not depend on earlier ones"
        yield _compare("independence", episodes, alone, independent, "if the environment has played no earlier episode")
    by_replay = "an environment that is restored by replay continues with the same bits"
    count = 2 * len(factory.agents()) if factory.parallel else 2
    engine: EngineName = "pettingzoo" if factory.parallel else "gymnasium"
    yield _check_resume("resume", replace(config, engine=engine, count=count), by_replay)
    if is_vector_only(config.id):
        yield _check_vector(config)


def _play(
    factory: EnvFactory, interface: Interface, limits: Mapping[int, int], seconds: float = math.inf
) -> list[list[_Step]]:
    """Play consecutive episodes in a new environment.

    Each is played until its end, for the number of steps in `limits`, or for `seconds` if that takes longer than `_LEAST_STEPS` steps.
    """
    first = EpisodeLog(min(limits), np.zeros((0,)))
    env = SeededEpisodes(factory, interface, EnvironmentSeeds(0, "check", 1), 0, first)
    convert, spaces = action_converter(interface.action_space), interface.spaces
    played = []
    try:
        observation, _ = env.reset()
        for episode, limit in limits.items():
            generator, steps = stream(0, "check-actions", episode), [_step_of(observation, 0.0, (False, False), spaces)]
            end = time.monotonic() + seconds
            while not any(steps[-1].ended) and len(steps) <= limit:
                if len(steps) > _LEAST_STEPS and time.monotonic() > end:
                    break
                actions = random_actions(spaces, generator, mask_of(spaces, steps[-1].row))
                action = each_action(convert(actions))[0]
                observation, reward, *ends, _ = env.step(action)
                steps.append(_step_of(observation, reward, (bool(ends[0]), bool(ends[1])), spaces))
            played.append(steps)
            if episode != max(limits):
                env.waiting = True  # an episode that is longer than its limit is left
                observation, *_ = env.step(None)
    finally:
        env.close()
    return played


def _step_of(observation: Any, reward: Any, ended: tuple[bool, bool], spaces: Spaces) -> _Step:
    row, pixels = observation if spaces.images else (observation, np.zeros(0, np.uint8))
    return _Step(np.array(row), float(reward), ended, pixels.tobytes())


def _describe(interface: Interface) -> str:
    spaces = interface.spaces
    parts = [f"{spaces.feature_size} numbers ({interface.layout.dtype.name})"] if spaces.feature_size else []
    parts += ["×".join(map(str, shape)) + " image" for shape in spaces.images]
    actions = [f"one of {spaces.discrete_actions}"] if spaces.discrete_actions is not None else []
    if spaces.discrete_actions is None and spaces.choices:
        actions.append(f"choices of {', '.join(map(str, spaces.choices))}")
    actions += [f"{spaces.continuous_size} continuous"] if spaces.continuous_size else []
    masked = ", with a mask of allowed actions" if spaces.mask_size else ""
    return f"observation {' and '.join(parts)}; action {' and '.join(actions)}{masked}"


def _check_api(config: EnvConfig, masked: bool) -> Finding:
    """Run Gymnasium's own check, which does not know the mask of allowed actions."""
    from gymnasium.utils.env_checker import check_env

    env = make_one(config)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(env.unwrapped, skip_render_check=True)
    except Exception as error:
        return Finding("gymnasium", "note" if masked else "fail", f"check_env of Gymnasium: {one_line(error)}")
    finally:
        env.close()
    texts = [_plain(str(warning.message)) for warning in caught if warning.category is UserWarning]
    lines = [
        " ".join(text.split()) for text in texts if "infinity. This is probably" not in text
    ]  # they are normalized
    if lines:
        return Finding("gymnasium", "note", "; ".join(dict.fromkeys(lines)))
    return Finding("gymnasium", "ok", f"check_env of Gymnasium {gym.__version__} reports nothing")


def _plain(text: str) -> str:
    """Remove the color codes that Gymnasium's logger adds, and its prefix."""
    return text.removeprefix("\x1b[33m").removesuffix("\x1b[0m").removeprefix("WARN: ")


def _check_values(episodes: Sequence[Sequence[_Step]], space: gym.Space[Any]) -> Iterator[Finding]:
    rows = np.concatenate([[step.row for step in steps] for steps in episodes])
    rewards = np.concatenate([[step.reward for step in steps[1:]] for steps in episodes])
    for name, values in (("observations", rows), ("rewards", rewards)):
        with np.errstate(over="ignore"):
            bad = int(np.count_nonzero(~np.isfinite(values.astype(np.float32))))  # as networks get them
        if bad:
            precision = " in float32" if np.isfinite(values).all() else ""
            yield Finding(name, "fail", f"{bad} of {values.size} values are NaN or infinite{precision}")
        elif values.size:
            sparse = name == "rewards" and not values.any()
            text = "all 0 in these episodes: the reward is sparse" if sparse else f"finite, {_range(values)}"
            yield Finding(name, "note" if sparse else "ok", text)
    if isinstance(space, Box) and len(space.shape) == 1:
        values = rows[:, : space.shape[0]]  # without an action mask from info
        outside = int(np.count_nonzero((values < space.low) | (values > space.high)))
        if outside:
            yield Finding(
                "bounds", "note", f"{outside} of {values.size} values of observations lie outside of the space"
            )


def _range(values: NDArray[Any]) -> str:
    low, high = values.min(), values.max()
    return f"between {low:.4g} and {high:.4g}" if low < high else f"all {low:.4g}"


def _check_length(config: EnvConfig, episodes: Sequence[Sequence[_Step]]) -> Finding:
    lengths = [len(steps) - 1 for steps in episodes]
    returns = [sum(step.reward for step in steps) for steps in episodes]
    steps = f"{min(lengths)} to {max(lengths)} steps" if min(lengths) < max(lengths) else counted(lengths[0], "step")
    played = f"{steps}, return {np.mean(returns):.4g} with random actions"
    if any(len(steps) <= _STEPS and not any(steps[-1].ended) for steps in episodes):
        played += f"; the environment is slow, so episodes were cut after {_SECONDS:g} s"
    if has_time_limit(config) or all(steps[-1].ended[1] for steps in episodes):
        return Finding("episodes", "ok", played)
    if all(any(steps[-1].ended) for steps in episodes):
        return Finding("episodes", "note", f"{played}; no time limit is known, so a policy may never end one")
    return Finding(
        "episodes",
        "note",
        f"{played}; no time limit is known, and not every episode ended: pass max_episode_steps to register",
    )


def _compare(
    name: str, first: Sequence[Sequence[_Step]], second: Sequence[Sequence[_Step]], ok: str, condition: str
) -> Finding:
    for episode, (steps, others) in enumerate(zip(first, second, strict=True)):
        for number, (step, other) in enumerate(zip(steps, others, strict=False)):
            if what := step.differs(other):
                return Finding(name, "fail", f"the {what} after step {number} of episode {episode} differs {condition}")
    return Finding(name, "ok", ok)


def _check_vector(config: EnvConfig) -> Finding:
    """Check the vector version with two environments: its autoreset mode, its results, and how it is resumed."""
    resolved = replace(config, engine="gymnasium-vector")
    try:
        describe_env(resolved)
        check_autoreset(resolved)
        restarts = restarts_episodes(resolved)
    except (ValueError, EnvironmentFailed) as error:
        return Finding("vector", "fail", str(error))
    finding = _check_resume(
        "vector", replace(resolved, count=2), "a batch that is restored with set_state continues with the same bits"
    )
    if finding.level == "ok" and restarts:
        return Finding("vector", "note", "without get_state and set_state, episodes are cut at every checkpoint")
    return finding


def _check_resume(name: str, config: EnvConfig, ok: str) -> Finding:
    """Restore an engine in the middle of episodes, or let two of them begin new episodes, and compare what follows."""
    engine, restored = (make_engine(config, 0, 0, 1) for _ in range(2))
    try:
        observations, generator = engine.reset(), stream(0, "check-actions", _EPISODES)
        for number in range(2 * _RESTORED_AFTER):
            if number == _RESTORED_AFTER and engine.restarts_episodes:
                observations = engine.restart_episodes(number)
                restored.restart_episodes(number)
            elif number == _RESTORED_AFTER:
                restored.restore({name: np.array(value) for name, value in engine.state().items()})
            masks = (mask_of(engine.spaces, row) for row in observations)
            actions = np.concatenate([random_actions(engine.spaces, generator, mask) for mask in masks])
            result = engine.step(actions)
            if number >= _RESTORED_AFTER:
                pairs = zip(result, restored.step(actions), strict=True)
                if any(array.tobytes() != other.tobytes() for array, other in pairs):
                    after = number - _RESTORED_AFTER + 1
                    return Finding(name, "fail", f"a restored environment differs after {after} steps")
            observations = result[0]
    except Exception as error:
        return Finding(name, "fail", one_line(error))
    finally:
        engine.close()
        restored.close()
    return Finding(name, "ok", ok)
