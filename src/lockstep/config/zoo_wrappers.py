"""Wrappers in hyperparameter files of rl-baselines3-zoo, converted to `env.wrappers` or the settings of Atari games."""

from collections.abc import Mapping
from typing import Any

from lockstep.config.zoo_values import whole_number
from lockstep.envs.atari import is_game

__all__ = ["convert_wrappers"]

_RENAMED = {
    "FrameSkip": ("RepeatAction", {"skip": "num_repeats"}),
    "FrameStack": ("FrameStackObservation", {"num_stack": "stack_size"}),
    "GrayScaleObservation": ("GrayscaleObservation", {}),
    "YAMLCompatResizeObservation": ("ResizeObservation", {}),
}
"""Gymnasium's wrapper and its names of arguments, by the name of a class in rl_zoo3 or an older Gymnasium."""
_GAME_OPTIONS = {
    "noop_max": "noop_max",
    "frame_skip": "frameskip",
    "action_repeat_probability": "repeat_action_probability",
}
"""Keys of `env.options`, by the argument of AtariWrapper."""


def convert_wrappers(
    entry: Mapping[str, Any], env_id: str, tree: dict[str, dict[str, object]], notes: list[str]
) -> None:
    """Set the fields for the arguments `env_wrapper` and `frame_stack` in `tree`; append to `notes` what they do not express.

    Raises ValueError for a value that is not valid.
    """
    calls, modules = [], set()
    for path, arguments in _listed(entry.get("env_wrapper")):
        module, _, name = path.rpartition(".")
        if name == "AtariWrapper" and is_game(env_id):
            _convert_game(arguments, tree, notes)
            continue
        if name not in _RENAMED and module.partition(".")[0] not in ("gym", "gymnasium"):
            modules.add(module)
        name, renamed = _RENAMED.get(name, (name, {}))
        calls.append(_call(name, {renamed.get(key, key): value for key, value in arguments.items()}))
    if "frame_stack" in entry and not is_game(env_id):
        count = whole_number("frame_stack", entry["frame_stack"])
        calls.append(_call("FrameStackObservation", {"stack_size": count, "padding_type": "zero"}))
    elif entry.get("frame_stack", 4) != 4:
        notes.append(f"frame_stack {entry['frame_stack']}: observations of Atari games are stacks of 4 frames")
    if calls:
        tree["env"]["wrappers"] = calls
    notes += [f"train with --env.module {module}: a file can't name a module to import" for module in sorted(modules)]


def _listed(value: object) -> list[tuple[str, dict[str, Any]]]:
    """Return paths and arguments of wrappers that are given as one path, or a list of paths and of dicts with one path."""
    found = []
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        pairs = [*item.items()] if isinstance(item, dict) else [(item, {})]
        for path, arguments in pairs:
            if not isinstance(path, str) or not isinstance(arguments, dict | None):
                raise ValueError(f"env_wrapper has {item!r:.60}: a wrapper is a path, or a path with its arguments")
            found.append((path, arguments or {}))
    return found


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    values = (f"{key}={tuple(value) if isinstance(value, list) else value!r}" for key, value in arguments.items())
    return f"{name}({', '.join(values)})"


def _convert_game(arguments: dict[str, Any], tree: dict[str, dict[str, object]], notes: list[str]) -> None:
    given = {"terminal_on_life_loss": True, "clip_reward": True, "action_repeat_probability": 0.0} | arguments
    options = {key: given[name] for name, key in _GAME_OPTIONS.items() if name in given}
    if given["terminal_on_life_loss"]:
        options["episodic_life"] = True
        notes.append("AtariWrapper: episodes of one life need the engine envpool (extra `envpool`)")
    tree["env"]["options"] = options
    tree["ppo"]["clip_rewards"] = bool(given["clip_reward"])
    notes.append("AtariWrapper: it presses FIRE after a reset; the games of lockstep do not")
