"""Manifests of other kinds than Job, and those of sweeps."""

import importlib.metadata
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.live_runs import digests, reached, wait_for

from lockstep.cli.main import main
from lockstep.clusters import kubernetes, manifests
from lockstep.clusters.job import SweepJob
from lockstep.processes.exit_codes import BAD_INPUT, DONE, STOPPED_BY_SIGNAL
from lockstep.run.folder import RunFolder

JOB = ("--job", "image=registry/lockstep", "claim=runs", "memory=2Gi")
SWEEP = ("sweep", "cartpole", "--on", "kubernetes", "--over", "run.seed=1,2")
EXPERIMENT = (
    *("--plan.shards", "2", "--env.count", "4", "--rollout.steps", "64", "--runtime.compile", "off"),
    *("--run.checkpoint-every", "1", "--runtime.timeout", "20"),
)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """Return the manifests that the command prints."""
    assert main(words) == DONE
    text = capsys.readouterr().out
    assert "&" not in text  # no anchors
    return list(yaml.safe_load_all(text))


def job_set(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    (manifest,) = printed(
        capsys, "train", "cartpole", "--on", "kubernetes", "--name", "run-1", *JOB, "kind=jobset", *words
    )
    return manifest


@pytest.fixture(name="with_ray")
def fixture_with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray 2.60.1 be installed; its code is not used."""
    monkeypatch.setattr(kubernetes, "find_spec", lambda _: object())
    original = importlib.metadata.version
    monkeypatch.setattr(manifests, "version", lambda name: "2.60.1" if name == "ray" else original(name))


def test_job_set_restarts_all_ranks_and_ends_after_errors_that_would_occur_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = job_set(capsys, "--ranks", "4", "--restarts", "2")
    assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert manifest["spec"]["failurePolicy"] == {
        "maxRestarts": 2,
        "rules": [{"name": "reproducible", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }
    (ranks,) = manifest["spec"]["replicatedJobs"]
    assert (ranks["replicas"], ranks["template"]["spec"]["backoffLimit"]) == (1, 0)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, **ranks["template"]}
    kubernetes_validate.validate(job, "1.37", strict=True)


@pytest.mark.usefixtures("with_ray")
def test_ray_job_has_a_pod_per_rank_and_the_command_for_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "cartpole", "--on", "kubernetes", "--name", "run-1", "--plan.shards", "4", "--ranks", "2:4")
    (manifest,) = printed(capsys, *words, "--restarts", "5", *JOB, "kind=rayjob", "gpus=1", "--out", "my 'b' $c")
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    spec = manifest["spec"]
    assert shlex.split(spec["entrypoint"]) == [
        *("lockstep", "train", "cartpole", "--plan.shards", "4", "--out", "my 'b' $c", "--name", "run-1"),
        *("--resume", "--on", "ray", "--ranks", "2:4", "--restarts", "5", "--job", "gpus=1"),
    ]
    assert (spec["backoffLimit"], spec["submissionMode"], spec["shutdownAfterJobFinishes"]) == (5, "HTTPMode", True)
    cluster = spec["rayClusterSpec"]
    assert cluster["rayVersion"] == "2.60.1"
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (4, 4, 4)
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}  # no ranks beside the head
    for template in (group["template"], cluster["headGroupSpec"]["template"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **template}
        kubernetes_validate.validate(pod, "1.37", strict=True)


def test_sweep_has_a_job_for_every_run_that_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*SWEEP, "--over", "ppo.epochs=1,2", "--ranks", "2", "--plan.shards", "2", "--restarts", "1", *JOB)
    jobs = printed(capsys, *words)
    assert list(tmp_path.iterdir()) == []
    assert len({job["metadata"]["name"] for job in jobs}) == 4
    for job in jobs:
        kubernetes_validate.validate(job, "1.37", strict=True)
        assert len(job["metadata"]["name"]) <= 40
        assert job["spec"]["backoffLimit"] == 2
    (container,) = jobs[0]["spec"]["template"]["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/lockstep/runs"}]
    assert container["args"] == [
        *("train", "cartpole", "--plan.shards", "2", "--runtime.rendezvous"),
        *(
            "file:///lockstep/runs/cartpole-sweep-seed-1_epochs-1.rendezvous",
            "--seed",
            "1",
            "--name",
            "seed-1_epochs-1",
        ),
        *("--out", "/lockstep/runs/cartpole-sweep/runs", "--run.progress", "off", "--ppo.epochs", "1", "--resume"),
    ]
    assert {each["kind"] for each in printed(capsys, *words, "kind=jobset")} == {"JobSet"}
    for job in printed(capsys, *SWEEP, "--restarts", "0", *JOB):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["args"][-2:] == ["--restarts", "0"]  # a single rank would otherwise restart itself


def test_names_of_the_runs_of_a_sweep_differ(tmp_path: Path) -> None:
    options = {"image": "a", "claim": "b"}
    runs = ("a_b", "a-b", "A-b", "0.1", "x" * 80, "x" * 81)
    for sweep in ("sweep", "1-sweep", "s" * 60):
        job = SweepJob(RunFolder(tmp_path / sweep), dict.fromkeys(runs, ()), 1, None, 3, options)
        names = [manifest["metadata"]["name"] for manifest in kubernetes.sweep_manifests(job)]
        assert len(set(names)) == len(runs)
        assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name) for name in names)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((*SWEEP, *JOB, "kind=rayjob"), "--job kind is 'rayjob': the runs of a sweep can be of kind job or jobset"),
        (
            (*SWEEP, *JOB, "--jobs", "2"),
            "--jobs is 2: Kubernetes starts all runs for which it has room; leave it out",
        ),
        ((*SWEEP, *JOB, "kind=pod"), "--job kind is 'pod': Kubernetes takes values such as job, jobset, rayjob"),
        (
            (*SWEEP, "--search", "ppo.gamma=float(0.9,1)", "--trials", "2", *JOB),
            "--on is 'kubernetes': a search starts runs when others have ended; use --on ray, or start it in a job",
        ),
    ],
)
@pytest.mark.usefixtures("with_ray")
def test_sweeps_that_kubernetes_can_not_run_are_refused(
    words: tuple[str, ...],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == BAD_INPUT
    assert capsys.readouterr() == ("", f"lockstep: {error}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_runs_of_a_sweep_have_the_digests_of_a_local_one(run_cli, tmp_path: Path, capsys, environ) -> None:
    """Run the containers of the manifests as processes, then let the sweep print its table."""
    words = ("sweep", "cartpole", *EXPERIMENT, "--total-steps", 4 * 64 * 3, "--over", "run.seed=1,2", "--ranks", 1)
    assert run_cli(*words, "--out", "runs/here").rc == DONE
    there = (*words, "--out", "runs/there", "--on", "kubernetes", *JOB)
    for job in yaml.safe_load_all(run_cli(*there).stdout):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        environ |= {variable["name"]: variable["value"] for variable in container["env"]} | {
            "JOB_COMPLETION_INDEX": "0"
        }
        ended = run_cli(*(word.replace("/lockstep/", f"{tmp_path}/") for word in container["args"]), env=environ)
        assert ended.rc == DONE, ended
    shown = run_cli(*there)
    assert shown.rc == DONE
    assert "2 of 2 " in shown.stdout
    runs = {folder.name: digests(folder) for folder in tmp_path.glob("runs/here/runs/*")}
    assert runs == {folder.name: digests(folder) for folder in tmp_path.glob("runs/there/runs/*")}
    assert len(runs) == 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_job_set_goes_on_after_a_rank_was_killed(
    run_in, begin: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, capsys, environ: dict[str, str]
) -> None:
    """Start the ranks, kill one, and start all of them again, as the controller of JobSets does with the policy of the manifest."""
    (tmp_path / "alone").mkdir()
    longer = (*EXPERIMENT, "--total-steps", str(4 * 64 * 20))
    run_in(tmp_path / "alone", "train", "cartpole", *longer, "--name", "run-1", "--ranks", 1)
    manifest = job_set(capsys, *longer, "--ranks", "2")
    (ranks,) = manifest["spec"]["replicatedJobs"]
    (container,) = ranks["template"]["spec"]["template"]["spec"]["containers"]
    rules = {
        code: rule["action"]
        for rule in ranks["template"]["spec"]["podFailurePolicy"]["rules"][:2]
        for code in rule["onExitCodes"]["values"]
    }
    (tmp_path / "runs").mkdir()
    words = [word.replace("/lockstep/", f"{tmp_path}/") for word in container["args"]]
    environ |= {variable["name"]: variable["value"] for variable in container["env"]}

    def start() -> list["subprocess.Popen[str]"]:
        pods = []
        for index in range(2):
            environ["JOB_COMPLETION_INDEX"] = str(index)
            pods.append(begin(*words))
        return pods

    pods, restarts = start(), 0
    run = tmp_path / "runs/run-1"
    wait_for(reached(run, 3), "the third iteration")
    pods[1].kill()
    while any(pod.wait() != DONE for pod in pods):
        codes = [pod.returncode for pod in pods]
        assert any(code != STOPPED_BY_SIGNAL for code in codes)
        assert all(rules.get(code) != "FailJob" for code in codes)
        restarts += 1
        assert restarts <= manifest["spec"]["failurePolicy"]["maxRestarts"]
        pods = start()
    assert restarts == 1
    assert digests(run) == digests(tmp_path / "alone/runs/run-1")
