"""Gradient steps that are not finite: the run ends, or they are left out and change nothing, with the same decision on every rank."""

import math
from collections.abc import Sequence

import pytest
import torch
from tests.threaded import on_ranks
from tests.watched import COUNT, ITERATION, SEED, STEPS, Watch, agent_of, rollouts_of

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.non_finite import NonFinite
from lockstep.algorithm.numeric_guard import GradientStep
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.update import Update
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

SHARDS = 4
SKIP = {"epochs": 2, "recompute_advantages": False, "on_non_finite": "skip", "learning_rate": 1e-3}


class Recorder:
    """Saver that records what it is called with."""

    def __init__(self, problem: OSError | None = None) -> None:
        self.steps: list[GradientStep] = []
        self.lines: list[str] = []
        self._problem = problem

    def save(self, step: GradientStep, agent: Agent) -> None:
        if self._problem is not None:
            raise self._problem
        self.steps.append(step)

    def replay_command(self, iteration: int) -> str:
        return f"replay {iteration}"

    def warn(self, line: str) -> None:
        self.lines.append(line)


def spoiled(agent: Agent, shards: int = SHARDS) -> list[Rollout]:
    """Return rollouts in which the reward of the first row of environment 4 is NaN, which spoils no other row."""
    rollouts = rollouts_of(agent, shards)
    rollouts[2].rewards[0, 1] = math.nan
    return rollouts


def updated(
    agent: Agent, group: Group, shards: Sequence[int], rollouts: Sequence[Rollout], **settings: object
) -> Update:
    fused, share_data = (bool(settings.pop(name, False)) for name in ("fused", "share_data"))
    options = UpdateOptions(fused=fused, share_data=share_data)
    update = Update(agent, PPOConfig(**{**SKIP, **settings}), group, shards, SEED, options)  # type: ignore[arg-type]
    update.guard.saver = Recorder()
    update([rollouts[shard] for shard in shards], ITERATION, 0.0)
    return update


def test_a_step_that_is_left_out_changes_nothing_and_the_others_are_taken() -> None:
    agent = agent_of()
    rollouts = rollouts_of(agent)
    watch, whole = Watch(agent, PPOConfig(minibatches=4, **SKIP)), agent_of()
    metrics = watch(rollouts)
    assert (metrics["skipped_steps"], metrics["update_steps"], len(watch.weights)) == (0, 8, 8)
    rollouts = rollouts_of(whole)
    rollouts[1].rewards[STEPS - 1, 0] = math.nan
    rollouts[1].terminated[STEPS - 2, 0] = True  # so that no other row is spoiled
    watch = Watch(whole, PPOConfig(minibatches=4, **SKIP))
    metrics = watch(rollouts)
    assert (metrics["skipped_steps"], metrics["update_steps"], len(watch.weights)) == (2, 6, 6)
    assert set(watch.update.adam.steps.values()) == {6}
    assert all(map(math.isfinite, metrics.values()))
    assert all(tensor.isfinite().all() for tensor in watch.update.state().values())


