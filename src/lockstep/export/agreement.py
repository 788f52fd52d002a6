"""Comparison of an exported policy with its agent."""

from collections.abc import Callable
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.envs.actions import action_converter
from lockstep.envs.spaces import leaves
from lockstep.export.formats import Arrays
from lockstep.export.sampling import ObservationSampler
from lockstep.export.tensor_spec import ACTION, NEXT_STATE, STATE, name_of
from lockstep.randomness import stream

__all__ = ["TOLERANCE", "difference"]

TOLERANCE = 1e-5
"""Maximum difference: absolute for numbers up to 1, relative above. The rounding of a coarse type, such as float16, is added."""
_ROUNDING = 2
"""Maximum difference by rounding, in epsilons of the type, relative: between 2 and 4 times the distance to the next number."""
_STEPS = (32, 32, 32, 1, 1)
"""Number of environments in each step; the state is kept between steps with equal numbers."""


def difference(
    run: Callable[[Arrays], Arrays], agent: Agent, observation_space: Space[Any], action_space: Space[Any]
) -> tuple[float, str]:
    """Return the largest difference between the outputs of `run` and of the agent, relative above 1, and the name of that output.

    Differences by the rounding of a coarse type, such as float16, do not count. The difference is infinite for a missing array, another
    shape, a non-finite value, and for another choice than the agent's, unless the options are equally probable up to rounding.
    """
    sampler = ObservationSampler(agent, observation_space, stream(0, "export"))
    worst, agent_state, file_state = (0.0, ""), torch.zeros(0, agent.state_size), np.zeros((0, 0))
    for count in _STEPS:
        if len(agent_state) != count:
            agent_state = torch.zeros(count, agent.state_size, dtype=agent.dtype)
            file_state = agent_state.numpy().copy()
        inputs = sampler.inputs(count)
        expected, sure = _expected(agent, action_space, *sampler.encoded(inputs), agent_state)
        outputs = run(inputs | ({STATE: file_state} if agent.state_size else {}))
        for name, array in expected.items():
            if name != "value" or name in outputs:  # the value is optional
                worst = max(worst, (_distance(outputs.get(name), array, sure), name))
        if agent.state_size:
            agent_state, file_state = torch.from_numpy(expected[NEXT_STATE]), outputs[NEXT_STATE]
    return worst


@torch.inference_mode()
def _expected(
    agent: Agent, action_space: Space[Any], rows: Tensor, pixels: Tensor | None, state: Tensor
) -> tuple[Arrays, NDArray[np.bool_]]:
    """Return the agent's outputs, and for each environment (`[N]` bool) if all its choices have a unique mode."""
    spaces = agent.spaces
    parameters, value, after = agent.policy.act(agent.normalize(rows), pixels, state)
    actions = action_converter(action_space)(
        agent.action_transform(len(parameters))(agent.distribution.mode(parameters).numpy())
    )
    outputs: Arrays = {
        name_of(ACTION, path): np.asarray(reduce(getitem, path, actions)) for path, _ in leaves(action_space)
    }
    outputs |= {name: part.numpy() for name, part in agent.distribution.named(parameters).items()}
    outputs["value"] = (agent.values(rows, pixels) if value is None else value).numpy()
    sure = np.ones(len(rows), dtype=np.bool_)
    for logits in parameters[:, : sum(spaces.choices)].split(list(spaces.choices), 1) if spaces.choices else ():
        if logits.shape[1] > 1:
            first, second = logits.topk(2, 1).values.unbind(1)
            sure &= (first - second > 2 * TOLERANCE * first.abs().clamp_min(1)).numpy()
    if after is not None and agent.state_size:
        outputs[NEXT_STATE] = after.numpy()
    return outputs, sure


def _distance(output: NDArray[Any] | None, expected: NDArray[Any], sure: NDArray[np.bool_]) -> float:
    if output is None or output.shape != expected.shape or output.dtype != expected.dtype:
        return float("inf")
    if expected.dtype.kind in "iu":
        return 0.0 if np.array_equal(output[sure], expected[sure]) else float("inf")
    epsilon = float(np.finfo(expected.dtype).eps)
    given, wanted = output.astype(np.float64), expected.astype(np.float64)
    # almost equal numbers may be rounded to different neighbors, which in a coarse type are further apart than the tolerance
    rounding = _ROUNDING * epsilon * np.abs(wanted) if epsilon > TOLERANCE else 0.0
    distances = np.maximum(0, np.abs(given - wanted) - rounding) / np.maximum(1, np.abs(wanted))
    return float(np.nan_to_num(distances, nan=np.inf).max(initial=0.0))
