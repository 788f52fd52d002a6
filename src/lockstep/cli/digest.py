"""`lockstep digest`: the digest of a run's weights."""

from collections.abc import Sequence

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

__all__ = ["digests", "main"]


def main(argv: Sequence[str]) -> int:
    """Prints the digest. Raises ValueError for a run or an iteration that there is not."""
    parser = Arguments("digest", "Prints the digest (SHA-256) of a run's weights and moments.")
    parser.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    parser.add_argument(
        "--iteration", type=whole_number(1), metavar="K", help="after this iteration (default the last one)"
    )
    own = parser.read(argv)
    folder = RunFolder.open(locate(own.run))
    found = digests(folder)
    if not found:
        raise ValueError(f"{folder.path} has no iteration yet")
    iteration = own.iteration or max(found)
    if iteration not in found:
        raise ValueError(f"--iteration is {iteration}: {folder.path} has iterations {min(found)} to {max(found)}")
    print(found[iteration])
    return 0


def digests(folder: RunFolder) -> dict[int, str]:
    """The digest after each iteration. Raises ValueError if the metrics are not as lockstep writes them."""
    found: dict[int, str] = {}
    for row in folder.metrics():
        iteration, digest = row.get("iteration"), row.get("digest")
        if not isinstance(iteration, int) or not isinstance(digest, str):
            raise ValueError(f"{folder.path}/metrics.jsonl is broken after iteration {max(found, default=0)}")
        found[iteration] = digest
    return found
