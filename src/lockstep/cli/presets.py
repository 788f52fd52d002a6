"""`lockstep presets`: list the shipped experiments."""

from collections.abc import Sequence

from lockstep import presets
from lockstep.cli.arguments import Arguments
from lockstep.config.compose import load

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print the table of presets, or one preset as YAML. Return the exit code."""
    parser = Arguments("presets", "Lists the presets, or prints one as a config file to start from.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the preset to print")
    name = parser.read(argv).name
    print(presets.text(name).rstrip() if name else _table())
    return 0


def _table() -> str:
    rows = [("name", "environment", "steps", "goal")]
    for name in sorted(presets.names(), key=lambda name: (presets.family(name) is None, name)):
        config, family = load(presets.read(name), None, {}), presets.family(name)
        env_id, goal = family.about if family else config.env.id, config.run.solved_return
        rows.append((name, env_id, f"{config.run.total_steps:,}", "–" if goal is None else f"{goal:,g}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}" for a, b, c, d in rows]
    lines.append("\nsteps: budget. goal: mean return of the last 20 episodes. Start one with: lockstep train NAME")
    return "\n".join(lines)
