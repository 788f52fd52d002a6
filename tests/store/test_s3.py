"""Runs in object storage, on a local server of S3: the machine is lost with its disk, and the repeated command continues."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.live_runs import digests, processes_in, slow_hook, wait_for
from tests.warm import Finished, Program, Warm

from lockstep.store.remote import RemoteRun, StoreFailed

pytestmark = [pytest.mark.slow, pytest.mark.extra("s3fs", "moto", "flask", "flask_cors")]

TASK = ("train", "--env", "CartPole-v1", "--rollout.steps", 64, "--env.count", 4, "--plan.shards", 2, "--ranks", 2)
TASK += ("--ppo.epochs", 1, "--policy.hidden", 8, "--runtime.compile", "off", "--run.progress", "off", "--seed", 3)
STORE = "s3://bucket/folder"
BUDGET = ("--total-steps", 256 * 60)
STORED = ("--run.store", STORE, "--run.checkpoint-every", 10, "--name", "one", "--resume", *BUDGET)


@pytest.fixture(name="begin")
def fixture_begin(warm: Warm, environ: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Return `begin(words, variables)`, which starts `lockstep WORDS …` in the background."""
    started: list[Program] = []

    def begin(words: Sequence[object], variables: Mapping[str, str]) -> Program:
        started.append(warm.start(*words, cwd=tmp_path, environ=environ | variables))
        return started[-1]

    yield begin
    for program in started:
        program.kill()


def test_objects_are_written_read_and_deleted(s3: dict[str, str], tmp_path: Path) -> None:
    assert s3
    run = RemoteRun(STORE, "objects")
    assert run.sizes() == {}
    run.write("config.json", b"{}")
    (tmp_path / "agent").write_bytes(bytes(2**20))
    run.upload(tmp_path / "agent", "checkpoints/00000001/agent.safetensors")
    assert run.sizes() == {"config.json": 2, "checkpoints/00000001/agent.safetensors": 2**20}
    assert run.read("config.json", 2) == b"{}"
    run.download("checkpoints/00000001/agent.safetensors", tmp_path / "new" / "copy", 2**20)
    assert (tmp_path / "new" / "copy").read_bytes() == bytes(2**20)
    with pytest.raises(StoreFailed, match="more than 1 bytes"):
        run.read("config.json", 1)
    for name in [*run.sizes(), "missing"]:
        run.delete(name)
    assert run.sizes() == {}


def test_a_lost_machine_is_replaced_by_repeating_the_command(
    s3: dict[str, str], run_cli: Callable[..., Finished], begin: Callable[..., Program], tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "one"
    lost = begin((*TASK, *STORED, *slow_hook(tmp_path, 0.5)), s3)  # until the first copy, which may take long
    wait_for(lambda: any(name.endswith("/state.json") for name in RemoteRun(STORE, "one").sizes()), "a copy")
    stored = len(digests(run))
    lost.kill()
    wait_for(lambda: not processes_in(tmp_path), "the end of all ranks, and of the process that copies")
    assert stored < 60
    shutil.rmtree(run)

    again = run_cli(*TASK, *STORED, env=s3)
    assert again.rc == 0, again
    assert f"downloaded {STORE}/one to runs/one" in again.stderr
    assert run_cli(*TASK, *BUDGET, "--name", "whole").rc == 0
    assert digests(run) == digests(tmp_path / "runs" / "whole")

    fetched = run_cli("fetch", f"{STORE}/one", "--out", "elsewhere", env=s3)
    assert (fetched.rc, fetched.stdout) == (0, "elsewhere/one\n"), fetched
    assert digests(tmp_path / "elsewhere" / "one") == digests(run)
    assert "secret-of-this-test" not in "".join(path.read_text(errors="replace") for path in run.rglob("*.json*"))

    shutil.rmtree(run)
    complete = run_cli(*TASK, *STORED, env=s3)
    assert complete.rc == 0
    assert "is complete: 60 iterations" in complete.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--run.store", "s3://missing/folder", "--name", "new"), "run.store: s3://missing/folder/new: "),
        (("--run.store", STORE), "run.store needs --name"),
        (("--run.store", "bucket", "--name", "new"), "run.store is 'bucket': it must be the address of a folder"),
        (("--run.store", STORE, "--name", "taken"), "is a run already; continue it with --resume"),
    ],
)
def test_problems_are_reported_before_training(
    s3: dict[str, str], run_cli: Callable[..., Finished], tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    RemoteRun(STORE, "taken").write("config.json", b"{}")
    done = run_cli(*TASK, *words, env=s3)
    assert done.rc == 2
    assert done.stderr.count("\n") == 1
    assert problem in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unreachable_server_is_reported(run_cli: Callable[..., Finished], s3: dict[str, str]) -> None:
    done = run_cli(*TASK, *STORED, env=s3 | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert done.rc == 2
    assert done.stderr.count("\n") == 1
    assert "run.store: s3://bucket/folder/one: " in done.stderr


@pytest.mark.exhaustive  # tests/store/test_sidecar.py shows the same in a second
def test_a_run_that_could_not_be_stored_says_so_and_is_stored_later(
    run_cli: Callable[..., Finished], begin: Callable[..., Program], tmp_path: Path
) -> None:
    """The storage is a folder, which becomes unusable while the run is trained."""
    run, stored = tmp_path / "runs" / "one", tmp_path / "store" / "one"
    words = ("--run.store", f"file://{tmp_path}/store", "--name", "one", "--run.checkpoint-every", 10)
    training = begin((*TASK, *BUDGET, *words, *slow_hook(tmp_path)), {})
    wait_for(lambda: [*stored.glob("checkpoints/*/state.json")], "a copy")
    blocked = tmp_path / "in the way"
    blocked.write_text("not a folder")
    stored.parent.rename(tmp_path / "away")
    blocked.rename(stored.parent)
    done = training.wait(200)
    assert done.rc == 1
    *warnings, last = done.stderr.splitlines()
    assert any("; trying again" in line for line in warnings), done
    assert "the checkpoint of iteration 60 was not stored" in last
    where = f"--run.hooks slow --run.store file://{tmp_path}/store"
    assert f"`lockstep resume {run.relative_to(tmp_path)} {where}` stores the rest" in last

    stored.parent.unlink()
    fast = ("--run.hooks", "none")
    refused = run_cli("resume", "runs/one", *fast)
    assert (refused.rc, refused.stderr.count("\n")) == (2, 1)
    assert "a run folder can't choose where results are sent" in refused.stderr
    again = run_cli("resume", "runs/one", *fast, "--run.store", f"file://{tmp_path}/store")
    assert again.rc == 0
    assert "is complete: 60 iterations" in again.stdout
    assert max(path.parent.name for path in stored.glob("checkpoints/*/state.json")) == "00000060"
