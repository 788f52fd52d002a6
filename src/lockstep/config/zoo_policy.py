"""Policies in hyperparameter files of rl-baselines3-zoo, converted to the `policy` section."""

from collections.abc import Mapping
from typing import Any

from lockstep.config.zoo_values import literal, whole_number

__all__ = ["convert_policy"]

_ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "SiLU": "silu", "GELU": "gelu"}
"""Values of `policy.activation`, by PyTorch's class."""
_ONCE = -1
"""Value of `sde_sample_freq` for new noise at the beginning of each rollout."""
_IMAGES = ("CnnPolicy", "CnnLstmPolicy")


def convert_policy(entry: Mapping[str, Any], recurrent: bool, steps: int, notes: list[str]) -> dict[str, object]:
    """Return fields of `policy` for the arguments `policy`, `policy_kwargs`, `use_sde` and `sde_sample_freq`, for rollouts of `steps` steps.

    What they do not express is appended to `notes`.

    Raises ValueError for a value that is not valid.
    """
    given = literal("policy_kwargs", entry.get("policy_kwargs") or {})
    images = entry.get("policy") in _IMAGES
    fields: dict[str, object] = {
        "activation": _activation(given.pop("activation_fn", "Tanh")),
        "orthogonal": bool(given.pop("ortho_init", True)),
        "squash": False,
    }
    fields["log_std"] = given.pop("log_std_init", 0.0)
    if entry.get("use_sde"):
        fields["distribution"] = "gsde"
        every = entry.get("sde_sample_freq", _ONCE)
        fields["sde_sample_freq"] = steps if every == _ONCE else whole_number("sde_sample_freq", every)
    layers = given.pop("net_arch", None)
    if images:
        fields |= {"encoder": "nature", "shared": True}
    if images or recurrent:
        fields |= _head_hidden(([] if images else [64, 64]) if layers is None else layers, notes)
    else:
        fields |= _hidden([64, 64] if layers is None else layers)
    if recurrent:
        fields |= _memory(given, images, notes)
    notes += [f"policy_kwargs: {name} is not converted" for name in given]
    return fields


def _activation(name: object) -> str:
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation_fn is {name!r:.60}: it must be one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[str(name)]


def _hidden(layers: object) -> dict[str, object]:
    pi, vf = _widths(layers)
    if not pi or not vf:
        raise ValueError(f"net_arch is {layers!r:.90}: it must have at least one width for pi and for vf")
    return {"hidden": pi} if pi == vf else {"hidden": pi, "value_hidden": vf}


def _head_hidden(layers: object, notes: list[str]) -> dict[str, object]:
    """Return the layers between the encoder or the memory and the heads."""
    pi, vf = _widths(layers)
    if pi != vf:
        notes.append(f"net_arch: the critic has the widths of the policy, {pi}")
    return {"head_hidden": pi} if pi else {}


def _widths(layers: object) -> tuple[list[int], list[int]]:
    if isinstance(layers, list) and len(layers) == 1 and isinstance(layers[0], dict):
        layers = layers[0]  # as in Stable-Baselines3 before 1.8
    pi, vf = (layers.get("pi"), layers.get("vf")) if isinstance(layers, dict) else (layers, layers)
    for widths in (pi, vf):
        if not isinstance(widths, list) or not all(type(width) is int for width in widths):
            raise ValueError(f"net_arch is {layers!r:.90}: it must be a list of widths, or one for pi and one for vf")
    return pi, vf  # type: ignore[return-value]


def _memory(given: dict[str, Any], images: bool, notes: list[str]) -> dict[str, object]:
    shared, of_critic = bool(given.pop("shared_lstm", False)), bool(given.pop("enable_critic_lstm", True))
    if images:
        notes.append("recurrent policy: policy and critic share the encoder and the LSTM")
    elif not shared and not of_critic:
        notes.append("enable_critic_lstm: the critic has an LSTM of its own")
    hidden: dict[str, object] = {} if images else {"hidden": []}
    fields: dict[str, object] = {**hidden, "core": "lstm", "core_size": given.pop("lstm_hidden_size", 256)}
    return fields | {"core_layers": given.pop("n_lstm_layers", 1)} | ({"shared": True} if shared else {})
