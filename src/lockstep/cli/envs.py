"""`lockstep envs`: list the environments that are known to work."""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from textwrap import fill

from lockstep.cli.arguments import Arguments, whole_number

__all__ = ["main"]

_NOT_INSTALLED = " (not installed; pip install 'lockstep-rl[{}]')"


def main(argv: Sequence[str]) -> int:
    """Print the environments by family, with the engine that `auto` chooses for each. Return the exit code."""
    parser = Arguments("envs", "Lists tested environments, and the engine that `env.engine: auto` selects for each.")
    parser.add_argument(
        "--per-shard", type=whole_number(1), default=8, metavar="B", help="number of environments per shard (default 8)"
    )
    per_shard = parser.read(argv).per_shard

    from lockstep.envs.catalog import known_environments
    from lockstep.envs.choice import choose_engine
    from lockstep.envs.families import games

    known = known_environments(per_shard)
    width = max(len(env.env_id) for env in known)
    for (family, missing_extra), members in groupby(
        known, key=lambda env: (env.family, None if env.installed else env.extra)
    ):
        print(family + (_NOT_INSTALLED.format(missing_extra) if missing_extra else ""))
        for env in members:
            print(f"  {env.env_id:<{width}}  {'' if missing_extra else env.engine}".rstrip())
    installed = find_spec("pettingzoo") is not None
    print(
        "PettingZoo: pettingzoo/FAMILY/NAME_vN, mpe2/NAME_vN"
        + ("  pettingzoo" if installed else _NOT_INSTALLED.format("pettingzoo"))
    )
    game_ids = games()
    print(
        "Atari: ALE/GAME-v5"
        + (f"  {choose_engine(game_ids[0], per_shard)}" if game_ids else _NOT_INSTALLED.format("atari"))
    )
    if game_ids:
        names = " ".join(game_id.removeprefix("ALE/").removesuffix("-v5") for game_id in game_ids)
        print(fill(names, 100, initial_indent="  ", subsequent_indent="  "))
    print(
        "\nOther environments registered with Gymnasium work too, if their spaces are supported, and your own with --env.module."
    )
    return 0
