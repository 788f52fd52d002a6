"""Atari games, `ALE/…-v5`, with the same preprocessing in every engine.

An observation is the last 4 screens, `(4, 84, 84)` uint8, in gray; each pixel is the brighter one of the last two
frames of a step. A step is 4 frames. In every frame, the previous action is repeated with probability 0.25. An episode
begins with up to 30 frames without an action and is a whole game (Machado et al. 2018, arXiv:1709.06009). Rewards are
those of the game, not clipped. At the start of an episode, the stack holds black screens before the first screen; in
envpool it holds copies of that screen.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

__all__ = ["GAMES", "Game", "is_game"]

GAMES = "ALE/"
"""Prefix of the ids of Atari games."""
_STACK = 4


def is_game(env_id: str) -> bool:
    """Return True for the id of an Atari game, even if there is no such game."""
    return env_id.startswith(GAMES)


@dataclass(frozen=True)
class Game:
    """An Atari game and its settings. The fields after the first are the keys that `env.options` accepts."""

    env_id: str
    repeat_action_probability: float = 0.25
    """Probability of repeating the action of the previous frame."""
    full_action_space: bool = False
    """True: all 18 actions. False: only those that have an effect in the game."""
    frameskip: int = 4
    noop_max: int = 30
    """Maximum number of frames without an action at the start. At least 1: with 0, envpool ends the process."""
    max_num_frames_per_episode: int = 108_000
    """Frames after which an episode is truncated."""
    episodic_life: bool = False
    """True: an episode ends when a life is lost, and the next episode continues the game. Only in envpool."""

    @classmethod
    def from_options(cls, env_id: str, options: Mapping[str, bool | int | float | str]) -> "Game":
        """Create the game from `env.options`. Raises ValueError for options that are unknown, of another type or out of range."""
        types = {field.name: type(field.default) for field in dataclasses.fields(cls)[1:]}
        for name, value in options.items():
            if name not in types:
                raise ValueError(f"env.options has {name!r}, which {env_id} does not take; it takes {', '.join(types)}")
            expected = types[name]
            type_fits = type(value) is expected or (expected is float and type(value) is int)
            if (
                not type_fits
                or (expected is float and not 0 <= value <= 1)  # type: ignore[operator]
                or (expected is int and value < 1)  # type: ignore[operator]
            ):
                descriptions = {bool: "true or false", float: "a number from 0 to 1", int: "a whole number, at least 1"}
                raise ValueError(f"env.options has {name} = {value!r}: it must be {descriptions[expected]}")
        return cls(env_id, **options)  # type: ignore[arg-type]

    @property
    def steps_per_episode(self) -> int:
        """Maximum number of steps of an episode."""
        return max(1, self.max_num_frames_per_episode // self.frameskip)

    def make_single(self, render_mode: str | None) -> gym.Env[Any, Any]:
        """Create a single Gymnasium environment, for evaluation: its episodes are always whole games."""
        import ale_py
        import cv2
        from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

        cv2.setNumThreads(1)  # an image of 84 by 84 pixels is too small to gain from threads
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # otherwise it prints a banner for every environment
        env = gym.make(
            self.env_id,
            disable_env_checker=True,
            render_mode=render_mode,
            frameskip=1,
            repeat_action_probability=self.repeat_action_probability,
            full_action_space=self.full_action_space,
            max_num_frames_per_episode=self.max_num_frames_per_episode,
        )
        preprocessed = AtariPreprocessing(env, noop_max=self.noop_max, frame_skip=self.frameskip)
        return FrameStackObservation(preprocessed, _STACK, padding_type="zero")

    def make_vector(self, count: int, threads: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        """Create ale-py's vector environment: `count` games in C++, stepped by at most `threads` threads."""
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        spec = gym.spec(self.env_id)
        envs: gym.vector.VectorEnv[Any, Any, Any] = AtariVectorEnv(
            spec.kwargs["game"],
            count,
            num_threads=min(threads, count),
            repeat_action_probability=self.repeat_action_probability,
            full_action_space=self.full_action_space,
            frameskip=self.frameskip,
            noop_max=self.noop_max,
            max_num_frames_per_episode=self.max_num_frames_per_episode,
            stack_num=_STACK,
            reward_clipping=False,
            use_fire_reset=False,
            autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP,
        )
        return envs

    def envpool_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `envpool.make`."""
        return {
            "repeat_action_probability": self.repeat_action_probability,
            "full_action_space": self.full_action_space,
            "frame_skip": self.frameskip,
            "noop_max": self.noop_max,
            "max_episode_steps": self.steps_per_episode,
            "episodic_life": self.episodic_life,
            "stack_num": _STACK,
            "reward_clip": False,
            "use_fire_reset": False,
        }
