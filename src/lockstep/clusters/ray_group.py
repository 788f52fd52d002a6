"""The ranks of a run as actors of Ray, in one placement group."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lockstep.clusters.ray_rank import RankProcess, RankState
from lockstep.processes.exit_codes import DONE, FAILED, KNOWN, RANK_LOST, STOPPED_BY_SIGNAL
from lockstep.processes.signals import signal_name

__all__ = ["Ended", "NotPlaced", "RankCommand", "run_group"]

_STARTUP = 120.0
"""Seconds until the processes of all actors have started."""
_ANSWER = 30.0
"""Seconds until an actor that does not answer counts as lost."""
_AFTER_FAILURE = 30.0
"""Seconds that the other ranks have to end after one has failed."""
_AFTER_SUCCESS = 90.0
"""Seconds that the other ranks have after one has ended without a failure. If only rank 0 is left, there is no limit: it waits for
evaluations, videos and trackers, with limits of its own."""
_POLL = 0.2


class NotPlaced(RuntimeError):
    """The actors could not be placed in time."""


@dataclass(frozen=True)
class RankCommand:
    """Command that every rank runs."""

    arguments: Sequence[str]
    variables: Mapping[str, str]
    """Environment variables besides those of the raylet."""
    folder: str
    """Working folder."""


class Ended(NamedTuple):
    """End of the ranks."""

    code: int
    """Exit code of the rank that has failed first, not of one that has lost it."""
    problem: str = ""
    """Description of the failure; empty if no rank has failed."""


def run_group(
    ranks: int,
    resources: Mapping[str, float],
    command: RankCommand,
    write: Callable[[bool, str], None],
    asked_to_stop: Callable[[], int],
    timeout: float,
) -> Ended:
    """Run `command` as `ranks` ranks, pass their lines to `write`, as in `RankState.output`, and return how they have ended. No actor remains.

    `resources` are those of a rank, by Ray's names. When `asked_to_stop`, the ranks are asked to stop. Raises NotPlaced if the ranks are not
    placed within `timeout` seconds, and ValueError if a host can't start a rank.
    """
    with _placed(ranks, resources, asked_to_stop, timeout) as actors:
        try:
            ordered = _start(actors, command, asked_to_stop)
        except RayError as error:
            text = str(error).strip().splitlines()
            return Ended(RANK_LOST, f"a rank could not be started: {text[-1] if text else type(error).__name__}")
        return _follow(ordered, write, asked_to_stop)


def _start(actors: list[Any], command: RankCommand, asked_to_stop: Callable[[], int]) -> list[Any]:
    """Start the ranks, and return the actors by rank. Ranks of a node are neighbors."""
    answers = [actor.node.remote() for actor in actors]

    def have_started() -> bool:
        return not ray.wait(answers, num_returns=len(answers), timeout=_POLL)[1]

    _wait(have_started, _STARTUP, asked_to_stop, f"the processes of {len(actors)} ranks did not start")
    nodes = ray.get(answers)
    order = sorted(range(len(actors)), key=lambda index: (nodes.index(nodes[index]), index))
    for rank, index in enumerate(order):
        node = nodes[index]
        local = [nodes[earlier] for earlier in order[:rank]].count(node)
        numbers = {"RANK": rank, "SIZE": len(actors), "LOCAL_RANK": local, "LOCAL_SIZE": nodes.count(node)}
        own = {f"LOCKSTEP_RAY_{name}": str(number) for name, number in numbers.items()}
        started = actors[index].start.remote(list(command.arguments), {**command.variables, **own}, command.folder)
        refusal = ray.get(started, timeout=_ANSWER)
        if refusal is not None:
            raise ValueError(
                f"rank {rank} can't be started: {refusal}; all hosts of the cluster must share the current folder and the installation"
            )
    return [actors[index] for index in order]


def _follow(actors: Sequence[Any], write: Callable[[bool, str], None], asked_to_stop: Callable[[], int]) -> Ended:
    """Wait until all ranks have ended, or until the others have had their time after the end of the first one."""
    codes: dict[int, int | None] = {}
    first_end, stopping = inf, False
    while len(codes) < len(actors) and time.monotonic() - first_end < _limit(codes, len(actors)):
        if asked_to_stop() and not stopping:
            stopping = True
            actors[0].stop.remote()  # the ranks agree on it
        time.sleep(_POLL)
        states = _states({rank: actor for rank, actor in enumerate(actors) if rank not in codes})
        for rank, state in states.items():
            for is_error, line in state.output if state is not None else ():
                write(is_error, line)
            if state is None or state.code is not None:
                codes[rank] = None if state is None else state.code
                first_end = min(first_end, time.monotonic())
    return _outcome(codes, len(actors))


def _states(actors: Mapping[int, Any]) -> dict[int, RankState | None]:
    """Return the states of ranks; None if the actor is lost."""
    requests = {rank: actor.state.remote() for rank, actor in actors.items()}
    answered, _ = ray.wait(list(requests.values()), num_returns=len(requests), timeout=_ANSWER)
    states: dict[int, RankState | None] = dict.fromkeys(actors)
    for rank, request in requests.items():
        if request in answered:
            with suppress(RayError):
                states[rank] = ray.get(request)
    return states


def _limit(codes: Mapping[int, int | None], ranks: int) -> float:
    """Return how many seconds after the end of the first rank the others have to end. `codes` has the exit codes of those that have ended."""
    if _failures(codes):
        return _AFTER_FAILURE
    return inf if set(range(1, ranks)) <= set(codes) else _AFTER_SUCCESS


def _outcome(codes: Mapping[int, int | None], ranks: int) -> Ended:
    failures = _failures(codes)
    if not failures and len(codes) < ranks:
        return Ended(RANK_LOST, "the ranks did not end together")
    if not failures:
        return Ended(STOPPED_BY_SIGNAL if STOPPED_BY_SIGNAL in codes.values() else DONE)
    # a rank that lost another one is the consequence, not the cause
    rank, code = min(failures.items(), key=lambda failure: failure[1] == RANK_LOST)
    if code is None:
        return Ended(FAILED, f"rank {rank} was lost with its actor")
    if code < 0:
        return Ended(FAILED, f"rank {rank} was killed by {signal_name(-code)}")
    return Ended(code if code in KNOWN else RANK_LOST, f"rank {rank} ended with exit code {code}")


def _failures(codes: Mapping[int, int | None]) -> dict[int, int | None]:
    return {rank: code for rank, code in codes.items() if code not in (DONE, STOPPED_BY_SIGNAL)}


@contextmanager
def _placed(
    ranks: int, resources: Mapping[str, float], asked_to_stop: Callable[[], int], timeout: float
) -> Iterator[list[Any]]:
    """Create an actor per rank, as close together as possible, and end all of them after the block."""
    group = placement_group([dict(resources)] * ranks, strategy="PACK")
    actors: list[Any] = []
    try:
        _wait(lambda: group.wait(_POLL), timeout, asked_to_stop, f"{ranks} ranks were not placed")
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


def _wait(is_ready: Callable[[], bool], seconds: float, asked_to_stop: Callable[[], int], problem: str) -> None:
    """Wait until `is_ready`, which itself waits a moment. Raise NotPlaced with `problem` after so many seconds, or when asked to stop."""
    deadline = time.monotonic() + seconds
    while not is_ready():
        if asked_to_stop() or time.monotonic() > deadline:
            raise NotPlaced(problem if asked_to_stop() else f"{problem} within {seconds:g} s")
