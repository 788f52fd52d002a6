"""Check that the examples run, are shown in the documents, and are as short as the documents say."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.warm import Warm

from lockstep.config.compose import load
from lockstep.experiment.resolve import resolve

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = {
    "own_environment": 10,
    "own_core": 15,
    "own_encoder": 15,
    "own_head": 15,
    "own_distribution": 20,
    "own_vector_env": 45,
    "load_and_act": 5,
    "run_exported": 20,
}
SMALL = ("--total-steps", 512, "--rollout.steps", 32, "--ppo.epochs", 2, "--run.progress", "off")


def essential(name: str) -> str:
    """Return the part of an example that a user has to write."""
    match = re.search(r"# \[essential\]\n(.*?)# \[end\]", (EXAMPLES / f"{name}.py").read_text(), re.DOTALL)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("name", LONGEST)
def test_essential_parts_are_short(name: str) -> None:
    lines = [line for line in essential(name).splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) - lines.count("import lockstep") <= LONGEST[name]


@pytest.mark.parametrize("name", LONGEST)
def test_documents_show_the_essential_part(name: str, root: Path) -> None:
    assert any(essential(name).strip() in path.read_text() for path in (root / "docs").glob("*.md"))


@pytest.fixture
def working_folder(tmp_path: Path) -> Path:
    """Folder with copies of all examples, which becomes the working folder."""
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.fixture
def python(working_folder: Path, environ: dict[str, str]) -> Callable[..., str]:
    """Return a function that runs Python with arguments in the folder of examples, and returns its standard output."""

    def run(*words: object) -> str:
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(
            command, cwd=working_folder, env=environ, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def forked(working_folder: Path, environ: dict[str, str], warm: Warm) -> Callable[..., str]:
    """A function like `python` that runs a program with arguments in a process that has imported PyTorch."""

    def run(program: str, *words: object) -> str:
        (working_folder / "program.py").write_text(program)
        started = warm.start(*words, cwd=working_folder, environ=environ, module="program")
        try:
            done = started.wait(90)
        finally:
            started.kill()
        assert done.rc == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_config_files_are_valid(path: Path) -> None:
    resolve(load(None, path, {}), 1)


@pytest.mark.slow
def test_example_of_a_custom_environment(forked, working_folder: Path, run_cli) -> None:
    runs = [forked((working_folder / "own_environment.py").read_text(), 2048, ranks) for ranks in (1, 2)]
    outputs = [output.splitlines() for output in runs]
    digests = [re.search(r"\b[0-9a-f]{64}\b", "\n".join(lines)) for lines in outputs]
    assert digests[0] is not None
    assert digests[1] is not None
    assert digests[0][0] == digests[1][0]
    assert outputs[0][-1].endswith("steps in total")
    words = ("--env.module", "my_envs", "--env", "Corridor-v0", "--ranks", 2, "--plan.shards", 2, "--name", "command")
    finished = run_cli("train", *words, *SMALL, cwd=working_folder)
    assert finished.rc == 0, finished


@pytest.mark.slow
def test_example_of_a_custom_vector_environment(working_folder: Path, run_cli, forked) -> None:
    """The digests are the same on 1 and 2 ranks, from Python, and if the run is resumed in the middle of episodes."""
    words = ("--env.module", "own_vector_env", *SMALL[2:], "--plan.shards", 2, "--run.checkpoint-every", 1)
    for name, ranks in (("whole", 1), ("resumed", 2)):
        arguments = (*words, "--total-steps", 1024, "--ranks", ranks, "--name", name)
        assert run_cli("train", *arguments, cwd=working_folder).rc == 0
    arguments = ("resumed", "--iteration", 2, "--ranks", 1, "--env.module", "own_vector_env")
    assert run_cli("resume", *arguments, cwd=working_folder).rc == 0
    digests = [run_cli("digest", name, cwd=working_folder).stdout.split()[-1] for name in ("whole", "resumed")]
    digests += forked(
        "import lockstep\nfrom own_vector_env import Points\n"
        "s = {'rollout.steps': 32, 'ppo.epochs': 2, 'run.progress': 'off', 'plan.shards': 2, 'run.checkpoint_every': 1}\n"
        "print(lockstep.train(env=Points, total_steps=1024, **s).digest)",
    ).split()
    assert digests == [digests[0]] * 3
    finished = run_cli("eval", "whole", "--episodes", 1, "--env.module", "own_vector_env", cwd=working_folder)
    assert finished.rc == 0, finished


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("own_core", "--policy.core", "average"),
        ("own_encoder", "--policy.encoder", "waves"),
        ("own_head", "--policy.head", "residual"),
        ("own_distribution", "--policy.distribution", "laplace"),
    ],
)
def test_examples_of_a_custom_part_of_the_policy(
    working_folder: Path, run_cli, forked, words: tuple[str, str, str]
) -> None:
    """The digests are the same from the command line on 1 and 2 ranks, and from Python."""
    module, flag, name = words
    env = "Pendulum-v1" if module == "own_distribution" else "CartPole-v1"
    digests = []
    for ranks in (1, 2):
        plan = ("--plan.shards", 2, "--ranks", ranks, "--name", f"run-{ranks}")
        finished = run_cli("train", "--env", env, "--env.module", module, flag, name, *SMALL, *plan, cwd=working_folder)
        assert finished.rc == 0, finished
        digests.append(run_cli("digest", f"runs/run-{ranks}", cwd=working_folder).stdout.split()[-1])
    field = flag.removeprefix("--")
    digests += forked(
        f"import lockstep, {module}\n"
        f"s = {{'env.id': '{env}', '{field}': '{name}', 'rollout.steps': 32, 'ppo.epochs': 2, 'run.progress': 'off', 'plan.shards': 2}}\n"
        "print(lockstep.train(total_steps=512, **s).digest)",
    ).split()
    assert digests == [digests[0]] * 3
    finished = run_cli("eval", "runs/run-2", "--episodes", 1, "--env.module", module, cwd=working_folder)
    assert finished.rc == 0, finished


@pytest.mark.slow
def test_example_of_acting_with_a_loaded_policy(forked, run_cli, working_folder: Path) -> None:
    assert run_cli("train", *SMALL, "--name", "first", cwd=working_folder).rc == 0
    assert forked((working_folder / "load_and_act.py").read_text(), "runs/first").strip() in ("0", "1")


@pytest.mark.slow
@pytest.mark.extra("onnx", "onnxscript", "onnxruntime")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), marks=pytest.mark.exhaustive),
        ("--env", "Pendulum-v1", "--policy.core", "gru", "--policy.core-size", 8),
    ],
)
def test_example_of_an_exported_policy(
    python, forked, run_cli, working_folder: Path, words: tuple[object, ...]
) -> None:
    """The exported policy acts like the policy of the run, without importing lockstep or PyTorch."""
    assert run_cli("train", *SMALL, *words, "--name", "first", cwd=working_folder).rc == 0
    assert run_cli("export", "first", "--out", "policy.onnx", cwd=working_folder).rc == 0
    output = python(
        "-c",
        "import runpy, sys\n"
        "sys.argv = ['run_exported.py', 'policy.onnx']\n"
        "runpy.run_path('run_exported.py')\n"
        "print(sorted({'lockstep', 'torch'} & set(sys.modules)))",
    )
    code = (
        "import gymnasium, lockstep\n"
        "policy = lockstep.load('runs/first')\n"
        f"env = gymnasium.make('{words[1] if words else 'CartPole-v1'}')\n"
        "act, (seen, info), total, over = policy.begin(), env.reset(seed=1), 0, False\n"
        "while not over:\n"
        "    seen, reward, terminated, truncated, info = env.step(act(seen, info))\n"
        "    total, over = total + float(reward), terminated or truncated\n"
        "print(f'return {total:.5g}')\n"
    )
    assert output == forked(code) + "[]\n"
