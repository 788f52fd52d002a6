"""Hyperparameter files of rl-baselines3-zoo (github.com/DLR-RM/rl-baselines3-zoo), such as its ppo.yml, converted to config fields.

An entry of such a file has the arguments of Stable-Baselines3's `PPO` or sb3-contrib's `RecurrentPPO` for an environment. Arguments
that it does not have get the default values of these classes. Files are read as data: nothing that they name is imported.
"""

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lockstep.config.zoo_policy import convert_policy
from lockstep.config.zoo_values import literal, whole_number
from lockstep.config.zoo_wrappers import convert_wrappers
from lockstep.envs.atari import GAMES, is_game
from lockstep.files import CONFIG_LIMIT, read_file

__all__ = ["ConvertedEntry", "convert_zoo"]

_DEFAULTS = {"n_steps": 2048, "batch_size": 64}
_RECURRENT_DEFAULTS = {"n_steps": 128, "batch_size": 128}
_FIELDS = {
    "learning_rate": ("learning_rate", 3e-4),
    "clip_range": ("clip", 0.2),
    "gamma": ("gamma", 0.99),
    "gae_lambda": ("gae_lambda", 0.95),
    "n_epochs": ("epochs", 10),
    "ent_coef": ("entropy", 0.0),
    "max_grad_norm": ("max_grad_norm", 0.5),
    "normalize_advantage": ("normalize_advantages", True),
    "clip_range_vf": ("value_clip", None),
}
"""Field of `ppo` and default value, by argument, for values that are used unchanged."""
_READ = {
    *("n_timesteps", "n_envs", "n_steps", "batch_size", "vf_coef", "target_kl", "normalize", "policy", "policy_kwargs"),
    *("use_sde", "sde_sample_freq", "env_wrapper", "frame_stack", "env_kwargs"),
}
"""The other arguments that are converted."""
_MAX_ROWS = 10**9
"""Largest number of samples per iteration: more would not fit into memory."""
_OLD_GAME = re.compile(r"(\w+)NoFrameskip-v\d+")
"""Ids of Atari games in the zoo."""


class ConvertedEntry(NamedTuple):
    """The result of a conversion."""

    name: str
    """Name of the entry."""
    tree: dict[str, dict[str, object]]
    """Fields by section."""
    notes: list[str]
    """Arguments of the entry that the fields do not express, a line each."""


