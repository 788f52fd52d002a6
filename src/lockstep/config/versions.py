"""Older versions of the config format, whose fields had other defaults."""

__all__ = ["former_defaults"]

_CHANGED_DEFAULTS: dict[int, dict[str, dict[str, object]]] = {
    1: {
        "rollout": {"steps": 128},
        "policy": {"log_std": 0.0, "squash": False, "normalize_observations": False},
        "ppo": {
            "learning_rate": 3e-4,
            "learning_rate_kl": None,
            "learning_rate_kl_max": 100.0,
            "epochs": 4,
            "minibatches": 4,
            "recompute_advantages": False,
            "normalize_rewards": False,
        },
    }
}
"""Defaults of a version that the next version changed."""


def former_defaults(version: int) -> dict[str, dict[str, object]]:
    """Return the defaults of a version that differ from today's: its files mean these if they omit the fields."""
    tree: dict[str, dict[str, object]] = {}
    for changed in (fields for number, fields in sorted(_CHANGED_DEFAULTS.items()) if number >= version):
        for section, fields in changed.items():
            tree[section] = {**fields, **tree.get(section, {})}
    return tree
