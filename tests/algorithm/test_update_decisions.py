"""Decisions during an update: KL stop, epochs of policy and critic, schedules, adaptive factors."""

import pytest
import torch
from tests.watched import watch_of

FAST = {"learning_rate": 0.02, "epochs": 4, "minibatches": 3}


@pytest.mark.parametrize("stop_after", [1, 5, 8])
def test_kl_stop_skips_the_first_step_above_the_limit(stop_after: int) -> None:
    free = watch_of(**FAST)
    assert free()["kl_stopped"] == 0
    divergences = free.divergences()
    limit = (max(divergences[:stop_after]) + divergences[stop_after]) / 2
    assert max(divergences[:stop_after]) < limit < divergences[stop_after], "these numbers do not test a stop here"
    stopped = watch_of(kl_stop=limit, **FAST)
    metrics = stopped()
    assert metrics["kl_stopped"] == 1
    assert len(stopped.weights) == stop_after
    assert torch.equal(stopped.agent.flat.buffer, free.weights[stop_after - 1])


def test_critic_with_separate_epochs_continues_after_a_kl_stop() -> None:
    watch = watch_of(learning_rate=0.02, policy_epochs=3, value_epochs=4, minibatches=2, kl_stop=1e-9)
    watch()
    policy, value = (watch.agent.flat.slices[name] for name in ("policy", "value"))
    assert len(watch.group.totals) == 2 + 4 * 2  # every step is still one reduction
    assert watch.update.adam.steps == {"policy": 1, "value": 4 * 2}
    assert all(torch.equal(weights[policy], watch.weights[0][policy]) for weights in watch.weights)
    assert not torch.equal(watch.weights[-1][value], watch.weights[0][value])


def test_update_ends_with_the_last_epoch_of_the_critic_after_a_kl_stop() -> None:
    watch = watch_of(learning_rate=0.02, policy_epochs=4, value_epochs=2, minibatches=2, kl_stop=1e-9)
    assert watch()["update_steps"] == 2 * 2
    assert watch.update.adam.steps == {"policy": 1, "value": 2 * 2}


@pytest.mark.parametrize(("policy_epochs", "value_epochs"), [(1, 3), (3, 1)])
def test_part_without_remaining_epochs_is_not_changed(policy_epochs: int, value_epochs: int) -> None:
    minibatches = 2
    watch = watch_of(policy_epochs=policy_epochs, value_epochs=value_epochs, minibatches=minibatches)
    watch()
    assert len(watch.weights) == 3 * minibatches
    assert watch.update.adam.steps == {"policy": policy_epochs * minibatches, "value": value_epochs * minibatches}
    for (_, part), epochs in zip(watch.agent.flat.slices.items(), (policy_epochs, value_epochs), strict=True):
        for step in range(1, 3 * minibatches):
            same = torch.equal(watch.weights[step][part], watch.weights[step - 1][part])
            assert same is (step >= epochs * minibatches)
            assert (not watch.gradients[step][part].any()) is (step >= epochs * minibatches)


@pytest.mark.parametrize("rate", [5e-3, 0.0])
def test_critic_has_a_separate_learning_rate(rate: float) -> None:
    watch = watch_of(learning_rate="linear(1e-3, 0)", value_learning_rate=rate)
    watch(progress=0.75)
    assert watch.rates[0] == pytest.approx({"policy": 2.5e-4, "value": rate})


def test_schedules_follow_progress() -> None:
    watch = watch_of(learning_rate="linear(1e-3, 0)", clip="linear(0.2, 0.1)", entropy="linear(0.01, 0)")
    found = [watch(progress=progress) for progress in (0.0, 0.5)]
    for metrics, expected in zip(found, ((1e-3, 0.2, 0.01), (5e-4, 0.15, 0.005)), strict=True):
        assert [metrics[name] for name in ("learning_rate", "clip", "entropy_coefficient")] == pytest.approx(expected)
    assert watch.rates[-1] == {"all": pytest.approx(5e-4)}


@pytest.mark.parametrize(("target", "factor"), [(1e-6, 2.0), (1e3, 0.5), (None, 1.0)])
def test_kl_coefficient_adapts_to_the_target(target: float | None, factor: float) -> None:
    settings = {"surrogate": "kl", "kl_coefficient": 3.0, **FAST}
    # None: just what this update's KL is, so between the two limits
    watch = watch_of(kl_target=target or watch_of(**settings)()["last_kl"], **settings)
    watch()
    assert watch.update.kl.coefficient == 3.0 * factor


def test_larger_kl_coefficient_reduces_the_kl_divergence() -> None:
    weak, strong = (watch_of(surrogate="kl", kl_coefficient=beta, **FAST) for beta in (1e-6, 100.0))
    assert strong()["approx_kl"] < 0.5 * weak()["approx_kl"]


@pytest.mark.parametrize(("target", "factor"), [(1e-6, 1 / 1.5), (1e3, 1.5), (None, 1.0)])
def test_learning_rate_adapts_to_the_kl_target(target: float | None, factor: float) -> None:
    settings = {"learning_rate_kl_max": 100.0, **FAST}
    watch = watch_of(learning_rate_kl=target or watch_of(**FAST)()["approx_kl"], **settings)
    first, second = watch(), watch()
    assert first["learning_rate"] == FAST["learning_rate"]
    assert second["learning_rate"] == pytest.approx(FAST["learning_rate"] * factor)
    assert watch.rates[-1] == {"all": second["learning_rate"]}


def test_kl_target_of_the_learning_rate_may_be_a_schedule() -> None:
    kl, factors = watch_of(learning_rate_kl="linear(0.02, 0)", learning_rate_kl_max=100.0).update.kl, []
    for progress in (0.0, 0.5, 0.9):  # targets 0.02, 0.01 and 0.002
        kl.adapt(0.006, progress)
        factors.append(kl.rate_factor)
    assert factors == pytest.approx([1.5, 1.5, 1.0])


def test_adaptive_factor_of_the_learning_rate_is_bounded() -> None:
    for target, largest, bound in ((1e-12, 1.0, 1e-3), (1e12, 1.0, 1.0), (1e12, 100.0, 100.0)):
        update = watch_of(learning_rate_kl=target, learning_rate_kl_max=largest).update
        for _ in range(60):
            update.kl.adapt(1.0, 0.0)
        assert update.kl.rate_factor == bound
