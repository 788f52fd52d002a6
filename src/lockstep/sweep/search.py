"""Searches: Optuna proposes the values of the next trials from the results of earlier ones.

The values of a trial depend only on the seed, the number of the trial and the results of the trials before it. So a search that was
interrupted and continued gives the same trials as an uninterrupted one.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.sweep.values import Search

if TYPE_CHECKING:
    import optuna

__all__ = ["DATABASE", "STUDY", "Trials", "import_optuna"]

DATABASE = "trials.db"
"""Database in the folder of a search."""
STUDY = "sweep"
"""Name of the study in the database."""
_BATCH_END = "batch_end"
"""Name of a study attribute: one more than the number of the last trial in the newest batch. The values of all trials
of a batch are sampled before the first of them runs."""
_BATCH_BEGIN = "batch_begin"
"""Name of a study attribute: the number of the first trial in the newest batch."""
_WARMUP = 3
"""Tenths of the budget before which no trial is pruned. Source: rl-baselines3-zoo, whose pruner skips the first third."""


class Trials:
    """Trials of a search, stored in the folder of the sweep as an SQLite database that Optuna's tools can read."""

    def __init__(self, folder: Path, spaces: Mapping[str, Search], seed: int, rules: Mapping[str, object]) -> None:
        """Open the study in the folder of a sweep, or create it.

        `rules` are settings that must be equal whenever this study is opened. Raises ValueError if Optuna is not installed, or if `rules` differ
        from those of an earlier call.
        """
        optuna = import_optuna("--trials")
        self._spaces, self._seed = spaces, seed
        self._study: Any = optuna.create_study(
            storage=f"sqlite:///{(folder / DATABASE).absolute()}",
            study_name=STUDY,
            direction="maximize",
            load_if_exists=True,
        )
        stored: Mapping[str, object] = self._study.user_attrs.get("rules", {})
        requested = json.loads(json.dumps(rules))  # JSON turns tuples into lists, as in the stored rules
        names = {**stored, **requested}
        other = next((name for name in names if stored and stored.get(name) != requested.get(name)), None)
        if other is not None:
            new, old = (_shown(other, rules) for rules in (requested, stored))
            raise ValueError(f"{other} is {new}: it was {old} in the search in {folder}; choose another --out")
        self._study.set_user_attr("rules", requested)

    def next(self, most: int, total: int) -> list[tuple[int, dict[str, str]]]:
        """Return the numbers and values of the trials to run.

        These are interrupted trials or, if there are none, up to `most` new ones, until the study has `total` trials.
        """
        import optuna

        trials = self._study.get_trials(deepcopy=False)
        batch = [trial for trial in trials if not trial.state.is_finished()]
        end = self._study.user_attrs.get(_BATCH_END, 0)  # after a kill, some trials of the batch may not exist yet
        if not batch and end <= len(trials):
            end = min(len(trials) + most, total)
            self._study.set_user_attr(_BATCH_BEGIN, len(trials))  # first: a kill between the two leaves no batch
            self._study.set_user_attr(_BATCH_END, end)
        batch += [self._study.ask() for _ in range(len(trials), min(end, total))]
        return [self._values(optuna.trial.Trial(self._study, trial._trial_id)) for trial in batch]

    def tell(self, number: int, value: float | None) -> None:
        """Report the result of a trial to Optuna. None means that the trial failed."""
        import optuna

        state = optuna.trial.TrialState
        self._study.tell(number, value, state=state.FAIL if value is None else state.COMPLETE)

    def report(self, number: int, tenth: int, value: float) -> bool:
        """Store the return of a trial at a tenth of its budget. Return True if the trial is to be pruned there.

        The trial is compared with the median of the completed trials of earlier batches only, so that the decision does not depend on
        which of the trials that run at the same time is faster.
        """
        import optuna

        trials = self._study.get_trials()
        trial = trials[number]
        if tenth not in trial.intermediate_values:
            optuna.trial.Trial(self._study, trial._trial_id).report(value, tenth)
        earlier = {step: other for step, other in trial.intermediate_values.items() if step < tenth}
        trial.intermediate_values = {**earlier, tenth: value}  # after a kill, later ones may be stored too
        completed = optuna.create_study(direction="maximize")
        completed.add_trials(trials[: self._study.user_attrs.get(_BATCH_BEGIN, number)])
        return optuna.pruners.MedianPruner(n_warmup_steps=_WARMUP).prune(completed, trial)

    def prune(self, number: int) -> None:
        """Report to Optuna that a trial was pruned. Its value is the last one of `report`."""
        import optuna

        self._study.tell(number, state=optuna.trial.TrialState.PRUNED)

    def finished(self) -> list[tuple[int, dict[str, str]]]:
        """Return the numbers and values of the finished trials, including failed and pruned ones."""
        return [
            (trial.number, {path: _text(value) for path, value in trial.params.items()})
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        ]

    def _values(self, trial: "optuna.Trial") -> tuple[int, dict[str, str]]:
        """Return the number and the values of an unfinished trial. Sample values that are missing: a kill may have left only some of them."""
        import optuna

        if not self._spaces.keys() <= trial.params.keys():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self._study.sampler = optuna.samplers.PartialFixedSampler(
                    self._sample(trial.number), optuna.samplers.RandomSampler()
                )
        return trial.number, {path: _text(_suggest(trial, path, space)) for path, space in self._spaces.items()}

    def _sample(self, number: int) -> dict[str, object]:
        """Sample the values of trial `number` from the seed, the number and the trials before it.

        The values are sampled in a copy of the study, so that a trial that a kill left incomplete gets the same values again.
        """
        import optuna

        sampler = optuna.samplers.TPESampler(seed=(self._seed * 1_000_003 + number) % 2**32)
        copy = optuna.create_study(direction="maximize", sampler=sampler)
        copy.add_trials(self._study.get_trials(deepcopy=False)[:number])
        trial = copy.ask()
        return {path: _suggest(trial, path, space) for path, space in self._spaces.items()}


def _shown(name: str, rules: Mapping[str, object]) -> str:
    """Return a rule as the user gives it: the values of a flag that may be repeated, or the value of a field."""
    value = rules.get(name)
    if name.startswith("--") and isinstance(value, list):
        return f" {name} ".join(value) or "none"
    return repr(value) if name in rules else "not set"


def _suggest(trial: Any, path: str, space: Search) -> object:
    if space.kind == "choice":
        return trial.suggest_categorical(path, list(space.choices))
    if space.kind == "int":
        return trial.suggest_int(path, int(space.low), int(space.high))
    return trial.suggest_float(path, space.low, space.high, log=space.kind == "log")


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def import_optuna(purpose: str) -> Any:
    """Import Optuna. Raises ValueError, which says that `purpose` needs it, if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ValueError(f"{purpose} needs Optuna; pip install 'lockstep-rl[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
