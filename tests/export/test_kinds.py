"""Exported policies of every kind give the actions of the original policies in whole episodes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as kinds
from tests.envs.sample_environments import ACTED, SEEN, Sampled
from tests.models.test_distributions import Laplace
from tests.models.test_probe import Constant, Encoder, Mean, spectral

from lockstep.algorithm.agent import Agent
from lockstep.envs.spaces import describe
from lockstep.experiment.policy import TrainedPolicy
from lockstep.export.writing import export_policy
from lockstep.models.registry import register_distribution, register_encoder, register_head
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream

ONNX = ("onnx", "onnxscript", "onnxruntime")
EPISODES = 2


class Kind(NamedTuple):
    seen: gym.Space[Any]
    acted: gym.Space[Any]
    settings: Mapping[str, Any] = MappingProxyType({})
    masked: str = ""
    dtype: torch.dtype = torch.float32
    value: bool = True


PLAIN, FAR = kinds.Box(-1, 1, (3,)), kinds.Box(-np.inf, np.inf, (3,), np.float64)
CHOICE, REACH = kinds.Discrete(4, start=2), kinds.Box(np.float32([-2, 0]), np.float32([1, 5]))
FRAMES, CELLS = kinds.Box(0, 255, (4, 36, 40), np.uint8), kinds.Box(0, 255, (7, 7, 3), np.uint8)
KINDS = {
    "choice": Kind(PLAIN, CHOICE),
    "shared": Kind(PLAIN, CHOICE, {"shared": True, "activation": "elu", "head_hidden": (8,)}),
    "clipped": Kind(FAR, REACH, {"log_std": 1.0, "activation": "relu"}),
    "float64 bounds": Kind(
        PLAIN, kinds.Box(np.array([-0.1, 0.3]), np.array([0.1, 0.7]), dtype=np.float64), {"log_std": 1.0}
    ),
    "squashed": Kind(FAR, REACH, {"squash": True, "normalize_observations": True, "activation": "silu"}),
    "unbounded": Kind(PLAIN, kinds.Box(-np.inf, np.inf, (2, 2)), {"value_hidden": (24, 8), "activation": "gelu"}),
    "choices": Kind(SEEN["Numbers"], ACTED["Numbers"]),
    "mask": Kind(SEEN["Masked"], kinds.Discrete(5), {"normalize_observations": True}),
    "mask in info": Kind(SEEN["Info"], kinds.Discrete(5), {}, "info"),
    "masks": Kind(SEEN["Parts"], ACTED["Parts"], {"core": "gru"}, "info"),
    "lstm": Kind(PLAIN, CHOICE, {"core": "lstm", "core_layers": 2, "head_hidden": (6, 5), "hidden": ()}),
    "gru": Kind(
        FAR,
        REACH,
        {"core": "gru", "shared": True, "normalize_observations": True, "distribution": "gaussian-state-std"},
    ),
    "beta": Kind(PLAIN, REACH, {"distribution": "beta"}),
    "gsde": Kind(FAR, REACH, {"distribution": "gsde", "core": "gru", "squash": True}),
    "registered distribution": Kind(PLAIN, REACH, {"distribution": "laplace"}),
    "registered head": Kind(PLAIN, CHOICE, {"head": "centred"}),
    "mingru": Kind(PLAIN, CHOICE, {"core": "mingru", "core_layers": 2}),
    "nature": Kind(FRAMES, CHOICE, {"shared": True}),
    "stack of images": Kind(kinds.Box(0, 255, (2, 36, 40, 3), np.uint8), CHOICE, {"shared": True}),
    "impala": Kind(SEEN["Grey"], ACTED["Grey"], {"encoder": "impala"}, value=False),
    "grid": Kind(CELLS, CHOICE, {"encoder": "grid", "shared": True}),
    "everything": Kind(
        SEEN["Mixed"],
        ACTED["Mixed"],
        {"encoder": "impala", "core": "lstm", "normalize_observations": True, "distribution": "beta"},
    ),
    "spectral norm": Kind(PLAIN, CHOICE, {"encoder": "bounded"}, value=False),
    "running mean": Kind(PLAIN, CHOICE, {"encoder": "centred", "shared": True}),
    "constant buffer": Kind(PLAIN, CHOICE, {"encoder": "phased"}, value=False),
    "numbers of choices": Kind(kinds.Tuple([kinds.Discrete(32), kinds.Discrete(11), kinds.Discrete(2)]), CHOICE),
    "number after a box": Kind(kinds.Dict(a=PLAIN, b=kinds.Discrete(3, start=-1), c=kinds.Box(-1, 1, ())), CHOICE),
    "number, image and memory": Kind(
        kinds.Dict(a=kinds.Discrete(3), b=CELLS, c=PLAIN, d=kinds.Discrete(2)),
        CHOICE,
        {"encoder": "grid", "core": "gru", "normalize_observations": True},
    ),
    "double": Kind(FAR, REACH, {"core": "gru", "normalize_observations": True}, dtype=torch.float64),
}
SIMILAR = (
    "choice",
    "choices",
    "shared",
    "clipped",
    "registered distribution",
    "registered head",
    "mask",
    "mask in info",
    "gru",
    "beta",
    "nature",
    "stack of images",
    "impala",
    "grid",
    "running mean",
    "constant buffer",
    "numbers of choices",
    "number after a box",
    "number, image and memory",
)
"""Kinds whose ONNX files consist of the same operators as others. `make test` exports them with PyTorch only, and most others as ONNX only:
ONNX files are made from what PyTorch exports.
"""
BOTH = ("masks", "lstm", "double")
"""Kinds that `make test` exports in both forms."""

for own, inside in {"bounded": spectral, "centred": Mean, "phased": Constant}.items():
    register_encoder(own, lambda features, *others, inside=inside: Encoder(inside, features))
register_distribution("laplace", Laplace)
register_head("centred", lambda inputs, policy: Encoder(Mean, inputs))


def make_agent(kind: Kind) -> tuple[Agent, gym.Env[Any, Any]]:
    """Return an agent with perturbed weights and non-trivial statistics, and an environment for it."""
    env = Sampled(kind.seen, kind.acted, kind.masked)
    spaces = describe(kind.seen, kind.acted, "made", env.reset(seed=1)[1])
    config = PolicyConfig(**{"hidden": (16,), "core_size": 8, **kind.settings})
    agent = Agent(spaces, config, True, 1, kind.dtype)
    moved = torch.from_numpy(stream(1, "moved").standard_normal(len(agent.flat.buffer)))
    agent.flat.buffer += (0.02 if spaces.images else 0.5) * moved.to(kind.dtype)
    for buffer in agent.buffers.values():
        buffer += 0.1
    if agent.observation_statistics is not None:
        rows = torch.from_numpy(stream(2, "rows").normal(0.3, 2, (50, spaces.feature_size)))
        statistics = agent.observation_statistics
        statistics.merge(statistics.sums(rows, torch.ones(50, dtype=torch.bool)), statistics.mean)
        agent.refresh()
    return agent, env


def inputs_of(observation: Any, name: str = "observation") -> dict[str, np.ndarray]:
    """Return the inputs for an observation as documented: one array for each part."""
    if isinstance(observation, dict | tuple):
        parts = observation.items() if isinstance(observation, dict) else enumerate(observation)
        return {place: array for key, part in parts for place, array in inputs_of(part, f"{name}.{key}").items()}
    return {name: np.asarray(observation)[np.newaxis]}


def load_exported(path: Path) -> tuple[Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], dict[str, str]]:
    """Load an exported file. Return the policy as a function, and the metadata of the file."""
    if path.suffix == ".pt2":
        files = {"lockstep.json": ""}
        module = torch.export.load(path, extra_files=files).module()
        metadata: dict[str, str] = json.loads(files["lockstep.json"])
        return lambda inputs: {
            k: v.numpy() for k, v in module({n: torch.from_numpy(a) for n, a in inputs.items()}).items()
        }, metadata
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    assert {value.shape[0] for value in (*session.get_inputs(), *session.get_outputs())} == {"batch"}
    return lambda inputs: dict(
        zip(names, session.run(None, inputs), strict=True)
    ), session.get_modelmeta().custom_metadata_map


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "name"),
    [
        *(pytest.param("onnx", name, marks=pytest.mark.extra(*ONNX)) for name in KINDS if name not in SIMILAR),
        *(("torch", name) for name in (*SIMILAR, *BOTH)),
        *(pytest.param("onnx", name, marks=[pytest.mark.extra(*ONNX), pytest.mark.exhaustive]) for name in SIMILAR),
        *(pytest.param("torch", name, marks=pytest.mark.exhaustive) for name in KINDS if name not in SIMILAR + BOTH),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyTorch's, of its own trees
def test_exported_policy_gives_the_same_actions(form: str, name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    agent, env = make_agent(kind)
    path = tmp_path / ("policy" + {"onnx": ".onnx", "torch": ".pt2"}[form])
    exported = export_policy(agent, kind.seen, kind.acted, path, form, {"env_id": "made"})
    assert exported.difference <= 1e-5
    assert list(tmp_path.iterdir()) == [path]
    run, metadata = load_exported(path)
    assert (metadata["env_id"], metadata["digest"]) == ("made", agent.digest())
    inputs, outputs = (json.loads(metadata[part]) for part in ("inputs", "outputs"))
    assert list(inputs) == [spec.name for spec in exported.inputs]
    assert list(outputs) == [spec.name for spec in exported.outputs]
    assert ("value" in outputs) == kind.value
    assert ("state" in inputs, "next_state" in outputs) == (bool(agent.state_size),) * 2
    policy = TrainedPolicy(agent, kind.seen, kind.acted, stream(1, "drawn"))
    for episode in range(EPISODES):
        act, (observation, info), ended = policy.begin(), env.reset(seed=episode), False
        memory = {"state": np.zeros((1, agent.state_size), outputs["next_state"]["type"])} if agent.state_size else {}
        while not ended:
            action = act(observation, info)
            arrays = inputs_of(observation) | memory
            if kind.masked:
                arrays["action_mask"] = np.concatenate(info["action_mask"], axis=None)[np.newaxis].astype(np.int8)
            found = run({name: arrays[name] for name in inputs})
            memory = {"state": found["next_state"]} if memory else {}
            for place, array in inputs_of(action, "action").items():
                np.testing.assert_allclose(found[place], array, rtol=1e-5, atol=1e-5)
            observation, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated


@pytest.mark.extra(*ONNX)
def test_exported_policy_respects_bounds_and_masks(tmp_path: Path) -> None:
    agent, _ = make_agent(KINDS["clipped"])
    exported = export_policy(agent, FAR, REACH, tmp_path / "policy.onnx", "onnx", {})
    run, _ = load_exported(exported.path)
    found = run({"observation": 100 * stream(3, "far").standard_normal((64, 3))})
    assert (found["mean"] > REACH.high).any()
    assert (found["mean"] < REACH.low).any()
    np.testing.assert_array_equal(found["action"], found["mean"].clip(REACH.low, REACH.high))
    kind = KINDS["float64 bounds"]
    agent, _ = make_agent(kind)
    run, _ = load_exported(export_policy(agent, kind.seen, kind.acted, tmp_path / "float64.onnx", "onnx", {}).path)
    found = run({"observation": (100 * stream(3, "far").standard_normal((64, 3))).astype(np.float32)})
    assert all(map(kind.acted.contains, found["action"]))
    agent, _ = make_agent(KINDS["mask in info"])
    run, _ = load_exported(
        export_policy(agent, SEEN["Info"], kinds.Discrete(5), tmp_path / "mask.onnx", "onnx", {}).path
    )
    for option, row in enumerate(np.eye(5, dtype=np.int8)):
        found = run({"observation": np.arange(6), "action_mask": np.tile(row, (6, 1))})
        assert (found["action"] == option).all()
        assert ((found["logits"] > -1e9) == row.astype(bool)).all()


@pytest.mark.parametrize("form", ["torch", pytest.param("onnx", marks=pytest.mark.extra(*ONNX))])
def test_parts_with_the_same_name_are_refused(form: str, tmp_path: Path) -> None:
    unit = kinds.Box(-1, 1, (1,))
    same = kinds.Dict({"a.b": unit, "a": kinds.Dict(b=unit)})
    for kind, line in (
        (Kind(same, unit), "two of its inputs have the name 'observation.a.b'"),
        (Kind(unit, same), "two of its outputs have the name 'action.a.b'"),
    ):
        agent, _ = make_agent(kind)
        path = tmp_path / ("policy" + {"onnx": ".onnx", "torch": ".pt2"}[form])
        with pytest.raises(ValueError, match=f"^this policy can't be exported: {line}: .* must be unique$"):
            export_policy(agent, kind.seen, kind.acted, path, form, {})
        assert list(tmp_path.iterdir()) == []
