"""`lockstep export` from the command line."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import lockstep
from lockstep.cli.main import main
from lockstep.export import formats, writing

ONNX = ("onnx", "onnxscript", "onnxruntime")
SMALL = {"rollout.steps": 32, "run.progress": "off", "run.checkpoint_every": 1, "runtime.compile": "off"}


class Untraceable(nn.Module):
    """Core that cannot be exported: its control flow depends on the values of tensors."""

    def __init__(self, features: int, size: int, layers: int) -> None:
        super().__init__()
        self.output_size, self.state_size = features, 1

    def step(self, features: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (features if features.sum() > 0 else -features), state

    def sequence(self, features: torch.Tensor, state: torch.Tensor, resets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return features, state


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which runs/first has checkpoints of iterations 1 and 2."""
    folder = tmp_path_factory.mktemp("exported")
    policy = {"hidden": [8], "normalize_observations": True}
    lockstep.train("cartpole", total_steps=512, name="first", out=folder / "runs", policy=policy, **SMALL)
    lockstep.register_core("untraceable", Untraceable)  # type: ignore[arg-type]
    policy = {"hidden": [8], "core": "untraceable"}
    lockstep.train("cartpole", total_steps=256, name="untraceable", out=folder / "runs", policy=policy, **SMALL)
    empty = folder / "runs" / "empty"
    empty.mkdir()
    (empty / "config.json").write_bytes((folder / "runs" / "first" / "config.json").read_bytes())
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


class Named(gym.Env):
    """Environment whose observation has components with long names."""

    observation_space = gym.spaces.Dict(
        {"joint_velocities_of_the_left_arm": gym.spaces.Box(-1, 1, (7,)), "x": gym.spaces.Box(-1, 1, (2,))}
    )
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}


@pytest.mark.extra(*ONNX)
def test_columns_are_as_wide_as_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    gym.register("Named-v0", Named)
    try:
        lockstep.train(env={"id": "Named-v0", "count": 2}, total_steps=64, name="named", **SMALL)
        capsys.readouterr()
        assert main(["export", "named", "--format", "torch"]) == 0
    finally:
        del gym.registry["Named-v0"]
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("in ", "out "))]
    names = ["observation.joint_velocities_of_the_left_arm", "observation.x", "action", "logits", "value"]
    assert [line.split()[1] for line in table] == names
    for words in ("observation['joint", "observation['x']", "action for", "of the options", "expected"):
        (line,) = (line for line in table if words in line)
        assert line.index(words) == 65  # 4 for in and out, 61 for the longest name, type and shape, and a gap


@pytest.mark.slow
@pytest.mark.extra(*ONNX)
def test_newest_checkpoint_is_exported_into_the_run_folder(here: Path, run_cli) -> None:
    done = run_cli("export", "first", cwd=here)
    assert (done.rc, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("policy of CartPole-v1, iteration 2; its outputs equal those of the run to ")
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["in", "observation", "float32", "[N,"],
        ["out", "action", "int64", "[N]"],
    ]
    assert lines[-1] == "written runs/first/policy-00000002.onnx"
    import onnxruntime

    about = onnxruntime.InferenceSession(Path(here, lines[-1].split()[1])).get_modelmeta().custom_metadata_map
    assert {name: about[name] for name in ("env_id", "env_options", "iteration", "digest", "lockstep_version")} == {
        "env_id": "CartPole-v1",
        "env_options": "{}",
        "iteration": "2",
        "digest": lockstep.Run(here / "runs/first").digest,
        "lockstep_version": lockstep.__version__,
    }
    again = run_cli("export", "first", cwd=here)
    assert (again.rc, again.stdout) == (2, "")
    assert again.stderr == "lockstep: --out is runs/first/policy-00000002.onnx, which exists; choose another\n"


@pytest.mark.slow
def test_older_checkpoint_is_exported_as_a_torch_program(here: Path) -> None:
    assert main(["export", "first", "--format", "torch", "--iteration", "1", "--out", "early.pt2"]) == 0
    files = {"lockstep.json": ""}
    program = torch.export.load(here / "early.pt2", extra_files=files).module()
    assert json.loads(files["lockstep.json"])["iteration"] == "1"
    policy = lockstep.load(here / "runs/first", iteration=1)
    observations = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    taken = program({"observation": torch.from_numpy(observations)})["action"]
    np.testing.assert_array_equal(taken, policy.predict(observations)[0])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["frist"], "'frist': there is no such run; did you mean runs/first?"),
        (["empty"], "runs/empty has no checkpoint yet"),
        (["first", "--iteration", "9"], "iteration is 9: runs/first has checkpoints of 1, 2"),
        (["first", "--format", "tflite"], "--format is 'tflite': it must be onnx or torch"),
        (["first", "--out", "a.pt2", "--format", "onnx"], "--out is a.pt2: a file of the format onnx must end in .onnx"),
        (["first", "--out", "no/a.onnx"], "--out is no/a.onnx: there is no folder no"),
        (["first", "--out", f"{'a' * 300}.onnx"], f"--out is {'a' * 300}.onnx: File name too long"),
        (["first", "--out", "taken.onnx"], "--out is taken.onnx, which exists; choose another"),
        (["first", "--out", "/proc/a.pt2", "--format", "torch"], "--out is /proc/a.pt2"),
        (["untraceable", "--out", "a.pt2", "--format", "torch"], "this policy can't be exported as torch: "),
    ],
)  # fmt: skip
@pytest.mark.extra(*ONNX)
def test_invalid_arguments_are_reported_in_one_line(
    here: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "taken.onnx").touch()
    before = set(here.rglob("*"))
    assert main(["export", *words]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert output.err.startswith(f"lockstep: {line}")
    assert set(here.rglob("*")) == before


def test_missing_package_message_names_the_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = writing.find_spec
    monkeypatch.setattr(writing, "find_spec", lambda name: None if name == "onnxscript" else find_spec("json"))
    assert main(["export", "first", "--out", "a.onnx"]) == 2
    assert capsys.readouterr().err == "lockstep: --format onnx needs onnxscript; pip install 'lockstep-rl[export]'\n"


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("value", lambda array: array + 1e-4, "its value differs by 0.0001, more than 1e-05"),
        ("logits", lambda array: array * np.nan, "its logits differs by inf"),
        ("action", lambda array: 1 - array, "its action differs by inf"),
        ("action", lambda array: array[:1], "its action differs by inf"),
    ],
)
def test_file_with_outputs_that_differ_is_deleted(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, change, line: str
) -> None:
    def unpack(content: bytes):
        run = original_format.unpack(content)
        return lambda given: {key: change(array) if key == name else array for key, array in run(given).items()}

    original_format = formats.FORMATS["torch"]
    broken_format = formats.Format(original_format.suffix, original_format.needs, original_format.pack, unpack)
    monkeypatch.setitem(formats.FORMATS, "torch", broken_format)
    assert main(["export", "first", "--format", "torch", "--out", "wrong.pt2"]) == 2
    output = capsys.readouterr().err
    assert (
        f"lockstep: the outputs of the exported policy do not equal those of the run, so it was not saved: {line}"
        in output
    )
    assert not list(here.glob("*wrong*"))
