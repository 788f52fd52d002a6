"""Registry of cores and encoders by name: built-in ones, and those that users register."""

from collections.abc import Callable, Collection
from typing import Literal, TypeVar

from torch import nn

from lockstep.models.cores import Core, Gru, Lstm, MinGru
from lockstep.models.encoders import grid, impala, nature
from lockstep.models.settings import PolicyConfig

__all__ = [
    "CoreFactory",
    "EncoderFactory",
    "core_factory",
    "core_names",
    "defined_in",
    "encoder_factory",
    "encoder_names",
    "is_registered",
    "register_core",
    "register_encoder",
]

CoreFactory = Callable[[int, int, int], Core]
"""Function that creates a core from the number of features, the size of the core and its number of layers."""

EncoderFactory = Callable[[int, tuple[tuple[int, int, int], ...], PolicyConfig], nn.Module]
"""Function that creates an encoder from the number of features `F`, the (channels, height, width) of each image and the
settings of the policy.

The encoder is a module with an attribute `output_size`. It maps features `[N, F]` and a tuple of images, uint8
`[N, C, H, W]` each, to `[N, output_size]`.
"""

_Factory = TypeVar("_Factory")

_CORES: dict[str, CoreFactory] = {"lstm": Lstm, "gru": Gru, "mingru": MinGru}
_ENCODERS: dict[str, EncoderFactory] = {"nature": nature, "impala": impala, "grid": grid}
_RESERVED = ("auto", "mlp", "none")
"""Names with another meaning in the settings, which cannot be registered."""


def register_core(name: str, factory: CoreFactory) -> None:
    """Register a core for `policy.core`. Raises ValueError if the name is taken."""
    _register("core", _CORES, name, factory)


def register_encoder(name: str, factory: EncoderFactory) -> None:
    """Register an encoder for `policy.encoder`. Raises ValueError if the name is taken."""
    _register("encoder", _ENCODERS, name, factory)


def core_factory(name: str) -> CoreFactory:
    """Return the factory of the core with this name. Raises ValueError if there is none."""
    return _find("core", _CORES, name)


def encoder_factory(name: str) -> EncoderFactory:
    """Return the factory of the encoder with this name. Raises ValueError if there is none."""
    return _find("encoder", _ENCODERS, name)


def core_names() -> tuple[str, ...]:
    """Return the names of all cores, built-in ones first."""
    return tuple(_CORES)


def encoder_names() -> tuple[str, ...]:
    """Return the names of all encoders, built-in ones first."""
    return tuple(_ENCODERS)


def defined_in(kind: Literal["core", "encoder"], name: str) -> str | None:
    """Return the module that defines the factory of a core or encoder; None without one, as for `none` and `auto`."""
    factories: dict[str, CoreFactory] | dict[str, EncoderFactory] = _CORES if kind == "core" else _ENCODERS
    return getattr(factories.get(name), "__module__", None)


def is_registered(kind: Literal["core", "encoder"], name: str) -> bool:
    """Return True if a user registered this name; False for built-in names, and for `none` and `auto`."""
    factories: Collection[str] = _CORES if kind == "core" else _ENCODERS
    return name in factories and not str(defined_in(kind, name)).startswith("lockstep.")


def _register(kind: str, factories: dict[str, _Factory], name: str, factory: _Factory) -> None:
    if factories.get(name, factory) is not factory or name in _RESERVED:
        raise ValueError(f"there is a policy.{kind} {name!r} already: use another name")
    factories[name] = factory


def _find(kind: str, factories: dict[str, _Factory], name: str) -> _Factory:
    if name not in factories:
        raise ValueError(f"policy.{kind} is {name!r}: it must be one of {', '.join(factories)}, or a registered name")
    return factories[name]
