"""Results of a throughput benchmark, computed from synthetic runs."""

import pytest

from lockstep.bench.throughput import Throughput, table
from lockstep.bench.training import Training
from lockstep.config.compose import load
from lockstep.experiment.resolve import resolve
from lockstep.phases import PHASES


def training(iteration: float, players: bool = False) -> Training:
    """Create a run of ten iterations of 256 steps. `iteration` is the duration of an iteration in seconds."""
    shares = dict(zip(PHASES, (0.5, 0.3, 0.05, 0.1, 0.03, 0.02), strict=True))
    row = {"t_iter": iteration, **{f"t_{name}": share * iteration for name, share in shares.items()}}
    row |= {f"player_{name}": value for name, value in row.items()} if players else {}
    rows = [{"iteration": k + 1, "env_steps": 256.0 * (k + 1), **row} for k in range(10)]
    return Training(rows, 2.0, [300 * 2**20, 0])


def throughput(kind: str, engines: list[float]) -> Throughput:
    config = resolve(load(None, None, {"plan": {"kind": kind}, "runtime": {"device": "cpu"}}), 2)
    return Throughput(config, 2, [training(seconds, kind == "1:1") for seconds in (0.25, 0.125, 0.5)], engines)


def test_share_is_computed_within_a_repeat() -> None:
    result = throughput("coupled", [2048.0, 8192.0, 1024.0])
    assert (result.rate.median, result.rate.least, result.rate.most) == (1024.0, 512.0, 2048.0)
    assert (result.share.median, result.share.least, result.share.most) == (0.5, 0.25, 0.5)


def test_phases_come_from_the_middle_repeat_and_add_up() -> None:
    phases = throughput("coupled", [1.0, 1.0, 1.0]).record()["phases"]
    assert isinstance(phases, dict)
    assert phases["iter"] == 0.25
    assert sum(phases[name] for name in PHASES) == pytest.approx(0.25)


def test_the_middle_of_two_repeats_is_the_slower_one() -> None:
    result = throughput("coupled", [1.0, 1.0, 1.0])
    two = Throughput(result.config, 2, result.trainings[:2], result.engines[:2])
    assert two.middle is result.trainings[0]


@pytest.mark.parametrize("kind", ["coupled", "1:1"])
def test_the_table_is_narrow_and_notes_when_repeats_differ(kind: str) -> None:
    lines = table(throughput(kind, [2048.0, 2048.0, 2048.0]))
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("note: repeats differ by 150%") for line in lines)
    total = next(line for line in lines if line.startswith("total"))
    assert total.count("100.0%") == (2 if kind == "1:1" else 1)
    assert [line.split()[-1] for line in lines if line[:2] in ("0 ", "1 ")] == ["MiB", "-"]
    assert any("plays, trains" in line for line in lines) == (kind == "coupled")
