"""Rollouts that end early: they equal shorter rollouts, and the rows of the steps that were not taken have no effect."""

from dataclasses import replace

import pytest
import torch
from tests import watched
from tests.algorithm import test_images, test_memory
from tests.algorithm.test_collect import GAMMA, Scripted
from tests.algorithm.test_collect import agent_of as agent_of_rows

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.collect import Shard, collect, rollout_sizes
from lockstep.algorithm.estimates import Estimator
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.plan import PlanConfig
from lockstep.algorithm.preemption import Preemption
from lockstep.algorithm.update import Update
from lockstep.curiosity.intrinsic import IntrinsicRewards
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.catalog import make_engine
from lockstep.envs.engine import Engine
from lockstep.group.finished_count import FinishedCount
from lockstep.group.group import ordered_sum
from lockstep.group.solo import Solo
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

STEPS, TAKEN, ITERATIONS = 8, 5, 4
CONFIG = PPOConfig(epochs=1, minibatches=1)
SAME = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "episodes", "infos")
"""Tensors `[T, …]` whose first rows are those of a shorter rollout."""


class EndsAfter(Preemption):
    """Ends every rollout after TAKEN steps."""

    def __init__(self) -> None:
        self.finished: list[tuple[int, int]] = []

    def is_due(self, iteration: int, steps: int) -> bool:
        return steps == TAKEN

    def finish(self, iteration: int, shards: int) -> None:
        self.finished.append((iteration, shards))


def agent_of(kind: str) -> Agent:
    """An agent whose steps NumPy computes ("rows", "memory"), or kernels, or PyTorch (images)."""
    if kind.endswith("with kernels"):
        agent = agent_of(kind.removesuffix(" with kernels"))
        agent.use_kernels()
        return agent
    if kind == "images":
        return test_images.agent_of("Grey", shared=True)
    if kind == "images with memory":
        return test_images.agent_of("Grey", shared=True, core="lstm")
    return test_memory.agent_of() if kind == "memory" else agent_of_rows()


def engine_of(kind: str, agent: Agent, index: int = 0) -> Engine:
    if kind.startswith("images"):
        return make_engine(test_images.config_of("Grey"), 1, index, test_images.SHARDS)
    return Scripted(agent.spaces)


def shard_of(kind: str, agent: Agent, steps: int, index: int = 0) -> Shard:
    engine = engine_of(kind, agent, index)
    sizes = rollout_sizes(agent, steps, engine.absent.size, 1 if agent.state_size == 0 else steps)
    empty = Rollout.empty(sizes)
    for tensor in empty.tensors().values():  # what an earlier rollout may have left
        tensor.fill_(1)
    return Shard(index, engine, [empty], 1, GAMMA)


