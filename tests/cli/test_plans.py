"""Plans through the command line: started, timed, interrupted, resumed on another plan."""

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.live_runs import digests, ranks_of, reached, rows, slow_hook, wait_for

pytestmark = pytest.mark.slow

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")
ITERATIONS = 12
ENV = ("--env", "CartPole-v1", "--env.engine", "gymnasium", "--plan.shards", 4)
TASK = (*ENV, "--rollout.steps", 32)
SHORT = ("--run.progress", "off", "--total-steps", 8 * 32 * ITERATIONS, "--ppo.epochs", 2, "--ppo.minibatches", 4)
SAVED = ("--run.checkpoint-every", 5)


def trained(run_cli, name: str, *more: object, **settings: object) -> None:
    """Train 4 iterations."""
    short = (*SHORT[:2], *SHORT[4:], "--total-steps", 8 * 32 * 4)
    finished = run_cli("train", *TASK, *short, "--name", name, *more, **settings)
    assert finished.rc == 0, finished


@pytest.fixture(scope="module", name="uninterrupted")
def fixture_uninterrupted(run_in, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Folders of uninterrupted runs, by lag."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    for lag in (0, 1):
        run_in(folder, "train", *TASK, *SHORT, *SAVED, "--name", lag, "--plan.lag", lag)
    return {lag: folder / "runs" / str(lag) for lag in (0, 1)}


def test_plan_of_players_and_trainers_sets_the_number_of_ranks_and_matches_torchrun(run_cli, tmp_path: Path) -> None:
    trained(run_cli, "pair", "--plan", "2:1")
    trained(run_cli, "torchrun", "--plan", "one-player", prefix=(*TORCHRUN, "2", "-m"))
    both = ("--plan", "ranks", "--plan.players", 0, 1, "--plan.trainers", 0)
    trained(run_cli, "both", *both)
    digests_of_runs = [digests(tmp_path / "runs" / name) for name in ("pair", "torchrun", "both")]
    assert digests_of_runs[0] == digests_of_runs[1] == digests_of_runs[2]
    assert len(digests_of_runs[0]) == 4


@pytest.mark.serial
@pytest.mark.parametrize("lag", [0, 1])
def test_phase_times_of_each_role_add_up(run_cli, tmp_path: Path, lag: int) -> None:
    # long iterations, in which a line of metrics counts for little, as in real runs
    long = ("--rollout.steps", 512, "--policy.hidden", 256, 256, "--ppo.epochs", 2, "--total-steps", 8 * 512 * 5)
    plan = ("--plan", "1:1", "--plan.lag", lag, "--run.progress", "off", "--name", "timed")
    assert run_cli("train", *ENV, *long, *plan).rc == 0
    for role in ("", "player_"):
        usual = rows(tmp_path / "runs" / "timed")[1:-1]  # without what is loaded at first use
        total_seconds = sum(row[f"{role}t_iter"] for row in usual)
        phases = ("rollout", "learn", "sync", "wait", "publish")
        parts = sum(row[f"{role}t_{name}"] for row in usual for name in phases)
        assert 0.97 * total_seconds <= parts <= total_seconds
        assert all(row[f"{role}t_{name}"] >= 0 for row in usual for name in phases)
        assert usual[-1]["lag"] == lag
    # what a role does not do takes it no time, and while the other works it waits
    assert sum(row["t_rollout"] for row in usual) < 0.01 * total_seconds
    assert sum(row["player_t_learn"] for row in usual) < 0.01 * total_seconds
    if not lag:
        for idle, working in (("t_wait", "player_t_rollout"), ("player_t_wait", "t_learn")):
            assert sum(row[idle] for row in usual) > 0.9 * sum(row[working] for row in usual)


@pytest.mark.parametrize(
    ("lag", "killed"),
    [(0, 0), (1, 2), *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in ((0, 2), (1, 0)))],
)
def test_run_with_a_killed_rank_of_either_role_resumes_on_another_plan(
    run_cli, begin, tmp_path: Path, uninterrupted: dict[int, Path], lag: int, killed: int
) -> None:
    run = tmp_path / "killed"
    where = ("--out", tmp_path, "--name", "killed", "--plan", "1:2", "--plan.lag", lag, "--restarts", 0)
    launcher = begin("train", *TASK, *SHORT, *SAVED, *where, *slow_hook(tmp_path))
    wait_for(reached(run, 6), "6 iterations")
    os.kill(sorted(ranks_of(run))[killed], signal.SIGKILL)  # ranks are started in order; 2 is the player
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 1, err
    assert f"rank {killed} was killed by SIGKILL" in err
    assert not ranks_of(run)
    assert len(rows(run)) < ITERATIONS, "it was over before the kill: the test shows nothing"
    plan = "coupled" if lag else "one-trainer"
    finished = run_cli("resume", run, "--plan", plan, "--ranks", 3, "--iteration", 5, "--run.hooks", "none")
    assert finished.rc == 0, finished
    assert digests(run) == digests(uninterrupted[lag])


