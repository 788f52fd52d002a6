"""Tests of trial forward passes through registered encoders, cores and heads: changed buffers, and rejected modules."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.algorithm.test_agent import agent_of
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.envs.spaces import Spaces
from lockstep.experiment.build import make_agent, restore_agent
from lockstep.models import registry
from lockstep.models.cores import MinGru

SIZE = 6
NONE = np.zeros(0, dtype=np.float32)


class Encoder(nn.Module):
    """Encoder of a linear layer, followed by the module `inside`."""

    def __init__(self, inside: Callable[[], nn.Module], features: int) -> None:
        super().__init__()
        self.output_size = SIZE
        self.layer, self.inside = nn.Linear(features, SIZE), inside()

    def forward(self, features: Tensor, images: object = None) -> Tensor:
        return self.inside(self.layer(features))


class Mean(nn.Module):
    """Layer that subtracts a running mean."""

    def __init__(
        self, persistent: bool = True, always: bool = False, detached: bool = True, assigned: bool = False
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(SIZE), persistent=persistent)
        self._always, self._detached, self._assigned = always, detached, assigned

    def forward(self, rows: Tensor) -> Tensor:
        result = rows - self.mean
        if self.training or self._always:
            mean = (rows.detach() if self._detached else rows).mean(0)
            if self._assigned:
                self.mean = 0.9 * self.mean + 0.1 * mean
            else:
                self.mean.lerp_(mean, 0.1)
        return result


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        return rows


class Noise(nn.Module):
    """Layer that draws from its own generator."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(1)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + torch.randn(rows.shape, generator=self._generator, dtype=rows.dtype)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("phases", torch.rand(SIZE))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows + self.phases).sin()


def spectral() -> nn.Module:
    return spectral_norm(nn.Linear(SIZE, SIZE))


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], nn.Module]], None]:
    """Return a function that registers an encoder with the layer `inside` under the name `own`."""

    def register(inside: Callable[[], nn.Module]) -> None:
        monkeypatch.setitem(registry._ENCODERS, "own", lambda features, *others: Encoder(inside, features))

    return register


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        (lambda: nn.BatchNorm1d(SIZE), "inside is a BatchNorm1d, which would compute its statistics .* use LayerNorm or GroupNorm"),
        (lambda: nn.Dropout(0.5), r"it draws from PyTorch's global random generator \(dropout, .* remove the random operation"),
        (Noise, "two calls with the same inputs give different results; remove random operations"),
        (Counts, "training changes its buffer 'inside.calls', of type int64"),
        (lambda: Mean(persistent=False), "changes its buffer 'inside.mean', which is not saved; register it with persistent=True"),
        (lambda: Mean(always=True), "'inside.mean' changes in evaluation mode too; change it only where self.training is True"),
        (lambda: Mean(detached=False), "'inside.mean' gets a tensor that requires a gradient; detach it"),
    ],
)  # fmt: skip
def test_modules_whose_results_depend_on_the_number_of_ranks_are_rejected(encoder, inside, problem: str) -> None:
    encoder(inside)
    with pytest.raises(ValueError, match=rf"^policy\.encoder is 'own': .*{problem}") as caught:
        agent_of(encoder="own")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["encoder", "core", "head"])
@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (None, "must have an attribute output_size, the number of its outputs"),
        (SIZE + 1, f"it returns {SIZE} numbers for each observation, but its output_size is {SIZE + 1}"),
    ],
)
def test_modules_with_a_wrong_size_are_rejected(
    monkeypatch: pytest.MonkeyPatch, kind: str, size: int | None, problem: str
) -> None:
    def create(inputs: int, *others: object) -> nn.Module:
        module = MinGru(inputs, SIZE, 1) if kind == "core" else Encoder(nn.Identity, inputs)
        module.output_size = size
        return module

    monkeypatch.setitem(registry._FACTORIES[kind], "own", create)
    with pytest.raises(ValueError, match=rf"^policy\.{kind} is 'own': .*{problem}$") as caught:
        agent_of(**{kind: "own"})
    assert "\n" not in str(caught.value)


