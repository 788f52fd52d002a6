"""Running a policy outside of training."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.policy_kernels import PolicyKernels

__all__ = ["PolicyRunner"]


class PolicyRunner:
    """Selects actions in `count` environments with an agent's policy, for `play`, `eval` and other programs.

    Actions are computed by the agent's kernels, if it uses them; otherwise by PyTorch.
    """

    def __init__(self, agent: Agent, count: int = 1, generator: np.random.Generator | None = None) -> None:
        """Sample actions with `generator`, as in training; without it, select the most probable ones."""
        self._agent = agent
        self._count = count
        self._generator = generator
        self._bound_actions = agent.action_transform(count)
        self._kernels = agent.kernels if count else None
        self.begin()

    def begin(self) -> None:
        """Reset `state` `[count, S]`, the policy's memory, at the start of episodes in all environments."""
        self.state = torch.zeros(
            self._count, self._agent.state_size, dtype=self._agent.dtype, device=self._agent.device
        )

    @torch.inference_mode()
    def act(self, rows: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return actions for the environments, from observations `[count, O]` and, with images, pixels `[count, P]`.

        The next call may overwrite them.
        """
        noise = None
        if self._generator is not None:
            drawn = self._agent.distribution.noise(self._generator, self._count)
            noise = torch.from_numpy(drawn).to(self._agent.device, self._agent.dtype)
        if self._kernels is not None:
            return self._act_by_kernels(self._kernels, rows, pixels, noise)
        agent = self._agent
        parameters, _, state = agent.policy.act(*self._inputs(rows, pixels), self.state)
        if state is not None:
            self.state = state
        distribution = agent.distribution
        actions = distribution.mode(parameters) if noise is None else distribution.sample(parameters, noise)
        return self._bound_actions(actions.cpu().numpy())

    def _act_by_kernels(
        self, kernels: PolicyKernels, rows: NDArray[Any], pixels: NDArray[Any] | None, noise: Tensor | None
    ) -> NDArray[Any]:
        agent = self._agent
        observations, images = _tensors(rows, pixels)
        actions, state = kernels.act(
            observations.to(agent.dtype), images, self.state if agent.state_size else None, noise
        )
        if state is not None:
            self.state = state
        single_choice = agent.spaces.discrete_actions is not None
        return (actions.to(torch.int64) if single_choice else actions).numpy()

    @torch.inference_mode()
    def named(self, rows: NDArray[Any], pixels: NDArray[Any] | None = None) -> dict[str, NDArray[Any]]:
        """Return the parameters of the distribution of actions by name, `[count, …]` each. The policy's memory does not change."""
        parameters, _, _ = self._agent.policy.act(*self._inputs(rows, pixels), self.state)
        return {name: value.cpu().numpy() for name, value in self._agent.distribution.named(parameters).items()}

    @torch.inference_mode()
    def values(self, rows: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the values `[count]` of the inputs of `act`, for extrinsic rewards. The policy's memory does not change."""
        observations, images = self._inputs(rows, pixels)
        resets = torch.zeros(1, self._count, dtype=torch.bool, device=self._agent.device)
        _, values = self._agent.policy(observations, images, self.state, resets)
        return values.view(self._count, -1)[:, 0].cpu().numpy()  # type: ignore[no-any-return]

    def _inputs(self, rows: NDArray[Any], pixels: NDArray[Any] | None) -> tuple[Tensor, Tensor | None]:
        agent = self._agent
        observations, images = _tensors(rows, pixels)
        return agent.normalize(observations.to(agent.dtype)), None if images is None else images.to(agent.device)


def _tensors(rows: NDArray[Any], pixels: NDArray[Any] | None) -> tuple[Tensor, Tensor | None]:
    """Return contiguous tensors of the content of the arrays."""
    images = None if pixels is None else torch.from_numpy(np.ascontiguousarray(pixels))
    return torch.from_numpy(np.ascontiguousarray(rows)), images
