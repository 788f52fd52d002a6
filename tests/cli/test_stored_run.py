"""Runs that are copied to object storage, from the command line. The storage is a folder; tests/store/test_s3.py uses a server."""

from collections.abc import Callable
from pathlib import Path

from tests.warm import Finished

TRAIN = (
    *("train", "--env", "CartPole-v1", "--env.count", "4", "--rollout.steps", "16", "--ppo.minibatches", "2"),
    *("--policy.hidden", "4", "--runtime.compile", "off", "--name", "one", "--total-steps", "640", "--ranks", "1"),
    *("--run.checkpoint-every", "2", "--run.keep", "3", "--run.progress", "off"),
)


def test_only_a_resume_from_a_checkpoint_that_exists_removes_later_ones_from_the_storage(
    run_cli: Callable[..., Finished], tmp_path: Path
) -> None:
    storage = ("--run.store", f"file://{tmp_path}/storage")
    (tmp_path / "storage").mkdir()

    def stored() -> list[int]:
        return sorted(int(path.parent.name) for path in tmp_path.glob("storage/one/checkpoints/*/state.json"))

    assert run_cli(*TRAIN, *storage).rc == 0
    assert stored() == [6, 8, 10]
    missing = run_cli("resume", "runs/one", *storage, "--iteration", "7", "--total-steps", "1280")
    assert missing.rc == 2, missing
    assert stored() == [6, 8, 10], "the storage must not lose checkpoints to a command that is refused"
    hook = tmp_path / "ends.py"
    hook.write_text("def on_iteration(iteration):\n    raise SystemExit(1)\n")
    ended = run_cli("resume", "runs/one", *storage, "--iteration", "0", "--run.hooks", "ends", "--restarts", "0")
    assert ended.rc != 0, ended
    assert stored() == [], "the run has no checkpoint any more, so the storage must not have a later one"
    again = run_cli("resume", "runs/one", *storage, "--run.hooks", "none")
    assert again.rc == 0, again
    assert stored() == [6, 8, 10]