@pytest.mark.parametrize("lag", [0, 1])
def test_a_signal_stops_all_roles_after_the_same_iteration(
    run_cli, begin, tmp_path: Path, uninterrupted: dict[int, Path], lag: int
) -> None:
    run = tmp_path / "stopped"
    plan = ("--out", tmp_path, "--name", "stopped", "--plan", "2:1", "--plan.lag", lag)
    process = begin("train", *TASK, *SHORT, *plan, *slow_hook(tmp_path))
    wait_for(reached(run, 3), "3 iterations")
    os.kill(sorted(ranks_of(run))[2], signal.SIGTERM)  # a player: it has to tell the others
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert "with: lockstep resume" in out
    assert not ranks_of(run)
    assert len(rows(run)) < ITERATIONS
    assert run_cli("resume", run, "--plan", "coupled", "--run.hooks", "none").rc == 0
    assert digests(run) == digests(uninterrupted[lag])


@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("--plan.lag", 1), marks=pytest.mark.exhaustive),
        ("--plan.lag", 1, "--run.checkpoint-every", 1),
    ],
)
def test_a_loss_that_is_not_finite_ends_all_roles_with_code_3(run_cli, more) -> None:
    words = ("--plan", "2:1", "--ppo.learning-rate", 1e30)
    finished = run_cli("train", *TASK, *SHORT, *words, *more)
    assert finished.rc == 3, finished
    assert len(finished.stderr.splitlines()) == 1, "told once"
    assert "in the loss (operation " in finished.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--plan", "2:1"), ("plan.kind is '2:1'", "exactly 3 ranks, and there are 2")),
        pytest.param(
            *(("--plan", "coupled", "--plan.shards", 1), ("plan.shards is 1", "2 trainers")),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *(("--plan", "one-trainer", "--plan.gradients", "ddp"), ("plan.gradients is 'ddp'", "one trainer")),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_unsuitable_plan_is_reported_in_one_line_also_under_torchrun(run_cli, words, parts) -> None:
    finished = run_cli("train", "--env", "CartPole-v1", *words, prefix=(*TORCHRUN, "2", "-m"))
    assert finished.rc != 0
    messages = [line for line in finished.stderr.splitlines() if line.startswith("lockstep: ")]
    assert messages
    assert all(part in line for part in parts for line in messages)
    assert "src/lockstep" not in finished.stderr, "torchrun has a traceback of its own, we have none"


def test_resume_refuses_to_change_the_experiment(run_cli, tmp_path: Path) -> None:
    trained(run_cli, "run")
    before = (tmp_path / "runs" / "run" / "config.json").read_text()
    finished = run_cli("resume", "run", "--plan.lag", 1)
    assert finished.rc == 2
    assert "plan.lag: it is part of the experiment" in finished.stderr
    assert (tmp_path / "runs" / "run" / "config.json").read_text() == before
