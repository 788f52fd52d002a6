"""Engine `gymnasium-vector`: the vector versions that environments of Gymnasium or of users have."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from lockstep.envs.autoreset import NextStepBatch, space_of_one
from lockstep.envs.batches import RestartingEngine
from lockstep.envs.engine import EnvironmentFailed, State, Step
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.interface import failure_text
from lockstep.envs.layout import ContractViolation
from lockstep.envs.snapshots import find_snapshots, is_cartpole
from lockstep.envs.spaces import MASK
from lockstep.randomness import EnvironmentSeeds

__all__ = ["VectorEngine"]

Result = TypeVar("Result")


class _Unchecked(MultiDiscrete):
    """Action space that accepts every action without a check, which takes a fifth of a step of CartPole. Actions come from a policy for this space."""

    def contains(self, x: Any) -> bool:
        """Return True."""
        return True


class VectorEngine(RestartingEngine):
    """Engine around a vector environment: Gymnasium's `vector_entry_point`, or that of a function of `num_envs`.

    It can restore CartPole, and environments with the methods `get_state` and `set_state`. Others start new episodes at checkpoints.
    """

    def __init__(self, factory: EnvFactory, seeds: EnvironmentSeeds, shard: int, count: int) -> None:
        """Create the `count` environments of a shard.

        Raises ValueError if there is no vector version, or if it does not have `count` environments, an autoreset mode or spaces.
        """
        self._factory = factory
        self._seeds = seeds
        self._shard = shard
        self._count = count
        self._batch = self._make()
        env = self._batch.env
        try:
            observation_space = factory.select_columns(space_of_one(env, "single_observation_space", factory.env_id))
            action_space = space_of_one(env, "single_action_space", factory.env_id)
            masks = self._call(lambda: self._batch.reset(0))[1].get(MASK)
            info = None if masks is None else {MASK: masks[0]}
            super().__init__(env, observation_space, action_space, factory, shard * count, count, info)
        except BaseException:
            env.close()
            raise
        self._batch.check = self._reader.check
        # every call into a checked batch takes 10 µs, a quarter of a step of CartPole
        self._trusted = is_cartpole(env)
        if self._trusted:
            assert isinstance(env.action_space, MultiDiscrete)
            env.action_space = _Unchecked(env.action_space.nvec)
        self._snapshots = find_snapshots(env)
        self.restarts_episodes = self._snapshots is None
        self._observations: NDArray[Any]

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """Mode that the vector environment declares."""
        return self._batch.mode

    def _make(self) -> NextStepBatch:
        env = self._factory.make_vector(self._count)
        try:
            return NextStepBatch(env, self._factory.env_id, self._count)
        except BaseException:
            env.close()
            raise

    def reset_by_mask(self, mask: NDArray[np.bool_]) -> NDArray[Any]:
        """Begin new episodes where `mask`, `[B]`, is True, without a seed, in a mode other than next-step. Return the observations."""
        options = {"reset_mask": mask}
        return self._reader.read_reset(*self._call(lambda: self._batch.env.reset(options=options)))

    def _begin(self, iteration: int) -> NDArray[Any]:
        self._observations = self._reader.read_reset(
            *self._call(lambda: self._batch.reset(self._seeds(self._shard, iteration)))
        )
        return self._observations

    def reset(self) -> NDArray[Any]:
        return self._begin(0)

    def step(self, actions: NDArray[Any]) -> Step:
        if self._trusted:
            return super().step(actions)
        step = self._reader.read_step(*self._call(lambda: self._batch.step(self._convert(actions))))
        self._observations = step[0]
        return step

    def _call(self, function: Callable[[], Result]) -> Result:
        """Call a function of the vector environment. Raises EnvironmentFailed, naming the environments, for all its errors."""
        try:
            return function()
        except (Exception, SystemExit) as error:
            first, last = self._shard * self._count, (self._shard + 1) * self._count - 1
            name = f"environment {first}" if first == last else f"environments {first} to {last}"
            # a violation that this package detected itself has no line of the environment's code to show
            shown = error.__cause__ if isinstance(error, ContractViolation) else error
            raise EnvironmentFailed(
                f"{name} ({self._factory.env_id}): the vector version {failure_text(type(error), error)}"
            ) from shown

    def state(self) -> State:
        snapshots = self._snapshots
        if snapshots is None:
            return {}
        if self._trusted:
            return self._call(snapshots.save)
        rows = {"observations": self._observations.copy(), "pixels": self.pixels.copy(), "waiting": self._batch.waiting}
        return rows | {f"env.{name}": value for name, value in self._call(snapshots.save).items()}

    def restore(self, state: State) -> NDArray[Any]:
        snapshots = self._snapshots
        assert snapshots is not None, "this engine is restarted, not restored"
        self._begin(0)
        saved = (
            state
            if self._trusted
            else {name.removeprefix("env."): value for name, value in state.items() if name.startswith("env.")}
        )
        rows = self._observations if self._trusted else state.get("observations")
        if rows is None or rows.shape != self._observations.shape or not self._call(lambda: snapshots.fit(saved)):
            raise ValueError(
                f"env.id is {self._factory.env_id!r}: the checkpoint does not hold the state of {self._count} environments of this engine"
            )
        observations = self._call(lambda: snapshots.load(saved))
        if observations is not None:
            return self._reader.select_columns(observations)  # type: ignore[no-any-return]
        self._reader.pixels, self._batch.waiting = state["pixels"].copy(), state["waiting"].copy()
        self._observations = rows.copy()
        return self._observations

    def restart_episodes(self, iteration: int) -> NDArray[Any]:
        assert self.restarts_episodes, "this engine is restored, not restarted"
        self._envs.close()
        self._batch = self._make()
        self._batch.check = self._reader.check
        self._envs = self._batch.env
        return self._begin(iteration)

    def close(self) -> None:
        self._envs.close()
