"""Atari games, `ALE/…-v5`: one preprocessing, however they are stepped.

An observation is the last 4 screens, `(4, 84, 84)` uint8: grey, each the brighter of the last two frames of a step at every place. A step
takes 4 frames. An action is repeated with probability 0.25, frame by frame; an episode begins with up to 30 frames in which nothing is
done, and is a whole game (Machado et al. 2018, arXiv:1709.06009). Rewards are the game's own. Before an episode's first screen, the
stack is black; in envpool it is that screen.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

__all__ = ["GAMES", "Game", "is_game"]

GAMES = "ALE/"
"""How their ids begin."""
_STACK = 4


def is_game(env_id: str) -> bool:
    """Whether it is an id of this kind, of a game that there is or not."""
    return env_id.startswith(GAMES)


@dataclass(frozen=True)
class Game:
    """A game and how it is played: the fields after the first are what `env.options` takes."""

    env_id: str
    repeat_action_probability: float = 0.25
    """Of the last frame's action."""
    full_action_space: bool = False
    """All 18 actions, or those that the game knows."""
    frameskip: int = 4
    """Frames of a step."""
    noop_max: int = 30
    """Most frames at the start in which nothing is done. At least 1: with 0, envpool ends the process."""
    max_num_frames_per_episode: int = 108_000
    """After which an episode is truncated."""
    episodic_life: bool = False
    """An episode ends with a life; the next one goes on with the next life. Only in envpool."""

    @classmethod
    def of(cls, env_id: str, options: Mapping[str, bool | int | float | str]) -> "Game":
        """Raises ValueError in one line for options that there are not and values that can't be."""
        kinds = {field.name: type(field.default) for field in dataclasses.fields(cls)[1:]}
        for name, value in options.items():
            if name not in kinds:
                raise ValueError(f"env.options has {name!r}, which {env_id} does not take; it takes {', '.join(kinds)}")
            kind = kinds[name]
            fits = type(value) is kind or (kind is float and type(value) is int)
            if not fits or (kind is float and not 0 <= value <= 1) or (kind is int and value < 1):  # type: ignore[operator]
                words = {bool: "true or false", float: "a number from 0 to 1", int: "a whole number, at least 1"}
                raise ValueError(f"env.options has {name} = {value!r}: it must be {words[kind]}")
        return cls(env_id, **options)  # type: ignore[arg-type]

    @property
    def steps_per_episode(self) -> int:
        """The most steps of an episode."""
        return max(1, self.max_num_frames_per_episode // self.frameskip)

    def one(self, render_mode: str | None) -> gym.Env[Any, Any]:
        """A single environment of Gymnasium. Its episodes are whole games, by which agents are measured."""
        import ale_py
        import cv2
        from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

        cv2.setNumThreads(1)  # an image of 84 by 84 is no work to share
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # it greets every environment
        game = gym.make(
            self.env_id,
            disable_env_checker=True,
            render_mode=render_mode,
            frameskip=1,
            repeat_action_probability=self.repeat_action_probability,
            full_action_space=self.full_action_space,
            max_num_frames_per_episode=self.max_num_frames_per_episode,
        )
        seen = AtariPreprocessing(game, noop_max=self.noop_max, frame_skip=self.frameskip)
        return FrameStackObservation(seen, _STACK, padding_type="zero")

    def batch(self, count: int, threads: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        """ale-py's own: `count` games in C++."""
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        spec = gym.spec(self.env_id)
        batch: gym.vector.VectorEnv[Any, Any, Any] = AtariVectorEnv(
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
        return batch

    @property
    def name_in_pool(self) -> str:
        """The id of envpool."""
        return self.env_id.removeprefix(GAMES)

    def in_pool(self) -> dict[str, Any]:
        """The arguments of envpool."""
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
