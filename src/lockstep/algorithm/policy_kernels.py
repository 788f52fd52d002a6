"""Policies as interpreted kernels: each step of acting, and each evaluation of many observations, is one call."""

from collections.abc import Callable
from copy import deepcopy
from threading import Lock
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.compiling.kernels import InterpretedKernel
from lockstep.compiling.row_kernels import RowKernels
from lockstep.distributions.joint import Distribution
from lockstep.models.policy import Policy
from lockstep.processes.heartbeat import beat

__all__ = ["BoundStep", "PolicyKernels"]


class BoundStep(NamedTuple):
    """A step of acting for B environments: `run` reads the arrays up to `state`, and overwrites the others."""

    run: Callable[[], None]
    observations: NDArray[Any]
    """`[B, O]`."""
    pixels: NDArray[Any] | None
    """`[B, P]` uint8; None without images."""
    noise: NDArray[Any]
    """`[B, K]`, as the distribution needs it."""
    state: NDArray[Any] | None
    """`[B, S]` before the step; None without memory."""
    head: NDArray[Any]
    """`[B, H]`, the output of the policy's head."""
    actions: NDArray[Any]
    """`[B]` or `[B, A]`."""
    bounded: NDArray[Any]
    """Actions for the environments."""
    latent: NDArray[Any] | None
    """`[B, …]`, the output of the critic's core or, without memory, of a trunk that policy and critic share; None if they share none."""
    next_state: NDArray[Any] | None
    """`[B, S]`; None without memory."""


