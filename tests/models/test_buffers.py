"""Tests of buffers that training changes: the same bits for any number of ranks, and no change by a rejected step."""

from collections.abc import Sequence

import pytest
import torch
from tests.models.test_probe import Constant, Encoder, Mean, spectral
from tests.threaded import on_ranks
from tests.watched import DISCRETE, ITERATION, rollouts_of

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.non_finite import NonFinite
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.update import Update
from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.models import registry
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig

SHARDS = 3
CONFIG = PPOConfig(epochs=2, minibatches=2)


@pytest.fixture(autouse=True, params=[spectral, Mean, lambda: Mean(assigned=True), Constant])
def registered_encoder(request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENCODERS, "own", lambda features, *others: Encoder(request.param, features))


def make_agent() -> Agent:
    return Agent(DISCRETE, PolicyConfig(hidden=(8,), encoder="own", shared=True), False, 1, torch.float64)


def train(group: Group, shards: Sequence[int], fused: bool = False, **options: object) -> tuple[Agent, str]:
    agent = make_agent()
    update = Update(agent, CONFIG, group, shards, 1, UpdateOptions(fused=fused), **options)
    for iteration in (ITERATION, ITERATION + 1):
        rollouts = rollouts_of(agent, SHARDS)
        update([rollouts[shard] for shard in shards], iteration, 0.0)
    return agent, agent.digest()


def test_ranks_agree_on_buffers() -> None:
    initial = {name: buffer.clone() for name, buffer in make_agent().buffers.items()}
    alone, digest = train(Solo(), range(SHARDS))
    changed = [name for name, buffer in alone.buffers.items() if not torch.equal(buffer, initial[name])]
    assert bool(changed) == (not alone.networks.training)
    assert [rank_digest for _, rank_digest in on_ranks([[0], [1], [2]], train)] == [digest] * 3


def test_replicated_gradients_train_buffers_too() -> None:
    ordered, _ = train(Solo(), range(SHARDS))
    replicated, _ = train(Solo(), range(SHARDS), replicate=lambda module: module)
    for name, buffer in ordered.buffers.items():
        assert torch.allclose(buffer, replicated.buffers[name], atol=1e-9)
    assert torch.allclose(ordered.flat.buffer, replicated.flat.buffer, atol=1e-9)


def test_fused_shards_train_buffers_reproducibly() -> None:
    agent, digest = train(Solo(), range(SHARDS), fused=True)
    assert agent.flat.buffer.isfinite().all()
    assert train(Solo(), range(SHARDS), fused=True)[1] == digest


def test_a_rejected_step_changes_no_buffer() -> None:
    agent = make_agent()
    rollouts, before = rollouts_of(agent, SHARDS), agent.digest()
    for rollout in rollouts:
        rollout.log_probs[:] = -1e4  # exp overflows
    with pytest.raises(NonFinite, match=r"the result of aten.exp in the loss .* is inf"):
        Update(agent, CONFIG, Solo(), range(SHARDS), 1)(rollouts, ITERATION, 0.0)
    assert agent.digest() == before


def test_a_running_mean_becomes_the_average_over_all_parts() -> None:
    """The buffer becomes the average over all parts of the minibatch, not the value after the last part."""
    agent = make_agent()
    module = agent.policy.trunk.inside
    if not isinstance(module, Mean):
        return
    buffers, rows = agent.trained_buffers, torch.randn(3, 4, 3, dtype=torch.float64)
    outputs = agent.policy.trunk.layer(rows).detach()
    sums = []
    with buffers.training():
        for part in rows:
            agent.policy(part)
            sums.append(buffers.append_to(torch.zeros(2, dtype=torch.float64)))
            buffers.rewind()
    assert torch.equal(buffers.split_off(torch.stack(sums).sum(0)), torch.zeros(2, dtype=torch.float64))
    assert not module.mean.any()
    buffers.accept()
    assert torch.allclose(module.mean, 0.1 * outputs.flatten(0, 1).mean(0), atol=1e-12)
