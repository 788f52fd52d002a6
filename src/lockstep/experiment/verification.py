"""Training a run again, to compare its digests with the recorded ones."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.config import Config
from lockstep.experiment.hooks import Iteration
from lockstep.experiment.resolve import iterations
from lockstep.telemetry.attempts import Start

__all__ = ["HOOK", "compare_digest", "first_different_iteration", "original_config", "write_expected"]

HOOK = f"{__name__}:compare_digest"
"""The hook of a run that verifies another one, as a value of `run.hooks`."""
_EXPECTED = "expected.json"
"""File of the run folder with the digests to compare, by iteration."""


def original_config(config: Config, starts: Sequence[Start], done: int) -> tuple[Config, int]:
    """Return the config that the run was trained with from its first iteration on, and the last iteration of it, at most `done`.

    They differ from `config` and `done` if the run was extended with a larger `--total-steps`, to which schedules stretch.
    """
    parts: list[Start] = []
    for start in starts:
        if not 0 < start.last <= iterations(config):  # a broken record: budgets only grow
            continue
        parts = [part for part in parts if part.iteration < start.iteration]
        if not parts or start.last != parts[-1].last:
            parts.append(start)
    if len(parts) < 2:
        return config, done
    steps = parts[0].last * config.env.count * config.rollout.steps
    original = dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=steps))
    return original, min(done, parts[1].iteration)


def write_expected(folder: Path, digests: Mapping[int, str]) -> None:
    """Write the recorded digests into the folder of the run that is to have the same."""
    (folder / _EXPECTED).write_text(json.dumps(digests))


def compare_digest(iteration: Iteration) -> None:
    """End training after the first digest that differs, or after the last recorded one. `write_expected` was called for the run folder."""
    expected = json.loads((iteration.path / _EXPECTED).read_text())
    number = iteration.number
    # training ends after the next iteration
    if expected.get(str(number)) != iteration.metrics["digest"] or str(number + 2) not in expected:
        iteration.stop()


def first_different_iteration(expected: Mapping[int, str], found: Mapping[int, str]) -> int | None:
    """Return the first iteration that has not the expected digest, or was not trained; None if all have it."""
    return next((iteration for iteration in sorted(expected) if found.get(iteration) != expected[iteration]), None)
