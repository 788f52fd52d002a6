"""Training of policies with memory: states of sequences equal those during collection."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.algorithm.minibatches import minibatches_of
from tests.algorithm.test_collect import COUNT, DISCRETE, GAMMA, STEPS, Scripted
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import sequence_resets
from lockstep.algorithm.collect import Shard, collect, rollout_sizes
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.algorithm.prepare import Preparation
from lockstep.algorithm.update import Update
from lockstep.compiling.kernels import Formula, InterpretedKernel, Kernel, eager
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream
from lockstep.rollout import Rollout, Sizes

SEQUENCE, ITERATIONS = 2, 7
CONFIG = PPOConfig(epochs=2, minibatches=2)
CORES = ["lstm", "gru", "mingru"]


def agent_of(core: str = "lstm", shared: bool = False, normalize_rewards: bool = True, device: str = "cpu") -> Agent:
    policy = PolicyConfig(
        hidden=(6,),
        head_hidden=(5,) if shared else (),
        core=core,
        core_size=4,
        core_layers=2,
        shared=shared,
        normalize_observations=True,
    )
    agent = Agent(DISCRETE, policy, normalize_rewards, 1, torch.float64, torch.device(device))
    moved = torch.from_numpy(stream(1, "moved").standard_normal(len(agent.flat.buffer)))
    agent.flat.buffer += (0.3 * moved).to(agent.device)
    return agent


def shard_of(agent: Agent, sequence: int = SEQUENCE, index: int = 0) -> Shard:
    sizes = rollout_sizes(agent, STEPS, COUNT, sequence)
    return Shard(index, Scripted(agent.spaces, False), [Rollout.empty(sizes) for _ in range(2)], 1, GAMMA)


def step_by_step(agent: Agent, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Compute values and log-probabilities step by step from the first state of the rollout, with zero states after reset rows."""
    state, values, log_probs = rollout.states[0], [], []
    for t in range(STEPS + 1):
        parameters, value, state = agent.policy.act(agent.normalize(rollout.observations[t]), None, state)
        values.append(value)
        if t < STEPS:
            log_probs.append(agent.distribution.log_prob(parameters, rollout.actions[t]))
            state = torch.where(rollout.valid[t].unsqueeze(1), state, 0)
    return torch.stack(values), torch.stack(log_probs)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kernels", [False, True])
def test_values_and_log_probabilities_depend_on_the_episode_so_far(core: str, shared: bool, kernels: bool) -> None:
    agent = agent_of(core, shared)
    if kernels:
        agent.use_kernels()
    shard = shard_of(agent)
    for iteration in range(1, ITERATIONS + 1):
        (rollout,) = collect([shard], agent, iteration)
        values, log_probs = step_by_step(agent, rollout)
        for found in ((rollout.values, rollout.log_probs), agent.evaluate(rollout)[:2]):
            assert torch.allclose(found[0], values, rtol=0, atol=1e-12)
            assert torch.allclose(found[1][rollout.valid], log_probs[rollout.valid], rtol=0, atol=1e-12)
    assert (~rollout.valid).any()


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kernels", [False, True])
def test_memory_does_not_carry_a_terminal_observation_that_is_nan_into_the_next_episode(
    core: str, kernels: bool
) -> None:
    agent = agent_of(core)
    if kernels:
        agent.use_kernels()
    shard, seen = shard_of(agent), 0
    for iteration in range(1, ITERATIONS + 1):
        (rollout,) = collect([shard], agent, iteration)
        terminal = torch.cat([torch.zeros_like(rollout.valid[:1]), rollout.terminated])
        expected = agent.evaluate(rollout).values[~terminal]
        rollout.observations[terminal] = torch.nan
        assert torch.equal(agent.evaluate(rollout).values[~terminal], expected)
        seen += int(terminal[:-1].sum())
    assert seen


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights are not part:UserWarning")  # as in every rank
@pytest.mark.parametrize("core", CORES)
def test_gpu_gives_the_same_values_up_to_rounding(core: str) -> None:
    agents = agent_of(core), agent_of(core, device="cuda")
    (rollout,) = collect([shard_of(agents[0])], agents[0], 1)
    expected, found = (agent.evaluate(rollout) for agent in agents)
    assert torch.allclose(found.values, expected.values, rtol=0, atol=1e-9)
    assert torch.allclose(found.log_probs, expected.log_probs, rtol=0, atol=1e-9)


