"""Manifests for Kubernetes: their schema, and their policy with real processes."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.live_runs import digests, reached, wait_for

from lockstep.cli.main import main
from lockstep.processes.exit_codes import BAD_INPUT, DONE, STOPPED_BY_SIGNAL

WORDS = ("train", "cartpole", "--on", "kubernetes", "--name", "run-1")
JOB = ("--job", "image=registry/lockstep", "claim=runs")
RANKS = 2
EXPERIMENT = (
    *("--plan.shards", "2", "--env.count", "4", "--rollout.steps", "64", "--runtime.compile", "off"),
    *("--run.checkpoint-every", "1", "--total-steps", str(4 * 64 * 20), "--runtime.timeout", "20"),
)


def manifest(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return the manifest that the command prints."""
    assert main([*WORDS, *words]) == DONE
    output = capsys.readouterr()
    assert output.err == ""
    return yaml.safe_load(output.out)


def test_manifest_follows_the_schema_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = manifest(capsys, *JOB, "cpu=2", "memory=2Gi", "gpus=1", "--ranks", "4", "--restarts", "2", "--seed", "3")
    kubernetes_validate.validate(job, "1.37", strict=True)
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (4, 4, 8)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "2Gi"},
        "limits": {"memory": "2Gi", "nvidia.com/gpu": "1"},
    }
    assert container["args"] == [
        *("train", "cartpole", "--name", "run-1", "--seed", "3", "--plan.shards", "4"),
        *("--runtime.rendezvous", "file:///lockstep/runs/run-1.rendezvous", "--resume"),
    ]
    assert list(tmp_path.iterdir()) == []
    misspelled = yaml.safe_load(yaml.safe_dump(job).replace("podFailurePolicy:", "podFailurePolice:"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(misspelled, "1.37", strict=True)


def test_single_rank_does_not_restart_itself_if_there_are_no_restarts(capsys: pytest.CaptureFixture[str]) -> None:
    def arguments(*words: str) -> list[str]:
        (container,) = manifest(capsys, *JOB, "--ranks", "1", *words)["spec"]["template"]["spec"]["containers"]
        return container["args"]

    assert arguments("--restarts", "0")[-2:] == ["--restarts", "0"]
    assert "--restarts" not in arguments("--restarts", "3")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "--on kubernetes needs --job image=…, such as image=registry/lockstep:0.1"),
        (("--job", "image=x"), "--on kubernetes needs --job claim=…, such as claim=runs"),
        (
            (*JOB, "nodes=2"),
            "--job nodes: --on kubernetes has no such option; it has image, claim, cpu, memory, gpus, kind",
        ),
        ((*JOB, "memory=lots"), "--job memory is 'lots': Kubernetes takes values such as 4Gi"),
        ((*JOB, "gpus=0.5"), "--job gpus is '0.5': Kubernetes takes values such as 1"),
        (
            ("--job", "image=a b", "claim=x"),
            "--job image is 'a b': Kubernetes takes values such as registry/lockstep:0.1",
        ),
        (("--job", "image=a", "claim=B_$"), "--job claim is 'B_$': Kubernetes takes values such as runs"),
        (
            (*JOB, "--ranks", "1:2"),
            "--ranks is 1:2: a Job of Kubernetes has a fixed number of pods; give one number, or use --job kind=rayjob",
        ),
    ],
)
def test_what_kubernetes_can_not_run_is_refused(
    words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *words]) == BAD_INPUT
    assert capsys.readouterr() == ("", f"lockstep: {error}\n")


def test_names_that_kubernetes_does_not_accept_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ([], ["--name", "Run_1"], ["--name", "a" * 41], ["--name", "1"]):
        assert main(["train", "cartpole", "--on", "kubernetes", *name, *JOB]) == BAD_INPUT
        assert "--on kubernetes needs one of at most 40 lowercase letters" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(9, marks=pytest.mark.exhaustive), 15])
def test_pods_that_are_replaced_one_by_one_go_on(
    number: int, run_in, begin: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, capsys, environ: dict[str, str]
) -> None:
    """Start the ranks, kill one, and replace every rank by itself, as the controller of Jobs does with the policy of the manifest."""
    (tmp_path / "alone").mkdir()
    run_in(tmp_path / "alone", "train", "cartpole", *EXPERIMENT, "--name", "run-1", "--ranks", 1)
    spec = manifest(capsys, *JOB, *EXPERIMENT, "--ranks", str(RANKS))["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (tmp_path / "runs").mkdir()
    words = [word.replace("/lockstep/", f"{tmp_path}/") for word in container["args"]]
    environ |= {variable["name"]: variable["value"] for variable in container["env"]}

    def pod(index: int) -> "subprocess.Popen[str]":
        environ["JOB_COMPLETION_INDEX"] = str(index)
        return begin(*words)

    pods = {index: pod(index) for index in range(RANKS)}
    run = tmp_path / "runs/run-1"
    wait_for(reached(run, 3), "the third iteration")
    pods[1].send_signal(number)
    failures = _control(spec, pods, pod)
    # a pod that is replaced before the other one has noticed the loss meets it, and fails once more
    assert (failures == 0) == (number == 15)
    assert digests(run) == digests(tmp_path / "alone/runs/run-1")
    assert list((tmp_path / "runs").iterdir()) == [run]


def _control(spec: dict[str, Any], pods: dict[int, Any], start: Callable[[int], Any]) -> int:
    """Replace pods that fail until all have succeeded. Return the number of failures that count in `backoffLimit`."""
    rules = {
        code: rule["action"] for rule in spec["podFailurePolicy"]["rules"][:2] for code in rule["onExitCodes"]["values"]
    }
    assert rules[STOPPED_BY_SIGNAL] == "Ignore"
    failures = 0
    while pods:
        index, process = next(((index, each) for index, each in pods.items() if each.poll() is not None), (None, None))
        if index is None or process is None:
            wait_for(lambda: any(each.poll() is not None for each in pods.values()), "the end of a pod")
            continue
        code = process.returncode
        del pods[index]
        if code == DONE:
            continue
        assert rules.get(code) != "FailJob", process.communicate()
        failures += rules.get(code) != "Ignore"
        assert failures <= spec["backoffLimit"]
        pods[index] = start(index)
    return failures
