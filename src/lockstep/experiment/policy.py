"""Trained policies for use in environments: for `eval`, `play` and programs."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import ArrayLike, NDArray

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.config import Config
from lockstep.envs.actions import action_converter, each_action
from lockstep.envs.catalog import make_one
from lockstep.envs.layout import ContractViolation, ObservationLayout
from lockstep.envs.spaces import MASK, batch_entry, leaves, place_of
from lockstep.experiment.execute import load_agent, pick_checkpoint
from lockstep.randomness import seed_of, stream
from lockstep.run.evaluations import Choice
from lockstep.run.folder import RunFolder

__all__ = ["ActTogether", "TrainedPolicy", "evaluation_seeds", "load_policy"]

Act = Callable[[Any, dict[str, Any]], Any]
ActTogether = Callable[[Sequence[Any], Sequence[dict[str, Any]]], Sequence[Any]]
"""Function from one observation and one info of each environment to one action for each."""


class TrainedPolicy:
    """A policy that acts on observations as environments return them: arrays, numbers, images, dicts and tuples of them.

    A policy with memory keeps its state since `begin`. `predict` has the interface of Stable-Baselines3: for one environment or many, with
    the state passed by the caller.
    """

    def __init__(
        self,
        agent: Agent,
        observation_space: Space[Any],
        action_space: Space[Any],
        generator: np.random.Generator,
        sample: bool = False,
        iteration: int = 0,
    ) -> None:
        """Wrap an agent, with the spaces of a single environment. `sample`: draw actions by `generator`, else the most probable ones."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.iteration = iteration
        """Iteration of the checkpoint."""
        self._agent = agent
        self._generator, self._sample = generator, sample
        self._layout = ObservationLayout(observation_space, agent.spaces)
        self._convert = action_converter(action_space)
        self._runner = PolicyRunner(agent, generator=generator if sample else None)

    @property
    def digest(self) -> str:
        """Digest of weights and running statistics, as `lockstep digest` prints it."""
        return self._agent.digest()

    def begin(self) -> Act:
        """Reset the memory at the start of an episode. Returns `act`."""
        self._runner.begin()
        return self.act

    def begin_together(self, count: int) -> ActTogether:
        """Begin one episode in each of `count` environments. Return a function from their observations and infos to their actions.

        It computes one forward pass for all of them, which takes hardly longer than for one. The memory of `act` does not change.
        """
        runner = PolicyRunner(self._agent, count, self._generator if self._sample else None)

        def act(observations: Sequence[Any], infos: Sequence[dict[str, Any]]) -> Sequence[Any]:
            rows, pixels, _ = zip(*map(self._read, observations, infos), strict=True)
            images = np.concatenate(pixels) if self._agent.spaces.images else None
            actions: Sequence[Any] = each_action(self._convert(runner.act(np.concatenate(rows), images)))
            return actions

        return act

    def act(self, observation: Any, info: dict[str, Any] | None = None) -> Any:
        """Return the action for an observation of one environment, in the form that its `step` takes.

        Args:
            observation: As returned by `reset` and `step`, in the shapes of `observation_space`.
            info: The info returned with it; only used for environments with `info["action_mask"]`.

        Raises ValueError in one line if the observation does not fit the space.
        """
        rows, pixels, single = self._read(observation, info or {})
        if not single:
            raise ValueError(
                "observation has one dimension too many: act takes those of one environment, predict of many"
            )
        return each_action(self._convert(self._runner.act(rows, pixels)))[0]

    def value(self, observation: Any, info: dict[str, Any] | None = None) -> float:
        """Return the critic's estimate of the discounted return (of scaled rewards, with `ppo.normalize_rewards`).

        Arguments and errors are those of `act`. With memory, call it before `act`.
        """
        rows, pixels, single = self._read(observation, info or {})
        if not single:
            raise ValueError("observation has one dimension too many: value takes those of one environment")
        return float(self._runner.values(rows, pixels)[0])

    def predict(
        self,
        observation: Any,
        state: NDArray[Any] | None = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = True,
        action_masks: ArrayLike | None = None,
    ) -> tuple[Any, NDArray[Any] | None]:
        """Return actions for observations, and the state for the next call. The state of `act` does not change.

        Args:
            observation: That of one environment, or of `N` environments, with a leading dimension N in every part.
            state: The state `[N, S]` from the last call, or None at the start; always None without memory.
            episode_start: `[N]` bool, true where an episode starts, which resets its state.
            deterministic: Select the most probable actions; otherwise they are sampled as in training.
            action_masks: `[N, options]`, or `[options]` for all environments, true for allowed actions, if the observations do not contain the mask.

        Returns:
            Actions `[N, …]`, without the first dimension for a single observation; and the state, None without memory.

        Raises ValueError in one line if observations do not fit the space, or the other arrays the observations.
        """
        info = {} if action_masks is None else {MASK: self._masks(action_masks, self._count(observation))}
        rows, pixels, single = self._read(observation, info)
        runner = PolicyRunner(self._agent, len(rows), None if deterministic else self._generator)
        if state is not None and self._agent.state_size:
            states = torch.from_numpy(np.array(state)).to(runner.state)
            _check_size("state", states.shape, runner.state.shape)
            runner.state = states.reshape(runner.state.shape)
        if episode_start is not None:
            starts = torch.from_numpy(np.array(episode_start, dtype=np.bool_))
            _check_size("episode_start", starts.shape, (len(rows),))
            runner.state[starts.reshape(-1)] = 0
        actions = self._convert(runner.act(rows, pixels))
        next_state = runner.state.cpu().numpy() if self._agent.state_size else None
        return batch_entry(actions, 0) if single else actions, next_state

    def _read(self, observation: Any, info: dict[str, Any]) -> tuple[NDArray[Any], NDArray[np.uint8] | None, bool]:
        """Return rows `[N, O]`, pixels `[N, P]`, and True for a single observation."""
        layout, images, count = self._layout, bool(self._agent.spaces.images), self._count(observation)
        if not isinstance(self.observation_space, (spaces.Dict, spaces.Tuple)):
            observation = np.asarray(observation)
        try:
            if count is None:
                row = np.asarray(layout.row(observation, info))
                return row[None], layout.pixels(observation)[None] if images else None, True
            if layout.plain:
                observation = np.asarray(observation, dtype=layout.dtype)
            return layout.rows(observation, info), layout.batch_pixels(observation) if images else None, False
        except ContractViolation as error:
            raise ValueError(f"the environment {error}") from None

    def _masks(self, action_masks: ArrayLike, count: int | None) -> NDArray[Any]:
        """Return `action_masks` as `[N, options]`, or `[options]` for a single observation."""
        masks, size = np.asarray(action_masks), self._agent.spaces.mask_size
        if not size:
            raise ValueError("action_masks is given, but the policy was trained without action masks; leave it out")
        if masks.size == size:
            return masks.reshape(size) if count is None else np.broadcast_to(masks.reshape(size), (count, size))
        _check_size("action_masks", masks.shape, (size,) if count is None else (count, size))
        return masks.reshape(-1, size)

    def _count(self, observation: Any) -> int | None:
        """Return the number of environments, None for a single observation. Raises ValueError for shapes that do not fit the space."""
        counts = set()
        for path, leaf in leaves(self.observation_space):
            try:
                values = np.asarray(reduce(getitem, path, observation))
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"observation{place_of(path)} is missing: {leaf} was expected there") from None
            shape = values.shape
            leading, leaf_shape = shape[: len(shape) - len(leaf.shape)], shape[len(shape) - len(leaf.shape) :]
            if leaf_shape != leaf.shape or len(leading) > 1:
                raise ValueError(
                    f"observation{place_of(path)} has the shape {shape}: {leaf} was expected, or many of them"
                )
            if not _is_float(leaf) and values.dtype.kind not in "iub":
                raise ValueError(f"observation{place_of(path)} has numbers of type {values.dtype}: {leaf} was expected")
            counts.add(leading)
        if len(counts) > 1:
            raise ValueError(f"observation has parts of {len(counts)} different counts of environments")
        return next(iter(next(iter(counts))), None)


