"""The ranks of a run as actors of Ray, in one placement group."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lockstep.clusters.ray_rank import RankProcess, RankState
from lockstep.processes.exit_codes import DONE, FAILED, KILLED, PREEMPTED

__all__ = ["Ended", "NotPlaced", "run_group"]

_ANSWER = 30.0
"""Seconds until a rank's actor that does not answer counts as lost."""
_OTHERS = 30.0
"""Seconds that the other ranks have to end after the first one."""
_POLL = 0.2


class NotPlaced(RuntimeError):
    """The actors could not be placed in time."""


class Ended(NamedTuple):
    """End of the ranks."""

    codes: list[int]
    """Exit codes by rank."""
    problem: str
    """Description of the first failure; empty if no rank has failed."""


def run_group(
    ranks: int,
    resources: Mapping[str, float],
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: str,
    write: Callable[[str], None],
    asked_to_stop: Callable[[], int],
    patience: float,
) -> Ended:
    """Run `command` as `ranks` ranks, pass their lines to `write`, and return how they have ended. No actor remains.

    `resources` are those of a rank, by Ray's names. When `asked_to_stop`, all ranks are asked to stop. Raises NotPlaced if not all actors
    are placed, or do not answer, within `patience` seconds.
    """
    with _placed(ranks, resources, patience) as actors:
        try:
            ordered, problem = _start(actors, command, variables, folder, patience)
        except RayError as error:
            raise NotPlaced(f"an actor could not be started: {type(error).__name__}") from None
        if problem:
            return Ended([FAILED] * ranks, problem)
        return _follow(ordered, write, asked_to_stop)


def _start(
    actors: list[Any], command: Sequence[str], variables: Mapping[str, str], folder: str, patience: float
) -> tuple[list[Any], str]:
    """Start the ranks. Return the actors by rank, and the error if a rank can't be started. Ranks of a node are neighbors."""
    nodes = _ask([actor.node.remote() for actor in actors], patience)
    order = sorted(range(len(actors)), key=lambda index: (nodes.index(nodes[index]), index))
    for rank, index in enumerate(order):
        node = nodes[index]
        local = [nodes[earlier] for earlier in order[:rank]].count(node)
        numbers = {"RANK": rank, "SIZE": len(actors), "LOCAL_RANK": local, "LOCAL_SIZE": nodes.count(node)}
        own = {f"LOCKSTEP_RAY_{name}": str(number) for name, number in numbers.items()}
        refusal = _ask(actors[index].start.remote(list(command), {**variables, **own}, folder))
        if refusal is not None:
            return [], f"rank {rank} can't be started: {refusal}"
    return [actors[index] for index in order], ""


def _follow(actors: list[Any], write: Callable[[str], None], asked_to_stop: Callable[[], int]) -> Ended:
    """Wait until all ranks have ended, or until the others have had their time after the end of the first one."""
    codes: dict[int, int] = {}
    problem, stopping, deadline = "", False, float("inf")
    while len(codes) < len(actors) and time.monotonic() < deadline:
        if asked_to_stop() and not stopping:
            stopping = True
            with suppress(RayError, NotPlaced):
                _ask(actors[0].stop.remote())
        time.sleep(_POLL)
        for rank in set(range(len(actors))) - set(codes):
            state = _state(actors[rank])
            for line in state.lines:
                write(line)
            if state.code is None:
                continue
            codes[rank] = state.code
            deadline = min(deadline, time.monotonic() + _OTHERS)
            if state.code not in (DONE, PREEMPTED) and not problem:
                problem = f"rank {rank} ended with code {state.code}"
    return Ended([codes.get(rank, KILLED) for rank in range(len(actors))], problem)


def _state(actor: Any) -> RankState:
    try:
        state: RankState = _ask(actor.state.remote())
    except (RayError, NotPlaced):
        return RankState([], KILLED)
    return state


@contextmanager
def _placed(ranks: int, resources: Mapping[str, float], patience: float) -> Iterator[list[Any]]:
    """Create an actor per rank, as close together as possible, and end all of them after the block."""
    group = placement_group([dict(resources)] * ranks, strategy="PACK")
    actors: list[Any] = []
    try:
        if not group.wait(patience):
            raise NotPlaced(f"{ranks} ranks were not placed within {patience:g} s")
        for index in range(ranks):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            options = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "max_restarts": 0}
            actor = ray.remote(RankProcess).options(scheduling_strategy=strategy, **options).remote()
            actors.append(actor)
        yield actors
    finally:
        for actor in actors:
            with suppress(RayError):
                ray.kill(actor)
        with suppress(RayError):
            remove_placement_group(group)


def _ask(reference: Any, timeout: float = _ANSWER) -> Any:
    """Return the answer of an actor, or those of a list of actors. Raises NotPlaced if it does not answer in time, and RayError if it has ended."""
    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        raise NotPlaced(f"an actor did not answer within {timeout:g} s") from None
