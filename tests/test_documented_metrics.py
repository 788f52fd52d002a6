"""Check that docs/metrics.md lists exactly the metrics that runs write."""

import re
from pathlib import Path

import pytest

import lockstep

METRICS = Path(__file__).parents[1] / "docs" / "metrics.md"
SMALL: dict[str, object] = {
    "env.count": 4,
    "rollout.steps": 64,
    "ppo.minibatches": 2,
    "ppo.epochs": 1,
    "run.total_steps": 768,
    "run.progress": "off",
}
RUNS: dict[str, dict[str, object]] = {
    "plain": {},
    "players": {
        "plan.kind": "1:1",
        "plan.lag": 1,
        "plan.correction": "vtrace",
        "plan.shards": 2,
        "env.on_fault": "replace",
        "plan.exact": False,
        "plan.preempt": 1.0,
    },
    "two-heads": {"curiosity.kind": "icm", "curiosity.combine": "two-heads", "curiosity.gamma": 0.9},
    "memory": {"policy.core": "lstm", "curiosity.kind": "rnd", "curiosity.warmup": 1},
    "kl": {
        "ppo.surrogate": "kl",
        "ppo.learning_rate_kl": 0.01,
        "ppo.kl_stop": 0.02,
        "ppo.epochs": 2,
        "ppo.on_non_finite": "skip",
    },
}
PONG: dict[str, object] = {
    "env.id": "ALE/Pong-v5",
    "env.count": 2,
    "rollout.steps": 4,
    "ppo.minibatches": 1,
    "policy.shared": True,
}


def documented() -> set[str]:
    """Return the names in the first column of the tables of metrics."""
    tables = re.findall(r"^\| metric \|.*\n((?:\|.*\n)+)", METRICS.read_text(encoding="utf-8"), re.MULTILINE)
    cells = [line.split("|")[1] for table in tables for line in table.splitlines()]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def written(settings: dict[str, object], ranks: int = 1) -> set[str]:
    """Train a short run and return the names of its metrics."""
    run = lockstep.train(ranks=ranks, **SMALL | settings)
    return {name for row in run.metrics for name in row}


@pytest.mark.slow
def test_documented_metrics_are_the_written_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = set().union(*(written(settings, ranks=2 if name == "players" else 1) for name, settings in RUNS.items()))
    assert (names - documented(), documented() - names - {"frames"}) == (set(), set())


@pytest.mark.slow
@pytest.mark.extra("ale_py", "cv2")
def test_metrics_of_atari_are_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = written(PONG | {"run.total_steps": 8})
    assert "frames" in names
    assert names <= documented()