def _is_float(space: Space[Any]) -> bool:
    """Return True for spaces of real numbers."""
    return isinstance(space, spaces.Box) and space.dtype.kind == "f"


def _check_size(name: str, shape: Sequence[int], expected: Sequence[int]) -> None:
    """Raise ValueError if an array of `shape` has not the number of entries of one of the shape `expected`."""
    if math.prod(shape) != math.prod(expected):
        raise ValueError(f"{name} has the shape {tuple(shape)}: {tuple(expected)} was expected")


def evaluation_seeds(seed: int, count: int) -> list[int]:
    """Return seeds for evaluation episodes, which differ from those of training."""
    return [seed_of(seed, "evaluation", episode) for episode in range(count)]


def load_policy(
    folder: RunFolder, iteration: Choice = None, sample: bool = False, seed: int | None = None
) -> tuple[Config, TrainedPolicy]:
    """Load the policy of the chosen checkpoint, and the config of its run. The module of its environment must be imported already.

    With `sample`, `act` samples actions as in training, with `seed`, None: that of the run; otherwise it selects the most probable ones.
    Raises ValueError if there is no such checkpoint, or it does not fit.
    """
    iteration = pick_checkpoint(folder, iteration)
    config, agent = load_agent(folder, iteration)
    if config.env.engine == "pettingzoo" and config.policy.core != "none":
        raise ValueError(
            f"policy.core is {config.policy.core!r} in this run: agents of {config.env.id} take turns, which a policy with memory can't do"
        )
    env = make_one(config.env)
    env.close()
    generator = stream(config.run.seed if seed is None else seed, "evaluation-actions")
    return config, TrainedPolicy(agent, env.observation_space, env.action_space, generator, sample, iteration)
