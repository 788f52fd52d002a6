"""Registry of cores, encoders, heads and distributions by name: built-in ones, and those that users register."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from numpy.typing import NDArray
from torch import nn

from lockstep.distributions.beta import Beta
from lockstep.distributions.continuous import ContinuousDistribution
from lockstep.distributions.gaussian import Gaussian, StateGaussian
from lockstep.distributions.gsde import StateDependentExploration
from lockstep.models.cores import Core, Gru, Lstm, MinGru
from lockstep.models.encoders import grid, impala, nature
from lockstep.models.settings import BUILT_IN, PolicyConfig

__all__ = [
    "CoreFactory",
    "DistributionFactory",
    "EncoderFactory",
    "HeadFactory",
    "Kind",
    "core_factory",
    "defined_in",
    "distribution_factory",
    "encoder_factory",
    "head_factory",
    "is_registered",
    "register_core",
    "register_distribution",
    "register_encoder",
    "register_head",
    "registered_names",
    "registrable_names",
]

CoreFactory = Callable[[int, int, int], Core]
"""Function that creates a core from the number of features, the size of the core and its number of layers."""

EncoderFactory = Callable[[int, tuple[tuple[int, int, int], ...], PolicyConfig], nn.Module]
"""Function that creates an encoder from the number of features `F`, the (channels, height, width) of each image and the
settings of the policy.

The encoder is a module with an attribute `output_size`. It maps features `[N, F]` and a tuple of images, uint8
`[N, C, H, W]` each, to `[N, output_size]`.
"""

HeadFactory = Callable[[int, PolicyConfig], nn.Module]
"""Function that creates the layers between the encoder or the memory and the last linear layer, from the number of their inputs `I` and the
settings of the policy. It is called for the policy and for the critic.

The layers are a module with an attribute `output_size`. It maps the output `[N, I]` of the encoder or the memory to `[N, output_size]`.
"""

DistributionFactory = Callable[[NDArray[Any], NDArray[Any], PolicyConfig], ContinuousDistribution]
"""Function that creates the distribution of continuous actions from their lowest and highest values `[A]`, infinite without bounds, and the
settings of the policy.
"""

Kind = Literal["core", "encoder", "head", "distribution"]
"""Kind of a registered factory; its name is a value of the field `policy.KIND`."""

_Factory = TypeVar("_Factory")


def _gaussian(low: NDArray[Any], high: NDArray[Any], config: PolicyConfig) -> Gaussian:
    family = Gaussian if config.distribution == "gaussian" else StateGaussian
    return family(len(low), config.initial_log_std(len(low)), config.noise_exponent)


def _gsde(low: NDArray[Any], high: NDArray[Any], config: PolicyConfig) -> StateDependentExploration:
    size = len(low)
    return StateDependentExploration(size, config.head_inputs, config.initial_log_std(size), config.sde_sample_freq)


def _beta(low: NDArray[Any], high: NDArray[Any], config: PolicyConfig) -> Beta:
    return Beta(low, high, config.initial_log_std(len(low)))


_CORES: dict[str, CoreFactory] = {"lstm": Lstm, "gru": Gru, "mingru": MinGru}
_ENCODERS: dict[str, EncoderFactory] = {"nature": nature, "impala": impala, "grid": grid}
_HEADS: dict[str, HeadFactory] = {}
_DISTRIBUTIONS: dict[str, DistributionFactory] = {
    "gaussian": _gaussian,
    "gaussian-state-std": _gaussian,
    "gsde": _gsde,
    "beta": _beta,
}
_RESERVED = ("auto", "mlp", "none")
"""Names with another meaning in the settings, which cannot be registered."""
_FACTORIES: dict[Kind, Mapping[str, object]] = {
    "core": _CORES,
    "encoder": _ENCODERS,
    "head": _HEADS,
    "distribution": _DISTRIBUTIONS,
}


def register_core(name: str, factory: CoreFactory) -> None:
    """Register a core for `policy.core`. Raises ValueError if the name is taken or invalid."""
    _register("core", _CORES, name, factory)


def register_encoder(name: str, factory: EncoderFactory) -> None:
    """Register an encoder for `policy.encoder`. Raises ValueError if the name is taken or invalid."""
    _register("encoder", _ENCODERS, name, factory)


def register_head(name: str, factory: HeadFactory) -> None:
    """Register a head for `policy.head`. Raises ValueError if the name is taken or invalid."""
    _register("head", _HEADS, name, factory)


def register_distribution(name: str, factory: DistributionFactory) -> None:
    """Register a distribution of continuous actions for `policy.distribution`. Raises ValueError if the name is taken or invalid, and
    TypeError if `factory` is a class that is no `ContinuousDistribution`.
    """
    if isinstance(factory, type) and not issubclass(factory, ContinuousDistribution):
        raise TypeError(f"{factory.__name__} must be a subclass of lockstep.ContinuousDistribution")
    _register("distribution", _DISTRIBUTIONS, name, factory)


def core_factory(name: str) -> CoreFactory:
    """Return the factory of the core with this name. Raises ValueError if there is none."""
    return _find("core", _CORES, name)


def encoder_factory(name: str) -> EncoderFactory:
    """Return the factory of the encoder with this name. Raises ValueError if there is none."""
    return _find("encoder", _ENCODERS, name)


def head_factory(name: str) -> HeadFactory:
    """Return the factory of the head with this name. Raises ValueError if there is none."""
    return _find("head", _HEADS, name)


def distribution_factory(name: str) -> DistributionFactory:
    """Return the factory of the distribution with this name. Raises ValueError if there is none."""
    return _find("distribution", _DISTRIBUTIONS, name)


def registrable_names(config: PolicyConfig) -> list[tuple[Kind, str]]:
    """Return the kinds with the names that a policy uses."""
    return [
        ("core", config.core),
        ("encoder", config.encoder),
        ("head", config.head),
        ("distribution", config.distribution),
    ]


def registered_names() -> list[tuple[Kind, str]]:
    """Return the kinds and names that users have registered."""
    return [(kind, name) for kind in _FACTORIES for name in _FACTORIES[kind] if is_registered(kind, name)]


def defined_in(kind: Kind, name: str) -> str | None:
    """Return the module that defines the factory with a name; None without one, as for the core `none` and the encoder `auto`."""
    return getattr(_FACTORIES[kind].get(name), "__module__", None)


def is_registered(kind: Kind, name: str) -> bool:
    """Return True if a user registered this name; False for built-in names, and for `none` and `auto`."""
    return name in _FACTORIES[kind] and not str(defined_in(kind, name)).startswith("lockstep.")


def _register(kind: str, factories: dict[str, _Factory], name: str, factory: _Factory) -> None:
    if not callable(factory):
        raise TypeError(
            f"the factory of policy.{kind} {name!r} must be a class or a function, not {type(factory).__name__}"
        )
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"{name!r}: the name of a policy.{kind} consists of letters, digits, '_', '-' and '.'")
    if factories.get(name, factory) is not factory or name in _RESERVED:
        raise ValueError(f"there is a policy.{kind} {name!r} already: use another name")
    factories[name] = factory


def _find(kind: str, factories: dict[str, _Factory], name: str) -> _Factory:
    if name not in factories:
        known = dict.fromkeys((*BUILT_IN[kind], *factories))
        raise ValueError(
            f"policy.{kind} is {name!r}: it must be one of {', '.join(known)}, or a name that the module of --env.module registers"
        )
    return factories[name]
