"""Differences between the outputs of an exported policy and those of its agent."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as kinds
from tests.export.test_kinds import PLAIN, Kind, make_agent

from lockstep.export.agreement import TOLERANCE, difference
from lockstep.export.program import Program

HALF = Kind(PLAIN, kinds.Box(-1, 1, (16,), np.float16), {"squash": True})


@pytest.mark.parametrize(("steps", "agrees"), [(0, True), (1, True), (12, False)])
def test_float16_actions_may_differ_by_their_rounding(steps: int, agrees: bool) -> None:
    agent, _ = make_agent(HALF)
    program = Program(agent, HALF.seen, HALF.acted)

    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = program({name: torch.from_numpy(array) for name, array in inputs.items()})
        arrays = {name: array.numpy() for name, array in outputs.items()}
        for _ in range(steps):
            arrays["action"] = np.nextafter(arrays["action"], np.float16(0))
        return arrays

    distance, _ = difference(run, agent, HALF.seen, HALF.acted)
    assert (distance <= TOLERANCE) == agrees
