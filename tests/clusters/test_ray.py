"""Runs on a real cluster of Ray with two raylets: the digests of one process, also after a raylet was killed."""

import os
import signal
import socket
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live_runs import digests, processes_with, reached, slow_hook, wait_for

from lockstep.cli.main import main
from lockstep.processes.exit_codes import BAD_INPUT, DONE, RANK_LOST, STOPPED_BY_SIGNAL
from lockstep.run.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.extra("ray")]

WORDS = (
    *("train", "cartpole", "--plan.shards", 4, "--env.count", 4, "--rollout.steps", 64, "--runtime.compile", "off"),
    *("--run.checkpoint-every", 1, "--total-steps", 4 * 64 * 20, "--name", "run", "--runtime.timeout", 30),
)
CPUS = 2
"""Cores of a node."""
FORMS = "it must be HOST:PORT, such as head:6379, or ray://HOST:PORT, such as ray://head:10001"
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # Ray's default is 15: other tests could take all of the time
        # otherwise, processes that Ray's server for clients forks sometimes end at once: https://github.com/ray-project/ray/issues/63202
        patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
        port = _free_port()
        head = {"num_cpus": CPUS, "include_dashboard": False, "ray_client_server_port": port}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves the logs of the server for clients open
            cluster = Cluster(initialize_head=True, head_node_args=head)
        host = cluster.head_node.node_ip_address
        wait_for(lambda: _is_open(host, port), "Ray's server for clients")
        cluster.address_of_clients = f"ray://{host}:{port}"
        cluster.add_node(num_cpus=CPUS)
        yield cluster
        cluster.shutdown()


@pytest.fixture(name="address", params=["driver", "client"])
def fixture_address(cluster: Any, request: pytest.FixtureRequest) -> str:
    """Return the address of the cluster for a driver on one of its nodes, or for a client."""
    return f"address={cluster.address_of_clients if request.param == 'client' else cluster.address}"