def convert_zoo(path: Path, env_id: str) -> ConvertedEntry:
    """Convert the entry for an environment in a hyperparameter file.

    `env_id` is an id in the file, or the same environment in another version; for an Atari game, `ALE/Pong-v5` or
    `PongNoFrameskip-v4`. Raises ValueError, in one line, if the file can't be read or has no such entry, and for a value that is not valid.
    """
    entries = _read(path)
    old_game = _OLD_GAME.fullmatch(env_id)
    env_id = f"{GAMES}{old_game[1]}-v5" if old_game else env_id
    name = _find_entry(entries, env_id, path)
    notes = [] if name in (env_id, "atari") else [f"{path} has no entry {env_id}: the settings are those of {name}"]
    try:
        tree = _convert(entries[name], env_id, notes)
    except ValueError as error:
        raise ValueError(f"{path}: {name}: {error}") from None
    return ConvertedEntry(name, tree, notes)


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        content = yaml.safe_load(read_file(path, CONFIG_LIMIT).decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text in UTF-8"
        raise ValueError(f"{path}: {reason}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not all(isinstance(entry, dict) for entry in content.values()):
        raise ValueError(f"{path}: a hyperparameter file of rl-baselines3-zoo maps environments to their arguments")
    return {str(name): entry for name, entry in content.items()}


def _find_entry(entries: Mapping[str, object], env_id: str, path: Path) -> str:
    family = re.sub(r"-v\d+$", "", env_id)
    versions = sorted(name for name in entries if re.fullmatch(re.escape(family) + r"-v\d+", name))
    found = [
        *([env_id] if env_id in entries else []),
        *(["atari"] if is_game(env_id) and "atari" in entries else []),
        *reversed(versions),
    ]
    if not found:
        close = get_close_matches(env_id, entries, 3, 0.4)
        more = " and so on" if len(entries) > 5 else ""
        nearest = f"the nearest are {', '.join(close)}" if close else f"it has {', '.join([*entries][:5])}{more}"
        raise ValueError(f"{path} has no entry for env.id {env_id!r}; {nearest}")
    return found[0]


def _convert(entry: Mapping[str, Any], env_id: str, notes: list[str]) -> dict[str, dict[str, object]]:
    tree: dict[str, dict[str, object]]
    recurrent = "Lstm" in str(entry.get("policy"))
    count = whole_number("n_envs", entry.get("n_envs", 1))
    sizes = {
        name: whole_number(name, entry.get(name, default))
        for name, default in (_RECURRENT_DEFAULTS if recurrent else _DEFAULTS).items()
    }
    if count * sizes["n_steps"] > _MAX_ROWS:
        raise ValueError(f"n_envs x n_steps is {count * sizes['n_steps']:,}: it must be at most {_MAX_ROWS:,}")
    env: dict[str, object] = {"id": env_id, "count": count}
    if entry.get("env_kwargs"):
        env["options"] = literal("env_kwargs", entry["env_kwargs"])
    ppo = {field: _schedule(name, entry.get(name, default)) for name, (field, default) in _FIELDS.items()}
    ppo["minibatches"] = _minibatches(count * sizes["n_steps"], sizes["batch_size"], notes)
    ppo["value_coefficient"] = 2 * _number("vf_coef", entry.get("vf_coef", 0.5))  # its squared error has no factor ½
    ppo |= {"learning_rate_kl": None, "recompute_advantages": False}
    if entry.get("target_kl") is not None:
        ppo["kl_stop"] = 1.5 * _number("target_kl", entry["target_kl"])
    observations, ppo["normalize_rewards"] = _normalization(entry.get("normalize", False))
    policy = convert_policy(entry, recurrent, sizes["n_steps"], notes) | {"normalize_observations": observations}
    tree = {"env": env, "rollout": {"steps": sizes["n_steps"]}, "policy": policy, "ppo": ppo}
    convert_wrappers(entry, env_id, tree, notes)
    if "n_timesteps" in entry:
        tree["run"] = {"total_steps": whole_number("n_timesteps", entry["n_timesteps"])}
    notes += [f"{name} is not converted" for name in entry if name not in _READ | _FIELDS.keys()]
    return tree


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r:.60}: it must be a number")
    return value


def _schedule(name: str, value: object) -> object:
    """Return a value, `lin_X` as the schedule from X to 0."""
    if isinstance(value, str):
        start = value.removeprefix("lin_")
        try:
            number = float(start)
        except ValueError:
            raise ValueError(f"{name} is {value!r:.60}: it must be a number or lin_NUMBER") from None
        return number if start == value else f"linear({start}, 0)"
    return value


def _normalization(value: object) -> tuple[bool, bool]:
    """Return whether observations and rewards are normalized."""
    if isinstance(value, str):
        chosen = literal("normalize", value)
        return bool(chosen.get("norm_obs", True)), bool(chosen.get("norm_reward", True))
    return bool(value), bool(value)


def _minibatches(rows: int, size: int, notes: list[str]) -> int:
    """Return the divisor of `rows` that is nearest to `rows / size`."""
    small = [number for number in range(1, math.isqrt(rows) + 1) if rows % number == 0]
    divisors = small + [rows // number for number in small]
    nearest = min(divisors, key=lambda number: abs(number - rows / size))
    if nearest * size != rows and size < rows:
        notes.append(
            f"batch_size {size} does not divide {rows} samples: {nearest} minibatches of {rows // nearest} instead"
        )
    return nearest
