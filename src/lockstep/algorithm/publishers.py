"""The rank from which each player receives the agent. This module does not import PyTorch."""

from collections.abc import Sequence

from lockstep.algorithm.plan import Plan

__all__ = ["FAN_OUT", "publishers"]

FAN_OUT = 4
"""Number of ranks to which one rank publishes an agent, or passes it on, at most."""


def publishers(plan: Plan, separate: bool) -> dict[int, int]:
    """Return, for every rank that receives its acting agent through a channel, the rank that sends it, which comes before its receivers.

    `separate` is True if a rank that plays and trains has two agents.
    """
    training = plan.training
    others = [player for player in plan.playing if player not in training]
    sources = {player: player for player in plan.playing if player in training and separate}
    for trainer, players in zip(training, _split(others, len(training)), strict=True):
        sources |= _tree(trainer, players)
    return sources


def _tree(root: int, ranks: Sequence[int]) -> dict[int, int]:
    """Return the source of each of `ranks` in a tree in which no rank has more than FAN_OUT targets.

    Ranks that are next to each other, and so probably on one host, are close to each other in the tree.
    """
    sources: dict[int, int] = {}
    for first, *rest in filter(None, _split(ranks, FAN_OUT)):
        sources |= {first: root} | _tree(first, rest)
    return sources


def _split(ranks: Sequence[int], count: int) -> list[Sequence[int]]:
    """Split `ranks` into `count` parts whose lengths differ by at most 1."""
    return [ranks[len(ranks) * part // count : len(ranks) * (part + 1) // count] for part in range(count)]