@pytest.fixture(name="alone", scope="module")
def fixture_alone(run_in, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("alone")
    run_in(folder, *WORDS, "--ranks", 1)
    return digests(folder / "runs/run")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def processes_of(run: Path) -> list[int]:
    """Return the ids of the ranks of a run."""
    return processes_with(f"file://{run}/job/rendezvous")


def outcome(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


@pytest.mark.exhaustive
def test_ranks_on_two_raylets_have_the_digests_of_one_process(
    alone: list[str], cluster: Any, address: str, begin: Begin, tmp_path: Path
) -> None:
    driver = begin(*WORDS, "--on", "ray", "--ranks", 4, "--job", address, cold=True)
    code, out, err = outcome(driver)
    assert (code, err) == (DONE, "")
    assert "connecting 4 ranks that Ray has started" in out
    assert digests(tmp_path / "runs/run") == alone
    wait_for(lambda: not processes_of(tmp_path / "runs/run"), "the end of all ranks")


@pytest.mark.exhaustive
@pytest.mark.parametrize("plan", ["1:2", "2:1"])
def test_plans_on_two_raylets_have_the_digests_of_one_process(
    plan: str, alone: list[str], cluster: Any, begin: Begin, environ: dict[str, str], tmp_path: Path
) -> None:
    environ["RAY_ADDRESS"] = cluster.address
    code, out, err = outcome(begin(*WORDS, "--plan", plan, "--on", "ray", "--ranks", 3, cold=True))
    assert (code, err) == (DONE, "")
    assert "connecting 3 ranks that Ray has started" in out
    assert digests(tmp_path / "runs/run") == alone


@pytest.mark.exhaustive
def test_run_goes_on_with_the_ranks_of_the_raylet_that_is_left(
    alone: list[str], cluster: Any, address: str, begin: Begin, tmp_path: Path
) -> None:
    run, node = tmp_path / "runs/run", cluster.list_all_nodes()[1]
    driver = begin(*WORDS, "--on", "ray", "--ranks", "2:4", "--job", address, cold=True)
    wait_for(reached(run, 3), "the third iteration")
    first = set(processes_of(run))
    assert len(first) == 4
    cluster.remove_node(node, allow_graceful=False)
    wait_for(lambda: not first & set(processes_of(run)), "the end of the first ranks", 30)
    folder = RunFolder(run)
    wait_for(lambda: not folder.in_use() or processes_of(run), "the next ranks", 60)
    assert folder.in_use(), "no other command can train the run between two starts"
    code, out, err = outcome(driver)
    cluster.add_node(num_cpus=CPUS)
    assert code == DONE, err
    assert "connecting 2 ranks that Ray has started" in out
    assert "was lost with its actor; starting again from iteration " in err
    assert "(restart 1 of 3)" in err
    assert "(raylet)" not in out + err
    assert "\x1b" not in out + err
    assert digests(run) == alone


@pytest.mark.exhaustive
def test_driver_that_is_asked_to_stop_or_killed_leaves_no_rank(
    alone: list[str], cluster: Any, address: str, begin: Begin, environ: dict[str, str], tmp_path: Path
) -> None:
    environ["RAY_CLIENT_RECONNECT_GRACE_PERIOD"] = (
        "2"  # seconds until the ranks of a killed client end; Ray's default is 30
    )
    run, slow = tmp_path / "runs/run", slow_hook(tmp_path, 0.3)
    words = (*WORDS, *slow, "--on", "ray", "--ranks", 2, "--job", address, "--resume")
    driver = begin(*words, cold=True)
    wait_for(reached(run, 3), "the third iteration")
    driver.send_signal(signal.SIGTERM)
    code, out, _ = outcome(driver)
    assert code == STOPPED_BY_SIGNAL
    assert "continue from iteration " in out
    assert processes_of(run) == []
    driver = begin(*words, cold=True)
    wait_for(lambda: len(processes_of(run)) == 2, "the ranks")
    os.kill(driver.pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(run), "the end of all ranks", 60)
    resume = ("resume", "run", "--on", "ray", "--ranks", 2, "--job", address, *slow)
    code, out, err = outcome(begin(*resume, cold=True))
    assert (code, err) == (DONE, "")
    assert "resuming run from iteration " in out
    assert digests(run) == alone


@pytest.mark.exhaustive
def test_client_that_loses_its_connection_says_so_and_leaves_no_rank(
    cluster: Any, begin: Begin, environ: dict[str, str], tmp_path: Path
) -> None:
    environ["RAY_CLIENT_RECONNECT_GRACE_PERIOD"] = "2"
    run = tmp_path / "runs/run"
    words = ("--on", "ray", "--ranks", 2, "--job", f"address={cluster.address_of_clients}", *slow_hook(tmp_path, 1))
    driver = begin(*WORDS, *words, cold=True)
    wait_for(reached(run, 1), "the first iteration")
    for server in processes_with("--mode=specific-server", f"--address={cluster.address}"):
        os.kill(server, signal.SIGKILL)
    code, _, err = outcome(driver)
    assert (code, err) == (
        RANK_LOST,
        f"lockstep: the connection to the cluster of Ray at {cluster.address_of_clients} is lost\n",
    )
    wait_for(lambda: not processes_of(run), "the end of all ranks", 60)


@pytest.mark.exhaustive
def test_more_ranks_than_the_cluster_has_room_for_are_refused(cluster: Any, run_cli, tmp_path: Path) -> None:
    words = ("--on", "ray", "--ranks", "3:4", "--job", f"address={cluster.address}", "cpu=2")
    done = run_cli(*WORDS, *words)
    assert (done.rc, done.stdout) == (BAD_INPUT, "")
    assert done.stderr == "lockstep: --ranks is at least 3: the cluster has room for 2, with 2 CPU per rank\n"
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.exhaustive
def test_error_of_a_rank_is_the_one_of_the_command(cluster: Any, run_cli, tmp_path: Path) -> None:
    words = ("--on", "ray", "--ranks", 2, "--job", f"address={cluster.address}")
    done = run_cli(*WORDS, *words, "--runtime.rendezvous", f"file://{tmp_path}/missing/rendezvous")
    assert (done.rc, done.stdout) == (BAD_INPUT, "")
    assert done.stderr == (
        f"lockstep: runtime.rendezvous is 'file://{tmp_path}/missing/rendezvous': the file's folder does not exist\n"
    )
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["address=127.0.0.1:1"], "there is no cluster of Ray at '127.0.0.1:1' (Connection refused)"),
        (["address=ray://127.0.0.1:1"], "there is no cluster of Ray at 'ray://127.0.0.1:1' (Connection refused)"),
        (["address=nowhere"], f"--job address is 'nowhere': {FORMS}"),
        (["address=ray://head"], f"--job address is 'ray://head': {FORMS}"),
        (["address=http://head:10001"], f"--job address is 'http://head:10001': {FORMS}"),
        (["cpu=x"], "--job cpu is 'x': it must be a number of CPUs per rank"),
        (["nodes=2"], "--job nodes: --on ray has no such option; it has address, cpu, gpus"),
    ],
)  # fmt: skip
def test_options_that_can_not_work_are_refused(
    options: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*map(str, WORDS), "--on", "ray", "--job", *options]) == BAD_INPUT
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lockstep: {error}")
    assert output.err.count("\n") == 1
    assert list((tmp_path / "runs").glob("*")) == []


@pytest.mark.parametrize(("variables", "added"), [({}, 0), ({"RAY_worker_niceness": "3"}, 3)], ids=["default", "set"])
def test_ranks_of_a_cluster_that_the_command_starts_have_its_niceness(
    variables: dict[str, str], added: int, begin: Begin, environ: dict[str, str], tmp_path: Path
) -> None:
    environ.pop("RAY_worker_niceness", None)  # the other cluster of the tests has set it
    environ.update(variables)
    run = tmp_path / "runs/run"
    driver = begin(*WORDS, "--on", "ray", "--ranks", 2, *slow_hook(tmp_path), cold=True)
    wait_for(reached(run, 1), "the first iteration", 120)
    ranks = processes_of(run)
    assert len(ranks) == 2
    own = os.getpriority(os.PRIO_PROCESS, driver.pid)
    assert {os.getpriority(os.PRIO_PROCESS, rank) for rank in ranks} == {own + added}
    driver.send_signal(signal.SIGTERM)
    assert outcome(driver)[0] == STOPPED_BY_SIGNAL


@pytest.mark.exhaustive  # takes 40 s per address
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_address_of_another_service_is_refused_in_one_line(scheme: str, run_cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        address = f"{scheme}127.0.0.1:{service.getsockname()[1]}"
        done = run_cli(*WORDS, "--on", "ray", "--job", f"address={address}", timeout=120)
    assert (done.rc, done.stdout) == (BAD_INPUT, "")
    assert done.stderr.startswith(f"lockstep: there is no cluster of Ray at {address!r} (")
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "runs").iterdir()) == []
