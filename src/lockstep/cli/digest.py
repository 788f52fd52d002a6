"""`lockstep digest`: print the digest of a run's weights."""

from collections.abc import Sequence

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

__all__ = ["digests", "main"]


def main(argv: Sequence[str]) -> int:
    """Print the digest after one iteration. Raises ValueError if the run or the iteration does not exist."""
    parser = Arguments(
        "digest",
        "Prints the digest of an agent: the SHA-256 hash of its trained weights (policy, critic, curiosity), of the persistent buffers of registered "
        "modules, and of its running statistics (observations, returns, curiosity). The state of the optimizer is not part of the digest.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or its name in runs/")
    parser.add_argument("--iteration", type=whole_number(1), metavar="K", help="iteration (default: the last)")
    args = parser.read(argv)
    folder = RunFolder.open(locate(args.run))
    by_iteration = digests(folder)
    if not by_iteration:
        raise ValueError(f"{folder} has no iteration yet")
    iteration = args.iteration or max(by_iteration)
    if iteration not in by_iteration:
        first, last = min(by_iteration), max(by_iteration)
        raise ValueError(f"--iteration is {iteration}: {folder} has iterations {first} to {last}")
    print(by_iteration[iteration])
    return 0


def digests(folder: RunFolder) -> dict[int, str]:
    """Return the digest after each iteration. Raises ValueError if a row of metrics.jsonl lacks iteration or digest."""
    by_iteration: dict[int, str] = {}
    for row in folder.metrics():
        iteration, digest = row.get("iteration"), row.get("digest")
        if not isinstance(iteration, int) or not isinstance(digest, str):
            raise ValueError(f"{folder}/metrics.jsonl is broken after iteration {max(by_iteration, default=0)}")
        by_iteration[iteration] = digest
    return by_iteration
