"""Nothing is imported or executed when configs, checkpoints and agents are loaded, whatever they hold."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile.corpus import AGENTS, CONFIG_FIELDS, corpus

import lockstep


@pytest.mark.slow
def test_loading_a_run_imports_and_executes_nothing(tmp_path: Path, root: Path, environ: dict[str, str]) -> None:
    quiet = {"run.progress": "off", "run.checkpoint_every": 1, "run.folder": str(tmp_path), "run.name": "run"}
    settings = {
        "env.count": 4,
        "rollout.steps": 16,
        "policy.hidden": [4],
        "ppo.minibatches": 2,
        "runtime.compile": "off",
    }
    lockstep.train(env="CartPole-v1", total_steps=64, **settings, **quiet)
    cases = dict(corpus())
    # the settings "module" and "hook" are refused by the commands, which alone import anything
    fields = [f"config-{name}" for name in CONFIG_FIELDS]
    names = [*(f"agent-{name}" for name in AGENTS), *fields, "state-lists-/etc/passwd", "metrics-nested"]
    for name in names:
        shutil.copytree(tmp_path / "run", tmp_path / name)
        cases[name](tmp_path / name)
    program = [
        sys.executable,
        "-m",
        "tests.hostile.audit",
        str(tmp_path / "run"),
        *(str(tmp_path / name) for name in names),
    ]
    done = subprocess.run(program, cwd=root, env=environ, capture_output=True, text=True, check=False)
    *events, last = done.stdout.split("\n")[:-1]
    assert done.returncode == 0, done.stderr
    assert [event for event in events if event] == []
    assert last.startswith("refused ")
    assert not (root / "unpickled").exists()
