"""Dumps of gradient steps that are not finite: one file with everything that the step depends on, read as data."""

import errno
import json
import shlex
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Microbatch
from lockstep.algorithm.loss import LOSS_SCALARS
from lockstep.algorithm.numeric_guard import GradientStep
from lockstep.config import VERSION, Config
from lockstep.config.decode import encode
from lockstep.experiment.execute import decode_config
from lockstep.files import read_file, write_atomically
from lockstep.messages import print_warning
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import is_whole_number

__all__ = ["Dump", "DumpWriter", "read_dump"]

_LIMIT = 2**28
"""Largest size in bytes of a dump."""
_AGENT = "agent."
_OPTIONAL = ("pixels", "states", "next_pixels")
"""Tensors that only some microbatches have."""


class DumpWriter:
    """Writes dumps into a run folder."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self._folder = folder
        self._config = config

    def save(self, step: GradientStep, agent: Agent) -> None:
        """See `StepSaver.save`."""
        self._folder.check_present()
        microbatch, tensors = step.microbatch, {f"{_AGENT}{name}": tensor for name, tensor in agent.state().items()}
        named = {"rows": microbatch.rows, "places": step.places, "scalars": step.scalars, "total": step.total}
        named |= {name: getattr(microbatch, name) for name in _OPTIONAL}
        tensors |= {name: tensor for name, tensor in named.items() if tensor is not None}
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if size > _LIMIT:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {_LIMIT:,}")
        described = {
            "version": 1,
            "config": {"version": VERSION, **encode(self._config)},
            "iteration": step.iteration,
            "epoch": step.epoch,
            "minibatch": step.minibatch,
            "trained": list(step.trained),
            "samples": step.samples,
        }
        copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        write_atomically(self._path(step.iteration), save(copies, {"dump": json.dumps(described)}))

    def replay_command(self, iteration: int) -> str:
        """See `StepSaver.replay_command`."""
        module = self._config.env.module
        return shlex.join(
            ["lockstep", "replay", f"{self._folder}/{_name(iteration)}", *(["--env.module", module] if module else [])]
        )

    def warn(self, line: str) -> None:
        """See `StepSaver.warn`."""
        print_warning(line)

    def _path(self, iteration: int) -> Path:
        return self._folder.path / _name(iteration)


def _name(iteration: int) -> str:
    return f"non-finite-{iteration:08d}.safetensors"


class Dump(NamedTuple):
    """Content of a dump."""

    config: Config
    step: GradientStep
    agent: dict[str, Tensor]
    """State of the agent before the step."""


def read_dump(path: Path) -> Dump:
    """Read a dump. Raises ValueError in one line if it can't be read, or is not one."""
    try:
        content = read_file(path, _LIMIT + 2**24)
        tensors = load(content)
        described = _described(content)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    except SafetensorError as error:
        raise ValueError(f"{path} is not a dump: {error}") from None
    if described is None:
        raise ValueError(f"{path} is not a dump: lockstep writes them as non-finite-….safetensors in run folders")
    if described["version"] != 1:
        raise ValueError(
            f"{path} has version {described['version']}, newer than this lockstep reads (1): upgrade lockstep"
        )
    try:
        return _decode(described, tensors, path)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path} is broken: {type(error).__name__} in its description or its tensors") from None


def _described(content: bytes) -> dict[str, object] | None:
    """Return the description of a dump, from the header of a safetensors file that has been checked; None if there is none."""
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        described = json.loads(header["__metadata__"]["dump"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return described if isinstance(described, dict) and is_whole_number(described.get("version")) else None


def _decode(described: dict[str, object], tensors: dict[str, Tensor], path: Path) -> Dump:
    tree = described["config"]
    if not isinstance(tree, dict):
        raise TypeError("config is not an object")
    config = decode_config(tree, path)
    trained, samples = described["trained"], described["samples"]
    if not isinstance(trained, list) or [type(flag) for flag in trained] != [bool, bool]:
        raise TypeError("trained is not a list of two flags")
    counts = [described[name] for name in ("iteration", "epoch", "minibatch")]
    if not all(is_whole_number(count) for count in counts) or not isinstance(samples, float):
        raise TypeError("a count is not a whole number")
    rows, places, scalars = tensors["rows"], tensors["places"], tensors["scalars"]
    count = len(rows) if rows.dim() == 2 else 0
    microbatch = Microbatch(rows, **{name: tensors.get(name) for name in _OPTIONAL})
    images = [image for image in (microbatch.pixels, microbatch.next_pixels) if image is not None]
    fits = count > 0 and places.shape == (count, 2) and places.dtype == torch.int64
    fits &= scalars.shape == (len(LOSS_SCALARS),) and scalars.dtype == rows.dtype
    fits &= all(image.shape[:1] == (count,) and image.dim() == 2 and image.dtype == torch.uint8 for image in images)
    if microbatch.states is not None:
        fits &= (
            microbatch.states.dim() == 2 and len(microbatch.states) > 0 and count % max(1, len(microbatch.states)) == 0
        )
    if not fits:
        raise TypeError("the shapes of the tensors do not fit each other")
    iteration, epoch, minibatch = (int(str(number)) for number in counts)
    step = GradientStep(
        iteration,
        epoch,
        minibatch,
        (trained[0], trained[1]),
        samples,
        scalars,
        microbatch,
        places,
        tensors.get("total"),
    )
    agent = {name.removeprefix(_AGENT): tensor for name, tensor in tensors.items() if name.startswith(_AGENT)}
    return Dump(config, step, agent)
