"""Tests of trial forward passes through registered cores: rejected cores."""

import pytest
import torch
from tests.algorithm.test_agent import agent_of
from torch import Tensor, nn

from lockstep.models import registry
from lockstep.models.cores import MinGru


class Stepwise(nn.Module):
    """Core whose `sequence` is `step` in a loop, except for a fault."""

    def __init__(self, inputs: int, size: int, layers: int) -> None:
        super().__init__()
        self.output_size = self.state_size = size
        self.inputs = nn.Linear(inputs, size)

    def advance(self, features: Tensor, state: Tensor) -> Tensor:
        return (state + self.inputs(features)).tanh()

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.advance(features, state)
        return state, state

    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        outputs = list[Tensor]()
        for row, reset in zip(features, resets, strict=True):
            outputs.append(state := self.advance(row, torch.where(reset.unsqueeze(1), 0, state)))
        return torch.stack(outputs), state


class IgnoresResets(Stepwise):
    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        return super().sequence(features, state, torch.zeros_like(resets))


class IgnoresState(Stepwise):
    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        return super().sequence(features, torch.zeros_like(state), resets)


class WrongState(Stepwise):
    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        outputs, last = super().sequence(features, state, resets)
        return outputs, -last


@pytest.mark.parametrize("wrong", [IgnoresResets, IgnoresState, WrongState])
def test_a_core_whose_step_and_sequence_differ_is_rejected(
    monkeypatch: pytest.MonkeyPatch, wrong: type[Stepwise]
) -> None:
    monkeypatch.setitem(registry._CORES, "own", Stepwise)
    agent_of(core="own", core_size=4)
    monkeypatch.setitem(registry._CORES, "own", wrong)
    with pytest.raises(
        ValueError, match=r"^policy\.core is 'own': its methods step and sequence give different results"
    ):
        agent_of(core="own", core_size=4)


def test_a_core_whose_sequence_would_not_be_trained_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyActs(Stepwise):
        @torch.no_grad()
        def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            return super().step(features, state)

    class Detaches(Stepwise):
        def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
            outputs, last = super().sequence(features, state, resets)
            return outputs.detach(), last

    monkeypatch.setitem(registry._CORES, "own", OnlyActs)
    agent_of(core="own", core_size=4)  # the gradient of `step` is not needed
    monkeypatch.setitem(registry._CORES, "own", Detaches)
    with pytest.raises(ValueError, match=r"^policy\.core is 'own': its output has no gradient"):
        agent_of(core="own", core_size=4)


def test_a_core_whose_steps_return_a_wrong_type_later_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoTensor(Stepwise):
        def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
            outputs, last = super().sequence(features, state, resets)
            return outputs, last.tolist() if resets.any() else last

    monkeypatch.setitem(registry._CORES, "own", NoTensor)
    with pytest.raises(
        ValueError, match=r"^policy\.core is 'own': its forward pass returns a list: a tensor was expected$"
    ):
        agent_of(core="own", core_size=4)


def test_a_core_with_wrong_results_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(MinGru):
        def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            outputs, after = super().step(features, state)
            return outputs, after.float()

    monkeypatch.setitem(registry._CORES, "wide", Wide)
    with pytest.raises(ValueError, match=r"^policy\.core is 'wide': it returns numbers of type float32: float64"):
        agent_of(core="wide", core_size=4)


def test_a_core_is_probed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class DropoutCore(MinGru):
        def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            return super().step(nn.functional.dropout(features), state)

    monkeypatch.setitem(registry._CORES, "drops", DropoutCore)
    with pytest.raises(ValueError, match=r"^policy\.core is 'drops': it draws from PyTorch's global random generator"):
        agent_of(core="drops", core_size=4)
