"""A run as the loop sees it, with a real environment."""

import dataclasses
import os
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests import alone
from torch import Tensor

from lockstep.algorithm.collect import collect
from lockstep.algorithm.exchange import ReplicasDiffer
from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.config import Config
from lockstep.envs.settings import EnvConfig, RolloutConfig
from lockstep.experiment.build import RankComponents, build
from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.loop import train
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import STATUS
from lockstep.run import run as runs
from lockstep.run import stop
from lockstep.run.checkpoint import Checkpoint
from lockstep.run.folder import RunFolder
from lockstep.run.run import Run
from lockstep.run.settings import RunConfig
from lockstep.telemetry.recorder import Recorder

CONFIG = Config(
    env=EnvConfig(id="CartPole-v1", engine="gymnasium", count=4),
    rollout=RolloutConfig(steps=16),
    policy=PolicyConfig(hidden=(8,)),
    ppo=PPOConfig(learning_rate=3e-4, minibatches=2, epochs=2),
    plan=PlanConfig(shards=2),
    run=RunConfig(checkpoint_every=2, loggers=(), progress="off"),
)


@pytest.fixture(autouse=True)
def fixture_signals() -> Iterator[None]:
    """A run takes signals; the tests after this one want them back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    stop._asked = 0
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def prepared(
    path: Path, config: Config = CONFIG, group: Group | None = None, last: int = 5
) -> tuple[RankComponents, Run]:
    group = group or Solo()
    folder = RunFolder(path) if path.exists() else RunFolder.create(path, {}, {})
    plan = Plan.make(config.plan, group.size)
    cast = build(config, plan, alone.runtime(group))
    telemetry = partial(Recorder, config=config.run, modules=())
    return cast, Run(folder, config.run, plan, config.plan.lag, group, cast.trainers, last, 1, telemetry)


def go(cast: RankComponents, run: Run) -> None:
    run.start(cast.shards, cast.update)
    try:
        train(cast.shards, cast.exchange, cast.update, run)
    finally:
        run.close()


def resume(cast: RankComponents, run: Run, iteration: int) -> None:
    run.resume(Checkpoint(run.folder.checkpoint(iteration)), cast.shards, cast.update, cast.exchange)


def trained(path: Path, **settings: object) -> Run:
    cast, run = prepared(path, **settings)
    go(cast, run)
    return run


def test_what_a_run_leaves(tmp_path: Path) -> None:
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


def test_metrics_are_on_disk_before_a_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_run_that_is_taken_up_again_goes_on_to_the_same_bits(tmp_path: Path, lag: int) -> None:
    config = dataclasses.replace(CONFIG, plan=PlanConfig(shards=2, lag=lag))
    whole = trained(tmp_path / "whole", config=config)
    trained(tmp_path / "part", config=config, last=3)  # an odd number, which has another slot than the start
    cast, run = prepared(tmp_path / "part", config)
    resume(cast, run, 3)
    go(cast, run)
    for name in ("digest", "env_steps", "episodes", "return_mean", "return_mean_20", "length_mean"):
        assert [row[name] for row in run.folder.metrics()] == [row[name] for row in whole.folder.metrics()]
    assert run.counters.seconds > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_run_after_the_iteration_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    cast, run = prepared(tmp_path / "run")
    run.start(cast.shards, cast.update)
    os.kill(os.getpid(), number)
    train(cast.shards, cast.exchange, cast.update, run)
    run.close()
    assert run.stopped
    assert run.done == 1
    assert run.folder.checkpoints() == [1]


class Torn(Solo):
    """The second half of the rows comes from a rank whose weights are not the same."""

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        return self

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        rows = super().gather(parts, phase).clone()
        if phase == "record":
            rows[len(rows) // 2 :, 0] += 1
        return rows


def test_ranks_that_hold_different_weights_stop(tmp_path: Path) -> None:
    cast, run = prepared(tmp_path / "run", group=Torn())
    with pytest.raises(ReplicasDiffer, match="after iteration 1"):
        go(cast, run)
    assert run.folder.metrics() == []


@pytest.mark.parametrize(
    "change", [{"hidden": (9,)}, {"hidden": (8, 8)}, {"normalize_observations": True}, {"shared": True}]
)
def test_a_checkpoint_of_another_shape_gives_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    trained(tmp_path / "run", last=2)
    policy = dataclasses.replace(CONFIG.policy, **change)
    cast, run = prepared(tmp_path / "run", dataclasses.replace(CONFIG, policy=policy))
    with pytest.raises(ValueError, match=r"^checkpoint .*00000002 does not fit this run: ") as caught:
        resume(cast, run, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"count": 6}, {"id": "Acrobot-v1"}])
def test_a_checkpoint_of_other_environments_gives_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    trained(tmp_path / "run", last=2)
    env = dataclasses.replace(CONFIG.env, **change)
    cast, run = prepared(tmp_path / "run", dataclasses.replace(CONFIG, env=env))
    with pytest.raises(ValueError, match=r"^checkpoint .*00000002 does not fit this run: ") as caught:
        resume(cast, run, 2)
    assert "\n" not in str(caught.value)


def test_when_the_goal_was_reached_is_kept(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, run=dataclasses.replace(CONFIG.run, solved_return=1.0))
    run = trained(tmp_path / "run", config=config, last=12)
    first = next(row for row in run.folder.metrics() if row["return_mean_20"] is not None)
    assert run.counters.solved_at == first["env_steps"]
    cast, again = prepared(tmp_path / "run", config)
    resume(cast, again, 12)
    assert again.counters.solved_at == run.counters.solved_at
    assert again.counters.episodes.mean == run.counters.episodes.mean


@pytest.mark.parametrize("lag", [0, 1])
def test_moments_are_those_of_all_that_was_seen(lag: int) -> None:
    policy = dataclasses.replace(CONFIG.policy, normalize_observations=True)
    config = dataclasses.replace(CONFIG, policy=policy, plan=PlanConfig(shards=2, lag=lag))
    cast = build(config, Plan.make(config.plan, 1), alone.runtime())
    seen = []
    for iteration in range(1, 6):
        collect(cast.shards, cast.exchange.acting, iteration)
        rollouts = cast.exchange.route(iteration, [0.0] * len(STATUS))
        seen += [rollout.observations[:-1][rollout.valid] for rollout in rollouts]
        cast.update(rollouts, iteration, 0.0)
        cast.exchange.publish(iteration, 9)
    cast.close()
    moments, expected = cast.update.agent.observation_moments, torch.cat(seen).double()
    assert moments is not None
    assert moments.count.item() == len(expected)
    assert torch.allclose(moments.mean, expected.mean(0), rtol=0, atol=1e-12)
    assert torch.allclose(moments.squares, (expected - expected.mean(0)).square().sum(0), rtol=1e-9)


def test_metrics_up_to_a_checkpoint_are_on_disk_before_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_PERIOD", 1e9)
    config = dataclasses.replace(CONFIG, run=dataclasses.replace(CONFIG.run, loggers=("tensorboard",)))
    cast, run = prepared(tmp_path / "run", config, last=7)
    found, write = [], runs.write_checkpoint

    def look(folder: RunFolder, iteration: int, *rest: object) -> None:
        events = EventAccumulator(str(folder.path / "tb")).Reload().Scalars("time/iteration")
        found.append((iteration, len(folder.metrics()), len(events)))
        write(folder, iteration, *rest)

    monkeypatch.setattr(runs, "write_checkpoint", look)
    go(cast, run)
    assert found == [(2, 2, 2), (4, 4, 4), (6, 6, 6), (7, 7, 7)]


def test_a_fault_leaves_the_metrics_of_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_PERIOD", 1e9)
    cast, run = prepared(tmp_path / "run", dataclasses.replace(CONFIG, run=RunConfig(loggers=(), progress="off")))
    update = cast.update.__call__
    monkeypatch.setattr(type(cast.update), "__call__", lambda self, *words: update(*words) if words[1] < 4 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go(cast, run)
    assert [row["iteration"] for row in run.folder.metrics()] == [1, 2, 3]
