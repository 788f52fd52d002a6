"""`runtime.bits: portable`, from the command line: the same bits on every x86-64 processor with AVX2 and FMA."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.live_runs import digests
from tests.recorded import packages_problem

from lockstep.cli.main import main
from lockstep.processes.portable import PORTABLE_TYPE, portable_problem, portable_variables
from lockstep.run.environment import processor_type

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(portable_problem() is not None, reason="this processor can't give portable bits"),
]

SIZE = ("--plan.shards", 2, "--env.count", 4, "--rollout.steps", 32, "--ppo.epochs", 2)
PORTABLE = ("train", *SIZE, "--runtime.bits", "portable", "--run.progress", "off")
WORDS = (*PORTABLE, "--runtime.compile", "off")
SPOT = """
import gymnasium as gym
import numpy as np


class Spot(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(36)), 0
        return self.image(), {}

    def step(self, action):
        self.place, self.steps = (self.place + 2 * int(action) - 1) % 36, self.steps + 1
        return self.image(), self.place / 36, False, self.steps == 9, {}

    def image(self):
        image = np.zeros((36, 36, 1), np.uint8)
        image[:, self.place] = 255
        return image


gym.register("Spot-v0", Spot)
"""
"""Module of an environment with small images."""
RECORDED = {
    "CartPole-v1": "3561d193b6117d03f937bf42e253bec4d3a36d331d00d17652eddc5e54519e9f",
    "Pendulum-v1": "089f3b727705bab64361e34e4307ff6697d638e82b3f7f4b9163ce9bbcc40cf0",
}
"""Digests after the last iteration, on every processor."""


@pytest.mark.parametrize("env_id", RECORDED)
def test_digest_is_the_recorded_one_on_every_processor(
    run_cli, portable_server: dict[str, str], tmp_path: Path, env_id: str
) -> None:
    for name, ranks in (("alone", 1), ("two", 2)):
        finished = run_cli(
            *WORDS, "--total-steps", 256, "--env", env_id, "--ranks", ranks, "--name", name, env=portable_server
        )
        assert finished.rc == 0, finished
    alone, two = (digests(tmp_path / "runs" / name) for name in ("alone", "two"))
    assert alone == two
    started = json.loads((tmp_path / "runs" / "two" / "starts.jsonl").read_text().splitlines()[0])
    assert started["processor"] == PORTABLE_TYPE
    problem = packages_problem()
    if problem is not None:
        pytest.skip(problem)
    assert alone[-1] == RECORDED[env_id]


def test_rank_without_a_supervisor_starts_again_with_the_variables(run_cli, tmp_path: Path) -> None:
    """So do ranks that another launcher started, `resume` and `verify`: the libraries read the variables when they are imported."""
    words = ("--env", "CartPole-v1", "--ranks", 1, "--restarts", 0)
    finished = run_cli(*WORDS, *words, "--name", "one", "--total-steps", 128)
    assert finished.rc == 0, finished
    finished = run_cli("resume", "one", "--total-steps", 256, "--restarts", 0)
    assert finished.rc == 0, finished
    finished = run_cli("verify", "one")
    assert not finished.stderr
    assert (finished.rc, finished.stdout.splitlines()[1:]) == (
        0,
        [f"same processor and versions: {PORTABLE_TYPE}", "identical: 1 iteration gave the recorded digests"],
    )


def evaluated(run: Path) -> dict[str, object]:
    content = json.loads((run / "evaluation.json").read_text())
    assert isinstance(content, dict)
    return content


def test_episodes_have_the_bits_of_training(run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`eval` starts again with the variables of ranks. A processor that can't give portable bits evaluates with its own."""
    words = ("--env", "Pendulum-v1", "--ranks", 1, "--total-steps", 256, "--run.evaluate-every", 2)
    finished = run_cli(*WORDS, *words, "--name", "one")
    assert finished.rc == 0, finished
    finished = run_cli("eval", "one", "--episodes", 2)
    assert finished.rc == 0, finished
    run = tmp_path / "runs" / "one"
    first = evaluated(run)
    assert first["processor"] == PORTABLE_TYPE
    run_cli("eval", "one", "--episodes", 2, env=portable_variables())
    assert evaluated(run) == first
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep.cli.agents.portable_problem", lambda: "this processor lacks fma")
    monkeypatch.setattr("os.execve", None)
    assert main(["eval", "one", "--episodes", "2"]) == 0
    assert evaluated(run) == first | {"processor": processor_type(False)} | {
        name: evaluated(run)[name] for name in first if name.startswith("return")
    }


