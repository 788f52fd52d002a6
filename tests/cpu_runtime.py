"""Runtime on the CPU around any group, for tests in one process."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch

from lockstep.group.group import Group
from lockstep.group.solo import Solo

CPU = torch.device("cpu")


def cpu_runtime(group: Group | None = None) -> SimpleNamespace:
    """Return the attributes of a Runtime that `lockstep.experiment.build.build` uses, on the CPU."""
    return SimpleNamespace(
        group=group or Solo(),
        device=CPU,
        player_device=CPU,
        autocast=lambda device: nullcontext,
        replicate=lambda module, members: module,
        cores=1,
    )
