"""TrainingRun: metrics, checkpoints, resuming and signals, in training with a real environment."""

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.cpu_runtime import cpu_runtime
from tests.run.training import CONFIG, prepared, resume, run_training, trained
from torch import Tensor

from lockstep.algorithm.collect import collect
from lockstep.algorithm.exchange import LastIteration, ReplicasDiffer
from lockstep.algorithm.non_finite import NonFinite, NonFiniteWeights
from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.experiment.build import build
from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.loop import train
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import PLAYER_FIELDS
from lockstep.run import run as runs
from lockstep.run.checkpoint_writer import CheckpointWriter
from lockstep.run.settings import RunConfig

pytestmark = pytest.mark.usefixtures("restored_signals")


def test_finished_run_has_metrics_and_checkpoints(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    rows = run.folder.metrics()
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert run.folder.checkpoints() == [2, 4, 5]  # every second, and the last
    assert len({row["digest"] for row in rows}) == 5
    expected = "iteration env_steps fps seconds t_iter t_rollout t_learn t_sync t_wait return_mean return_mean_20 length_mean episodes"
    expected += (
        " loss policy_loss value_loss entropy approx_kl clip_frac explained_variance grad_norm learning_rate digest"
    )
    assert set(expected.split()) <= rows[0].keys()
    # reset rows are no steps: one for every episode that ended, unless it ended in the very last row
    ended = sum(int(str(row["episodes"])) for row in rows)
    assert 5 * 64 - ended <= run.counters.env_steps == rows[-1]["env_steps"] <= 5 * 64 - ended + 4


def test_metrics_are_synced_before_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    before: dict[str, int] = {}
    fsync, rename = os.fsync, Path.rename

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == "metrics.jsonl":
            synced.append(len(path.read_text().splitlines()))
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        if target.name.isdigit():
            before[target.name] = synced[-1] if synced else 0
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", renamed)
    trained(tmp_path / "run")
    assert before == {"00000002": 2, "00000004": 4, "00000005": 5}


@pytest.mark.parametrize("lag", [0, 1])
def test_resumed_run_gives_the_same_bits(tmp_path: Path, lag: int) -> None:
    config = dataclasses.replace(CONFIG, plan=PlanConfig(shards=2, lag=lag))
    uninterrupted = trained(tmp_path / "whole", config=config)
    trained(tmp_path / "part", config=config, last=3)  # an odd number, which has another slot than the start
    components, run = prepared(tmp_path / "part", config)
    resume(components, run, 3)
    run_training(components, run)
    for name in ("digest", "env_steps", "episodes", "return_mean", "return_mean_20", "length_mean"):
        assert [row[name] for row in run.folder.metrics()] == [row[name] for row in uninterrupted.folder.metrics()]
    assert run.counters.seconds > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_stops_the_run_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    components, run = prepared(tmp_path / "run")
    run.start(components.shards, components.update)
    os.kill(os.getpid(), number)
    train(components.shards, components.exchange, components.update, run)
    run.close()
    assert run.stopped
    assert run.done == 1
    assert run.folder.checkpoints() == [1]


class GroupWithDifferentWeights(Solo):
    """Group in which the second half of the records comes from a rank with other weights."""

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        return self

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        rows = super().gather(parts, phase).clone()
        if phase == "record":
            rows[len(rows) // 2 :, 0] += 1
        return rows


def test_ranks_with_different_weights_are_detected(tmp_path: Path) -> None:
    components, run = prepared(tmp_path / "run", group=GroupWithDifferentWeights())
    with pytest.raises(ReplicasDiffer, match="after iteration 1"):
        run_training(components, run)
    assert run.folder.metrics() == []


@pytest.mark.parametrize(
    "change", [{"hidden": (9,)}, {"hidden": (8, 8)}, {"normalize_observations": True}, {"shared": True}]
)
def test_checkpoint_of_another_policy_is_reported_in_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    trained(tmp_path / "run", last=2)
    policy = dataclasses.replace(CONFIG.policy, **change)
    components, run = prepared(tmp_path / "run", dataclasses.replace(CONFIG, policy=policy))
    with pytest.raises(ValueError, match=r"^checkpoint .*00000002 does not fit this run: ") as caught:
        resume(components, run, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"count": 6}, {"id": "Acrobot-v1"}])
def test_checkpoint_of_other_environments_is_reported_in_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    trained(tmp_path / "run", last=2)
    env = dataclasses.replace(CONFIG.env, **change)
    components, run = prepared(tmp_path / "run", dataclasses.replace(CONFIG, env=env))
    with pytest.raises(ValueError, match=r"^checkpoint .*00000002 does not fit this run: ") as caught:
        resume(components, run, 2)
    assert "\n" not in str(caught.value)


