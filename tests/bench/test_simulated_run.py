"""The measured cost of a run for predictions: what is read from its folder, and folders that can't be used."""

import json
from pathlib import Path

import pytest
from tests.bench.simulated_runs import PARAMETERS, ROWS, Change, make_run, write_optimizer

from lockstep.bench.simulation.network import NETWORKS, Cluster
from lockstep.bench.simulation.prediction import predict_all
from lockstep.bench.simulation.workload import Workload, read_workload
from lockstep.config import Config
from lockstep.experiment.execute import open_run


def read(folder: Path) -> tuple[Workload, int, Config]:
    run, config = open_run(folder)
    return *read_workload(run, config), config


def test_costs_are_those_of_a_shard_without_the_warmup(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    workload, ranks, config = read(tmp_path / "run")
    assert (ranks, workload.shards, workload.parameters, workload.updates) == (1, 4, PARAMETERS, 16)
    assert (workload.steps, workload.itemsize) == (500, 4)
    costs = workload.costs
    assert len(costs.rollout) == ROWS - 2
    assert costs.rollout[0] == pytest.approx(1.02 * 0.4 / 4)
    assert costs.record[-1] == pytest.approx(1.21 * 0.02)
    # gradients, optimizer steps and the sums of rows add up to the update
    assert 4 * costs.learn[0] + 16 * workload.optimizer_step == pytest.approx(1.02 * (0.4 + 0.1))
    mean = sum((1 + index / 100) * 0.95 for index in range(2, ROWS)) / (ROWS - 2)
    alone = predict_all(workload, config.plan, [1], Cluster(1, 1, NETWORKS["10gbe"]), False, 0)[0]
    assert alone.iteration_seconds == pytest.approx(mean), "all but the time of waiting for other ranks"


def test_costs_of_several_ranks_are_those_of_the_shards_of_one(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ranks=2)
    workload, ranks, _ = read(tmp_path / "run")
    assert (ranks, workload.shards) == (2, 4)
    assert workload.costs.rollout[0] == pytest.approx(1.02 * 0.4 / 2)
    assert 2 * workload.costs.learn[0] + 16 * workload.optimizer_step == pytest.approx(1.02 * 0.4)


def test_rollouts_of_a_split_plan_are_those_of_the_players(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ranks=3, kind="one-trainer")
    workload, _, _ = read(tmp_path / "run")
    assert workload.costs.rollout[0] == pytest.approx(1.02 * 0.4 / 2 / 2)


def test_only_the_iterations_since_the_last_start_count(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ranks=2, restarted=8)
    workload, ranks, _ = read(tmp_path / "run")
    assert (ranks, len(workload.costs.rollout)) == (2, ROWS - 8 - 2)


def test_small_reductions_follow_the_update(tmp_path: Path) -> None:
    """Epochs after the first have two more reductions if advantages are computed again."""
    make_run(tmp_path / "run")
    workload, _, config = read(tmp_path / "run")
    ppo = config.ppo
    assert ppo.recompute_advantages
    assert ppo.normalize_rewards
    assert len(workload.small_rows) == 1 + 2 * ppo.epochs
    assert workload.small_rows[1:3] == (5 + 2 * ppo.epochs * ppo.minibatch_count, ppo.epochs * ppo.minibatch_count)


def change_rows(**values: object) -> Change:
    def change(run: Path) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        last = {**json.loads(lines[-1]), **values}
        (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last), ""]))

    return change


def cut_to(count: int) -> Change:
    def change(run: Path) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        (run / "metrics.jsonl").write_text("\n".join([*lines[:count], ""]))

    return change


def change_start(**values: object) -> Change:
    def change(run: Path) -> None:
        start = json.loads((run / "starts.jsonl").read_text())
        (run / "starts.jsonl").write_text(json.dumps({**start, **values}) + "\n")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut_to(11), "run has 11 iterations since its last start: a prediction needs at least 12; train it longer"),
        (lambda run: (run / "starts.jsonl").unlink(), "holds no start of the run"),
        (change_start(ranks=10**9), "starts.jsonl has 1000000000 ranks"),
        (change_start(ranks=5), "plan.shards is 4: 5"),
        (change_start(plan="none"), "plan.kind is 'none'"),
        (change_rows(t_rollout=None), "t_rollout must be a number of at least 0 in every line"),
        (change_rows(t_learn=-1.0), "t_learn must be"),
        (change_rows(t_record="x"), "t_record must be"),
        (change_rows(update_steps=[1.0]), "update_steps must be"),
        (lambda run: (run / "checkpoints/00000022/optimizer.safetensors").unlink(), "it must hold the optimizer's state"),
        (write_optimizer(b""), "it must hold the optimizer's state"),
        (write_optimizer(b"{}", 2**60), "it must hold"),
        (write_optimizer(b"[" * 100_000), "it must hold"),
        (write_optimizer(b'{"first": {"shape": [true]}}'), "it must hold"),
        (write_optimizer(b'{"first": {"shape": [1, 2]}}'), "it must hold"),
        (write_optimizer(b'{"first": {"shape": [-1]}}'), "it must hold"),
        (lambda run: (run / "checkpoints").rename(run / "moved"), "run has no checkpoint"),
    ],
)  # fmt: skip
def test_runs_that_can_not_be_used_are_refused_in_one_line(change: Change, message: str, tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    change(tmp_path / "run")
    with pytest.raises(ValueError, match=r".") as raised:
        read(tmp_path / "run")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
