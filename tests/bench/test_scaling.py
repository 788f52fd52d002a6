"""The runs of a scaling benchmark, and its results, computed from synthetic runs."""

import dataclasses
import json
from pathlib import Path

import pytest

from lockstep.bench import scaling
from lockstep.bench.figures import run_rows, summary_rows
from lockstep.bench.scaling import Case, Measured, Rules, for_ranks, measure, weak
from lockstep.bench.scaling_table import table
from lockstep.bench.training import Training
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.experiment.resolve import resolve
from lockstep.phases import PHASES


def config(ranks: int = 1, **sections: dict[str, object]) -> Config:
    return resolve(load(None, None, {"runtime": {"device": "cpu", "compile": "off"}, **sections}), ranks)


def training(rate: float, players: bool = False, reached: int | None = None) -> Training:
    """Create a run of five iterations of one second, two of them warm-up. From iteration `reached` on, the return is above 475."""
    shares = dict(zip(PHASES, (0.5, 0.3, 0.05, 0.1, 0.03, 0.02), strict=True))
    times = {"t_iter": 1.0, **{f"t_{name}": share for name, share in shares.items()}}
    times |= {f"player_{name}": value for name, value in times.items()} if players else {}
    rows = [{"env_steps": rate * (k + 1), "seconds": k + 1.0, **times} for k in range(5)]
    for index, row in enumerate(rows):
        row["return_mean_20"] = 500.0 if reached is not None and index >= reached else 20.0
    return Training(rows, 1.0, [0])


def runs(kind: str, ranks: int, *trainings: Training, **sections: dict[str, object]) -> list[Measured]:
    resolved = config(ranks, **sections)
    case = Case(kind, ranks, resolved)
    return [Measured(case, index + 1, resolved, result, f"log{index}") for index, result in enumerate(trainings)]


def test_speedups_are_relative_to_the_fewest_ranks_within_a_repeat() -> None:
    measured = runs("strong", 2, training(1500), training(750), training(1600))
    measured += runs("strong", 1, training(1000), training(500), training(1000))
    single, double = summary_rows(run_rows(measured, cores=2))
    assert (single["speedup_median"], single["efficiency_median"]) == (1.0, 1.0)
    assert (double["speedup_median"], double["speedup_least"], double["speedup_most"]) == (1.5, 1.5, 1.6)
    assert (double["efficiency_median"], double["interval_confidence"]) == (0.75, 0.75)
    assert (double["steps_per_second_least"], double["steps_per_second_most"]) == (750, 1600)
    quadruple = summary_rows(run_rows([*runs("weak", 2, training(100)), *runs("weak", 4, training(150))], cores=2))[1]
    assert (quadruple["speedup_base_ranks"], quadruple["speedup_median"], quadruple["efficiency_median"]) == (
        2,
        1.5,
        0.75,
    )


def test_row_of_a_run() -> None:
    plan = {"kind": "1:2"}
    [row] = run_rows(runs("strong", 3, training(1000, players=True), plan=plan), cores=2)
    assert (row["plan"], row["players"], row["trainers"], row["shards"]) == ("1:2", 1, 2, 2)
    assert (row["iterations"], row["warmup_iterations"], row["env_steps"], row["seconds"]) == (3, 2, 3000, 3.0)
    assert row["more_ranks_than_cores"] is True
    assert (row["rank0_learn_median_ms"], row["players_learn_mean_ms"]) == (300.0, pytest.approx(300.0))
    [summary] = summary_rows([row])
    assert sum(float(str(summary[f"players_{phase}_share"])) for phase in PHASES) == pytest.approx(1)
    alone = run_rows(runs("strong", 1, training(1000)), cores=2)
    assert alone[0]["players_iter_mean_ms"] is None
    assert alone[0].keys() == row.keys()


