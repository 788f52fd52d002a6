"""Training a run again: its original config, and the comparison of digests."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lockstep.config import Config
from lockstep.experiment.hooks import Iteration, import_hook
from lockstep.experiment.verification import (
    HOOK,
    compare_digest,
    first_different_iteration,
    original_config,
    write_expected,
)
from lockstep.telemetry.attempts import Start

STEPS = Config().env.count * Config().rollout.steps


def start(iteration: int, last: int) -> Start:
    return Start(datetime.now(UTC), iteration, last, 1, "coupled", "here", {})


@pytest.mark.parametrize(
    ("starts", "done", "budget", "last"),
    [
        ([], 9, 20, 9),
        ([(0, 20), (7, 20)], 20, 20, 20),
        ([(0, 10), (10, 20)], 20, 10, 10),
        ([(0, 10), (5, 20)], 4, 10, 4),
        ([(0, 10), (8, 15), (12, 20), (5, 20)], 20, 10, 5),
        ([(0, 10), (10, 20), (0, 20)], 20, 20, 20),
    ],
)
def test_original_config_is_that_of_the_first_iterations(
    starts: list[tuple[int, int]], done: int, budget: int, last: int
) -> None:
    config = Config()
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=20 * STEPS))
    original, verifiable = original_config(config, [start(*numbers) for numbers in starts], done)
    assert (original.run.total_steps, verifiable) == (budget * STEPS, last)
    assert dataclasses.replace(original, run=config.run) == config


def stops(folder: Path, number: int, digest: str) -> bool:
    def load() -> None:
        raise AssertionError

    iteration = Iteration({"iteration": number, "digest": digest}, folder, load)  # type: ignore[arg-type]
    compare_digest(iteration)
    return iteration.stopped


def test_training_ends_at_a_difference_or_with_the_last_digest(tmp_path: Path) -> None:
    write_expected(tmp_path, {1: "a", 2: "b", 3: "c", 4: "d"})
    assert not stops(tmp_path, 1, "a")
    assert stops(tmp_path, 1, "x")
    assert not stops(tmp_path, 2, "b")
    assert stops(tmp_path, 3, "c"), "training ends after the next iteration"
    assert import_hook(HOOK) is compare_digest


def test_first_difference() -> None:
    assert first_different_iteration({1: "a", 2: "b"}, {1: "a", 2: "b", 3: "c"}) is None
    assert first_different_iteration({1: "a", 2: "b"}, {1: "a", 2: "x"}) == 2
    assert first_different_iteration({1: "a", 2: "b"}, {1: "a"}) == 2