KINDS = ["rows", "memory", "rows with kernels", "memory with kernels", "images", "images with memory"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_that_ends_early_equals_a_shorter_one(kind: str) -> None:
    agent = agent_of(kind)
    early, short, preemption = shard_of(kind, agent, STEPS), shard_of(kind, agent, TAKEN), EndsAfter()
    for iteration in range(1, ITERATIONS + 1):
        (found,) = collect([early], agent, iteration, False, preemption)
        (expected,) = collect([short], agent, iteration)
        assert int(found.taken) == TAKEN
        for name in SAME:
            assert torch.equal(found.tensors()[name][:TAKEN].nan_to_num(), expected.tensors()[name].nan_to_num()), name
        for name in ("statistics_sums", "means", "faults"):
            assert torch.equal(found.tensors()[name], expected.tensors()[name]), name
        for name in ("observations", "values"):
            assert torch.equal(found.tensors()[name][: TAKEN + 1], expected.tensors()[name]), name
        assert torch.equal(found.states[0], expected.states[0])
        assert torch.equal(found.pixels[: TAKEN + 1], expected.pixels)
        assert not found.valid[TAKEN:].any()
        assert found.episodes[TAKEN:].isnan().all()
        for name in ("observations", "pixels", "memory", "ended", "running"):
            assert torch.equal(getattr(early, name), getattr(short, name)), name
    assert preemption.finished == [(iteration, 1) for iteration in range(1, ITERATIONS + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_step_is_that_of_a_rollout_of_one_step(kind: str) -> None:
    agent = agent_of(kind)
    (longer,), (single,) = (collect([shard_of(kind, agent, steps)], agent, 1) for steps in (STEPS, 1))
    for name in ("observations", "rewards", "terminated", "truncated", "episodes"):
        assert torch.equal(longer.tensors()[name][:1].nan_to_num(), single.tensors()[name][:1].nan_to_num()), name


@pytest.mark.parametrize("vtrace", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_estimates_are_those_of_a_shorter_rollout(kind: str, vtrace: bool) -> None:
    agent = agent_of(kind)
    early, short = shard_of(kind, agent, STEPS), shard_of(kind, agent, TAKEN)
    estimate = Estimator(agent, CONFIG, vtrace)
    for iteration in range(1, ITERATIONS + 1):
        found = estimate(*collect([early], agent, iteration, False, EndsAfter()), None, 0.0)
        expected = estimate(*collect([short], agent, iteration), None, 0.0)
        assert torch.allclose(found.advantages[:TAKEN], expected.advantages, rtol=0, atol=1e-6)
        assert not found.advantages[TAKEN:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_is_that_of_shorter_rollouts(kind: str) -> None:
    weights = []
    for steps, preemption in ((STEPS, EndsAfter()), (TAKEN, None)):
        agent = agent_of(kind)
        shards = [shard_of(kind, agent, steps, index) for index in range(2)]
        update = Update(agent, CONFIG, Solo((1,)), (0, 1), 1, UpdateOptions(fused=True))
        for iteration in (1, 2):
            update(collect(shards, agent, iteration, True, preemption), iteration, 0.0)
        weights.append(agent.flat.buffer.clone())
    assert torch.allclose(*weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["disagreement", "e3b", "icm", "ngu", "re3", "rnd"])
def test_intrinsic_rewards_are_those_of_a_shorter_rollout(kind: str) -> None:
    config = CuriosityConfig(kind, hidden=(8,), feature_size=4, neighbors=2)  # type: ignore[arg-type]
    sides = []
    for steps in (STEPS, TAKEN):
        agent = watched.agent_of(curiosity=config)
        assert agent.curiosity is not None
        rewards = IntrinsicRewards(agent.curiosity, GAMMA, (0, 1), ordered_sum)
        sides.append((agent, [shard_of("rows", agent, steps, index) for index in range(2)], rewards))
    (agent, early, rewards_of_early), (other, short, rewards_of_short) = sides
    for iteration in range(1, ITERATIONS + 1):
        cut, whole = collect(early, agent, iteration, False, EndsAfter()), collect(short, other, iteration)
        found, expected = rewards_of_early(cut), rewards_of_short(whole)
        for bonus, shorter, rollout in zip(found, expected, cut, strict=True):
            assert bonus.rewards.shape == rollout.rewards.shape
            assert torch.equal(bonus.rewards[:TAKEN], shorter.rewards)
            assert not bonus.rewards[TAKEN:].any()
            assert torch.equal(bonus.columns[: len(shorter.columns)], shorter.columns)
            assert len(bonus.columns) == rollout.rewards.numel()
            assert torch.equal(bonus.metric_sums, shorter.metric_sums)
        rewards_of_early.observe(cut)
        rewards_of_short.observe(whole)
        assert agent.digest() == other.digest(), "running statistics"
    states = rewards_of_early.state(), rewards_of_short.state()
    for shard, state in states[0].items():
        for name, tensor in state.items():
            assert torch.equal(tensor, states[1][shard][name]), name


class Known(FinishedCount):
    """FinishedCount with a total that the test sets."""

    def __init__(self, total: int) -> None:
        super().__init__(10)
        self.known = total

    def _add(self, slot: int, count: int) -> None:
        self.known += count

    def _read(self, slot: int) -> int:
        return self.known


def test_rollouts_end_after_the_least_part_once_enough_shards_have_finished() -> None:
    config = PlanConfig(exact=False, preempt=0.3, preempt_after=0.25)
    for total, first in ((2, None), (3, 2), (10, 2)):
        preemption = Preemption.make(config, lambda _, total=total: Known(total), 10, 8)
        assert preemption is not None
        due = [preemption.is_due(1, steps) for steps in range(8)]
        assert due == [first is not None and steps >= first for steps in range(8)]
    assert Preemption.make(replace(config, preempt=None), Known, 10, 8) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preempt": 1.5}, "plan.preempt is 1.5: it must be above 0 and at most 1"),
        ({"preempt_after": 0.0}, "plan.preempt_after is 0: it must be above 0 and at most 1"),
    ],
)
def test_unsuitable_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanConfig(**settings)  # type: ignore[arg-type]