class Returns(nn.Module):
    """Layer that returns a function of its inputs."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self._function = function

    def forward(self, rows: Tensor) -> object:
        return self._function(rows)


@pytest.mark.parametrize("kind", ["encoder", "head"])
@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda rows: (rows, None), "its forward pass returns a tuple: a tensor was expected"),
        (lambda rows: rows.float(), "it returns numbers of type float32: float64, the type of the weights, was expected"),
        (lambda rows: rows.mean(0), r"it returns a tensor \[6\] for 4 observations: \[4, 6\] was expected"),
        (lambda rows: rows - rows.mean(0), "its output for one observation depends on the other observations of the batch, .*"),
        (lambda rows: rows * math.nan, "its forward pass returns NaN for finite observations"),
        (lambda rows: rows.abs() + math.inf, "its forward pass returns infinity for finite observations"),
        (lambda rows: rows.view(7, 5), r"its forward pass fails: RuntimeError: shape '\[7, 5\]' is invalid for input of size 24"),
    ],
)  # fmt: skip
def test_modules_with_wrong_results_are_rejected(
    monkeypatch: pytest.MonkeyPatch, kind: str, function: Callable[[Tensor], object], problem: str
) -> None:
    monkeypatch.setitem(
        registry._FACTORIES[kind], "own", lambda inputs, *others: Encoder(lambda: Returns(function), inputs)
    )
    with pytest.raises(ValueError, match=rf"^policy\.{kind} is 'own': {problem}(\n|$)") as caught:
        agent_of(**{kind: "own"})
    assert "\n" not in str(caught.value)
    if "fails" in problem:
        assert "in forward" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", ["encoder", "head"])
def test_modules_that_would_not_be_trained_are_rejected(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    class Detaches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(SIZE))

        def forward(self, rows: Tensor) -> Tensor:
            return (rows * self.scale).detach()

    monkeypatch.setitem(registry._FACTORIES[kind], "own", lambda inputs, *others: Encoder(Detaches, inputs))
    with pytest.raises(ValueError, match=rf"^policy\.{kind} is 'own': its output has no gradient"):
        agent_of(**{kind: "own"})


def test_an_encoder_of_positive_numbers_is_accepted(encoder) -> None:
    encoder(lambda: Returns(torch.log1p))  # NaN below -1: the trial goes on with ones
    agent_of(encoder="own")


def test_an_encoder_of_codes_in_images_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Codes(nn.Module):
        def __init__(self, *arguments: object) -> None:
            super().__init__()
            self.output_size, self.table = np.int64(SIZE), nn.Embedding(11, SIZE)

        def forward(self, features: Tensor, images: tuple[Tensor, ...]) -> Tensor:
            return self.table(images[0].flatten(1).to(torch.int64)).mean(1)

    monkeypatch.setitem(registry._ENCODERS, "own", Codes)
    spaces = Spaces(0, (4,), NONE, NONE, images=((1, 5, 5),))
    make_agent(decode({"policy": {"encoder": "own"}}, Config()), spaces=spaces)


@pytest.mark.parametrize("kind", ["encoder", "core", "head"])
def test_modules_with_frozen_parameters_are_rejected(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def create(inputs: int, *others: object) -> nn.Module:
        module = MinGru(inputs, SIZE, 1) if kind == "core" else Encoder(nn.Identity, inputs)
        return module.requires_grad_(False)

    monkeypatch.setitem(registry._FACTORIES[kind], "own", create)
    with pytest.raises(
        ValueError,
        match=rf"^policy\.{kind} is 'own': its parameter '.*' requires no gradient; register frozen weights as buffers$",
    ):
        agent_of(**{kind: "own"})


@pytest.mark.parametrize("kind", ["encoder", "core", "head"])
def test_errors_in_constructors_name_the_module(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def create(*arguments: object) -> nn.Module:
        raise KeyError("missing\nthing")

    monkeypatch.setitem(registry._FACTORIES[kind], "own", create)
    with pytest.raises(ValueError, match=rf"^policy\.{kind} is 'own': KeyError: ") as caught:
        agent_of(**{kind: "own"})
    assert "\n" not in str(caught.value)
    assert "in create" in caught.value.__notes__[0]


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_head_is_probed_too(monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    monkeypatch.setitem(registry._HEADS, "own", lambda inputs, policy: Encoder(lambda: nn.Dropout(0.5), inputs))
    with pytest.raises(ValueError, match=r"^policy\.head is 'own': it draws from PyTorch's global random generator"):
        agent_of(head="own", core=core, core_size=4)
    monkeypatch.setitem(registry._HEADS, "own", lambda inputs, policy: Encoder(Mean, inputs))
    agent = agent_of(head="own", core=core, core_size=4)
    names = [f"policy.{part}.inside.mean" for part in ("head_layers", "critic_head_layers")]
    assert [name for name in agent.buffers if name.endswith("mean")] == names
    assert not agent.networks.training  # evaluation mode is needed because training changes the buffers


@pytest.mark.parametrize("inside", [spectral, Mean, lambda: Mean(assigned=True), Constant])
def test_a_probe_changes_neither_module_nor_generator(encoder, inside) -> None:
    encoder(inside)
    before = torch.get_rng_state()
    digests = {agent_of(encoder="own").digest() for _ in range(2)}
    assert len(digests) == 1
    assert torch.equal(torch.get_rng_state(), before)
    agent = agent_of(encoder="own")
    assert agent.networks.training == (inside is Constant)  # evaluation mode is needed only if training changes buffers
    if inside is not spectral:
        module = agent.policy.trunk.inside
        assert torch.equal(module.mean, torch.zeros(SIZE).double()) if inside is not Constant else module.phases.any()


def test_an_encoder_of_indices_is_probed(encoder) -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(2, SIZE)
            self.mean = Mean()

        def forward(self, rows: Tensor) -> Tensor:
            return self.mean(self.table(rows[:, 0].to(torch.int64)))

    encoder(Lookup)
    registry._ENCODERS["own"] = lambda features, *others: _without_layer(Lookup())
    agent = agent_of(encoder="own")
    assert not agent.networks.training


def _without_layer(module: nn.Module) -> nn.Module:
    """Return an encoder that passes the features directly to `module`."""
    encoder = Encoder(lambda: module, 1)
    encoder.layer = nn.Identity()
    return encoder


@pytest.mark.parametrize("inside", [spectral, Mean, Constant])
def test_buffers_are_saved_published_and_digested(encoder, inside) -> None:
    encoder(inside)
    source, target = agent_of(seed=1, encoder="own"), agent_of(seed=2, encoder="own")
    names = [name for name in source.state() if name in source.buffers]
    assert names
    for transfer in (
        lambda: target.load({k: v.clone() for k, v in source.state().items()}),
        lambda: target.load_published(source.published()),
    ):
        for name in names:
            before = source.digest()
            source.buffers[name].view(-1)[-1] += 0.25
            assert source.digest() != before
        transfer()
        assert target.digest() == source.digest()
        assert all(torch.equal(target.buffers[name], source.buffers[name]) for name in names)


def test_a_restored_agent_has_the_saved_buffers(encoder) -> None:
    encoder(spectral)
    spaces = Spaces(3, (4,), NONE, NONE)
    config = decode({"policy": {"encoder": "own"}}, Config())
    saved = make_agent(decode({"run": {"seed": 5}}, config), spaces=spaces)
    assert restore_agent(config, spaces, saved.state()).digest() == saved.digest()
    with pytest.raises(
        ValueError, match=r"tensor 'policy\.critic_trunk\.inside\.parametrizations\.weight\.0\._u' is missing"
    ):
        restore_agent(config, spaces, {name: value for name, value in saved.state().items() if not name.endswith("_u")})
