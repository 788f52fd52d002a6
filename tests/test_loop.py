"""The training loop frees the memory of each iteration."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.test_api import Guess

import lockstep

SMALL: dict[str, Any] = {"total_steps": 2048, "rollout.steps": 64, "ppo.minibatches": 4, "run.progress": "off"}
LSTM = {"policy.core": "lstm", "rollout.sequence_length": 16}


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"runtime.compile": "off"}),
        ("CartPole-v1", {"plan.shards": 2, "plan.share_data": True}),
        ("CartPole-v1", {"plan.shards": 2, "plan.exact": False}),
        ("CartPole-v1", {**LSTM, "rollout.recompute_states": True}),
        ("CartPole-v1", {**LSTM, "ppo.recompute_advantages": False}),
        ("Pendulum-v1", {"curiosity.kind": "rnd", "curiosity.combine": "two-heads", "curiosity.gamma": 0.99}),
        ("Pendulum-v1", {"curiosity.kind": "ngu"}),
        ("Pendulum-v1", {"curiosity.kind": "icm", "ppo.kl_stop": 0.001}),
        (Guess, {}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_tensors_of_an_iteration_do_not_wait_for_the_garbage_collector(
    tmp_path: Path, env: Any, settings: dict[str, Any]
) -> None:
    """Cycles of references are collected rarely, because the collector counts objects, not their bytes: memory would grow."""
    cyclic: list[object] = []

    def on_iteration(iteration: lockstep.Iteration) -> None:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        if iteration.number > 1:  # before, it may be the garbage of other code
            cyclic.extend(type(value) for value in gc.garbage if isinstance(value, (torch.Tensor, np.ndarray)))
        gc.garbage.clear()

    gc.disable()
    try:
        lockstep.train(env=env, out=str(tmp_path), on_iteration=on_iteration, **SMALL, **settings)
    finally:
        gc.enable()
    assert cyclic == []
