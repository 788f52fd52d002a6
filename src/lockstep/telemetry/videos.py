"""Videos during training: rank 0 saves agents to videos/.agents, and a sidecar process (`cli/video.py`) records them one after the other.

The sidecar uses only CPU time that no other process needs, so it may fall behind. At most `_MAX_PENDING` agents wait
for it; further ones are skipped until it has caught up. After the last iteration the sidecar has some time to finish.
If a run is stopped, the pending agents are recorded when the run is resumed.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.algorithm.agent import Agent
from lockstep.files import create_file, make_folder
from lockstep.run.checkpoint_writer import pack
from lockstep.run.folder import RunFolder
from lockstep.telemetry.sidecar import Sidecar, SidecarFailed

__all__ = ["VideoSidecar", "pending_agents"]

_MAX_PENDING = 8


class VideoSidecar(Sidecar):
    """Sidecar that records videos of saved agents."""

    def __init__(self, folder: RunFolder, modules: Sequence[str], timeout: Callable[[], float]) -> None:
        """Start the sidecar. It imports `modules` to find the environment and the policy; `timeout` is as in `Sidecar`."""
        self._agents = _agents(folder)
        make_folder(self._agents.parent)
        make_folder(self._agents)
        self._skipped = 0
        self._run_folder = folder
        super().__init__("videos", folder.path, ["video", str(folder.path), *modules], timeout)

    def enqueue(self, iteration: int, agent: Agent) -> None:
        """Save the agent of an iteration for the sidecar, unless `_MAX_PENDING` agents are waiting already."""
        if len(pending_agents(self._run_folder)) >= _MAX_PENDING:
            self._skipped += 1
            return
        # no fsync, unlike checkpoints: the file need not survive a power loss
        partial = self._agents / f".{iteration:08d}.partial"
        partial.unlink(missing_ok=True)
        with create_file(partial) as file:
            file.write(pack(agent.state()))
        partial.rename(self._agents / f"{iteration:08d}.safetensors")

    def close(self) -> None:
        """Wait for the sidecar, see `Sidecar.close`. Raises SidecarFailed also if agents were skipped."""
        complete = self._timeout() > 0
        if complete and pending_agents(self._run_folder):
            self._restart()
        try:
            super().close()
        finally:
            for partial in self._agents.parent.glob("*.mp4.*partial"):
                partial.unlink()
            if complete:
                shutil.rmtree(self._agents, ignore_errors=True)
        if self._skipped and complete:
            raise SidecarFailed(
                f"videos of {self._skipped} iterations were skipped because there was not enough spare CPU time; increase run.capture_video "
                "to record fewer"
            )


def pending_agents(folder: RunFolder) -> list[Path]:
    """Return the files of the agents that are not recorded yet, ordered by iteration."""
    return sorted(_agents(folder).glob("*.safetensors"))


def _agents(folder: RunFolder) -> Path:
    return folder.path / "videos" / ".agents"
