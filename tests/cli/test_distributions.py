"""Training, resuming, evaluating, drawing and exporting policies with other distributions and head layers."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SMALL = (
    "--env",
    "Pendulum-v1",
    "--rollout.steps",
    32,
    "--total-steps",
    1024,
    "--ppo.epochs",
    1,
    "--run.progress",
    "off",
)


@pytest.mark.parametrize(
    "flags",
    [
        ("--policy.distribution", "beta"),
        ("--policy.distribution", "gaussian-state-std", "--policy.core", "gru", "--policy.head-hidden", 8),
        ("--policy.distribution", "gsde", "--policy.sde-sample-freq", 8),
    ],
    ids=["beta", "gaussian-state-std", "gsde"],
)
def test_a_run_resumes_acts_and_is_exported(run_cli, tmp_path: Path, flags: tuple[object, ...]) -> None:
    assert run_cli("train", *SMALL, *flags, "--run.checkpoint-every", 1, "--name", "first").rc == 0
    (digest,) = run_cli("digest", "first").stdout.splitlines()[-1:]
    assert run_cli("resume", "first", "--iteration", 2, "--run.progress", "off").rc == 0
    assert run_cli("digest", "first").stdout.splitlines()[-1:] == [digest]
    assert run_cli("eval", "first", "--episodes", 1, "--sample").rc == 0
    finished = run_cli("plot", "first", "--what", "policy", "--axes", 0, 2, "--out", "map.png")
    assert finished.rc == 0, finished
    finished = run_cli("export", "first", "--format", "torch", "--out", "policy.pt2")
    assert finished.rc == 0, finished
    assert {"map.png", "policy.pt2"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("env", "flags", "line"),
    [
        ("CartPole-v1", (), "policy.distribution is 'beta': CartPole-v1 has discrete actions"),
        (
            "Pendulum-v1",
            ("--policy.squash",),
            "policy.squash is true: it can't be combined with policy.distribution 'beta'",
        ),
    ],
)
def test_errors_of_one_line(run_cli, env: str, flags: tuple[str, ...], line: str) -> None:
    finished = run_cli("train", "--env", env, "--policy.distribution", "beta", *flags)
    assert finished.rc == 2
    assert line in finished.stderr
    assert finished.stderr.count("\n") == 1
