"""What training gave, ready to act in environments: for `eval`, `play` and programs."""

from collections.abc import Callable
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import ArrayLike, NDArray

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.config import Config
from lockstep.envs.actions import action_converter, each_action
from lockstep.envs.catalog import make_one
from lockstep.envs.layout import ContractViolation, ObservationLayout
from lockstep.envs.spaces import MASK, leaves, place_of
from lockstep.experiment.execute import load_agent, pick_checkpoint
from lockstep.randomness import seed_of, stream
from lockstep.run.folder import RunFolder

__all__ = ["TrainedPolicy", "evaluation_seeds", "load_policy"]

Act = Callable[[Any, dict[str, Any]], Any]


class TrainedPolicy:
    """A policy that acts on what environments give, as they give it: arrays, numbers, images, dicts and tuples of them.

    It remembers what it has seen since `begin`, where it has a memory. `predict` does the same in the form of Stable-Baselines3: for one
    environment or many, with the memory in the caller's hands.
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
        """`act` takes the most probable actions, or draws them with `generator` if `sample` says so. The spaces are one environment's."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.iteration = iteration
        """Of the checkpoint that it is from."""
        self._agent = agent
        self._generator = generator
        self._layout = ObservationLayout(observation_space, agent.spaces)
        self._convert = action_converter(action_space)
        self._pilot = PolicyRunner(agent, generator=generator if sample else None)

    @property
    def digest(self) -> str:
        """Of weights and moments, as `lockstep digest` prints it."""
        return self._agent.digest()

    def begin(self) -> Act:
        """Forgets what was seen: an episode begins. Gives back `act`."""
        self._pilot.begin()
        return self.act

    def act(self, observation: Any, info: dict[str, Any] | None = None) -> Any:
        """The action for an observation of one environment, as that environment's `step` takes it.

        Args:
            observation: As `reset` and `step` gave it, in the shapes of `observation_space`.
            info: What came with it; only read for an environment whose `info["action_mask"]` says which actions are allowed.

        Raises ValueError, in one line, for an observation that is none of the space's.
        """
        rows, pixels, alone = self._read(observation, info or {})
        if not alone:
            raise ValueError(
                "observation has one dimension too many: act takes those of one environment, predict of many"
            )
        return each_action(self._convert(self._pilot.act(rows, pixels)))[0]

    def value(self, observation: Any, info: dict[str, Any] | None = None) -> float:
        """What the critic expects from here on, after what `act` remembers: the discounted return, of scaled rewards with
        `ppo.normalize_rewards`. Call it before `act`.

        Arguments and errors as `act`.
        """
        rows, pixels, alone = self._read(observation, info or {})
        if not alone:
            raise ValueError("observation has one dimension too many: value takes those of one environment")
        return float(self._pilot.values(rows, pixels)[0])

    def predict(
        self,
        observation: Any,
        state: NDArray[Any] | None = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = True,
        action_masks: ArrayLike | None = None,
    ) -> tuple[Any, NDArray[Any] | None]:
        """Actions for observations, and what to pass as `state` next time. It leaves alone what `act` remembers.

        Args:
            observation: Of one environment, or of `N`: every part then `[N, …]`.
            state: What the last call gave, `[N, S]`, or None to begin; always None without memory.
            episode_start: `[N]`, true where an episode begins: its state is forgotten.
            deterministic: Take the most probable actions; else they are drawn as in training.
            action_masks: `[N, options]` or `[options]`, true for what is allowed, if that does not come with the observations.

        Returns:
            Actions `[N, …]`, or one without that dimension for one observation; and the state, None without memory.

        Raises ValueError, in one line, for observations that are none of the space's.
        """
        masks = None if action_masks is None else np.asarray(action_masks)
        rows, pixels, alone = self._read(observation, {} if masks is None else {MASK: masks})
        pilot = PolicyRunner(self._agent, len(rows), None if deterministic else self._generator)
        if state is not None and self._agent.state_size:
            pilot.state = torch.from_numpy(np.array(state)).to(pilot.state).reshape(pilot.state.shape)
        if episode_start is not None:
            pilot.state[torch.from_numpy(np.array(episode_start, dtype=np.bool_).reshape(-1))] = 0
        taken = self._convert(pilot.act(rows, pixels))
        remembered = pilot.state.cpu().numpy() if self._agent.state_size else None
        return _first(taken) if alone else taken, remembered

    def _read(self, observation: Any, info: dict[str, Any]) -> tuple[NDArray[Any], NDArray[np.uint8] | None, bool]:
        """Rows `[N, O]`, pixels `[N, P]`, and whether it was a single observation."""
        layout, images, count = self._layout, bool(self._agent.spaces.images), self._count(observation)
        try:
            if count is None:
                row = np.asarray(layout.row(observation, info))
                return row[None], layout.pixels(observation)[None] if images else None, True
            if layout.plain:
                observation = np.asarray(observation, dtype=layout.dtype)
            return layout.rows(observation, info), layout.batch_pixels(observation) if images else None, False
        except ContractViolation as error:
            raise ValueError(f"the environment {error}") from None

    def _count(self, observation: Any) -> int | None:
        """The number of environments, None for a single observation. Raises ValueError for shapes that are not the space's."""
        found = set()
        for path, leaf in leaves(self.observation_space):
            try:
                shape = np.shape(reduce(getitem, path, observation))
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"observation{place_of(path)} is missing: {leaf} was expected there") from None
            lead, own = shape[: len(shape) - len(leaf.shape)], shape[len(shape) - len(leaf.shape) :]
            if own != leaf.shape or len(lead) > 1:
                raise ValueError(
                    f"observation{place_of(path)} has the shape {shape}: {leaf} was expected, or many of them"
                )
            found.add(lead)
        if len(found) > 1:
            raise ValueError(f"observation has parts of {len(found)} different counts of environments")
        return next(iter(next(iter(found))), None)


def _first(taken: Any) -> Any:
    """The first environment's action."""
    if isinstance(taken, dict):
        return {key: _first(part) for key, part in taken.items()}
    return tuple(map(_first, taken)) if isinstance(taken, tuple) else taken[0]


def evaluation_seeds(seed: int, count: int) -> list[int]:
    """Seeds of episodes; their stream is another than that of training's episodes."""
    return [seed_of(seed, "evaluation", episode) for episode in range(count)]


def load_policy(
    folder: RunFolder, iteration: int | None = None, sample: bool = False, seed: int | None = None
) -> tuple[Config, TrainedPolicy]:
    """The policy of a run's checkpoint, and the run's config.

    Args:
        folder: The run's. What its environment needs is imported, or given, already.
        iteration: The checkpoint; None: the newest.
        sample: Whether `act` draws actions as in training; else it takes the most probable ones.
        seed: Of drawing; None: the run's.

    Raises ValueError in one line when there is no such checkpoint, or it does not fit.
    """
    iteration = pick_checkpoint(folder, iteration)
    config, agent = load_agent(folder, iteration)
    env = make_one(config.env)
    env.close()
    generator = stream(config.run.seed if seed is None else seed, "evaluation-actions")
    return config, TrainedPolicy(agent, env.observation_space, env.action_space, generator, sample, iteration)
