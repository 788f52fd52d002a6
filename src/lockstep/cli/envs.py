"""`lockstep envs`: the environments that are known to work."""

from collections.abc import Sequence
from itertools import groupby
from textwrap import fill

from lockstep.cli.arguments import Arguments, whole_number

__all__ = ["main"]

_MISSING = " (not installed; pip install 'lockstep-rl[{}]')"


def main(argv: Sequence[str]) -> int:
    """Prints them family by family, each with the engine that `auto` means."""
    parser = Arguments(
        "envs", "Lists the environments that are known to work, and the engine that `auto` means for each."
    )
    parser.add_argument(
        "--per-shard", type=whole_number(1), default=8, metavar="B", help="environments of a shard (default 8)"
    )
    per_shard = parser.read(argv).per_shard

    from lockstep.envs.catalog import known_environments
    from lockstep.envs.choice import choose_engine
    from lockstep.envs.families import games

    known = known_environments(per_shard)
    wide = max(len(one.env_id) for one in known)
    for (family, missing), members in groupby(
        known, key=lambda one: (one.family, None if one.installed else one.extra)
    ):
        print(family + (_MISSING.format(missing) if missing else ""))
        for one in members:
            print(f"  {one.env_id:<{wide}}  {'' if missing else one.engine}".rstrip())
    ids = games()
    print("Atari: ALE/GAME-v5" + (f"  {choose_engine(ids[0], per_shard)}" if ids else _MISSING.format("atari")))
    if ids:
        names = " ".join(one.removeprefix("ALE/").removesuffix("-v5") for one in ids)
        print(fill(names, 100, initial_indent="  ", subsequent_indent="  "))
    print(
        "\nAny other registered with Gymnasium works too, if its spaces are supported; yours as well, with --env.module."
    )
    return 0
