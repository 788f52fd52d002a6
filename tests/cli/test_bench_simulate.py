"""Output, files and error messages of `lockstep bench simulate`."""

import json
import statistics
from pathlib import Path

import pytest
from tests.bench.simulated_runs import ROWS, make_run

SHORT = (
    "--env.count",
    8,
    "--rollout.steps",
    32,
    "--ppo.epochs",
    2,
    "--runtime.compile",
    "off",
    "--run.progress",
    "off",
)


@pytest.mark.slow
def test_run_is_predicted_for_other_numbers_of_ranks(run_cli, tmp_path: Path) -> None:
    words = ("--ranks", 1, "--plan.shards", 4, "--total-steps", 24 * 8 * 32, "--name", "first")
    assert run_cli("train", "cartpole", *SHORT, *words).rc == 0
    finished = run_cli("bench", "simulate", "first", "--ranks", "1,2,4", "--ranks-per-host", 4, "--json", "found.json")
    assert (finished.rc, finished.stderr) == (0, "")
    lines = finished.stdout.splitlines()
    assert lines[:2] == ["CartPole-v1: 4 shards of 2 environments x 32 steps", "measured: 22 iterations on 1 rank"]
    assert max(map(len, lines)) <= 80
    results = json.loads((tmp_path / "found.json").read_text())
    assert {"benchmark", "command", "cores", "processor", "packages", "config"} < results.keys()
    assert [row["ranks"] for row in results["rows"]] == [1, 2, 4]
    rows = [json.loads(line) for line in (tmp_path / "runs" / "first" / "metrics.jsonl").read_text().splitlines()][2:]
    mean = statistics.fmean(row["t_iter"] - row["t_wait"] for row in rows)
    assert results["rows"][0]["iteration_seconds"] == pytest.approx(mean)
    rate = results["rows"][0]["steps_per_second"]
    assert rate * mean * len(rows) == pytest.approx(rows[-1]["env_steps"] - 2 * rows[0]["env_steps"] / 3, rel=0.05)
    assert f"{rate:,.0f}" in finished.stdout


@pytest.mark.parametrize(
    ("words", "ranks", "hosts"),
    [
        ([], [1, 2, 4], [1, 1, 2]),
        (["--scale-shards", "--cores-per-host", "1024"], [2**power for power in range(13)], [1] * 11 + [2, 4]),
        (["--plan", "one-trainer"], [1, 2, 4], [1, 1, 2]),
        (["--plan", "2:1"], [1, 3], [1, 2]),
        (["--plan.shards", "8", "--network", "30,40"], [1, 2, 4, 8], [1, 1, 2, 4]),
    ],
)
def test_default_numbers_of_ranks_are_those_that_the_plan_allows(
    words: list[str], ranks: list[int], hosts: list[int], run_cli, tmp_path: Path
) -> None:
    make_run(tmp_path / "run")
    if "--cores-per-host" not in words:
        words = [*words, "--cores-per-host", "2"]
    finished = run_cli("bench", "simulate", "run", *words, "--json", "found.json")
    assert (finished.rc, finished.stderr) == (0, "")
    assert max(map(len, finished.stdout.splitlines())) <= 80
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert ([row["ranks"] for row in rows], [row["hosts"] for row in rows]) == (ranks, hosts)


def test_players_on_other_hosts_send_their_rollouts(run_cli, tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    words = ("--plan", "1:1", "--plan.lag", 1, "--ranks", 2, "--network", "0,0.001", "--json", "found.json")
    sent = {}
    for ranks_per_host in (1, 2):
        finished = run_cli("bench", "simulate", "run", *words, "--ranks-per-host", ranks_per_host)
        assert (finished.rc, finished.stderr) == (0, "")
        [row] = json.loads((tmp_path / "found.json").read_text())["rows"]
        sent[ranks_per_host] = row["player_phases"]["sync"]
    assert sent[2] == 0.0
    assert sent[1] > 0.1, "10 KB and more at 1 Mbit/s"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["RUN is missing"]),
        (["other"], ["'other': there is no such run"]),
        (["run", "--ranks", "8"], ["--ranks has 8: 8 players or trainers need a shard each, and there are 4", "--scale-shards"]),
        (["run", "--ranks", "8192", "--scale-shards"], ["--ranks has 8,192: it must be at most 4,096"]),
        (["run", "--ranks", "1,two"], ["--ranks is '1,two'", "such as 1,2,4"]),
        (["run", "--ranks", "1,2", "--plan", "2:1"], ["plan.kind is '2:1': it takes exactly 3 ranks"]),
        (["run", "--plan", "one-triner"], ["plan.kind is 'one-triner'", "one-trainer"]),
        (["run", "--plan.exact", "false"], ["plan.exact is false", "only true can be predicted"]),
        (["run", "--plan.gradients", "ddp"], ["plan.gradients is ddp", "only ordered can be predicted"]),
        (["run", "--plan.share-data"], ["plan.share_data is true", "only false can be predicted"]),
        (["run", "--env.count", "9"], ["--env.count: the run fixes this field"]),
        (["run", "--runtime.backend", "nccl"], ["runtime.backend is 'nccl'", "auto, shared and gloo"]),
        (["run", "--runtime.backend", "shared", "--ranks-per-host", "2"], ["runtime.backend is 'shared': 4 ranks are on several hosts"]),
        (["run", "--network", "10gb"], ["--network is '10gb'", "10gbe", "such as 30,40"]),
        (["run", "--network", "30,0"], ["--network is '30,0'"]),
        (["run", "--cores-per-host", "0"], ["--cores-per-host is '0'", "at least 1"]),
        (["run", "--json", "nowhere/found.json"], ["--json is 'nowhere/found.json'", "a folder that exists"]),
        (["run", "--scale-shard"], ["did you mean --scale-shards?"]),
    ],
)  # fmt: skip
def test_invalid_arguments_are_reported_in_one_line(
    words: list[str], parts: list[str], run_cli, tmp_path: Path
) -> None:
    make_run(tmp_path / "run")
    finished = run_cli("bench", "simulate", *words)
    assert (finished.rc, finished.stdout) == (2, ""), finished
    assert len(finished.stderr.splitlines()) == 1, finished.stderr
    for part in parts:
        assert part in finished.stderr


def test_short_run_is_refused(run_cli, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == ROWS
    (run.path / "metrics.jsonl").write_text("\n".join([*lines[:5], ""]))
    finished = run_cli("bench", "simulate", "run")
    assert (finished.rc, finished.stdout) == (2, "")
    message = "lockstep: run has 5 iterations since its last start: a prediction needs at least 12; train it longer\n"
    assert finished.stderr == message
