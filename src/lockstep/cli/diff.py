"""`lockstep diff`: where two runs part."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lockstep.cli.arguments import Arguments
from lockstep.cli.digest import digests
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["main"]

_NAMING = ("run.name", "run.folder")


def main(argv: Sequence[str]) -> int:
    """Prints the verdict; returns 0 when the runs are identical as far as both go, 1 when they part."""
    parser = Arguments("diff", "Compares the digests of two runs, iteration by iteration. Exit code 1 when they part.")
    for name in ("a", "b"):
        parser.add_argument(name, metavar=f"RUN_{name.upper()}", help="a run's folder, or its name in runs/")
    own = parser.read(argv)
    folders = RunFolder.open(locate(own.a)), RunFolder.open(locate(own.b))
    ours, theirs = (digests(folder) for folder in folders)
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        raise ValueError(f"{folders[0].path} and {folders[1].path} have no iteration in common yet")
    part = next((iteration for iteration in both if ours[iteration] != theirs[iteration]), None)
    if part is None:
        print(_identical(both, max(ours), max(theirs)))
        return 0
    print(f"part at iteration {part}" + (", identical before" if part > both[0] else ""))
    print("\n".join([*_config_lines(*folders), *_tensor_lines(*folders, part)]))
    return 1


def _identical(both: list[int], last_a: int, last_b: int) -> str:
    line = f"identical for {len(both)} iterations"
    if last_a == last_b:
        return line
    return f"{line}; {'A' if last_a > last_b else 'B'} goes on to {max(last_a, last_b)}"


def _config_lines(a: RunFolder, b: RunFolder) -> list[str]:
    """Fields, and versions of packages, that differ."""
    lines = []
    for what, ours, theirs in (
        ("config", _flat(a.tree()), _flat(b.tree())),
        ("environment", _packages(a), _packages(b)),
    ):
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name) and name not in _NAMING]
        lines += [f"{what}: {name} is {_shown(ours.get(name))} in A, {_shown(theirs.get(name))} in B" for name in names]
        lines += [f"{what}: equal"] * (not names)
    return lines


def _shown(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def _flat(tree: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for section, content in tree.items():
        if isinstance(content, dict):
            flat |= {f"{section}.{field}": value for field, value in content.items()}
        else:
            flat[section] = content
    return flat


def _packages(folder: RunFolder) -> dict[str, object]:
    try:
        environment = json.loads((folder.path / "environment.json").read_text())
        return dict(environment["packages"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _tensor_lines(a: RunFolder, b: RunFolder, part: int) -> list[str]:
    """Which tensors differ in the first checkpoint that both have from iteration `part` on, largest first."""
    shared = sorted(set(a.checkpoints()) & set(b.checkpoints()))
    iteration = next((iteration for iteration in shared if iteration >= part), None)
    if iteration is None:
        return [f"weights: no checkpoint that both have at or after iteration {part}"]
    ours, theirs = _weights(a, iteration), _weights(b, iteration)
    lines = [f"weights: only {who} has {name}" for who, name in _unshared(ours, theirs)]
    distances = {name: _distance(ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys())}
    differing = sorted(
        (name for name in distances if distances[name] is not None), key=lambda name: -(distances[name] or 0)
    )
    lines.append(
        f"weights: {len(differing)} of {len(distances)} tensors differ in the checkpoint of iteration {iteration}"
    )
    return lines + [f"  {name}: at most {distances[name]:.3g}" for name in differing]


def _unshared(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[tuple[str, str]]:
    return [("A", name) for name in ours if name not in theirs] + [("B", name) for name in theirs if name not in ours]


def _weights(folder: RunFolder, iteration: int) -> "dict[str, NDArray[np.generic]]":
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder.checkpoint(iteration) / "agent.safetensors"
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} can't be read ({error})") from None


def _distance(ours: "NDArray[np.generic]", theirs: "NDArray[np.generic]") -> float | None:
    """The largest absolute difference: None for the same bits, infinite for another shape or type."""
    import numpy as np

    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if ours.tobytes() == theirs.tobytes():
        return None
    return float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max())
