"""The clusters that `--on` names."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.clusters.request import Request

__all__ = ["CLUSTERS", "submit"]

CLUSTERS = ("slurm", "kubernetes", "ray")
"""Values of `--on`. The module of this name has a function `submit(request)`, which submits a run and returns the exit code."""


def submit(cluster: str, request: "Request") -> int:
    """Submit the run to the cluster and return the exit code of the command.

    Raises ValueError, in one line, if the cluster can't be reached or refuses the job.
    """
    code = import_module(f"lockstep.clusters.{cluster}").submit(request)
    assert isinstance(code, int)
    return code
