"""Searches: Optuna says which values to try next, from what came of those before.

What a trial tries follows from the seed, the trial's number and the trials before it, as runs follow from their configs. So a search that is
interrupted and called again finds what it would have found.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.sweep.values import Search

if TYPE_CHECKING:
    import optuna

__all__ = ["Trials"]

_FILE = "trials.db"
_BATCH_END = "batch_end"
"""The study's attribute with the number after the last trial of the newest batch. Trials of a batch are drawn before any of them runs."""


class Trials:
    """The trials of a search, in a file of the sweep's folder: an SQLite database that Optuna's own tools can read."""

    def __init__(self, folder: Path, spaces: Mapping[str, Search], seed: int, rules: Mapping[str, object]) -> None:
        """`rules` is what all calls for this folder must agree in. Raises ValueError without Optuna, and if they don't."""
        optuna = _optuna()
        self._spaces, self._seed = spaces, seed
        self._study: Any = optuna.create_study(
            storage=f"sqlite:///{(folder / _FILE).absolute()}",
            study_name="sweep",
            direction="maximize",
            load_if_exists=True,
        )
        known: Mapping[str, object] = self._study.user_attrs.get("rules", {})
        now = json.loads(json.dumps(rules))  # as it comes back from the file
        other = next((name for name in {**known, **now} if known and known.get(name) != now.get(name)), None)
        if other is not None:
            raise ValueError(
                f"{other} is {now.get(other)!r}: it was {known.get(other)!r} in the search in {folder}; choose another --out"
            )
        self._study.set_user_attr("rules", now)

    def next(self, most: int, total: int) -> list[tuple[int, dict[str, str]]]:
        """Numbers and values of trials to run now: those that were interrupted, or else up to `most` new ones, until there are `total`."""
        import optuna

        trials = self._study.get_trials(deepcopy=False)
        batch = [trial for trial in trials if not trial.state.is_finished()]
        end = self._study.user_attrs.get(_BATCH_END, 0)  # a kill may have left a batch of which not all trials exist
        if not batch and end <= len(trials):
            end = min(len(trials) + most, total)
            self._study.set_user_attr(_BATCH_END, end)
        batch += [self._study.ask() for _ in range(len(trials), min(end, total))]
        return [self._values(optuna.trial.Trial(self._study, trial._trial_id)) for trial in batch]

    def tell(self, number: int, value: float | None) -> None:
        """What came of a trial; None: it failed."""
        import optuna

        state = optuna.trial.TrialState
        self._study.tell(number, value, state=state.FAIL if value is None else state.COMPLETE)

    def over(self) -> list[tuple[int, dict[str, str]]]:
        """Numbers and values of the trials that are over."""
        return [
            (trial.number, {path: _text(value) for path, value in trial.params.items()})
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        ]

    def _values(self, trial: "optuna.Trial") -> tuple[int, dict[str, str]]:
        """Number and values of an unfinished trial. Draw the values unless it has all of them: a kill may have left some, or none."""
        import optuna

        if not self._spaces.keys() <= trial.params.keys():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self._study.sampler = optuna.samplers.PartialFixedSampler(
                    self._draw(trial.number), optuna.samplers.RandomSampler()
                )
        return trial.number, {path: _text(_suggest(trial, path, space)) for path, space in self._spaces.items()}

    def _draw(self, number: int) -> dict[str, object]:
        """The values of trial `number`, from the seed, the number and the trials before it.

        They are drawn in a copy of the study, so that a trial that a kill left with some of its values gets the same ones again.
        """
        import optuna

        sampler = optuna.samplers.TPESampler(seed=(self._seed * 1_000_003 + number) % 2**32)
        copy = optuna.create_study(direction="maximize", sampler=sampler)
        copy.add_trials(self._study.get_trials(deepcopy=False)[:number])
        trial = copy.ask()
        return {path: _suggest(trial, path, space) for path, space in self._spaces.items()}


def _suggest(trial: Any, path: str, space: Search) -> object:
    suggest: Callable[..., object] = {
        "log": trial.suggest_float,
        "float": trial.suggest_float,
        "int": trial.suggest_int,
    }.get(space.kind, trial.suggest_categorical)
    if space.kind == "choice":
        return suggest(path, list(space.choices))
    if space.kind == "int":
        return suggest(path, int(space.low), int(space.high))
    return suggest(path, space.low, space.high, log=space.kind == "log")


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ValueError("--trials needs Optuna; pip install 'lockstep-rl[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
