"""Tests of the registry of cores, encoders, heads and distributions."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.models import registry
from lockstep.models.cores import Gru, Lstm, MinGru
from lockstep.models.settings import BUILT_IN


def test_built_in_cores() -> None:
    assert [registry.core_factory(name) for name in ("lstm", "gru", "mingru")] == [Lstm, Gru, MinGru]


def test_a_registered_core_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CORES", {})
    registry.register_core("mine", Lstm)
    registry.register_core("mine", Lstm)  # a module that is imported again
    assert registry.core_factory("mine") is Lstm


@pytest.mark.parametrize("name", ["lstm", "none"])
def test_names_that_are_taken_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"there is a policy.core '{name}' already"):
        registry.register_core(name, Gru)


@pytest.mark.parametrize("name", ["x y", "", "a/b", "a=b", "x\n"])
@pytest.mark.parametrize("kind", ["core", "encoder", "head", "distribution"])
def test_names_that_no_flag_can_hold_are_rejected(kind: str, name: str) -> None:
    register = getattr(registry, f"register_{kind}")
    with pytest.raises(
        ValueError, match=rf"the name of a policy\.{kind} consists of letters, digits, '_', '-' and '\.'$"
    ):
        register(name, lambda *arguments: None)


def test_names_in_the_settings_are_those_of_the_registry() -> None:
    def own(registered: Mapping[str, Any]) -> list[str]:  # other tests may have registered some
        return [name for name, found in registered.items() if found.__module__.startswith("lockstep.")]

    assert {*BUILT_IN["core"]} == {"none", *own(registry._CORES)}
    assert {*BUILT_IN["encoder"]} == {"auto", "mlp", *own(registry._ENCODERS)}
    assert {*BUILT_IN["head"]} == {"mlp", *own(registry._HEADS)}
    assert {*BUILT_IN["distribution"]} == {*own(registry._DISTRIBUTIONS)}


def test_a_class_that_is_no_distribution_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"^dict must be a subclass of lockstep\.ContinuousDistribution$"):
        registry.register_distribution("mine", dict)  # type: ignore[arg-type]
    assert not registry.is_registered("distribution", "mine")


@pytest.mark.parametrize("kind", ["core", "encoder", "head", "distribution"])
def test_what_can_not_be_called_is_rejected(kind: str) -> None:
    with pytest.raises(
        TypeError, match=rf"the factory of policy\.{kind} 'mine' must be a class or a function, not int$"
    ):
        getattr(registry, f"register_{kind}")("mine", 5)
    assert not registry.is_registered(kind, "mine")  # type: ignore[arg-type]


def test_registered_names_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_HEADS", {})
    registry.register_head("mine", lambda inputs, policy: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"it must be one of mlp, mine, or a name"):
        registry.head_factory("mime")


def test_unknown_names_are_rejected() -> None:
    with pytest.raises(
        ValueError,
        match=re.escape("policy.core is 'lsmt': it must be one of none, lstm, gru, mingru"),
    ):
        registry.core_factory("lsmt")
    with pytest.raises(ValueError, match=r"policy\.encoder is .natural.: it must be one of"):
        registry.encoder_factory("natural")
    with pytest.raises(
        ValueError,
        match=r"policy\.head is 'own': it must be one of mlp.*, or a name that the module of --env.module registers$",
    ):
        registry.head_factory("own")