def test_memory_continues_across_rollouts_and_is_reset_with_the_episode() -> None:
    """The state before a sequence follows from all earlier observations of the episode."""
    agent = agent_of()
    shard = shard_of(agent)
    episode_rows: list[list[Tensor]] = [[] for _ in range(COUNT)]
    for iteration in range(1, ITERATIONS + 1):
        rollout = collect([shard], agent, iteration)[0]
        for t in range(STEPS):
            for b in range(COUNT):
                if t % SEQUENCE == 0:
                    state = torch.zeros(1, agent.state_size, dtype=torch.float64)
                    for row in episode_rows[b]:
                        state = agent.policy.act(agent.normalize(row[None]), None, state)[2]
                    assert torch.allclose(rollout.states[t // SEQUENCE, b], state[0], rtol=0, atol=1e-12)
                episode_rows[b] = [*episode_rows[b], rollout.observations[t, b].clone()] if rollout.valid[t, b] else []


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("share_data", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_minibatches_are_sequences_with_their_initial_states(
    core: str, recompute: bool, share_data: bool, fused: bool
) -> None:
    agent = agent_of(core)
    shards = [shard_of(agent, index=index) for index in range(2)]
    rollouts = [collect([shard], agent, iteration)[0] for iteration in (1, 2) for shard in shards][2:]
    batch = Preparation(
        agent, CONFIG, Solo(), (0, 1), 1, UpdateOptions(share_data=share_data, fused=fused, recompute_states=recompute)
    )(rollouts, 2, 0.0)
    trained = []
    for _, _, _, microbatches in minibatches_of(batch):
        assert len(microbatches) == (1 if fused else 2)
        for microbatch in microbatches:
            assert microbatch.states is not None
            assert len(microbatch.rows) == SEQUENCE * len(microbatch.states)
            *_, old, weight = microbatch.rows.unbind(1)
            values = agent.policy(
                microbatch.rows[:, :3],
                None,
                microbatch.states,
                sequence_resets(microbatch.rows, len(microbatch.states)),
            )[1]
            # the weights have not changed, so the values are those that were found while collecting
            assert torch.allclose(values[weight > 0], old[weight > 0], rtol=0, atol=1e-12)
            trained.append(old)
    collected = torch.cat([torch.where(rollout.valid, rollout.values[:-1], 0).flatten() for rollout in rollouts])
    assert torch.equal(torch.cat(trained).sort().values, collected.sort().values.repeat_interleave(CONFIG.epochs))


def test_recomputed_states_use_the_current_weights() -> None:
    agent = agent_of()
    shard, collected = shard_of(agent), agent.flat.buffer.clone()
    for iteration in range(1, ITERATIONS + 1):
        agent.flat.buffer.copy_(collected)
        (rollout,) = collect([shard], agent, iteration)
        stored_batch, recomputed_batch = (
            Preparation(agent, CONFIG, Solo(), (0,), 1, UpdateOptions(recompute_states=recompute))(
                [rollout], iteration, 0.0
            )
            for recompute in (False, True)
        )
        stored_states = rollout.states.flatten(0, 1)
        assert torch.equal(recomputed_batch.initial_states(recomputed_batch, 0), stored_states)
        agent.flat.buffer *= 1.1
        assert torch.equal(stored_batch.initial_states(stored_batch, 1), stored_states)
        found = recomputed_batch.initial_states(recomputed_batch, 1).view_as(rollout.states)
        assert torch.equal(found[0], rollout.states[0]), "the first is what was carried over"
        state, expected = rollout.states[0], []
        for t in range(STEPS):
            if t % SEQUENCE == 0:
                expected.append(state)
            state = agent.policy.act(agent.normalize(rollout.observations[t]), None, state)[2]
            state = torch.where(rollout.valid[t].unsqueeze(1), state, 0)
        assert torch.allclose(found, torch.stack(expected), rtol=0, atol=1e-12)
        assert not torch.allclose(found[1:], rollout.states[1:], atol=1e-3)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("fused", [False, True])
def test_kernels_train_the_same_weights(core: str, fused: bool) -> None:
    trained, made = [], []

    def make(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
        made.append(formula)
        return InterpretedKernel(formula, examples)

    for make_kernel in (eager, make):
        agent = agent_of(core)
        shards = [shard_of(agent, index=index) for index in range(2)]
        update = Update(agent, CONFIG, Solo(), (0, 1), 1, UpdateOptions(fused=fused), make_kernel=make_kernel)
        update.make_kernels(STEPS * COUNT, SEQUENCE)
        for iteration in range(1, 4):
            count = len(made)
            update(collect(shards, agent, iteration), iteration, 0.0)
            assert len(made) == count, "no kernel is made during training"
        trained.append(agent.flat.buffer.clone())
    assert len(made) == 2  # the gradient and Adam's step
    assert torch.allclose(*trained, rtol=0, atol=1e-10)


@pytest.mark.parametrize("core", CORES)
def test_gradient_equals_that_of_whole_sequences(core: str) -> None:
    """Compare one minibatch of all rows with autograd through single steps."""
    config = replace(CONFIG, epochs=1, minibatches=1, max_grad_norm=None, learning_rate=1.0, normalize_advantages=False)
    agent = agent_of(core, normalize_rewards=False)
    shard = shard_of(agent, sequence=STEPS)
    rollout = [collect([shard], agent, iteration)[0] for iteration in (1, 2)][-1]
    batch = Preparation(agent, config, Solo(), (0,), 1, UpdateOptions())([rollout], 2, 0.0)
    update = Update(agent, config, Solo(), (0,), 1)
    proposed = []
    update.adam.propose = lambda total, count, active: proposed.append(total / count) or [0.0] * 5 + [0.0]
    update.adam.overflows = lambda: False
    update.adam.accept = lambda: None
    update([rollout], 2, 0.0)
    rows = batch.rows.view(STEPS, COUNT, -1)
    parameters = dict(agent.policy.named_parameters())
    state, loss = rollout.states[0], torch.zeros((), dtype=torch.float64)
    for t in range(STEPS):
        found, value, state = agent.policy.act(rows[t, :, :3], None, state)
        old, advantages, targets, _, weight = rows[t, :, -5:].unbind(-1)
        log_probs, _ = agent.distribution.log_prob_and_entropy(found, rows[t, :, 3].long())
        ratio = (log_probs - old).exp()
        surrogate = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = loss + ((surrogate + 0.5 * 0.5 * (value - targets).square()) * weight).sum()
        state = torch.where(weight.bool().unsqueeze(1), state, 0)
    expected = torch.autograd.grad(
        loss / batch.rows[:, -1].sum(), [parameters[name.removeprefix("policy.")] for name in agent.flat.parameters]
    )
    flat = torch.cat([gradient.reshape(-1) for gradient in expected])
    assert torch.allclose(proposed[0][: len(flat)], flat, rtol=1e-9, atol=1e-11)


def test_restored_shard_has_the_same_memory() -> None:
    agent = agent_of()
    uninterrupted, interrupted = shard_of(agent), shard_of(agent)
    rollouts = [collect([uninterrupted], agent, iteration)[0] for iteration in (1, 2)]
    collect([interrupted], agent, 1)
    state = {name: tensor.clone() for name, tensor in interrupted.state().items()}
    assert state["memory"].abs().sum() > 0
    restored = shard_of(agent)
    restored.restore(state, 1)
    found = collect([restored], agent, 2)[0]
    for name, tensor in rollouts[1].tensors().items():
        assert torch.equal(tensor.nan_to_num(), found.tensors()[name].nan_to_num()), name


def test_policy_runner_keeps_memory_within_an_episode() -> None:
    agent = agent_of()
    rows = stream(1, "rows").standard_normal((3, 1, 3))
    runner, logits, state = PolicyRunner(agent), [], torch.zeros(1, agent.state_size, dtype=torch.float64)
    for row in rows:
        parameters, _, state = agent.policy.act(agent.normalize(torch.from_numpy(row)), None, state)
        logits.append(parameters)
    expected = [int(found.argmax()) for found in logits]
    for _ in range(2):
        runner.begin()
        assert [int(runner.act(row)[0]) for row in rows] == expected
    assert torch.equal(runner.state, state)


def test_rollout_shapes_follow_from_the_sequence_length() -> None:
    rollout = Rollout.empty(Sizes(12, 2, 3, None, (), torch.float32, state=5, sequence=4))
    assert rollout.sequence_length == 4
    assert rollout.states.shape == (3, 2, 5)
    assert np.prod(rollout.pixels.shape) == 0
