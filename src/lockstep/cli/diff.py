"""`lockstep diff`: find the first iteration after which the digests of two runs differ."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lockstep.cli.arguments import Arguments
from lockstep.cli.digest import digests
from lockstep.config.fields import RUN_FIELDS
from lockstep.experiment.execute import open_run
from lockstep.files import WEIGHTS_LIMIT, read_file
from lockstep.messages import counted
from lockstep.processes.exit_codes import DONE, FAILED
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print whether two runs are identical. Return 0 if all common iterations are identical, 1 otherwise.

    Raises ValueError if a run does not exist, or if the runs have no iteration in common.
    """
    parser = Arguments(
        "diff", "Compares the digests of two runs, iteration by iteration. The exit code is 1 if they differ."
    )
    for name in ("a", "b"):
        parser.add_argument(name, metavar=f"RUN_{name.upper()}", help="run folder, or its name in runs/")
    args = parser.read(argv)
    folders = open_run(locate(args.a))[0], open_run(locate(args.b))[0]
    digests_a, digests_b = (digests(folder) for folder in folders)
    shared = sorted(digests_a.keys() & digests_b.keys())
    if not shared:
        raise ValueError(f"{folders[0]} and {folders[1]} have no common iteration yet")
    first = next((iteration for iteration in shared if digests_a[iteration] != digests_b[iteration]), None)
    if first is None:
        print(_identical_line(shared, max(digests_a), max(digests_b)))
        return DONE
    print(f"digests differ from iteration {first} on" + ("; all earlier ones are equal" if first > shared[0] else ""))
    print("\n".join([*_config_lines(*folders), *_tensor_lines(*folders, first)]))
    return FAILED


def _identical_line(shared: list[int], last_a: int, last_b: int) -> str:
    line = f"identical for {counted(len(shared), 'iteration')}"
    if last_a == last_b:
        return line
    return f"{line}; {'A' if last_a > last_b else 'B'} continues to {max(last_a, last_b)}"


def _config_lines(a: RunFolder, b: RunFolder) -> list[str]:
    """Return a line for every config field and package version that differs, or a line that all are equal."""
    lines = []
    for kind, in_a, in_b in (
        ("config", _flatten(a.tree()), _flatten(b.tree())),
        ("environment", _packages(a), _packages(b)),
    ):
        names = [name for name in {**in_a, **in_b} if in_a.get(name) != in_b.get(name) and name not in RUN_FIELDS]
        lines += [f"{kind}: {name} is {_text(in_a.get(name))} in A, {_text(in_b.get(name))} in B" for name in names]
        lines += [f"{kind}: equal"] * (not names)
    return lines


def _text(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def _flatten(tree: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for section, content in tree.items():
        if isinstance(content, dict):
            flat |= {f"{section}.{field}": value for field, value in content.items()}
        else:
            flat[section] = content
    return flat


def _packages(folder: RunFolder) -> dict[str, object]:
    """Return the package versions that the run has recorded; none if the file is missing or broken."""
    try:
        environment = json.loads(read_file(folder.path / "environment.json"))
        return dict(environment["packages"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _tensor_lines(a: RunFolder, b: RunFolder, first: int) -> list[str]:
    """Return lines about the tensors that differ in the first shared checkpoint from iteration `first` on."""
    shared = sorted(set(a.checkpoints()) & set(b.checkpoints()))
    iteration = next((iteration for iteration in shared if iteration >= first), None)
    if iteration is None:
        return [f"weights: no checkpoint that both have at or after iteration {first}"]
    in_a, in_b = _load_weights(a, iteration), _load_weights(b, iteration)
    lines = [f"weights: only A has {name}" for name in in_a if name not in in_b]
    lines += [f"weights: only B has {name}" for name in in_b if name not in in_a]
    distances = {name: _distance(in_a[name], in_b[name]) for name in sorted(in_a.keys() & in_b.keys())}
    differing = sorted(
        (name for name in distances if distances[name] is not None), key=lambda name: -(distances[name] or 0)
    )
    lines.append(
        f"weights: {len(differing)} of {len(distances)} tensors differ in the checkpoint of iteration {iteration}"
    )
    return lines + [f"  {name}: at most {distances[name]:.3g}" for name in differing]


def _load_weights(folder: RunFolder, iteration: int) -> "dict[str, NDArray[np.generic]]":
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder.checkpoint(iteration) / "agent.safetensors"
    try:
        return dict(load(read_file(path, WEIGHTS_LIMIT)))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} can't be read ({error})") from None


def _distance(a: "NDArray[np.generic]", b: "NDArray[np.generic]") -> float | None:
    """Return the largest absolute difference: None if all bits are equal, infinity if the shapes or dtypes differ."""
    import numpy as np

    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.tobytes() == b.tobytes():
        return None
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
