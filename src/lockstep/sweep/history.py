"""Results of a search, read from its database."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.sweep.search import DATABASE, STUDY, import_optuna

__all__ = ["History", "PastTrial", "read_history"]

_FEWEST = 3
"""Smallest number of completed trials for which importances are computed."""


@dataclass(frozen=True)
class PastTrial:
    """Trial of a search."""

    number: int
    values: Mapping[str, object]
    """Values of the searched fields."""
    state: str
    """`complete`, `pruned`, `fail`, or `running`, also for a trial that was interrupted."""
    score: float | None
    """Median return over the seeds; of a pruned trial, the return at which it was ended."""


@dataclass(frozen=True)
class History:
    """All trials of a search."""

    trials: Sequence[PastTrial]
    importances: Mapping[str, float]
    """Fraction of the variation of the scores that each field explains, in descending order; empty if it cannot be estimated.

    Source: Watanabe et al. 2023, "PED-ANOVA" (arXiv:2304.10255), as implemented by Optuna.
    """
    logarithmic: frozenset[str]
    """Fields that were searched on a logarithmic scale."""

    @property
    def best(self) -> PastTrial | None:
        """The complete trial with the highest score; None if there is none."""
        complete = [trial for trial in self.trials if trial.state == "complete" and trial.score is not None]
        return max(complete, key=lambda trial: trial.score or 0.0, default=None)


def read_history(folder: Path) -> History | None:
    """Read the trials of the search in the folder of a sweep; return None if the sweep is no search.

    Raises ValueError if Optuna is not installed or the database cannot be read.
    """
    path = folder / DATABASE
    if not path.is_file():
        return None
    optuna = import_optuna("a report of a search")
    try:
        study = optuna.load_study(study_name=STUDY, storage=f"sqlite:///{path.absolute()}")
        trials = study.get_trials(deepcopy=False)
    except Exception as error:  # the exceptions are those of SQLAlchemy and of Optuna's schema versions
        raise ValueError(f"{path} can't be read: {(str(error) or type(error).__name__).splitlines()[0]}") from None
    distributions = {name: kind for trial in trials for name, kind in trial.distributions.items()}
    complete = optuna.trial.TrialState.COMPLETE
    scores = {trial.value for trial in trials if trial.state is complete}
    enough = sum(trial.state is complete for trial in trials) >= _FEWEST and len(scores) > 1
    return History(
        [_trial(trial) for trial in trials],
        _importances(optuna, study) if enough else {},
        frozenset(name for name, kind in distributions.items() if getattr(kind, "log", False)),
    )


def _importances(optuna: Any, study: Any) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental before Optuna 5, whose default it is
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    importances: dict[str, float] = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return importances


def _trial(trial: Any) -> PastTrial:
    state = trial.state.name.lower()
    return PastTrial(trial.number, dict(trial.params), "running" if state == "waiting" else state, trial.value)
