"""Decoding distribution parameters to the most probable actions for the environment, in operations that can be exported.

`Agent.action_transform` and `envs/actions.py` do the same in NumPy.
"""

from itertools import accumulate

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box
from torch import Tensor, nn

from lockstep.algorithm.acting import bound_components
from lockstep.algorithm.agent import Agent
from lockstep.distributions.continuous import ContinuousDistribution
from lockstep.envs.spaces import has_float32_bounds, leaves, place_of
from lockstep.export.tensor_spec import ACTION, TensorSpec, name_of, torch_type

__all__ = ["ActionDecoder"]


class ActionDecoder(nn.Module):
    """Decoder of distribution parameters to actions.

    Its input is `[N, D]`: D parameters for each of N environments. Its outputs are the actions by name, `[N, …]` each,
    then the parameters of the distribution by name, such as `logits`, `mean` and `log_std`.
    """

    _low: Tensor
    _high: Tensor

    def __init__(self, agent: Agent, space: Space[object]) -> None:
        super().__init__()
        spaces = agent.spaces
        ends = list(accumulate(spaces.choices, initial=0))
        self._choices = list(zip(ends, spaces.choices, strict=False))
        self._options, self._size, self._squash = ends[-1], spaces.continuous_size, agent.squash
        self._distribution = agent.distribution
        self._parts = [(name_of(ACTION, path), leaf) for path, leaf in leaves(space)]
        if self._size:
            self.register_buffer("_low", torch.from_numpy(spaces.action_low).to(agent.dtype))
            self.register_buffer("_high", torch.from_numpy(spaces.action_high).to(agent.dtype))
        self.specs = [
            TensorSpec(name_of(ACTION, path), leaf.shape, torch_type(leaf.dtype), f"action{place_of(path)} for step()")
            for path, leaf in leaves(space)
        ]
        """Descriptions of all outputs."""
        if self._options:
            meaning = f"of the options of all choices: {', '.join(map(str, spaces.choices))}"
            self.specs.append(TensorSpec("logits", (self._options,), agent.dtype, meaning))
        if agent.continuous is not None:
            self._add_specs(agent.continuous, agent.dtype)

    def _add_specs(self, continuous: ContinuousDistribution, dtype: torch.dtype) -> None:
        fitted = "tanh brings them onto the bounds" if self._squash else "they are clipped to the bounds"
        before = "" if continuous.bounded else f", before {fitted}"
        named = continuous.named(torch.zeros(1, continuous.parameter_count))
        for (name, parameters), meaning in zip(named.items(), continuous.meanings.values(), strict=True):
            self.specs.append(TensorSpec(name, tuple(parameters.shape[1:]), dtype, f"{meaning}{before}"))

    def forward(self, parameters: Tensor) -> dict[str, Tensor]:
        """Decode parameters `[N, D]` to the outputs by name."""
        named = self._distribution.named(parameters)
        logits = parameters.narrow(1, 0, self._options)
        chosen = [logits.narrow(1, begin, count).argmax(1) for begin, count in self._choices]
        components = logits
        if self._size:
            components = self._distribution.mode(parameters)[:, len(self._choices) :]
            components = bound_components(components, self._low, self._high, self._squash)
        outputs, choice, component = dict[str, Tensor](), 0, 0
        for name, leaf in self._parts:
            width = int(np.prod(leaf.shape))
            if isinstance(leaf, Box):
                action = components.narrow(1, component, width)
                component += width
            else:
                starts = np.broadcast_to(np.ravel(getattr(leaf, "start", 0)), width).tolist()
                action = torch.stack([chosen[choice + k] + start for k, start in enumerate(starts)], 1)
                choice += width
            outputs[name] = action.reshape(-1, *leaf.shape).to(torch_type(leaf.dtype))
            if isinstance(leaf, Box) and not has_float32_bounds(leaf):
                low, high = (torch.from_numpy(bound).to(action.device) for bound in (leaf.low, leaf.high))
                outputs[name] = outputs[name].clamp(low, high)
        return outputs | named
