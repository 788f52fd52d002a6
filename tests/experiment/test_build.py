"""Agents that are restored: the saved one, or one line before any memory is allocated."""

import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from tests.cpu_runtime import cpu_runtime
from torch import nn

from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.envs.spaces import Spaces, describe
from lockstep.experiment import build as build_module
from lockstep.experiment.build import build, make_agent, restore_agent
from lockstep.models import registry

ROWS = describe(Box(-1, 1, (5,)), Box(-2, 2, (2,)), "rows")
IMAGES = describe(Box(0, 255, (3, 40, 40), np.uint8), Discrete(3), "images")


def config(**sections: object) -> Config:
    return decode({"ppo": {"normalize_rewards": True}, **sections}, Config())


class Reads(nn.Module):
    """An encoder that reads a tensor while it is constructed."""

    def __init__(self, features: int, *others: object) -> None:
        super().__init__()
        self.output_size = int(torch.full((), 7).item())
        self.layer = nn.Linear(features, self.output_size)

    def forward(self, features: torch.Tensor, images: object) -> torch.Tensor:
        return self.layer(features)


@pytest.fixture(autouse=True)
def fixture_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENCODERS, "reads", Reads)


@pytest.mark.parametrize(
    ("spaces", "sections"),
    [
        (ROWS, {}),
        (ROWS, {"policy": {"normalize_observations": True, "squash": True}, "runtime": {"precision": "fp64"}}),
        (ROWS, {"policy": {"orthogonal": False, "shared": True}}),
        (ROWS, {"policy": {"encoder": "reads"}}),
        *((ROWS, {"policy": {"core": core, "core_layers": 2, "core_size": 8}}) for core in ("lstm", "gru", "mingru")),
        *((IMAGES, {"policy": {"encoder": encoder}}) for encoder in ("nature", "impala", "grid")),
        *((ROWS, {"curiosity": {"kind": kind}}) for kind in ("icm", "rnd", "ngu", "e3b", "re3", "disagreement")),
        (IMAGES, {"curiosity": {"kind": "rnd", "channels": 1, "combine": "two-heads", "gamma": 0.9}}),
    ],
)
def test_a_restored_agent_is_the_saved_one(spaces: Spaces, sections: dict[str, object]) -> None:
    saved = make_agent(config(**sections, run={"seed": 3}), spaces=spaces)
    before = torch.get_rng_state()
    found = restore_agent(config(**sections), spaces, saved.state())
    assert found.digest() == saved.digest()
    assert found.device == torch.device("cpu")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"policy": {"hidden": [16_384, 64]}}, r"tensor 'policy\.trunk\.0\.weight' is \[64, 5\] float32, but must be \[16384, 5\]"),
        ({"policy": {"hidden": [16_384] * 100}}, r"the config asks for networks of at least 69 tensors, but 16 are saved"),
        ({"curiosity": {"kind": "re3", "feature_size": 16_384, "hidden": [16_384] * 2}}, r"tensor 'curiosity\..*' is missing"),
        ({"runtime": {"precision": "fp64"}}, r"tensor 'policy\.log_std' is \[2\] float32, but must be \[2\] float64"),
        ({"policy": {"core": "absent"}}, r"policy\.core is 'absent': it must be one of"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_fit_gets_one_line(sections: dict[str, object], problem: str) -> None:
    saved = make_agent(config(), spaces=ROWS).state()
    with pytest.raises(ValueError, match=problem) as caught:
        restore_agent(config(**sections), ROWS, saved)
    assert "\n" not in str(caught.value)


LOADS = """
import sys
from tests.experiment.test_build import IMAGES, ROWS, config, make_agent, restore_agent

sections = [{"policy": {"core": core}} for core in ("none", "lstm", "gru", "mingru")]
sections += [{"policy": {"distribution": "beta", "orthogonal": False}}, {"curiosity": {"kind": "ngu"}}]
images = [{"policy": {"encoder": encoder}} for encoder in ("nature", "impala", "grid")]
for spaces, cases in ((ROWS, sections), (IMAGES, images)):
    for case in cases:
        restore_agent(config(**case), spaces, make_agent(config(**case), spaces=spaces).state())
        assert "torch._dynamo" not in sys.modules, case
"""


def test_loading_an_agent_does_not_import_the_compiler_of_pytorch(root: Path) -> None:
    """Its import takes a second, which every command that loads an agent would need."""
    done = subprocess.run([sys.executable, "-c", LOADS], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_modules_of_other_threads_are_not_counted() -> None:
    saved = make_agent(config(), spaces=ROWS).state()

    class Elsewhere(Reads):
        def __init__(self, features: int, *others: object) -> None:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: [nn.Linear(1, 1) for _ in range(200)]).result()
            super().__init__(features)

    own = dataclasses.replace(config().policy, encoder="reads")
    registry._ENCODERS["reads"] = Elsewhere
    with pytest.raises(ValueError, match=r"^tensor "):
        restore_agent(dataclasses.replace(config(), policy=own), ROWS, saved)


def test_a_fault_in_lockstep_is_not_taken_for_one_of_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault")

    fail.__module__ = "lockstep.models.encoders"
    monkeypatch.setitem(registry._ENCODERS, "nature", fail)
    saved = make_agent(config(policy={"encoder": "impala"}), spaces=IMAGES).state()
    with pytest.raises(RuntimeError, match="a fault"):
        restore_agent(config(), IMAGES, saved)


@pytest.mark.parametrize(("lag", "separate"), [(0, False), (1, True)])
def test_components_of_a_rank_that_plays_and_trains(lag: int, separate: bool) -> None:
    tree = {"env": {"id": "CartPole-v1", "count": 4, "engine": "gymnasium"}, "rollout": {"steps": 8}}
    resolved = decode(
        {**tree, "ppo": {"minibatches": 2}, "plan": {"shards": 2, "lag": lag}, "runtime": {"compile": "off"}}, Config()
    )
    plan = Plan.make(resolved.plan, 1)
    components = build(resolved, plan, cpu_runtime())
    try:
        assert [shard.index for shard in components.shards] == [0, 1]
        assert components.trainers.size == 1
        # with a lag, the weights that collect are not those that are trained
        assert (components.exchange.acting is not components.update.agent) is separate
        assert components.exchange.acting.digest() == components.update.agent.digest()
    finally:
        components.close()


def test_environments_of_all_shards_have_different_seeds() -> None:
    tree = {
        "env": {"id": "CartPole-v1", "count": 6, "engine": "gymnasium"},
        "rollout": {"steps": 8},
        "plan": {"shards": 3},
    }
    resolved = decode({**tree, "ppo": {"minibatches": 2}, "runtime": {"compile": "off"}}, Config())
    components = build(resolved, Plan.make(resolved.plan, 1), cpu_runtime())
    try:
        first = torch.cat([shard.observations for shard in components.shards])
        assert first.shape == (6, 4)
        assert len(first.unique(dim=0)) == 6
    finally:
        components.close()


def test_building_the_interpreter_is_announced_by_rank_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_module, "load_interpreter", lambda check, announce: announce())
    for rank in (1, 0):
        build_module._load_interpreter(rank)
        lines = capsys.readouterr().err.splitlines()
        assert lines == ["building the interpreter of kernels, once; it takes some seconds"] * (rank == 0)