def test_a_repeat_that_does_not_reach_the_return_counts_as_infinite() -> None:
    goal = {"solved_return": 475}
    trainings = [training(1000, reached=1), training(1000, reached=3), training(1000)]
    [row] = summary_rows(run_rows(runs("strong", 1, *trainings, run=goal), cores=2))
    assert (row["repeats_solved"], row["seconds_to_return_median"], row["seconds_to_return_least"]) == (2, 4.0, 2.0)
    assert row["seconds_to_return_most"] is None
    assert row["steps_to_return_median"] == 4000
    lines = table(config(run=goal), [row], cores=2)
    assert lines[-1].split() == ["strong", "1", "4.0", "2.0", "to", "never", "4,000", "2", "of", "3"]


def test_the_table_is_narrow_and_marks_more_ranks_than_cores() -> None:
    measured = runs("strong", 1, training(100_000), training(130_000))
    measured += runs("strong", 2, training(1e6), training(1e6))
    measured += runs("weak", 2, training(1e6, players=True), plan={"kind": "1:1"})
    lines = table(config(), summary_rows(run_rows(measured, cores=1)), cores=1)
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines[4:7]] == [["strong", "1"], ["2*", "1,000,000"], ["weak", "2*"]]
    assert lines[-2].startswith("*: more ranks than the 1 core of this machine")
    assert lines[-1].startswith("note: repeats differ by 26%")


def test_weak_scaling_keeps_the_environments_per_rank() -> None:
    base = load(None, None, {"env": {"count": 8}, "plan": {"shards": 2}})
    grown = weak(base, 3)
    assert (grown.env.count, grown.plan.shards, grown.ppo.minibatches) == (24, 6, base.ppo.minibatches)
    assert weak(load(None, None, {}), 3).plan.shards is None
    for kind, times in (("one-trainer", 3), ("one-player", 1), ("2:2", 2)):
        assert weak(load(None, None, {"env": {"count": 8}, "plan": {"kind": kind}}), 4).env.count == 8 * times


def test_single_rank_plays_and_trains_for_every_plan() -> None:
    plan = {"kind": "1:2", "gradients": "ddp", "shards": 2}
    alone = for_ranks(load(None, None, {"plan": plan}), 1).plan
    assert (alone.kind, alone.gradients, alone.shards) == ("coupled", "ordered", 2)
    assert for_ranks(load(None, None, {"plan": plan}), 3).plan.kind == "1:2"


def test_equal_cases_are_run_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[int, int, object]] = []

    def fake_train(config: Config, ranks: int, *arguments: object, **options: object) -> Training:
        calls.append((ranks, config.run.seed, options["goal"]))
        return training(1000.0)

    monkeypatch.setattr(scaling, "train", fake_train)
    solvable, other = config(run={"solved_return": 475}), config(2)
    cases = [Case("strong", 1, solvable), Case("strong", 2, other), Case("weak", 1, solvable)]
    measured = measure(cases, Rules(2, solve=True), tmp_path)
    assert sorted(calls) == [(1, 1, 475.0), (1, 2, 475.0), (2, 1, None), (2, 2, None)]
    names = sorted((run.case.kind, run.case.ranks, run.config.run.seed, run.log) for run in measured)
    assert names[0] == ("strong", 1, 1, "strong-1-repeat1")
    assert names[-1] == ("weak", 1, 2, "strong-1-repeat2")
    assert len(measured) == 6


@pytest.mark.slow
def test_a_run_ends_when_it_is_solved(tmp_path: Path) -> None:
    solvable = config(run={"solved_return": 10, "total_steps": 1_000_000}, rollout={"steps": 32}, ppo={"epochs": 1})
    [run] = measure([Case("strong", 1, solvable)], Rules(1, warmup=1, solve=True), tmp_path)
    [row] = run_rows([run], cores=2)
    assert 0 < float(str(row["seconds_to_return"])) <= run.training.rows[-1]["seconds"]
    rows = [json.loads(line) for line in (tmp_path / run.log / "metrics.jsonl").read_text().splitlines()]
    first = next(row for row in rows if row["return_mean_20"] is not None and row["return_mean_20"] >= 10)
    assert row["steps_to_return"] == first["env_steps"] < 1_000_000 == solvable.run.total_steps
    assert dataclasses.replace(run.config) == solvable