def test_updates_with_kernels_are_those_of_pytorch_up_to_rounding(run_cli, tmp_path: Path) -> None:
    words = ("train", "cartpole", "--total-steps", 2048, "--ppo.epochs", 1, "--runtime.bits", "portable", "--ranks", 1)
    results = []
    for kernels in ("on", "off"):
        finished = run_cli(*words, "--runtime.compile", kernels, "--name", kernels)
        assert finished.rc == 0, finished
        row = json.loads((tmp_path / "runs" / kernels / "metrics.jsonl").read_text().splitlines()[0])
        results.append([row[name] for name in ("value_loss", "entropy", "grad_norm", "approx_kl")])
    assert results[0] == pytest.approx(results[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("words", [("--env", "Pendulum-v1"), ("--env", "CartPole-v1", "--policy.core", "gru")])
def test_fast_bits_with_kernels_are_portable(run_cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Only PyTorch and the linear algebra of NumPy select their code by the processor, and with kernels neither computes anything.

    That also holds for evaluations: those during training, and `lockstep eval`.
    """
    results = []
    for bits in ("fast", "portable"):
        options = ("--runtime.bits", bits, "--runtime.compile", "on", "--ranks", 1, "--total-steps", 512)
        evaluation = ("--run.evaluate-every", 2, "--run.evaluate-episodes", 2)
        finished = run_cli(*PORTABLE[:-4], "--run.progress", "off", *words, *options, *evaluation, "--name", bits)
        assert finished.rc == 0, finished
        run = tmp_path / "runs" / bits
        assert run_cli("eval", bits, "--episodes", 2, "--sample").rc == 0
        returns = json.loads((run / "evaluation-sampled.json").read_text())["returns"]
        rows = [json.loads(line) | {"seconds": 0} for line in (run / "evaluations.jsonl").read_text().splitlines()]
        assert rows
        results.append((digests(run), returns, rows))
    assert results[0] == results[1]


@pytest.mark.exhaustive
@pytest.mark.command("qemu-x86_64")
@pytest.mark.parametrize("processor", ["Haswell", "EPYC-Milan"])
@pytest.mark.parametrize(
    "settings",
    [
        *(("off",), ("on",), *(("on", "--policy.core", core) for core in ("lstm", "gru", "mingru"))),
        *(("on", "--curiosity.kind", kind) for kind in ("rnd", "icm", "disagreement")),
        *(("on", "--env", "Pendulum-v1", "--policy.distribution", kind) for kind in ("gaussian", "beta")),
        *((compiled, "--env", "Spot-v0", "--env.module", "spot") for compiled in ("off", "on")),
    ],
    ids=lambda words: " ".join(words).replace("--", ""),
)
def test_emulated_processors_compute_the_same(
    run_cli, tmp_path: Path, processor: str, settings: tuple[str, ...]
) -> None:
    """One by Intel and one by AMD, both without AVX-512. Takes a minute each: emulation is slow."""
    program = shutil.which("qemu-x86_64")
    (tmp_path / "spot.py").write_text(SPOT)
    words = (*PORTABLE, "--runtime.compile", *settings, "--total-steps", 256, "--ranks", 1)
    assert run_cli(*words, "--name", "here").rc == 0
    emulated = (str(program), "-cpu", processor, sys.executable, "-m")
    finished = run_cli(*words, "--name", "emulated", "--restarts", 0, prefix=emulated, env=portable_variables())
    assert finished.rc == 0, finished
    assert digests(tmp_path / "runs" / "here") == digests(tmp_path / "runs" / "emulated")
    episode = ("--episodes", 1, *(("--env.module", "spot") if "spot" in settings else ()))
    assert run_cli("eval", "here", *episode).rc == 0
    finished = run_cli("eval", "emulated", *episode, prefix=emulated, env=portable_variables())
    assert finished.rc == 0, finished
    assert evaluated(tmp_path / "runs" / "here") == evaluated(tmp_path / "runs" / "emulated")


def test_program_must_be_started_with_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lockstep

    monkeypatch.chdir(tmp_path)
    for name in portable_variables():
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        ValueError, match=r"^runtime\.bits is 'portable': this process becomes a rank; start it with ATEN_CPU"
    ):
        lockstep.train(env="CartPole-v1", runtime={"bits": "portable"}, run={"total_steps": 2048})
    assert not list(tmp_path.iterdir())
