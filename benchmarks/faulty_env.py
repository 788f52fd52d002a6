"""The environment of benchmarks/faults.py: CartPole that fails once, in a given step."""

import ctypes
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["FAULTS", "Faulty"]


def _raise() -> None:
    raise RuntimeError("this environment fails")


def _exhaust_memory() -> None:
    limit = 2 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    held = [bytearray(1 << 28) for _ in range(16)]
    raise AssertionError(f"{len(held)} blocks were allocated in spite of the limit")


_held: list[bytearray] = []


def _hold_memory() -> None:
    for size in (1 << 28, 1 << 24, 1 << 20, 1 << 16):
        with suppress(MemoryError):
            while True:
                _held.append(bytearray(size))


FAULTS: dict[str, Callable[[], object]] = {
    "exception": _raise,
    "out of memory": _exhaust_memory,
    "os._exit": lambda: os._exit(75),
    "segfault": lambda: ctypes.string_at(0),
    "memory held": _hold_memory,
    "hang": lambda: time.sleep(1e6),
}
"""What an environment does; `NaN` and `wrong shape` are faults of its observation."""


class Faulty(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that fails in its step number `at`, if the file `mark` does not exist yet. The failure creates the file."""

    def __init__(self, kind: str = "none", at: int = 0, mark: str = "", render_mode: str | None = None) -> None:
        """`kind` is one of FAULTS, `NaN`, `wrong shape`, or `none`."""
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        self._kind, self._left, self._mark = kind, at, Path(mark)

    def step(self, action: Any) -> Any:
        """Step the environment, or fail."""
        observation, *others = self.env.step(action)
        self._left -= 1
        if self._left == 0 and self._kind != "none":
            try:
                self._mark.touch(exist_ok=False)
            except FileExistsError:
                return observation, *others
            if self._kind in FAULTS:
                FAULTS[self._kind]()
            else:
                observation = np.full(4, np.nan, np.float32) if self._kind == "NaN" else np.zeros((2, 2), np.float32)
        return observation, *others


gym.register("Faulty-v0", Faulty)
