"""Running the gradient step of a dump again, operation by operation."""

import torch

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.numeric_guard import GradientStep
from lockstep.envs.catalog import describe_env
from lockstep.experiment.build import restore_agent
from lockstep.experiment.dump import Dump
from lockstep.models.state import NonFiniteState
from lockstep.ppo.statistics import STATISTICS
from lockstep.runtime.runtime import torch_autocast

__all__ = ["replay"]


def replay(dump: Dump) -> str | None:
    """Return the first number of a gradient step that is not finite, in one line; None if all are finite.

    It runs on the CPU. Raises ValueError in one line if the dump does not fit its config, or if the environment is unknown here.
    """
    config, step = dump.config, dump.step
    cpu = torch.device("cpu")
    try:
        agent = restore_agent(config, describe_env(config.env), dump.agent, torch_autocast(config.runtime, cpu))
        _check_shapes(agent, step)
        finding = step.trace(agent, config.ppo)
    except NonFiniteState as error:
        return str(error)
    except (RuntimeError, IndexError) as error:  # for example an action that the environment does not have
        raise ValueError(f"the gradient step can't be computed: {str(error).partition(chr(10))[0]}") from None
    return None if finding is None else step.describe(finding)


def _check_shapes(agent: Agent, step: GradientStep) -> None:
    """Raise ValueError if the tensors of a step do not fit the agent."""
    microbatch, losses = step.microbatch, () if agent.curiosity is None else agent.curiosity.losses
    total = len(agent.flat.buffer) + len(STATISTICS) + len(losses)
    pixels = agent.spaces.pixel_count or None
    needs_next = pixels is not None and agent.curiosity is not None and agent.curiosity.sees_images
    expected = {
        "rows": (microbatch.rows, agent.layout.width, agent.dtype),
        "states": (microbatch.states, agent.state_size or None, agent.dtype),
        "pixels": (microbatch.pixels, pixels, torch.uint8),
        "next_pixels": (microbatch.next_pixels, pixels if needs_next else None, torch.uint8),
        "total": (step.total, None if step.total is None else total, agent.dtype),
    }
    for name, (tensor, size, dtype) in expected.items():
        found = None if tensor is None else (tensor.shape[-1:], tensor.dtype)
        if found != (None if size is None else ((size,), dtype)):
            raise ValueError(f"tensor {name!r} does not fit the config of the dump")