class PolicyKernels:
    """Kernels of a policy on the CPU, in the precision of its weights. Arguments `pixels` are those of images, `[N, P]` uint8.

    They read weights and running statistics in place, so that they follow training and loading. Their results equal those of the
    `Policy` up to rounding, and have the same bits on every processor. Each kernel is made when it is first used.
    """

    def __init__(
        self,
        policy: Policy,
        distribution: Distribution,
        normalize: Callable[[Tensor], Tensor],
        bound: Callable[[Tensor], Tensor] | None,
        kernels: RowKernels,
        pixel_count: int = 0,
    ) -> None:
        """Create the kernels of `policy` and its action `distribution`. `kernels` caches those that process many rows. `pixel_count` is P, 0 without images.

        `normalize` normalizes observations `[N, O]`. `bound` maps actions `[N, A]` into the bounds of the environments; None: there are none.
        """
        self._policy, self._distribution, self._kernels = policy, distribution, kernels
        self._normalize, self._bound, self._pixel_count = normalize, bound, pixel_count
        self._dtype = policy.policy_head.weight.dtype
        self._steps: dict[tuple[int, int], tuple[InterpretedKernel, BoundStep]] = {}
        self._lock = Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> "PolicyKernels":
        """Return kernels of copies of the policy and the functions; they are made when they are first used."""
        parts = self._policy, self._distribution, self._normalize, self._bound, self._kernels
        return PolicyKernels(*deepcopy(parts, memo), self._pixel_count)

    def step(self, count: int, noise_size: int) -> BoundStep:
        """Return the step for `count` observations, with the current weights. `noise_size` is K."""
        key = count, noise_size
        if key not in self._steps:
            self._steps[key] = self._make_step(count, noise_size)
        kernel, step = self._steps[key]
        kernel.prepare()
        return step

    def _make_step(self, count: int, noise_size: int) -> tuple[InterpretedKernel, BoundStep]:
        size, dtype = self._policy.state_size, self._dtype
        observations = torch.zeros(count, self._policy.observation_size, dtype=dtype)
        pixels = torch.zeros(count, self._pixel_count, dtype=torch.uint8) if self._pixel_count else None
        noise = torch.zeros(count, noise_size, dtype=dtype)
        state = torch.zeros(count, size, dtype=dtype) if size else None
        arguments = [tensor for tensor in (observations, pixels, noise, state) if tensor is not None]
        with torch.no_grad():
            kernel = InterpretedKernel(self._step_formula, arguments, packs_weights=True)
        run, results = kernel.bind(*arguments)
        arrays = [tensor.numpy() for tensor in results]
        head, actions, *rest = arrays
        rest, after = (rest[:-1], rest[-1]) if size else (rest, None)
        latent = rest[-1] if size or self._policy.critic_trunk is None else None
        return kernel, BoundStep(
            run,
            observations.numpy(),
            None if pixels is None else pixels.numpy(),
            noise.numpy(),
            None if state is None else state.numpy(),
            head,
            actions,
            actions if self._bound is None else rest[0],
            latent,
            after,
        )

    def _step_formula(self, observations: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        pixels, others = (others[0], others[1:]) if self._pixel_count else (None, others)
        noise, *states = others
        head, memory = self._head(observations, pixels, *states)
        actions = self._distribution.sample(self._policy.distribution_parameters(head), noise)
        return head, actions, *([] if self._bound is None else [self._bound(actions)]), *memory

    def _head(
        self, observations: Tensor, pixels: Tensor | None, state: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the output of the policy's head, then what `BoundStep` has as `latent` and `next_state`, those that exist."""
        policy, rows = self._policy, self._normalize(observations)
        step = policy.head(rows, pixels) if state is None else policy.unrolled_step(rows, state, pixels)
        return step[0], [tensor for tensor in step[1:] if tensor is not None]

    def act(
        self, observations: Tensor, pixels: Tensor | None, state: Tensor | None, noise: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute actions for the environments, `[N]` or `[N, A]`, and the next states `[N, S]`, for programs other than training.

        Arguments are as in `BoundStep`; without noise, actions are the most probable ones. Several threads may call it.
        """

        def formula(rows: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
            images, others = (others[0], others[1:]) if self._pixel_count else (None, others)
            drawn, before = (others[:1], others[1:]) if noise is not None else ((), others)
            head, memory = self._head(rows, images, *before)
            parameters = self._policy.distribution_parameters(head)
            distribution = self._distribution
            actions = distribution.sample(parameters, *drawn) if drawn else distribution.mode(parameters)
            return (actions if self._bound is None else self._bound(actions)).contiguous(), *(
                memory[-1:] if before else []
            )

        arguments = (observations, *self._images(pixels), *(tensor for tensor in (noise, state) if tensor is not None))
        with self._lock:
            actions, *after = self._kernels.compute(("act", noise is None), formula, *arguments)
        return actions, after[0] if after else None

    def log_probs(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Compute the log-probabilities `[N]` of actions `[N]` or `[N, A]` for parameters `[N, D]` of the distribution."""

        def formula(parameters: Tensor, actions: Tensor) -> tuple[Tensor]:
            return (self._distribution.log_prob(parameters, actions.to(dtype)),)

        dtype = actions.dtype
        (log_probs,) = self._kernels.compute("log_probs", formula, parameters, actions.to(self._dtype))
        return log_probs

    def log_probs_of_heads(self, heads: Tensor, actions: Tensor) -> Tensor:
        """Compute the log-probabilities `[N]` of actions for outputs `[N, H]` of the policy's head."""
        with torch.no_grad():
            return self.log_probs(self._policy.distribution_parameters(heads), actions)

    def value(self, observations: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Compute values `[N]` of observations `[N, O]`, for a policy without memory."""

        def formula(rows: Tensor, *images: Tensor) -> tuple[Tensor]:
            return (self._policy.value(self._normalize(rows), *images),)

        (values,) = self._kernels.compute("value", formula, observations, *self._images(pixels))
        return values

    def _images(self, pixels: Tensor | None) -> tuple[Tensor, ...]:
        return (pixels,) if self._pixel_count and pixels is not None else ()

    def value_of_latents(self, latents: Tensor) -> Tensor:
        """Compute values `[N]` from outputs `[N, …]` of the critic's core."""
        (values,) = self._kernels.compute("latents", lambda rows: (self._policy.value_of_hidden(rows),), latents)
        return values

    def forward(self, observations: Tensor, pixels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute parameters `[N, D]` of the action distribution and values of observations `[N, O]`, for a policy without memory."""

        def formula(rows: Tensor, *images: Tensor) -> tuple[Tensor, ...]:
            parameters, values = self._policy(self._normalize(rows), *images)
            return parameters, values

        parameters, values = self._kernels.compute("forward", formula, observations, *self._images(pixels))
        return parameters, values

    def sequences(
        self, observations: Tensor, pixels: Tensor, states: Tensor, resets: Tensor, length: int
    ) -> tuple[Tensor, Tensor]:
        """Compute parameters `[L * n, D]` and values of whole sequences, observations `[L, n, O]`, `length` steps at a time.

        `pixels` are `[L, n, P]`. `states` are `[n, S]`, before the first step; `resets`, bool `[L, n]`, is True where the state is set to zero before the step.
        """

        def formula(rows: Tensor, before: Tensor, starts: Tensor, *images: Tensor) -> tuple[Tensor, ...]:
            flat = (part.flatten(0, 1) for part in images)
            return self._policy.unrolled(self._normalize(rows.flatten(0, 1)), before, starts != 0, *flat)

        results = []
        inputs = observations, resets.to(self._dtype), *self._images(pixels)
        for rows, starts, *images in zip(*(tensor.split(length) for tensor in inputs), strict=True):
            beat()  # all images of a rollout take long
            arguments = rows.contiguous(), states.contiguous(), starts, *images
            *outputs, states = self._kernels.kernel("sequences", formula, arguments)(*arguments)
            results.append([output.clone() for output in outputs])
        parameters, values = (torch.cat(parts) for parts in zip(*results, strict=True))
        return parameters, values
