"""Output, files and error messages of `lockstep bench`."""

import csv
import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from lockstep.cli.benchmarks import resolve_config
from lockstep.config.compose import load

PLAIN = ("--runtime.compile", "off")
SHORT = (
    "--env",
    "CartPole-v1",
    "--rollout.steps",
    64,
    "--repeats",
    2,
    "--iterations",
    5,
    "--seconds",
    0.2,
    *PLAIN,
    "--ppo.epochs",
    2,
)
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo '{"skrl": "9.9"}'; exit; fi
for steps in 2048 4096 6144 8192; do echo "steps $steps"; sleep 0.01; done
"""


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """Python interpreter that pretends to have skrl 9.9 installed."""
    path = tmp_path / "python"
    path.write_text(PYTHON)
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "plan"), [(1, "coupled"), pytest.param(2, "coupled", marks=pytest.mark.exhaustive), (2, "1:1")]
)
def test_throughput_prints_a_table_and_writes_everything(run_cli, tmp_path: Path, ranks: int, plan: str) -> None:
    finished = run_cli("bench", "throughput", *SHORT, "--ranks", ranks, "--plan", plan, "--json", "found.json")
    assert finished.rc == 0, finished
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("CartPole-v1: 8 environments (")
    assert max(map(len, lines)) <= 80
    results = json.loads((tmp_path / "found.json").read_text())
    assert {"benchmark", "command", "cores", "processor", "packages", "python", "config"} < results.keys()
    assert (results["ranks"], results["iterations"], results["warmup_iterations"]) == (ranks, 5, 2)
    assert len(results["repeats"]) == 2
    for repeat in results["repeats"]:
        for phases in filter(None, (repeat["phases"], repeat["player_phases"])):
            assert sum(value for name, value in phases.items() if name != "iter") == pytest.approx(phases["iter"])
        assert len(repeat["peak_memory_bytes"]) == ranks
    rates = [repeat["steps_per_second"] for repeat in results["repeats"]]
    assert results["steps_per_second"] == {"median": sum(rates) / 2, "least": min(rates), "most": max(rates)}
    assert f"{results['steps_per_second']['median']:,.0f}" in finished.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json"], "no run is left"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_throughput_compares_one_process_with_several(run_cli, tmp_path: Path) -> None:
    finished = run_cli("bench", "throughput", *SHORT[:4], "--repeats", 1, *SHORT[6:], "--json", "found.json")
    assert finished.rc == 0, finished
    lines = finished.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    results = json.loads((tmp_path / "found.json").read_text())
    assert next(iter(results["cases"])) == "1 process"
    for name, case in results["cases"].items():
        assert name in lines[3]
        parts = case["milliseconds_per_iteration"]
        assert list(parts) == ["rollout", "optimization", "exchange, waiting", "logging"]
        assert sum(parts.values()) == pytest.approx(case["phases"]["iter"] * 1e3)
    if not results["gpu"]:
        assert lines[3].endswith(" GPU")
        assert lines[4].endswith(" no GPU")


@pytest.mark.slow
@pytest.mark.extra("matplotlib")
def test_scaling_compares_numbers_of_ranks(run_cli, tmp_path: Path) -> None:
    words = ("--ranks", "1,2", "--plan", "one-trainer", "--kind", "strong", "--warmup", 1, "--out", "found")
    finished = run_cli("bench", "scaling", *SHORT, *words)
    assert finished.rc == 0, finished
    assert [line.split()[:2] for line in finished.stdout.splitlines()[3:6]][1:] == [["strong", "1"], ["2", ANY]]
    folder = tmp_path / "found"
    with (folder / "per_run.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert [(run["kind"], run["ranks"], run["plan"], run["repeat"]) for run in runs] == [
        *(("strong", "1", "coupled", str(repeat)) for repeat in (1, 2)),
        *(("strong", "2", "one-trainer", str(repeat)) for repeat in (1, 2)),
    ]
    assert {(run["warmup_iterations"], run["iterations"]) for run in runs} == {("1", "4")}
    for run in runs:
        raw = [json.loads(line) for line in (folder / "raw" / run["log"] / "metrics.jsonl").read_text().splitlines()]
        assert float(run["seconds"]) == pytest.approx(sum(row["t_iter"] for row in raw[1:]))
        assert bool(run["players_iter_mean_ms"]) == (run["ranks"] == "2")
    summary = json.loads((folder / "summary.json").read_text())
    assert {"benchmark", "command", "cores", "processor", "packages", "config"} < summary.keys()
    assert next(row["speedup_least"] for row in summary["rows"]) == 1.0
    assert {"scaling.png", "scaling.svg", "summary.csv", "per_run.json"} < {path.name for path in folder.iterdir()}
    again = run_cli("bench", "scaling", "--out", "found")
    assert (again.rc, again.stderr) == (2, "lockstep: --out is found: it must be a new or an empty folder\n")


@pytest.mark.slow
def test_peers_compares_installed_libraries_and_names_missing_ones(run_cli, tmp_path: Path, interpreter: Path) -> None:
    words = ("--repeats", 2, "--updates", 5, "--python", interpreter, "--ranks", 1, "--json", "found.json")
    finished = run_cli("bench", "peers", *words, "--env.engine", "gymnasium", *PLAIN)
    assert finished.rc == 0, finished
    assert finished.stderr.splitlines()[0].startswith("Stable-Baselines3 is not installed here: pip install stable")
    results = json.loads((tmp_path / "found.json").read_text())
    assert list(results["runs"]) == ["lockstep, 1 rank", "skrl 9.9"]
    lockstep_rates, peer_rates = ([run["rate"] for run in results["runs"][name]["repeats"]] for name in results["runs"])
    ratios = sorted(one / other for one, other in zip(lockstep_rates, peer_rates, strict=True))
    assert results["runs"]["skrl 9.9"]["faster"] == {"median": sum(ratios) / 2, "least": ratios[0], "most": ratios[1]}
    assert (results["config"]["env"]["engine"], results["config"]["ppo"]["entropy"]) == ("gymnasium", 0.01)


@pytest.mark.slow
def test_failed_run_is_reported_in_one_line(run_cli, interpreter: Path) -> None:
    interpreter.write_text(PYTHON.replace('echo "steps $steps"', "echo broken >&2; exit 3"))
    finished = run_cli("bench", "peers", "--repeats", 1, "--updates", 5, "--python", interpreter, *PLAIN)
    assert (finished.rc, finished.stdout) == (1, "")
    assert finished.stderr.splitlines()[-1].startswith("lockstep: ")
    assert finished.stderr.endswith("ended with code 3: broken\n")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["thrughput"], ["did you mean throughput"]),
        (["throughput", "--repeats", "0"], ["--repeats is '0'", "at least 1"]),
        (["throughput", "--seconds", "0"], ["--seconds is '0'", "above 0"]),
        (["throughput", "--iterations", "2"], ["--iterations is '2'", "at least 5"]),
        (["throughput", "--json", "nowhere/found.json"], ["--json is 'nowhere/found.json'", "a folder that exists"]),
        (["throughput", "--env", "CartPool-v1"], ["CartPool-v1", "CartPole-v1"]),
        (["throughput", "--env.cuont", "8"], ["did you mean --env.count"]),
        (["throughput", "--reapeats", "8"], ["--reapeats", "did you mean --repeats"]),
        (["throughput", "--plan", "2:1", "--ranks", "2"], ["plan.kind is '2:1'", "--ranks 3"]),
        (["scaling", "--plan", "1:2", "--ranks", "1,2"], ["plan.kind is '1:2'", "exactly 3"]),
        (["scaling", "--ranks", "1,two"], ["--ranks is '1,two'", "such as 1,2,4"]),
        (["scaling", "--solve"], ["it needs a target return", "--run.solved-return"]),
        (["scaling", "cartpole", "--solve", "--iterations", "9"], ["--iterations is 9", "--solve"]),
        (["scaling", "--iterations", "5", "--warmup", "5"], ["--warmup is 5", "--iterations"]),
        (["scaling", "--env.per-rank", "8"], ["env.per_rank", "env.count"]),
        (["scaling", "--ranks", "3"], ["env.count is 8", "3"]),
        (["peers", "--work", "cartpol"], ["--work is 'cartpol'", "did you mean cartpole"]),
        (["peers", "--work", "chess"], ["--work is 'chess'", "humanoidstandup"]),
        (["peers", "--env.count", "9"], ["--env.count", "the workload fixes this field"]),
        (["peers", "--updates", "2"], ["--updates is '2'", "at least 5"]),
        (["peers", "--python", "/nowhere/python"], ["--python is '/nowhere/python'", "interpreter"]),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(run_cli, words: list[str], parts: list[str]) -> None:
    finished = run_cli("bench", *words)
    assert (finished.rc, finished.stdout) == (2, "")
    assert len(finished.stderr.splitlines()) == 1, finished.stderr
    for part in parts:
        assert part in finished.stderr


def test_peers_without_installed_library_is_reported_in_one_line(run_cli, interpreter: Path) -> None:
    interpreter.write_text("#!/bin/sh\necho '{}'\n")
    finished = run_cli("bench", "peers", "--python", interpreter)
    assert (finished.rc, finished.stdout) == (2, "")
    assert len(finished.stderr.splitlines()) == 1
    assert "pip install stable-baselines3 skrl" in finished.stderr


def test_bench_refuses_to_run_under_a_launcher(run_cli) -> None:
    finished = run_cli("bench", "throughput", env={"RANK": "0", "WORLD_SIZE": "1"})
    assert finished.rc == 2
    assert "without torchrun" in finished.stderr


def test_bench_resolves_configs_like_train() -> None:
    from lockstep.experiment.resolve import resolve

    config = load(None, None, {"run": {"total_steps": 10_000}, "runtime": {"device": "cpu"}})
    assert resolve_config(config, 2) == (resolve(config, 2), 2)
    short = load(None, None, {"env": {"per_rank": 8}, "run": {"total_steps": 1}})
    assert resolve_config(short, 2)[0].run.total_steps == 16 * short.rollout.steps


def test_help_lists_the_benchmarks(run_cli) -> None:
    finished = run_cli("bench", "--help")
    assert finished.rc == 0
    assert all(f"\n  {kind} " in finished.stdout for kind in ("throughput", "scaling", "peers", "simulate"))
    for kind in ("throughput", "scaling", "peers", "simulate"):
        shown = run_cli("bench", kind, "--help", env={"COLUMNS": "80"})
        assert shown.rc == 0
        assert shown.stdout.startswith(f"usage: lockstep bench {kind}")
        assert max(map(len, shown.stdout.splitlines())) <= 80
