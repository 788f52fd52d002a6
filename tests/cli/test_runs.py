import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import lockstep
from lockstep.cli.agents import LoadedPolicy
from lockstep.cli.main import main
from lockstep.config import VERSION, Config
from lockstep.config.decode import decode, encode
from lockstep.randomness import EnvironmentSeeds
from lockstep.run.locate import locate

SOURCE = Path(lockstep.__file__).parents[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(name: str, digests: list[str], config: dict[str, object] | None = None) -> Path:
    """Create a run folder with the files that `digest` and `diff` read."""
    path = Path("runs") / name
    path.mkdir(parents=True)
    tree = encode(decode(config or {}, Config()))
    (path / "config.json").write_text(json.dumps({"version": VERSION, **tree}))
    rows = [{"iteration": number, "digest": digest} for number, digest in enumerate(digests, 1)]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def save(run: Path, iteration: int, **tensors: np.ndarray) -> None:
    folder = run / "checkpoints" / f"{iteration:08d}"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "agent.safetensors")


def output(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_runs_are_found_by_path_and_by_name(here: Path) -> None:
    make_run("first", [])
    assert locate("first") == locate("runs/first") == Path("runs/first")
    assert locate(str(here / "runs" / "first")) == here / "runs" / "first"


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("frist", "'frist': there is no such run; did you mean runs/first?"),
        ("xyzzy", "'xyzzy': there is no such run; runs/ holds first"),
        ("", "'': there is no such run; runs/ holds first"),
        ("empty", "empty is not a run: it holds no config.json"),
        ("file", "file is not a run: a run is a folder"),
    ],
)
def test_missing_run_is_reported_in_one_line(
    here: Path, word: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("first", [])
    (here / "empty").mkdir()
    (here / "file").touch()
    for verb in ("digest", "eval", "plot"):
        assert output(capsys, verb, word) == (2, "", f"lockstep: {line}\n")


@pytest.mark.parametrize("verb", ["resume", "export", "watch", "digest", "report"])
def test_command_that_takes_no_model_of_the_hub_says_so(
    here: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("first", [])
    code, _, error = output(capsys, verb, "hub:me/first")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith(
        "lockstep: 'hub:me/first' is a model on the Hub: give a run folder, or its name in runs/; only"
    )


def test_missing_run_names_the_five_newest(here: Path) -> None:
    for number in range(7):
        make_run(f"run-{number}", [])
        os.utime(here / "runs" / f"run-{number}" / "config.json", (0, number))
    newest = "the newest in runs/ are run-6, run-5, run-4, run-3, run-2"
    with pytest.raises(ValueError, match=f"^'xyzzy': there is no such run; {newest}$"):
        locate("xyzzy")
    with pytest.raises(ValueError, match=rf"^'runs/run-1x': there is no such run; did you mean runs/run-1\? {newest}$"):
        locate("runs/run-1x")


def test_digest_prints_the_digest_of_one_iteration(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", ["d1", "d2", "d3"])
    assert output(capsys, "digest", "a") == (0, "d3\n", "")
    assert output(capsys, "digest", "a", "--iteration", "2") == (0, "d2\n", "")
    line = "lockstep: --iteration is 4: runs/a has iterations 1 to 3\n"
    assert output(capsys, "digest", "a", "--iteration", "4") == (2, "", line)
    make_run("b", [])
    assert output(capsys, "digest", "b") == (2, "", "lockstep: runs/b has no iteration yet\n")


def test_digest_of_broken_metrics(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_run("a", ["d1"]) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"iteration": 2}\n')
    line = "lockstep: runs/a/metrics.jsonl is broken after iteration 1\n"
    assert output(capsys, "digest", "a") == (2, "", line)


@pytest.mark.parametrize(
    "words", [["digest", "a"], ["diff", "a", "b"], ["diff", "b", "a"], ["report", "a"], ["watch", "a", "--once"]]
)
def test_unreadable_metrics_are_reported(words: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_run("a", ["d1"]) / "metrics.jsonl"
    path.write_text(path.read_text() + "garbage\n")
    make_run("b", ["d1"])
    line = "lockstep: runs/a/metrics.jsonl can't be read: line 2 is not an object with an iteration, as lockstep writes them\n"
    assert output(capsys, *words) == (2, "", line)


def test_diff_of_identical_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", ["x", "y"])
    make_run("b", ["x", "y"])
    make_run("c", ["x", "y", "z"])
    make_run("none", [])
    assert output(capsys, "diff", "a", "b") == (0, "identical for 2 iterations\n", "")
    assert output(capsys, "diff", "a", "c") == (0, "identical for 2 iterations; B continues to 3\n", "")
    assert output(capsys, "diff", "c", "a") == (0, "identical for 2 iterations; A continues to 3\n", "")
    line = "lockstep: runs/a and runs/none have no common iteration yet\n"
    assert output(capsys, "diff", "a", "none") == (2, "", line)


def test_diff_of_different_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = make_run("a", ["x", "y", "z", "q"], {"run": {"name": "a"}})
    b = make_run("b", ["x", "Y", "Z"], {"run": {"name": "b", "seed": 2}, "ppo": {"clip": 0.1}})
    same = np.zeros(3, dtype=np.float32)
    for run in (a, b):
        save(run, 1, same=same)
    save(a, 3, same=same, small=np.ones(2), large=np.array([[1.0, 2.0]]), only=same)
    save(b, 3, same=same, small=np.array([1.0, 1.5]), large=np.array([[1.0, -2.0]]))
    code, text, _ = output(capsys, "diff", "a", "b")
    assert code == 1
    assert text.splitlines() == [
        "digests differ from iteration 2 on; all earlier ones are equal",
        "config: ppo.clip is 0.2 in A, 0.1 in B",
        "config: run.seed is 1 in A, 2 in B",
        "environment: equal",
        "weights: only A has only",
        "weights: 2 of 3 tensors differ in the checkpoint of iteration 3",
        "  large: at most 4",
        "  small: at most 0.5",
    ]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_diff_reads_regular_files_only(
    make: Callable[[Path], None], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        save(make_run(name, [name]), 1, tensor=np.zeros(3))
    path = here / "runs/b/checkpoints/00000001/agent.safetensors"
    path.unlink()
    make(path)
    code, _, error = output(capsys, "diff", "a", "b")
    assert code == 2
    assert error.startswith(f"lockstep: {path.relative_to(here)} can't be read (")
    assert "it is not a regular file" in error
    assert len(error.splitlines()) == 1


def test_diff_of_different_runs_without_checkpoints(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, version in (("a", "1.0"), ("b", "2.0")):
        (make_run(name, [name]) / "environment.json").write_text(json.dumps({"packages": {"torch": version}}))
    code, text, _ = output(capsys, "diff", "a", "b")
    assert code == 1
    assert text.splitlines() == [
        "digests differ from iteration 1 on",
        "config: equal",
        'environment: torch is "1.0" in A, "2.0" in B',
        "weights: no checkpoint that both have at or after iteration 1",
    ]


def test_diff_of_a_truncated_checkpoint(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        run = make_run(name, [name])
        save(run, 1, w=np.ones(9))
    broken = Path("runs/b/checkpoints/00000001/agent.safetensors")
    broken.write_bytes(broken.read_bytes()[:-8])
    code, _, error = output(capsys, "diff", "a", "b")
    assert code == 2
    assert error.startswith(f"lockstep: {broken} can't be read (")
    assert error.count("\n") == 1


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment |= {"PYTHONPATH": str(SOURCE)}
    words = (sys.executable, "-m", "lockstep", *words)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def trained(run_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder whose `runs/` holds a short run of CartPole."""
    folder = tmp_path_factory.mktemp("trained")
    run_in(
        folder, "train", "--env", "CartPole-v1", "--rollout.steps", "128", "--total-steps", "3000", "--name", "first"
    )
    return folder


@pytest.fixture
def run(trained: Path, here: Path) -> Path:
    """Copy of that run in the current folder."""
    shutil.copytree(trained / "runs", here / "runs")
    return Path("runs/first")


def test_digest_is_that_of_the_saved_agent(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lockstep.experiment.execute import load_agent
    from lockstep.run.folder import RunFolder

    _, agent = load_agent(RunFolder.open(run))
    assert output(capsys, "digest", "first") == (0, f"{agent.digest()}\n", "")


@pytest.mark.slow
def test_the_same_experiment_twice_is_identical(run: Path) -> None:
    done = command(
        run.parent.parent,
        "train",
        "--env",
        "CartPole-v1",
        "--rollout.steps",
        "128",
        "--total-steps",
        "3000",
        "--name",
        "second",
    )
    assert done.returncode == 0, done.stderr
    done = command(run.parent.parent, "diff", "first", "second")
    assert (done.returncode, done.stdout) == (0, "identical for 2 iterations\n")


def test_eval_prints_and_writes_its_results(run: Path) -> None:
    done = command(run.parent.parent, "eval", "first", "--episodes", "3")
    assert done.returncode == 0, done.stderr
    results = json.loads((run / "evaluation.json").read_text())
    assert results["episodes"] == len(results["returns"]) == 3
    assert results["returns"] == results["lengths"]  # CartPole pays 1 per step
    assert results["return_mean"] == pytest.approx(sum(results["returns"]) / 3)
    assert "95% interval" in done.stdout
    assert not list(run.glob(".*"))


def test_results_that_cannot_be_written_are_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "evaluation.json"
    file.unlink(missing_ok=True)
    file.mkdir()
    try:
        code, out, err = output(capsys, "eval", "first", "--episodes", "2")
    finally:
        file.rmdir()
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["2", "return", "length"]
    assert err.startswith("lockstep: ")
    assert len(err.splitlines()) == 1


def returns(run: Path, name: str) -> list[float]:
    results = json.loads((run / name).read_text())["returns"]
    assert isinstance(results, list)
    return results


def test_eval_is_deterministic_and_follows_its_arguments(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def evaluate(*words: str, name: str = "evaluation.json") -> list[float]:
        assert f"written {run / name}" in output(capsys, "eval", "first", *words)[1]
        return returns(run, name)

    four = evaluate("--episodes", "4")
    assert evaluate("--episodes", "4") == four
    assert len(set(four)) > 1
    assert evaluate("--episodes", "2") == four[:2]
    other = evaluate("--episodes", "4", "--seed", "9")
    assert other != four
    sampled = evaluate("--episodes", "4", "--sample", name="evaluation-sampled.json")
    assert sampled != four
    assert evaluate("--episodes", "4", "--sample", name="evaluation-sampled.json") == sampled
    assert returns(run, "evaluation.json") == other, "the result with the most probable actions is kept"


def test_evaluation_and_training_share_no_episodes(run: Path) -> None:
    loaded = LoadedPolicy("first", None, False, None, None)
    episodes = EnvironmentSeeds(1, "episode", 8)
    training = {episodes(env, episode) for env in range(8) for episode in range(200)}
    seeds = loaded.seeds(200)
    assert len(set(seeds)) == 200
    assert not training & set(seeds)


def test_eval_of_a_missing_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "lockstep: iteration is 1: runs/first has checkpoints of 2\n"
    assert output(capsys, "eval", "first", "--iteration", "1") == (2, "", line)


def test_eval_of_a_run_from_a_newer_version(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": VERSION + 1}))
    code, _, error = output(capsys, "eval", "first")
    assert code == 2
    assert "upgrade lockstep" in error


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "version",
            "Infinity",
            "state.json is missing or broken; no earlier checkpoint is intact: --iteration 0 starts the run",
        ),
        (
            "files",
            "{}",
            "state.json does not list agent.safetensors; no earlier checkpoint is intact: --iteration 0 starts the run",
        ),
        ("seconds", "Infinity", "does not fit this run: seconds is inf: it must be a finite number"),
        ("env_steps", "1e400", "does not fit this run: env_steps is inf: it must be a whole number of at least 0"),
    ],
)
def test_resume_from_a_state_with_wrong_types_is_refused(
    name: str, value: str, problem: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sorted(run.glob("checkpoints/*/state.json"))[-1]
    state = json.loads(path.read_text()) | {"version": 1}  # a later version has a hash of state.json
    del state["sha256"]
    content = ", ".join(f'"{key}": {value if key == name else json.dumps(part)}' for key, part in state.items())
    path.write_text(f"{{{content}}}")
    code, _, error = output(capsys, "resume", "first", "--total-steps", "9000")
    assert (code, len(error.splitlines())) == (2, 1)
    assert problem in error


def test_play_without_a_display_suggests_a_video(run: Path) -> None:
    done = command(run.parent.parent, "play", "first")
    assert (done.returncode, done.stdout) == (2, "")
    line = "lockstep: there is no display for a window; record a video with `lockstep play RUN --video`\n"
    assert done.stderr == line


@pytest.mark.extra("imageio_ffmpeg", "pygame")
@pytest.mark.slow
def test_play_writes_a_video(run: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    done = command(run.parent.parent, "play", "first", "--video")
    assert done.returncode == 0, done.stderr
    path = run.parent.parent / done.stdout.splitlines()[-1].removeprefix("video: ")
    assert path.suffix == ".mp4"
    assert path.stat().st_size > 1000


@pytest.mark.extra("matplotlib")
def test_plot_draws_the_curve(run: Path) -> None:
    pytest.importorskip("matplotlib")
    done = command(run.parent.parent, "plot", "first")
    assert (done.returncode, done.stdout) == (0, "runs/first/plots/return.png\n"), done.stderr
    assert (run / "plots" / "return.png").read_bytes().startswith(b"\x89PNG")
