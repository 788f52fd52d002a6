"""Formulas of gradients for tests of kernels, and their arguments."""

import numpy as np
import torch
from tests.watched import CONTINUOUS, DISCRETE, PLAIN

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import RowLayout
from lockstep.algorithm.gradient import GradientFormula
from lockstep.algorithm.loss import LOSS_SCALARS, Loss
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig

ROWS = 24
SEQUENCES = 4
CARTPOLE = Spaces(4, (2,), np.zeros(0, np.float32), np.zeros(0, np.float32))
IMAGES = Spaces(2, (3,), np.zeros(0, np.float32), np.zeros(0, np.float32), ((2, 36, 37),))
SMALL_IMAGES = Spaces(0, (), np.float32([-1]), np.float32([1]), ((3, 5, 9), (1, 11, 8)))
MASKED = Spaces(3 + 5, (3, 2), np.float32([-1]), np.float32([1]), mask_size=5)


SMALL = {"hidden": (16,), "feature_size": 8, "combine": "two-heads", "gamma": 0.9, "share": 0.5}


def formula_of(
    spaces,
    dtype: torch.dtype,
    policy: PolicyConfig,
    config: PPOConfig,
    curiosity: CuriosityConfig = PLAIN,
    count: int = ROWS,
) -> tuple[GradientFormula, tuple]:
    """Create a gradient formula and its arguments: weights, the scalars of the loss, and the fields of a part."""
    agent = Agent(spaces, policy, False, 1, dtype, curiosity=curiosity)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(count, agent.layout.width, dtype=dtype, generator=generator)
    mask = rows[:, spaces.feature_size : spaces.observation_size]
    mask.copy_(mask > 0)
    for column, options in enumerate(spaces.choices):
        drawn = torch.randint(options, (count,), generator=generator)
        rows[:, spaces.observation_size + column] = drawn.to(dtype)
        if spaces.mask_size:
            mask[torch.arange(count), sum(spaces.choices[:column]) + drawn] = 1
    log_probs = RowLayout.scalars(rows).log_probs
    log_probs.copy_(-log_probs.abs())
    rows[:, -1] = 1
    rows[3] = 0  # a reset row
    scalars = dict(zip(LOSS_SCALARS, (0.1, 0.8, 0.2, 0.01, 0.7), strict=True))
    fields = {"rows": rows}
    images = [torch.randint(256, (count, spaces.pixel_count), generator=generator).byte() for _ in range(2)]
    if spaces.images:
        fields["pixels"] = images[0]
    if agent.state_size:
        rows[10] = 0
        fields["states"] = torch.randn(SEQUENCES, agent.state_size, dtype=dtype, generator=generator)
    if spaces.images and agent.curiosity is not None and agent.curiosity.sees_images:
        fields["next_pixels"] = images[1]
    return GradientFormula(Loss(agent, config, (True, True), unroll=True), tuple(fields)), (
        agent.flat.buffer + 0.1 * torch.randn(len(agent.flat.buffer), dtype=dtype, generator=generator),
        torch.tensor([*scalars.values()], dtype=dtype),
        *fields.values(),
    )


CASES = {
    "cartpole": (CARTPOLE, torch.float32, PolicyConfig(), PPOConfig(entropy=0.01), PLAIN, 256),
    "discrete": (DISCRETE, torch.float32, PolicyConfig(hidden=(16, 16)), PPOConfig(entropy=0.01)),
    "continuous": (
        CONTINUOUS,
        torch.float32,
        PolicyConfig(hidden=(16,), shared=True, activation="silu"),
        PPOConfig(value_clip=0.2, normalize_advantages=False),
    ),
    "large": (DISCRETE, torch.float32, PolicyConfig(hidden=(64, 64)), PPOConfig(), CuriosityConfig("rnd"), 520),
    "masked": (
        MASKED,
        torch.float32,
        PolicyConfig(hidden=(16,), value_hidden=(24, 8), activation="gelu"),
        PPOConfig(entropy=0.01),
    ),
    "beta": (CONTINUOUS, torch.float32, PolicyConfig(hidden=(16,), distribution="beta"), PPOConfig(entropy=0.01)),
    "state std": (
        CONTINUOUS,
        torch.float32,
        PolicyConfig(hidden=(16,), distribution="gaussian-state-std"),
        PPOConfig(),
    ),
    "gsde": (
        CONTINUOUS,
        torch.float32,
        PolicyConfig(hidden=(16,), distribution="gsde", shared=True),
        PPOConfig(entropy=0.01),
    ),
    "beta in float64": (
        CONTINUOUS,
        torch.float64,
        PolicyConfig(hidden=(16,), distribution="beta", head_hidden=(8,)),
        PPOConfig(entropy=0.01),
    ),
    "float64": (CONTINUOUS, torch.float64, PolicyConfig(hidden=(16, 16), activation="elu"), PPOConfig(surrogate="kl")),
    "lstm": (DISCRETE, torch.float32, PolicyConfig(hidden=(16,), core="lstm", core_size=24), PPOConfig(entropy=0.01)),
    "two layers": (
        MASKED,
        torch.float64,
        PolicyConfig(hidden=(16,), core="gru", core_size=24, core_layers=2, shared=True),
        PPOConfig(),
        CuriosityConfig("rnd", **SMALL),
    ),
    "mingru": (CONTINUOUS, torch.float64, PolicyConfig(hidden=(16,), core="mingru", core_size=24), PPOConfig()),
    **{
        kind: (spaces, torch.float32, PolicyConfig(hidden=(16,)), PPOConfig(), CuriosityConfig(kind, **SMALL))
        for kind, spaces in (("icm", CONTINUOUS), ("rnd", DISCRETE), ("ngu", DISCRETE), ("disagreement", CONTINUOUS))
    },
    "nature": (IMAGES, torch.float32, PolicyConfig(shared=True), PPOConfig(entropy=0.01)),
    "impala in float64": (SMALL_IMAGES, torch.float64, PolicyConfig(encoder="impala"), PPOConfig()),
    "images and memory": (
        IMAGES,
        torch.float32,
        PolicyConfig(shared=True, core="gru", core_size=24),
        PPOConfig(),
        CuriosityConfig("rnd", channels=1, **SMALL),
    ),
    "small images": (
        SMALL_IMAGES,
        torch.float64,
        PolicyConfig(encoder="impala", shared=True),
        PPOConfig(),
        CuriosityConfig("icm", channels=2, **SMALL),
    ),
    "icm and beta in float64": (
        CONTINUOUS,
        torch.float64,
        PolicyConfig(hidden=(16,), shared=True, activation="silu", distribution="beta"),
        PPOConfig(surrogate="kl", value_clip=0.2, normalize_advantages=False),
        CuriosityConfig("icm", **SMALL),
    ),
}
