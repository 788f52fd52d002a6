"""A sweep: its folder, its runs, carried as grid or as search, and what came of them."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.config import Config
from lockstep.run.folder import RunFolder
from lockstep.run.stop import asked_to_stop
from lockstep.run.tables import write_rows
from lockstep.sweep.jobs import Jobs, last_words
from lockstep.sweep.member import Member, check_folder, is_done, name_of, prepare, settled
from lockstep.sweep.results import DONE, FAILED, Row, run_row, summary_rows
from lockstep.sweep.search import Trials
from lockstep.sweep.values import SEED, Search, combinations

__all__ = ["Sweep"]

Compose = Callable[[Mapping[str, str]], Config]
"""From the values of fields to a config, in which nothing is decided yet. Raises ValueError."""


@dataclass
class Sweep:
    """Many runs in one folder: `runs/`, `logs/`, `runs.csv`, `summary.csv`, the same as JSON, and `trials.db` of a search."""

    folder: Path
    preset: str | None
    compose: Compose
    ranks: int | None
    """Of every run; None: as few as its plan can do with."""
    jobs: int
    told: Callable[[str], None]
    members: list[Member] = field(default_factory=list)
    """All runs that the sweep knows of so far."""
    codes: dict[str, int] = field(default_factory=dict)
    """Exit codes of those that ended this time."""

    def grid(
        self, over: Mapping[str, Sequence[str]], trial: tuple[int, Mapping[str, str]] | None = None
    ) -> list[Member]:
        """The runs of all combinations, of a trial of a search if there is one. Raises ValueError for one that can't be run."""
        members: list[Member] = []
        for values in combinations(over):
            config = self.compose({**(trial[1] if trial else {}), **values})
            decoded = {path: _value(config, path) for path in (*(trial[1] if trial else {}), *values)}
            if trial:
                seed = f"-seed{config.run.seed}" if SEED in values else ""
                own, name = {"trial": trial[0], **decoded}, f"trial-{trial[0]:04d}{seed}"
            else:
                own, name = decoded, name_of(decoded)
            if any(name == other.name for other in members):
                raise ValueError(f"{name}: two of the combinations are the same run; leave one out")
            members.append(settled(config, self.ranks, own, self.folder / "runs", name))
        return members

    def check(self, over: Mapping[str, Sequence[str]], spaces: Mapping[str, Search]) -> list[Member]:
        """The runs that a trial would have with the experiment's own values. Raises ValueError for those that can't be run, and for an end of
        a space that is no value of its field.
        """
        for path, space in spaces.items():
            for end in space.ends:
                self.compose({path: end})
        return self.grid(over, (0, {}) if spaces else None)

    def open(self) -> None:
        """Makes the folder, and keeps other processes out. Raises ValueError if one is in it, or it can't be made."""
        if (self.folder / "config.json").is_file():
            raise ValueError(f"--out is {self.folder}: it is a run's folder; choose another")
        try:
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--out is {self.folder}: it can't be made ({error.strerror})") from None
        RunFolder(self.folder).lock()

    def carry(self, members: Sequence[Member]) -> None:
        """Trains those that are not done. Raises ValueError, before any starts, if a folder holds another run."""
        for member in members:
            check_folder(member)
        self.members += members
        left = [member for member in members if not is_done(member)]
        for member in left:
            prepare(member, self.preset)
        self.codes |= Jobs(self.jobs, self.folder / "logs", self._ended).carry(left)

    def search(self, trials: Trials, over: Mapping[str, Sequence[str]], total: int) -> None:
        """Runs trials, as many at once as there are jobs for their seeds, until there are `total` of them."""
        at_once = max(1, self.jobs // max(1, len(list(combinations(over)))))
        for number, values in trials.over():  # in earlier calls
            self.members += self._of_trial(over, number, values)
        while not asked_to_stop() and (batch := trials.next(at_once, total)):
            members = {number: self._of_trial(over, number, values) for number, values in batch}
            self.carry([member for own in members.values() for member in own])
            for number, own in members.items():
                rows = [self._row(member) for member in own]
                if all(row["state"] in (DONE, FAILED) for row in rows):
                    trials.tell(number, _score(rows))

    def _of_trial(self, over: Mapping[str, Sequence[str]], number: int, values: Mapping[str, str]) -> list[Member]:
        """None, if they can't be run: such a trial fails, and the search goes on."""
        try:
            return self.grid(over, (number, values))
        except ValueError as error:
            self.told(f"trial {number} has values that don't go together: {error}")
            return []

    def rows(self) -> Iterator[Row]:
        """How every run went."""
        return map(self._row, self.members)

    def write(self, about: Mapping[str, object]) -> list[Row]:
        """Writes the tables, and gives the summary."""
        runs = list(self.rows())
        found = summary_rows(self.members, runs)
        write_rows(self.folder, "runs", runs, about)
        write_rows(self.folder, "summary", found, about)
        return found

    def failed(self) -> list[str]:
        """A line for every run that failed."""
        return [
            f"{member.name} failed ({row['exit_code']}): {last_words(self.folder / 'logs', member)}"
            for member, row in zip(self.members, self.rows(), strict=True)
            if row["state"] == FAILED
        ]

    def _row(self, member: Member) -> Row:
        return run_row(member, self.codes.get(member.name))

    def _ended(self, member: Member, code: int) -> None:
        row = run_row(member, code)
        what = f"return {row['return']:.4g}" if row["return"] is not None else "no episode ended"
        steps, seconds = row["env_steps"] or 0, row["seconds"] or 0.0
        if row["state"] == FAILED:
            what = last_words(self.folder / "logs", member)
        self.told(f"{member.name}: {row['state']}, {what}, {steps:,} steps in {seconds:,.1f} s")


def _value(config: Config, path: str) -> object:
    section, _, name = path.partition(".")
    value = getattr(getattr(config, section), name)
    return list(value) if isinstance(value, tuple) else value


def _score(rows: Sequence[Row]) -> float | None:
    """The median return over the seeds; None if one of them failed."""
    returns = [row["return"] for row in rows]
    done = rows and all(row["state"] == DONE for row in rows) and None not in returns
    return float(statistics.median(returns)) if done else None