@pytest.mark.parametrize("tensor_name", ["observations", "rewards", "values", "log_probs"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_without_any_finite_step_everything_stays_as_it_was(tensor_name: str, value: float) -> None:
    agent = agent_of(normalize=True)
    watch = Watch(agent, PPOConfig(minibatches=1, normalize_advantages=False, **SKIP))
    watch(rollouts_of(agent))
    before = agent.digest()
    state = {name: tensor.clone() for name, tensor in watch.update.state().items()}
    rollouts, collected = rollouts_of(agent), tensor_name in ("observations", "rewards")
    rollouts[1].tensors()[tensor_name][STEPS - 1, 0] = math.nan if collected else value
    if collected:  # as the player computes them
        rollouts[1].statistics_sums[:] = rollouts[1].values[STEPS - 1, 0] = math.nan
    metrics = watch(rollouts)
    assert (metrics["skipped_steps"], metrics["update_steps"]) == (2, 0)
    assert torch.equal(agent.flat.buffer, watch.weights[-1])
    assert (agent.digest() == before) == collected, "statistics of finite sums are merged"
    after = watch.update.state()
    assert after.pop("skipped_iterations").item() == 1
    assert all(torch.equal(tensor, state[name]) for name, tensor in after.items())


def test_three_iterations_without_a_finite_step_end_the_run() -> None:
    agent = agent_of()
    update = Update(agent, PPOConfig(minibatches=1, **SKIP), Solo(), range(2), SEED)
    broken, good = rollouts_of(agent), rollouts_of(agent)
    broken[1].rewards[STEPS - 1, 0] = math.nan
    for rollouts in (broken, broken, good, broken, broken):
        update(rollouts, ITERATION, 0.0)
    again = Update(agent, PPOConfig(minibatches=1, **SKIP), Solo(), range(2), SEED)
    again.load(update.state())  # a resumed run ends in the same iteration
    for candidate in (update, again):
        with pytest.raises(NonFinite) as caught:
            candidate(broken, ITERATION, 0.0)
        assert str(caught.value) == (
            f"no gradient step was finite in 3 iterations in a row: the reward of environment 2 is nan at step {STEPS} "
            f"of iteration {ITERATION}: check the environment"
        )


@pytest.mark.parametrize("options", [{}, {"share_data": True}])
def test_every_rank_decides_alike(options: dict[str, bool]) -> None:
    def train(group: Group, shards: Sequence[int]) -> tuple[str, list[GradientStep], list[str]]:
        agent = agent_of(normalize=True)
        update = updated(agent, group, shards, spoiled(agent), minibatches=4, **options)
        assert isinstance(update.guard.saver, Recorder)
        return agent.digest(), update.guard.saver.steps, update.guard.saver.lines

    digests = set()
    for shares in ([(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0,), (1, 2, 3)]):
        results = on_ranks(shares, train)
        digests |= {digest for digest, _, _ in results}
        steps = [step for _, steps, _ in results for step in steps]
        assert [len(lines) for _, _, lines in results] == [1, *[0] * (len(shares) - 1)]
        assert len(steps) == 1, "one rank saves the part"
        assert results[0][2] == [
            f"a gradient step was left out: the reward of environment 5 is nan at step 1 of iteration {ITERATION}: check the environment; "
            f"`replay {ITERATION}` runs that gradient step again"
        ]
        found = steps[0].trace(agent_of(), PPOConfig(**SKIP))  # type: ignore[arg-type]
        assert found is not None
        assert found.text == "the advantage is nan"
        assert found.row is not None
        assert steps[0].places[found.row].tolist() == [5, 1]
    assert len(digests) == 1


@pytest.mark.parametrize("options", [{}, {"share_data": True}, {"fused": True}])
def test_places_are_those_of_the_rows(options: dict[str, bool]) -> None:
    """Each row holds the observation of its environment and step."""
    agent = agent_of()
    rollouts = rollouts_of(agent, SHARDS)
    rollouts[1].log_probs[STEPS - 1, 0] = -1e4

    def train(group: Group, shards: Sequence[int]) -> list[GradientStep]:
        update = updated(agent_of(), group, shards, rollouts, minibatches=2, **options)
        assert isinstance(update.guard.saver, Recorder)
        return update.guard.saver.steps

    shares = [(0, 1), (2, 3)]
    ((step,),) = [steps for steps in on_ranks(shares, train) if steps]
    for row, (environment, place) in zip(step.microbatch.rows, step.places.tolist(), strict=True):
        rollout = rollouts[environment // COUNT]
        if rollout.valid[place - 1, environment % COUNT]:
            assert torch.equal(row[:3], rollout.observations[place - 1, environment % COUNT])
    found = step.trace(agent_of(), PPOConfig())
    assert found is not None
    assert found.row is not None
    assert step.places[found.row].tolist() == [COUNT, STEPS]


@pytest.mark.parametrize("shares", [[(0, 1, 2, 3)], [(0, 1), (2, 3)]])
def test_the_message_of_a_stop_names_the_saved_step(shares: list[tuple[int, ...]]) -> None:
    agent = agent_of()
    rollouts = rollouts_of(agent, SHARDS)
    rollouts[2].log_probs[3, 1] = -1e4

    def train(group: Group, shards: Sequence[int], problem: OSError | None = None) -> tuple[str, int]:
        update = Update(agent_of(), PPOConfig(epochs=1, minibatches=1), group, shards, SEED)
        update.guard.saver = Recorder(problem)
        with pytest.raises(NonFinite) as caught:
            update([rollouts[shard] for shard in shards], ITERATION, 0.0)
        return str(caught.value), len(update.guard.saver.steps)

    messages, saved = zip(*on_ranks(shares, train), strict=True)
    assert len(set(messages)) == sum(saved) == 1
    assert messages[0].startswith("the result of aten.exp in the loss (operation ")
    assert "which is step 4 of environment 5, in epoch 1, minibatch 1 of iteration 3: lower" in messages[0]
    assert messages[0].endswith(f"; `replay {ITERATION}` runs that gradient step again")
    messages, _ = zip(*on_ranks(shares, lambda *ranks: train(*ranks, OSError(28, "no space"))), strict=True)
    assert len(set(messages)) == 1
    assert "replay" not in messages[0], "nothing is said to be there that could not be written"


@pytest.mark.parametrize("separate", [False, True])
def test_learning_rate_that_overflows_is_rejected_before_the_weights_are_infinite(separate: bool) -> None:
    settings = {"minibatches": 2, "value_learning_rate": 1e308 if separate else None}
    settings |= {"learning_rate": 1e-3 if separate else 1e308}
    for skips in (False, True):
        agent = agent_of()
        config = PPOConfig(**{**SKIP, **settings, "on_non_finite": "skip" if skips else "stop"})  # type: ignore[arg-type]
        update, before = Update(agent, config, Solo(), range(2), SEED), agent.digest()
        update.guard.saver = Recorder()
        if skips:
            metrics = update(rollouts_of(agent), ITERATION, 0.0)
            assert (metrics["skipped_steps"], metrics["update_steps"]) == (4, 0)
        else:
            with pytest.raises(
                NonFinite,
                match=r"^the gradient is finite, but the step makes weights infinite: lower ppo.learning_rate$",
            ):
                update(rollouts_of(agent), ITERATION, 0.0)
        assert agent.digest() == before
        assert update.guard.saver.steps == []


@pytest.mark.parametrize("shares", [[(0, 1, 2, 3)], [(0, 1), (2, 3)]])
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_observation_is_dumped_although_normalization_limits_it(
    shares: list[tuple[int, ...]], value: float
) -> None:
    def train(group: Group, shards: Sequence[int]) -> tuple[str, list[GradientStep]]:
        agent = agent_of(normalize=True)
        rollouts = rollouts_of(agent, SHARDS)
        rollouts[2].observations[3, 1, 2] = value
        rollouts[2].statistics_sums[:] = math.nan  # as the player computes them
        update = Update(agent, PPOConfig(epochs=1, minibatches=2), group, shards, SEED)
        update.guard.saver = Recorder()
        with pytest.raises(NonFinite) as caught:
            update([rollouts[shard] for shard in shards], ITERATION, 0.0)
        return str(caught.value), update.guard.saver.steps

    results = on_ranks(shares, train)
    ((step,),) = [steps for _, steps in results if steps]
    found = step.trace(agent_of(normalize=True), PPOConfig())
    assert found is not None
    assert found.text == f"column 2 of the observations is {value}"
    assert found.row is not None
    assert step.places[found.row].tolist() == [5, 4]
    for text, _ in results:
        assert text.startswith(f"the observation of environment 5 is {value} at step 3 of iteration {ITERATION}: check")
        assert text.endswith("runs that gradient step again")


def test_gradients_of_curiosity_are_outside_the_norm_and_still_examined() -> None:
    agent = agent_of(curiosity=CuriosityConfig("rnd", hidden=(4,), feature_size=3))
    update = Update(agent, PPOConfig(minibatches=1, **SKIP), Solo(), range(2), SEED)
    total = torch.zeros(len(agent.flat.buffer), dtype=torch.float64)
    assert update.guard.is_finite(total, [0.0], 0.0)
    total[agent.flat.slices["curiosity"].start] = math.nan
    assert not update.guard.is_finite(total, [0.0], 0.0)
    assert not update.guard.is_finite(total[:0].new_zeros(len(total)), [math.inf], 0.0)


def test_intrinsic_returns_recover_from_a_spoiled_observation() -> None:
    agent = agent_of(curiosity=CuriosityConfig("rnd", hidden=(4,), feature_size=3))
    update = Update(agent, PPOConfig(minibatches=1, **SKIP), Solo(), range(2), SEED)
    update(rollouts_of(agent), 1, 0.0)
    rollouts = rollouts_of(agent)
    rollouts[1].observations[STEPS - 2, 0] = math.nan
    assert update(rollouts, 2, 0.0)["update_steps"] == 0
    metrics = update(rollouts_of(agent), 3, 0.0)
    assert metrics["skipped_steps"] == 0
    assert agent.curiosity is not None
    for statistics in agent.curiosity.statistics.values():
        assert all(tensor.isfinite().all() for tensor in statistics.state().values())
