"""Exporting an agent's policy to a file that was compared with the agent."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gymnasium import Space

from lockstep import __version__
from lockstep.algorithm.agent import Agent
from lockstep.export.agreement import TOLERANCE, difference
from lockstep.export.formats import FORMATS
from lockstep.export.program import Program
from lockstep.export.tensor_spec import TensorSpec, check_names
from lockstep.files import write_atomically

__all__ = ["Exported", "check_place", "export_policy"]


@dataclass(frozen=True)
class Exported:
    """An exported file."""

    path: Path
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    difference: float
    """Largest difference between the outputs of the file and of the agent, relative above 1."""


def check_place(path: Path, format_name: str) -> None:
    """Check that a file of that format can be written. Raises ValueError in one line if not, or if a package is missing."""
    form = FORMATS[format_name]
    missing = [module for module in form.needs if find_spec(module) is None]
    if missing:
        raise ValueError(f"--format {format_name} needs {' and '.join(missing)}; pip install 'lockstep-rl[export]'")
    if path.suffix != form.suffix:
        raise ValueError(f"--out is {path}: a file of the format {format_name} must end in {form.suffix}")
    try:
        taken, folder = path.exists() or path.is_symlink(), path.parent.is_dir()
    except OSError as error:
        raise ValueError(f"--out is {path}: {error.strerror}") from None
    if taken:
        raise ValueError(f"--out is {path}, which exists; choose another")
    if not folder:
        raise ValueError(f"--out is {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"--out is {path}: nothing can be written into {path.parent}")


def export_policy(
    agent: Agent,
    observation_space: Space[Any],
    action_space: Space[Any],
    path: Path,
    format_name: str,
    about: Mapping[str, str],
) -> Exported:
    """Export the policy of an agent on the CPU, after comparing the outputs of the file's content with the agent's.

    The spaces are those of a single environment; `path` must not exist, see `check_place`. Version, inputs and outputs
    are added to the
    metadata `about`. Raises ValueError in one line, and writes no file, if the policy can't be exported, or if the file
    does not agree with the agent.
    """
    form = FORMATS[format_name]
    program = Program(agent, observation_space, action_space)
    check_names("inputs", program.inputs)
    check_names("outputs", program.outputs)
    metadata = {"lockstep_version": __version__, **about, "digest": agent.digest()}
    metadata |= {"inputs": _described(program.inputs), "outputs": _described(program.outputs)}
    try:
        content = form.pack(program, metadata)
        distance, output = difference(form.unpack(content), agent, observation_space, action_space)
    except Exception as error:  # a registered encoder, core or head may use operations that can't be exported
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ValueError(f"this policy can't be exported as {format_name}: {reason}") from error
    if not distance <= TOLERANCE:
        raise ValueError(
            f"the outputs of the exported policy do not equal those of the run, so it was not saved: its {output} differs by {distance:.3g}, "
            f"more than {TOLERANCE:g}"
        )
    _write(path, content)
    return Exported(path, program.inputs, program.outputs, distance)


def _described(specs: Sequence[TensorSpec]) -> str:
    return json.dumps(
        {spec.name: {"type": spec.type_name, "shape": ["N", *spec.shape], "meaning": spec.meaning} for spec in specs}
    )


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise ValueError(f"--out is {path}, which can't be written: {error.strerror}") from None
