"""The members of a sweep, before any run starts."""

from collections.abc import Mapping
from pathlib import Path

from lockstep import presets
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.sweep.sweep import Sweep
from lockstep.sweep.values import merge_values, read_search


def compose(values: Mapping[str, str]) -> Config:
    return load(presets.read("cartpole"), None, merge_values({}, values))


def test_a_search_without_seeds_has_one_run_per_trial(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, "cartpole", compose, None, 1, print)
    [member] = sweep.check({}, read_search(["ppo.learning_rate=log(1e-4,1e-2)"]))
    assert (member.name, member.values) == ("trial-0000", {"trial": 0})
