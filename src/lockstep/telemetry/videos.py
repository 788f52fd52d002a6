"""Films during training: rank 0 leaves agents in videos/.agents, a companion (`cli/film.py`) films them one after the other.

It gets the processor only when nothing else wants it, so it may be behind: up to `_WAITING` agents are kept for it, and no more are left
until it has caught up. After the last iteration there is some time to do so; a run that was stopped goes on with what is left when it goes
on itself.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.algorithm.agent import Agent
from lockstep.run.checkpoint import pack
from lockstep.run.folder import RunFolder
from lockstep.telemetry.sidecar import Sidecar, SidecarFailed

__all__ = ["VideoSidecar", "left_agents"]

_WAITING = 8


class VideoSidecar(Sidecar):
    """Takes agents to be filmed."""

    def __init__(self, folder: RunFolder, modules: Sequence[str], patience: Callable[[], float]) -> None:
        """`modules` are what the companion imports to find environment and policy."""
        self._agents = _agents(folder)
        self._agents.mkdir(parents=True, exist_ok=True)
        self._left_out = 0
        self._run_folder = folder
        super().__init__("films", folder.path, ["film", str(folder.path), *modules], patience)

    def take(self, iteration: int, agent: Agent) -> None:
        """Leaves the agent of an iteration, if not too many wait already."""
        if len(left_agents(self._run_folder)) >= _WAITING:
            self._left_out += 1
            return
        # not synced to the disk, as a checkpoint is: this is for another process, not for another day
        aside = self._agents / f".{iteration:08d}.partial"
        aside.write_bytes(pack(agent.state()))
        aside.rename(self._agents / f"{iteration:08d}.safetensors")

    def close(self) -> None:
        """See `Sidecar.close`. Raises CompanionFailed also if agents were left out."""
        complete = self._patience() > 0
        if complete and left_agents(self._run_folder):
            # training is spared no more: what is left is filmed by a process like any other, which a busy machine does not starve
            self._process.kill()
            self._process.wait()
            self._input.close()
            self._output.close()
            self._start(nice=0)
        try:
            super().close()
        finally:
            for partial in self._agents.parent.glob("*.mp4.partial"):
                partial.unlink()
            if complete:
                shutil.rmtree(self._agents, ignore_errors=True)
        if self._left_out and complete:
            raise SidecarFailed(
                f"{self._left_out} of them were not made, because the processor had no time to spare for so many; a larger "
                "run.capture_video asks for fewer"
            )


def left_agents(folder: RunFolder) -> list[Path]:
    """The agents that are still to be filmed, by iteration."""
    return sorted(_agents(folder).glob("*.safetensors"))


def _agents(folder: RunFolder) -> Path:
    return folder.path / "videos" / ".agents"
