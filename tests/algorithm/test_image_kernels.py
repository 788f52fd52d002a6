"""Kernels of policies with images: comparison with the same policies in PyTorch."""

import numpy as np
import pytest
import torch
from tests.compiling.formulas import CASES, IMAGES, SMALL_IMAGES, formula_of

from lockstep.algorithm.acting import ActingState
from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Microbatch
from lockstep.algorithm.gradient import OrderedGradient
from lockstep.compiling import kernels
from lockstep.compiling.kernels import InterpretedKernel
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream
from lockstep.rollout import Rollout, Sizes

STEPS, COUNT, LENGTH = 4, 3, 2

POLICIES = {
    "nature": (IMAGES, {}),
    "shared": (IMAGES, {"shared": True, "head_hidden": (5,)}),
    "memory": (IMAGES, {"core": "lstm", "core_size": 8}),
    "shared memory": (IMAGES, {"core": "mingru", "core_size": 8, "shared": True}),
    "impala": (SMALL_IMAGES, {"encoder": "impala"}),
}


def images_of(spaces: Spaces, *shape: int) -> np.ndarray:
    """Return random images `[…, P]`."""
    return stream(5, "test").integers(256, size=(*shape, spaces.pixel_count), dtype=np.uint8)


def rollout_of(agent: Agent) -> Rollout:
    """Let an agent act on random observations. Return observations, actions, log-probabilities and values."""
    spaces = agent.spaces
    size, action_size = spaces.observation_size, spaces.continuous_size or None
    sizes = Sizes(STEPS, COUNT, size, action_size, (), torch.float64, spaces.pixel_count, agent.state_size, LENGTH)
    rollout = Rollout.empty(sizes)
    rollout.observations.copy_(torch.from_numpy(stream(3, "test").normal(size=(STEPS + 1, COUNT, size))))
    rollout.pixels.copy_(torch.from_numpy(images_of(spaces, STEPS + 1, COUNT)))
    rollout.terminated.zero_()
    rollout.truncated.zero_()
    rollout.terminated[1, 2] = True
    rollout.valid.fill_(True)
    rollout.valid[2, 2] = False
    memory = None
    if agent.state_size:
        state, no_ends = torch.zeros(COUNT, agent.state_size, dtype=torch.float64), np.zeros(COUNT, bool)
        memory = ActingState(state, rollout.states, no_ends, rollout.terminated.numpy(), rollout.truncated.numpy())
    noise = agent.distribution.noise(stream(4, "test"), STEPS, COUNT)
    actor = agent.actor(noise, rollout.actions.numpy(), memory)
    for t in range(STEPS):
        actor.act(t, rollout.observations[t].numpy(), rollout.pixels[t].numpy())
    rollout.log_probs.copy_(actor.log_probs())
    rollout.values.copy_(actor.values(rollout.observations, rollout.pixels))
    return rollout


@pytest.mark.parametrize("case", POLICIES)
def test_kernels_act_and_evaluate_like_pytorch(case: str) -> None:
    spaces, settings = POLICIES[case]
    agents = [Agent(spaces, PolicyConfig(**settings), False, 1, torch.float64) for _ in range(2)]
    agents[1].use_kernels()
    rollouts = [rollout_of(agent) for agent in agents]
    for name in ("actions", "log_probs", "values", "states"):
        expected, found = (getattr(rollout, name) for rollout in rollouts)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=name)
    for found, expected in zip(agents[1].evaluate(rollouts[0])[:2], agents[0].evaluate(rollouts[0])[:2], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    if not agents[1].state_size:  # the recurrence of minGRU over a sequence rounds differently than its steps
        assert torch.equal(agents[1].evaluate(rollouts[1]).values, rollouts[1].values)
    assert rollouts[0].values.std() > 0


def test_blocks_of_images_give_the_gradient_of_the_whole_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of a block belong to its rows."""
    monkeypatch.setattr(kernels, "_MOST_ELEMENTS", 7 * IMAGES.pixel_count)
    curiosity = CuriosityConfig("rnd", hidden=(8,), feature_size=4, channels=1, share=0.5)
    agent = Agent(IMAGES, PolicyConfig(shared=True), False, 1, torch.float64, curiosity=curiosity)
    count, sizes = 20, []
    _, (_, scalars, rows, pixels, following) = formula_of(
        IMAGES, torch.float64, PolicyConfig(shared=True), PPOConfig(), curiosity, count
    )
    microbatch = Microbatch(rows, pixels, None, following)

    def counting(formula, examples):
        sizes.append(len(examples[2]))
        return InterpretedKernel(formula, examples)

    expected = OrderedGradient(agent, PPOConfig(), Solo())([microbatch], scalars, (True, True))
    ordered = OrderedGradient(agent, PPOConfig(), Solo(), counting)
    ordered.make_kernels(microbatch, (True, True))
    assert sizes == [8, 4]
    torch.testing.assert_close(ordered([microbatch], scalars, (True, True)), expected, rtol=1e-10, atol=1e-10)
    assert sizes == [8, 4], "no kernel is made while training"
    assert all(result.isfinite().all() and result.any() for result in ordered.kernel_results())


@pytest.mark.parametrize("kind", ["rnd", "icm", "re3", "e3b", "disagreement"])
def test_curiosity_rewards_of_images_as_kernels(kind: str) -> None:
    from tests.curiosity.rollouts import IMAGES as SEEN
    from tests.curiosity.rollouts import rollout_of as rollout_of_method

    rewards = []
    for kernel in (False, True):
        curiosity = CuriosityConfig(kind, hidden=(8,), feature_size=4)
        agent = Agent(SEEN, PolicyConfig(encoder="impala"), False, 1, torch.float64, curiosity=curiosity)
        if kernel:
            agent.use_kernels()
        method = agent.curiosity
        assert method is not None
        for brightest in (255, 31):  # kernels that exist use the present statistics
            rollout = rollout_of_method(SEEN, 9, 4)
            rollout.pixels.clamp_(max=brightest)
            method.observe([rollout], lambda sums: sums.sum(0))
            transitions = method.transitions(rollout)
            states = [method.initial_state(4)]
            (reward,) = method.reward([transitions], states, lambda sums: sums.sum(0))
        rewards.append(reward)
    torch.testing.assert_close(rewards[1], rewards[0], rtol=1e-9, atol=1e-9)
    assert rewards[0].std() > 0


def test_cases_with_images_are_tested_in_every_library() -> None:
    assert {"nature", "impala in float64", "images and memory", "small images"} <= CASES.keys()