def test_solved_at_is_restored(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, run=dataclasses.replace(CONFIG.run, solved_return=1.0))
    run = trained(tmp_path / "run", config=config, last=12)
    first = next(row for row in run.folder.metrics() if row["return_mean_20"] is not None)
    assert run.counters.solved_at == first["env_steps"]
    components, resumed = prepared(tmp_path / "run", config)
    resume(components, resumed, 12)
    assert resumed.counters.solved_at == run.counters.solved_at
    assert resumed.counters.episodes.mean == run.counters.episodes.mean


@pytest.mark.parametrize("lag", [0, 1])
def test_observation_statistics_cover_all_valid_observations(lag: int) -> None:
    policy = dataclasses.replace(CONFIG.policy, normalize_observations=True)
    config = dataclasses.replace(CONFIG, policy=policy, plan=PlanConfig(shards=2, lag=lag))
    components = build(config, Plan.make(config.plan, 1), cpu_runtime())
    observed = []
    for iteration in range(1, 6):
        collect(components.shards, components.exchange.acting, iteration)
        rollouts = components.exchange.route(iteration, [0.0] * len(PLAYER_FIELDS))
        observed += [rollout.observations[:-1][rollout.valid] for rollout in rollouts]
        components.update(rollouts, iteration, 0.0)
        components.exchange.publish(iteration, LastIteration(9))
    components.close()
    statistics, expected = components.update.agent.observation_statistics, torch.cat(observed).double()
    assert statistics is not None
    assert statistics.count.item() == len(expected)
    assert torch.allclose(statistics.mean, expected.mean(0), rtol=0, atol=1e-12)
    assert torch.allclose(statistics.squares, (expected - expected.mean(0)).square().sum(0), rtol=1e-9)


def test_loggers_are_flushed_before_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_PERIOD", 1e9)
    config = dataclasses.replace(CONFIG, run=dataclasses.replace(CONFIG.run, loggers=("tensorboard",)))
    components, run = prepared(tmp_path / "run", config, last=7)
    found, write = [], runs.CheckpointWriter.write

    def record_and_write(writer: CheckpointWriter, iteration: int, *rest: object, **steps: Callable[[], None]) -> None:
        events = EventAccumulator(str(run.folder.path / "tb")).Reload().Scalars("time/iteration")
        found.append((iteration, len(run.folder.metrics()), len(events)))
        write(writer, iteration, *rest, **steps)

    monkeypatch.setattr(runs.CheckpointWriter, "write", record_and_write)
    run_training(components, run)
    assert found == [(2, 2, 2), (4, 4, 4), (6, 6, 6), (7, 7, 7)]


def test_metrics_of_finished_iterations_are_written_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_PERIOD", 1e9)
    components, run = prepared(tmp_path / "run", dataclasses.replace(CONFIG, run=RunConfig(loggers=(), progress="off")))
    update = components.update.__call__
    monkeypatch.setattr(
        type(components.update), "__call__", lambda self, *words: update(*words) if words[1] < 4 else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        run_training(components, run)
    assert [row["iteration"] for row in run.folder.metrics()] == [1, 2, 3]


def test_step_that_makes_weights_infinite_is_not_taken(tmp_path: Path) -> None:
    # no later step than the only one of iteration 3 could show that its weights are infinite
    rates = PPOConfig(
        learning_rate="piecewise(0: 1e-4, 0.6: 1e-4, 0.61: 1e39, 1: 1e39)",
        learning_rate_kl=None,
        minibatches=1,
        epochs=1,
        max_grad_norm=None,
    )
    components, run = prepared(tmp_path / "run", dataclasses.replace(CONFIG, ppo=rates), last=3)
    with pytest.raises(NonFinite, match=r"^the gradient is finite, but the step makes weights infinite"):
        run_training(components, run)
    assert components.update.agent.flat.buffer.isfinite().all()
    assert run.folder.checkpoints() == [2]


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    components, run = prepared(tmp_path / "run", last=5)
    record = run.record

    def spoil(iteration: int, losses: Mapping[str, float]) -> None:
        record(iteration, losses)
        if iteration == 4:
            components.update.agent.flat.buffer[0] = torch.inf

    monkeypatch.setattr(run, "record", spoil)
    with pytest.raises(
        NonFiniteWeights, match=r"^tensor 'policy\..*' has values that are not finite after iteration 4: "
    ):
        run_training(components, run)
    assert run.folder.checkpoints() == [2]
    assert run.last_checkpoint() == "the last checkpoint is that of iteration 2"
