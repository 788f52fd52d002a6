"""Cores and encoders by name: those that are built in, and those that a user registers."""

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
"""From the size of the features, the core's own size and its number of layers."""

EncoderFactory = Callable[[int, tuple[tuple[int, int, int], ...], PolicyConfig], nn.Module]
"""From the number of features `F`, the (channels, height, width) of each image and the policy's settings. The module has an attribute
`output_size` and takes features `[N, F]` and a tuple of images, uint8 `[N, C, H, W]` each, to `[N, output_size]`.
"""

_Factory = TypeVar("_Factory")

_CORES: dict[str, CoreFactory] = {"lstm": Lstm, "gru": Gru, "mingru": MinGru}
_ENCODERS: dict[str, EncoderFactory] = {"nature": nature, "impala": impala, "grid": grid}
_TAKEN = ("auto", "mlp", "none")
"""Names that mean something else in the settings."""


def register_core(name: str, factory: CoreFactory) -> None:
    """Makes a core known to `policy.core`. Raises ValueError for a name that is taken."""
    _register("core", _CORES, name, factory)


def register_encoder(name: str, factory: EncoderFactory) -> None:
    """Makes an encoder known to `policy.encoder`. Raises ValueError for a name that is taken."""
    _register("encoder", _ENCODERS, name, factory)


def core_factory(name: str) -> CoreFactory:
    """The core that has this name. Raises ValueError."""
    return _find("core", _CORES, name)


def encoder_factory(name: str) -> EncoderFactory:
    """The encoder that has this name. Raises ValueError."""
    return _find("encoder", _ENCODERS, name)


def core_names() -> tuple[str, ...]:
    """All cores, the built-in ones first."""
    return tuple(_CORES)


def encoder_names() -> tuple[str, ...]:
    """All encoders, the built-in ones first."""
    return tuple(_ENCODERS)


def defined_in(kind: Literal["core", "encoder"], name: str) -> str | None:
    """The module that a core's or encoder's factory is from; None where there is none, as for `none` and `auto`."""
    known: dict[str, CoreFactory] | dict[str, EncoderFactory] = _CORES if kind == "core" else _ENCODERS
    return getattr(known.get(name), "__module__", None)


def is_registered(kind: Literal["core", "encoder"], name: str) -> bool:
    """True if a user registered it; False for what is shipped, and for names such as `none` and `auto`."""
    known: Collection[str] = _CORES if kind == "core" else _ENCODERS
    return name in known and not str(defined_in(kind, name)).startswith("lockstep.")


def _register(kind: str, known: dict[str, _Factory], name: str, factory: _Factory) -> None:
    if known.get(name, factory) is not factory or name in _TAKEN:
        raise ValueError(f"there is a policy.{kind} {name!r} already: register yours under another name")
    known[name] = factory


def _find(kind: str, known: dict[str, _Factory], name: str) -> _Factory:
    if name not in known:
        raise ValueError(f"policy.{kind} is {name!r}: it must be one of {', '.join(known)}, or a registered one")
    return known[name]
