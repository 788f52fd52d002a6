"""Definitions of the tables in `tables/`: tasks with their budget, their settings and the return to reach."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class Zoo:
    """Settings of rl-baselines3-zoo for a task."""

    settings: str | None = None
    """Key in the hyperparameter file. None: the environment."""
    env: str | None = None
    """Gymnasium id there. None: that of the task."""
    algorithm: str = "ppo"
    """`ppo` or `ppo_lstm`."""


@dataclass(frozen=True)
class Task:
    """One row of a table."""

    name: str
    env: str
    """Value of `env.id`."""
    steps: int
    """Budget in environment steps."""
    bar: float
    """Return to reach, and the 1 of normalized scores."""
    share: float
    """Share of the bar that is wanted."""
    maximum: bool
    """If True, the bar is a maximum over training."""
    preset: str | None
    flags: dict[str, dict[str, object]]
    """Further settings, by section and field."""
    seeds: int
    """Number of seeds: 0, 1, …"""
    episodes: int
    """Number of episodes in each evaluation."""
    zoo: Zoo = field(default_factory=Zoo)

    @property
    def wanted(self) -> float:
        """Mean return that counts as reached."""
        return self.bar * self.share

    @property
    def options(self) -> dict[str, object]:
        """Keyword arguments of the environment."""
        options = self.flags.get("env", {}).get("options", {})
        assert isinstance(options, dict)
        return options

    @property
    def environment(self) -> str:
        """Key of the environment with its options in random_scores.json."""
        return self.env + "".join(f" {name}={value}" for name, value in sorted(self.options.items()))


@dataclass(frozen=True)
class Table:
    """Tasks that are reported together."""

    name: str
    about: str
    bars: str
    """Sources of the bars."""
    baseline: str
    """Table whose runs of Stable-Baselines3 are compared with these, where it has the task."""
    tasks: dict[str, Task]
    variants: dict[str, "Table"] = field(default_factory=dict)
    """The same tasks with other settings, to be compared with this table."""


def table_names(folder: Path = FOLDER) -> list[str]:
    """Return the names of all tables in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_table(name: str, folder: Path = FOLDER) -> Table:
    """Return a table. Raises ValueError, naming the tables that exist, if there is none with this name."""
    if name not in table_names(folder):
        raise ValueError(f"{name}: there is no such table; there are {', '.join(table_names(folder))}")
    tree = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    maximum = tree.get("maximum", [])
    defaults = {
        "preset": tree.get("preset"),
        "flags": {},
        "share": tree.get("share", 1.0),
        "seeds": tree["seeds"],
        "episodes": tree.get("episodes", 100),
    }
    tasks = {
        task: Task(
            **{**defaults, "name": task, "env": task, "maximum": task in maximum, **fields}
            | {"zoo": Zoo(**fields.get("zoo", {}))}
        )
        for task, fields in tree["tasks"].items()
    }
    variants = {
        variant: Table(f"{name}-{variant}", fields["about"], "", "", _with_flags(tasks, fields["flags"]))
        for variant, fields in tree.get("variants", {}).items()
    }
    return Table(name, tree["about"], tree["bars"], tree.get("baseline", name), tasks, variants)


def _with_flags(tasks: dict[str, Task], flags: dict[str, dict[str, object]]) -> dict[str, Task]:
    """Return the tasks with further settings."""
    return {
        name: replace(
            task,
            flags={section: task.flags.get(section, {}) | flags.get(section, {}) for section in task.flags | flags},
        )
        for name, task in tasks.items()
    }


def selected(table: Table, only: list[str] | None) -> list[Task]:
    """Return the tasks of a table, or those named in `only`. Raises ValueError for an unknown name."""
    unknown = [name for name in only or [] if name not in table.tasks]
    if unknown:
        raise ValueError(f"{unknown[0]}: there is no such task in {table.name}; there are {', '.join(table.tasks)}")
    return [task for name, task in table.tasks.items() if only is None or name in only]


def with_variants(table: Table, only: list[str] | None) -> list[Table]:
    """Return a table and its variants, or the variants named in `only`. Raises ValueError for an unknown name."""
    unknown = [name for name in only or [] if name not in table.variants]
    if unknown:
        raise ValueError(
            f"{unknown[0]}: there is no such variant of {table.name}; there are {', '.join(table.variants)}"
        )
    return [table, *table.variants.values()] if only is None else [table.variants[name] for name in only]


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a list such as `0-4` or `0,2,5-7`. Raises ValueError if it is malformed."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise ValueError(f"{text} names no seed")
    return seeds
