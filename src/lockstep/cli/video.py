"""`lockstep video FOLDER [MODULE …]`: the sidecar process of rank 0 that records videos of its agents.

An internal command.
"""

import functools
import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.processes.parent import die_with_parent
from lockstep.telemetry.sidecar import SidecarContext

if TYPE_CHECKING:
    from lockstep.run.folder import RunFolder
    from lockstep.telemetry.tensorboard import EventFile

__all__ = ["main"]

_MAX_STEPS = 3_600
"""Largest number of steps of a recorded episode."""
_GIF_FILTER = "fps=10,scale=240:-2,split[a][b];[a]palettegen[p];[b][p]paletteuse"
_GIF_OPTIONS = ("-t", "30", "-vf", _GIF_FILTER, "-f", "gif", "-")
"""Options of ffmpeg for the GIF that TensorBoard shows: the first 30 s, at a small size, because TensorBoard keeps all
images in memory."""


def main(argv: Sequence[str]) -> int:
    """Record one saved agent after the other, until training has ended and none is pending. Return the exit code."""
    context = SidecarContext()
    die_with_parent(int(os.environ["LOCKSTEP_PARENT"]))
    from lockstep.envs.functions import import_reference
    from lockstep.run.folder import RunFolder
    from lockstep.telemetry.videos import pending_agents

    folder = RunFolder(Path(argv[0]))
    for module in argv[1:]:
        import_reference(module)
    recorder = functools.cache(lambda: _Recorder(folder))  # created with the first agent

    def record(agent: Path) -> None:
        recorder().record(agent)
        agent.unlink()

    context.process_all(lambda: pending_agents(folder), record)
    return 0


class _Recorder:
    """Recorder of videos. It keeps the config, the agent and the event file for all saved agents of a run."""

    def __init__(self, folder: "RunFolder") -> None:
        from lockstep.envs.catalog import make_one
        from lockstep.experiment.build import make_agent
        from lockstep.experiment.execute import open_run
        from lockstep.runtime.threads import limit_threads

        limit_threads(1)
        self._folder = folder
        _, self._config = open_run(folder.path)
        self._agent = make_agent(self._config)
        self._env = make_one(self._config.env)
        self._env.close()
        self._events: EventFile | None = None

    def record(self, file: Path) -> None:
        """Record the agent of a file in the first and in the last environment."""
        from safetensors.torch import load

        from lockstep.files import WEIGHTS_LIMIT, read_file

        self._agent.load(load(read_file(file, WEIGHTS_LIMIT)))
        indices = {"first": 0, "last": self._config.env.count - 1}
        for name in indices if indices["last"] else ("first",):
            path = self._folder.path / "videos" / f"iteration-{file.stem}-{name}.mp4"
            self._play(path, int(file.stem), indices[name])
            if "tensorboard" in self._config.run.loggers:
                self._add_to_tensorboard(path, int(file.stem), name)

    def _play(self, path: Path, iteration: int, index: int) -> None:
        """Record the first episode of environment `index`, with actions sampled as in training."""
        from gymnasium.wrappers import TimeLimit

        from lockstep.envs.catalog import first_seed, make_one
        from lockstep.experiment.policy import TrainedPolicy
        from lockstep.randomness import stream
        from lockstep.report.video import record_video

        env, seed, spaces = (
            self._config.env,
            self._config.run.seed,
            (self._env.observation_space, self._env.action_space),
        )
        generator = stream(seed, "videos", index, iteration)
        policy = TrainedPolicy(self._agent, *spaces, generator, sample=True, iteration=iteration)
        record_video(
            lambda: TimeLimit(make_one(env, "rgb_array"), _MAX_STEPS),
            policy.begin,
            path,
            [first_seed(env, seed, index)],
        )

    def _add_to_tensorboard(self, video: Path, iteration: int, tag: str) -> None:
        """Add the video to TensorBoard as a small GIF.

        Its event file is in a separate folder: if several event files in one folder grow, TensorBoard follows only the
        newest.
        """
        import imageio_ffmpeg

        from lockstep.telemetry.tensorboard import EventFile

        rows = self._folder.metrics()
        steps = next((int(str(row["env_steps"])) for row in rows if row["iteration"] == iteration), None)
        if steps is None:  # rank 0 ended before it wrote the metrics of this iteration
            return
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(video), *_GIF_OPTIONS]
        content = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
        width, height = struct.unpack("<HH", content[6:10])  # from the header of the GIF
        self._events = self._events or EventFile(self._folder.path / "tb" / "videos", steps)
        self._events.add_image(steps, tag, content, width, height)
        self._events.flush()
