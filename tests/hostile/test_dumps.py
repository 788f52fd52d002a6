"""Hostile dumps: `lockstep replay` refuses each in one line, without executing anything."""

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from tests.hostile.corpus import AGENTS, CONTENTS, KINDS
from tests.hostile.test_corpus import MEGABYTE
from tests.hostile.test_fuzzing import damaged, edits, few, one_line, values

import lockstep
from lockstep.algorithm.non_finite import NonFinite
from lockstep.cli.main import main
from lockstep.experiment.dump import read_dump
from lockstep.experiment.replay import replay

Description = dict[str, object]


@pytest.fixture(name="dump", scope="module")
def fixture_dump(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Content of a dump, of a run whose weights diverge."""
    folder = tmp_path_factory.mktemp("dump")
    chosen = {"env.count": 4, "rollout.steps": 16, "policy.hidden": [4], "ppo.minibatches": 2, "runtime.compile": "off"}
    quiet = {"run.progress": "off", "run.folder": str(folder), "run.name": "run", "run.loggers": ()}
    with pytest.raises(NonFinite, match="lockstep replay"):
        lockstep.train(env="CartPole-v1", total_steps=64, **chosen, **quiet, **{"ppo.learning_rate": 1e30})
    return (folder / "run" / "non-finite-00000001.safetensors").read_bytes()


def changed(dump: bytes, edit: Callable[[Description, dict[str, torch.Tensor]], None]) -> bytes:
    """Return a dump with an edited description and edited tensors."""
    header = json.loads(dump[8 : 8 + int.from_bytes(dump[:8], "little")])
    described, tensors = json.loads(header["__metadata__"]["dump"]), load(dump)
    edit(described, tensors)
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"dump": json.dumps(described)})


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[Description, dict[str, torch.Tensor]], None]:
    return lambda _, tensors: tensors.__setitem__(name, tensor)


def with_description(**fields: object) -> Callable[[Description, dict[str, torch.Tensor]], None]:
    return lambda described, _: described.update(fields)


def with_hidden(*sizes: int) -> Callable[[Description, dict[str, torch.Tensor]], None]:
    return lambda described, _: described["config"]["policy"].update(hidden=list(sizes))  # type: ignore[index]


EDITS: dict[str, Callable[[Description, dict[str, torch.Tensor]], None]] = {
    "rows-empty": with_tensor("rows", torch.zeros(0, 11)),
    "rows-of-another-width": with_tensor("rows", torch.zeros(32, 3)),
    "rows-of-another-type": with_tensor("rows", torch.zeros(32, 11, dtype=torch.float64)),
    "actions-out-of-range": with_tensor("rows", torch.full((32, 10), 1e9)),
    "places-of-another-length": with_tensor("places", torch.zeros(1, 2, dtype=torch.int64)),
    "scalars-missing": lambda _, tensors: tensors.pop("scalars"),
    "total-of-another-length": with_tensor("total", torch.zeros(3)),
    "images-that-are-not-expected": with_tensor("pixels", torch.zeros(32, 100, dtype=torch.uint8)),
    "states-that-are-not-expected": with_tensor("states", torch.zeros(4, 8)),
    "weight-missing": lambda _, tensors: tensors.pop("agent.policy.policy_head.weight"),
    "huge-network": with_hidden(10**9, 10**9),
    "deep-network": with_hidden(*[1] * 200_000),
    "newer": with_description(version=2),
    "config-missing": with_description(config=None),
    "config-of-a-module": lambda described, _: described["config"]["env"].update(module="os"),  # type: ignore[index]
    "iteration-negative": with_description(iteration=-1),
    "samples-infinite": with_description(samples="1"),
    "trained-missing": lambda described, _: described.pop("trained"),
    "other-tensors": lambda _, tensors: tensors.clear(),
}


def check(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    capsys.readouterr()
    assert main(["replay", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lockstep: ")
    assert len(line) < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * MEGABYTE
    assert not Path("unpickled").exists()


@pytest.mark.parametrize("name", [*EDITS, *KINDS, *CONTENTS, *AGENTS, "missing"])
def test_hostile_dump_is_refused_in_one_line(
    name: str, dump: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump.safetensors"
    if name in KINDS:
        KINDS[name](path)
    elif name in EDITS:
        path.write_bytes(changed(dump, EDITS[name]))
    elif name != "missing":
        path.write_bytes(CONTENTS[name] if name in CONTENTS else AGENTS[name]())
    check(path, capsys)


def test_the_dump_itself_is_read(dump: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dump.safetensors"
    path.write_bytes(changed(dump, lambda *_: None))
    assert main(["replay", str(path)]) == 0
    assert "reproduced: " in capsys.readouterr().out


@few
@given(
    places=edits,
    fields=st.dictionaries(
        st.sampled_from(["version", "config", "iteration", "epoch", "minibatch", "trained", "samples"]), values
    ),
)
def test_dump_is_replayed_or_refused(
    places: list[tuple[int, int]], fields: Description, dump: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "dump.safetensors"
    for content in (damaged(dump, places), changed(dump, with_description(**fields))):
        path.write_bytes(content)
        one_line(lambda: replay(read_dump(path)))
