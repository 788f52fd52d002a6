"""Sweep: a folder of runs, trained as a grid or as a search, with tables of the results."""

import shutil
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.config import Config
from lockstep.processes.exit_codes import STOPPED_BY_SIGNAL
from lockstep.run.folder import RunFolder
from lockstep.run.stop import asked_to_stop
from lockstep.run.tables import write_rows
from lockstep.runtime.settings import RESTARTS
from lockstep.sweep.jobs import ParallelRuns, StartRun, last_log_line, start_here
from lockstep.sweep.member import RUNS, Member, check_folder, is_done, make_member, name_of, prepare
from lockstep.sweep.pruning import Pruning
from lockstep.sweep.results import DONE, FAILED, PRUNED, Row, run_row, summary_rows
from lockstep.sweep.search import Trials
from lockstep.sweep.values import SEED, Search, combinations

__all__ = ["Sweep"]

Compose = Callable[[Mapping[str, str]], Config]
"""Function from values of fields to an unresolved config. Raises ValueError if a value is invalid."""


@dataclass
class Sweep:
    """Many runs in one folder with `runs/`, `logs/`, `runs.csv`, `summary.csv`, the same tables as JSON, and for a search `trials.db`."""

    folder: Path
    preset: str | None
    compose: Compose
    ranks: int | None
    """Ranks of every run; None means the smallest number that its plan allows."""
    jobs: int
    """Number of runs in parallel."""
    print_line: Callable[[str], None]
    """Prints a line about the progress of the sweep."""
    members: list[Member] = field(default_factory=list)
    """All runs of the sweep so far."""
    restarts: int = RESTARTS
    """Number of restarts of a run on this host after faults within an hour."""
    prune: bool = False
    """End trials of a search early if their returns are low, as `Pruning` decides."""
    start: StartRun | None = None
    """Starts runs on a cluster; None: on this host."""
    codes: dict[str, int] = field(default_factory=dict)
    """Exit codes, by name, of the runs that ended since this process started."""

    @property
    def logs(self) -> Path:
        """Folder of the output of the runs."""
        return self.folder / "logs"

    def grid(
        self, over: Mapping[str, Sequence[str]], trial: tuple[int, Mapping[str, str]] | None = None
    ) -> list[Member]:
        """Return the members of all combinations of values; with `trial` (its number and values), those of one trial of a search.

        Raises ValueError if a combination cannot be run, or if two combinations are the same run.
        """
        members: list[Member] = []
        for values in combinations(over):
            config = self.compose({**(trial[1] if trial else {}), **values})
            decoded = {path: _value(config, path) for path in (*(trial[1] if trial else {}), *values)}
            if trial:
                seed = f"-seed{config.run.seed}" if SEED in values else ""
                identity, name = {"trial": trial[0], **decoded}, f"trial-{trial[0]:04d}{seed}"
            else:
                identity, name = decoded, name_of(decoded)
            if any(name == other.name for other in members):
                raise ValueError(f"{name}: two of the combinations are the same run; remove one")
            members.append(make_member(config, self.ranks, identity, self.folder / RUNS, name, self.preset))
        return members

    def check(self, over: Mapping[str, Sequence[str]], spaces: Mapping[str, Search]) -> list[Member]:
        """Return the members of a sweep that has not started; for a search, those of a trial with the base config's
        values.

        Raises ValueError if a member cannot be run, or if a bound of a search space is not a valid value of its field.
        """
        for path, space in spaces.items():
            for end in space.ends:
                self.compose({path: end})
        return self.grid(over, (0, {}) if spaces else None)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder and lock it for the block. If the folder is new and the block raises ValueError before it has a run, remove it.

        Raises ValueError if another process has locked it, or if it cannot be created.
        """
        if (self.folder / "config.json").is_file():
            raise ValueError(f"--out is {self.folder}: it is the folder of a run; choose another")
        runs, folder, is_new = self.folder / RUNS, RunFolder(self.folder), not self.folder.exists()
        try:
            runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--out is {self.folder}: it cannot be created: {error.strerror}") from None
        folder.lock()
        try:
            yield
        except ValueError:
            if is_new and not any(runs.iterdir()):
                shutil.rmtree(self.folder)
            raise
        finally:
            folder.unlock()

    def train(self, members: Sequence[Member], pruned: Callable[[], Collection[str]] = frozenset) -> None:
        """Train the members that are not done. Raises ValueError, before a run starts, if a folder has another run.

        `pruned` is called while they run and returns the names of those that are to end early.
        """
        for member in members:
            check_folder(member)
        self.members += members
        unfinished = [member for member in members if not is_done(member)]
        if self.start is None:
            for member in unfinished:
                prepare(member, self.preset)
        start = self.start or start_here(self.logs, self.jobs, self.restarts)
        self.codes |= ParallelRuns(self.jobs, start, self._on_end, pruned).run(unfinished)

    def search(self, trials: Trials, over: Mapping[str, Sequence[str]], total: int) -> None:
        """Run trials until there are `total` of them, in parallel as far as there are jobs for all seeds of a trial."""
        parallel = max(1, self.jobs // max(1, len(list(combinations(over)))))
        for number, values in trials.finished():  # in earlier calls of the command
            self.members += self._trial_members(over, number, values)
        while not asked_to_stop() and (batch := trials.next(parallel, total)):
            members = {number: self._trial_members(over, number, values) for number, values in batch}
            pruning = Pruning(trials, members if self.prune else {}, self.print_line)
            self.train([member for trial_members in members.values() for member in trial_members], pruning.update)
            pruning.update()  # reads the last metrics
            for number, trial_members in members.items():
                rows = [self._row(member) for member in trial_members]
                if number in pruning.pruned:
                    trials.prune(number)
                elif all(row["state"] in (DONE, FAILED) for row in rows):
                    trials.tell(number, _score(rows))
            if self.unfinished():
                return  # the same trials would come again

    def _trial_members(self, over: Mapping[str, Sequence[str]], number: int, values: Mapping[str, str]) -> list[Member]:
        """Return the members of a trial. Return none if its values cannot be run together: the trial then fails and the search continues."""
        try:
            return self.grid(over, (number, values))
        except ValueError as error:
            self.print_line(f"trial {number} failed: its values cannot be combined: {error}")
            return []

    def rows(self) -> Iterator[Row]:
        """Yield the result of every run."""
        return map(self._row, self.members)

    def write(self, about: Mapping[str, object]) -> list[Row]:
        """Write the tables and return the rows of the summary."""
        runs = list(self.rows())
        summary = summary_rows(self.members, runs)
        write_rows(self.folder, "runs", runs, about)
        write_rows(self.folder, "summary", summary, about)
        return summary

    def unfinished(self) -> list[str]:
        """Return the names of the runs that a signal has stopped since this process started."""
        stopped = [member for member in self.members if self.codes.get(member.name) == STOPPED_BY_SIGNAL]
        return [member.name for member in stopped if self._row(member)["state"] not in (DONE, PRUNED)]

    def failed(self) -> list[str]:
        """Return one line per failed run."""
        return [
            f"{member.name} failed ({row['exit_code']}): {last_log_line(self.folder / 'logs', member)}"
            for member, row in zip(self.members, self.rows(), strict=True)
            if row["state"] == FAILED
        ]

    def _row(self, member: Member) -> Row:
        return run_row(member, self.codes.get(member.name))

    def _on_end(self, member: Member, code: int) -> None:
        row = run_row(member, code)
        result = f"return {row['return']:.4g}" if row["return"] is not None else "no episode ended"
        steps, seconds = row["env_steps"] or 0, row["seconds"] or 0.0
        if row["state"] == FAILED:
            result = last_log_line(self.logs, member)
        self.print_line(f"{member.name}: {row['state']}, {result}, {steps:,} steps in {seconds:,.1f} s")


def _value(config: Config, path: str) -> object:
    section, _, name = path.partition(".")
    value = getattr(getattr(config, section), name)
    return list(value) if isinstance(value, tuple) else value


def _score(rows: Sequence[Row]) -> float | None:
    """Return the median return over the seeds, or None if one of them failed or has no return."""
    returns = [row["return"] for row in rows]
    done = rows and all(row["state"] == DONE for row in rows) and None not in returns
    return float(statistics.median(returns)) if done else None
