"""Fused shards: the same samples, noise and minibatches, so the same weights up to rounding."""

import pytest
import torch
from tests.algorithm.minibatches import minibatches_of
from tests.algorithm.test_prepare import CONFIG, SHARDS, SHARES
from tests.threaded import on_ranks
from tests.watched import (
    CONTINUOUS,
    DISCRETE,
    ITERATION,
    PLAIN,
    ROWS,
    SEED,
    RecordingGroup,
    agent_of,
    perturb,
    rollouts_of,
)

from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.prepare import Preparation
from lockstep.algorithm.update import Update
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.ppo.settings import PPOConfig

CURIOUS = CuriosityConfig("rnd", "two-heads", gamma=0.9, hidden=(8,), feature_size=4, share=0.5)


def train(
    group: Group,
    shards: object,
    spaces: Spaces = DISCRETE,
    config: PPOConfig = CONFIG,
    curiosity: CuriosityConfig = PLAIN,
    **options: bool,
) -> tuple[torch.Tensor, dict[str, float]]:
    agent = agent_of(spaces, normalize=True, curiosity=curiosity)
    rollouts = rollouts_of(agent, SHARDS)
    perturb(agent)
    update = Update(agent, config, group, shards, SEED, UpdateOptions(**options))
    metrics = update([rollouts[shard] for shard in shards], ITERATION, 0.0)
    state = {**agent.state(), **update.state()}
    return torch.cat([tensor.flatten().to(torch.float64) for tensor in state.values()]), metrics


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize(
    "options",
    [{}, {"share_data": True}, {"vtrace": True}, {"curiosity": CURIOUS}],
    ids=["plain", "shared data", "vtrace", "curiosity"],
)
def test_fused_shards_give_the_same_weights_up_to_rounding(
    spaces: Spaces, shares: list[tuple[int, ...]], options: dict[str, bool]
) -> None:
    expected, metrics = train(Solo(), range(SHARDS), spaces, **options)
    results = on_ranks(shares, lambda group, shards: train(group, shards, spaces, fused=True, **options))
    for found, fused_metrics in results:
        assert torch.equal(found, results[0][0])  # ranks still agree with each other to the last bit
        assert torch.allclose(found, expected, rtol=0, atol=1e-11)
        assert fused_metrics == pytest.approx(metrics, rel=1e-9, abs=1e-11)


def test_fused_shards_with_separate_epochs_for_policy_and_critic() -> None:
    config = PPOConfig(policy_epochs=1, value_epochs=2, minibatches=2)
    expected, _ = train(Solo(), range(SHARDS), config=config)
    found, _ = train(Solo(), range(SHARDS), config=config, fused=True)
    assert torch.allclose(found, expected, rtol=0, atol=1e-11)


def test_fused_minibatch_is_the_union_of_the_minibatches_of_the_shards() -> None:
    agent = agent_of()
    separate, fused = (
        Preparation(agent, CONFIG, Solo(), range(SHARDS), SEED, UpdateOptions(fused=fuse))(
            rollouts_of(agent, SHARDS), ITERATION, 0.0
        )
        for fuse in (False, True)
    )
    for (_, _, _, microbatches), (_, _, _, joined) in zip(minibatches_of(separate), minibatches_of(fused), strict=True):
        assert len(microbatches) == SHARDS
        (rows,) = joined
        assert torch.equal(rows.rows, torch.cat([microbatch.rows for microbatch in microbatches]))
        assert len(rows.rows) == SHARDS * ROWS // CONFIG.minibatches


def test_fused_rank_contributes_one_row() -> None:
    class Counting(RecordingGroup):
        def reduce(self, own_rows: torch.Tensor, phase: str) -> torch.Tensor:
            assert len(own_rows) == 1, phase
            return super().reduce(own_rows, phase)

    group = Counting()
    train(group, range(SHARDS), fused=True)
    assert {phase for phase, _ in group.totals} == {"statistics", "advantages", "gradients"}
