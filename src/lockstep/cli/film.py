"""`lockstep film FOLDER [MODULE …]`: how rank 0 starts what films its agents. Not for people."""

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

_EACH = 0.5
"""Seconds between looks for an agent."""
_LONGEST = 3_600
"""Steps of an episode that are filmed."""
_SMALL = "fps=10,scale=240:-2,split[a][b];[a]palettegen[p];[b][p]paletteuse"
_GIF = ("-t", "30", "-vf", _SMALL, "-f", "gif", "-")
"""What TensorBoard gets of a film, half a minute in small: it holds all pictures in memory."""


def main(argv: Sequence[str]) -> int:
    """Films one agent after the other, until training has ended and none is left."""
    context = SidecarContext()
    die_with_parent(int(os.environ["LOCKSTEP_PARENT"]))
    from lockstep.envs.functions import import_reference
    from lockstep.run.folder import RunFolder
    from lockstep.telemetry.videos import pending_agents

    folder = RunFolder(Path(argv[0]))
    for module in argv[1:]:
        import_reference(module)
    studio: _Studio | None = None
    while True:
        over = context.training_ended.is_set()  # asked first: nothing is left for us after that
        left = pending_agents(folder)
        if left:
            studio = studio or _Studio(folder)
            studio.film(left[0])
            left[0].unlink()
        elif over:
            return 0
        else:
            context.training_ended.wait(_EACH)


class _Studio:
    """What does not change from one agent to the next."""

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

    def film(self, file: Path) -> None:
        """Films the agent of a file in the first and in the last environment."""
        from safetensors.torch import load

        self._agent.load(load(file.read_bytes()))
        places = {"first": 0, "last": self._config.env.count - 1}
        for place in places if places["last"] else ("first",):
            path = self._folder.path / "videos" / f"iteration-{file.stem}-{place}.mp4"
            self._play(path, int(file.stem), places[place])
            if "tensorboard" in self._config.run.loggers:
                self._show(path, int(file.stem), place)

    def _play(self, path: Path, iteration: int, index: int) -> None:
        """An episode with actions drawn as in training, which begins as the first one of environment `index` did."""
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
        generator = stream(seed, "films", index, iteration)
        policy = TrainedPolicy(self._agent, *spaces, generator, sample=True, iteration=iteration)
        record_video(
            lambda: TimeLimit(make_one(env, "rgb_array"), _LONGEST), policy.begin, path, [first_seed(env, seed, index)]
        )

    def _show(self, film: Path, iteration: int, place: str) -> None:
        """Gives TensorBoard a small GIF, in a folder of its own: of several files that grow in one, it follows only the newest."""
        import imageio_ffmpeg

        from lockstep.telemetry.tensorboard import EventFile

        rows = self._folder.metrics()
        steps = next((int(str(row["env_steps"])) for row in rows if row["iteration"] == iteration), None)
        if steps is None:  # rank 0 ended before it was written
            return
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(film), *_GIF]
        content = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
        width, height = struct.unpack("<HH", content[6:10])  # of the GIF's header
        self._events = self._events or EventFile(self._folder.path / "tb" / "videos", steps)
        self._events.add_image(steps, place, content, width, height)
        self._events.flush()
