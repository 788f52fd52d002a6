"""Does what a page says, from top to bottom, in the current folder: python -m tests.pages.reader PAGE [COMMAND …]

Blocks with a title become files, commands go to `lockstep` in this one process, snippets of Python are run. COMMANDs come before the page's. What
makes it quick: runs are as they are written, but end after two iterations of at most two epochs, and are not compiled; one on several
ranks that nobody looks at later is made and resolved, but not begun.
"""

import dataclasses
import os
import shlex
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tests.pages.blocks import Block, blocks, is_example

import lockstep.cli.resume
import lockstep.cli.train
import lockstep.experiment.execute
from lockstep.cli.main import main
from lockstep.config import Config
from lockstep.run.folder import RunFolder

_create, _start = lockstep.experiment.execute.create_run, lockstep.cli.train.start
_OWN = ("lockstep ", "timeout ")
_ELSEWHERE = ("lockstep bench", "lockstep sweep")
"""Commands that other tests run."""


def shortened(config: Config, preset: str | None, ranks: int) -> object:
    """`create_run` of a run that is over at once."""
    two = 2 * config.env.count * config.rollout.steps
    once = None if config.ppo.policy_epochs is None else 1
    config = dataclasses.replace(
        config,
        ppo=dataclasses.replace(config.ppo, epochs=min(2, config.ppo.epochs), policy_epochs=once, value_epochs=once),
        runtime=dataclasses.replace(config.runtime, compile="off"),
        run=dataclasses.replace(config.run, total_steps=min(two, config.run.total_steps), checkpoint_every=1),
    )
    return _create(config, preset, ranks)


def started(page: str, folder: RunFolder, ranks: int, resume_from: int) -> int:
    """`start`, of what the page needs. The command would end now, and with it its lock."""
    try:
        needed = ranks == 1 or f"runs/{folder.path.name}" in page
        return _start(folder, ranks, resume_from) if needed else 0
    finally:
        folder.unlock()


def follow(block: Block, names: dict[str, object]) -> None:
    """Does what one block says."""
    if block.language == "python" and not block.title and not is_example(block.text):
        exec(compile(block.text, "page", "exec"), names)
    elif block.language == "sh":
        for line in block.text.splitlines():
            if line.startswith(_OWN) and not line.startswith(_ELSEWHERE):
                type_in(line)


def type_in(line: str) -> None:
    """One command. Ends this program if it fails."""
    print(f"$ {line}", flush=True)
    typed = shlex.split(line.partition(" > ")[0], comments=True)
    words = [found for word in typed for found in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    if "--iteration" in words:
        words[words.index("--iteration") + 1] = "1"
    if any("cuda" in word or "nccl" in word or "player-device" in word for word in words):
        return  # for a GPU
    if words[0] == "timeout":
        kill_soon(words[words.index("lockstep") :])
    else:
        code = main(words[1:])
        assert code == 0, f"{line} gave {code}"


def kill_soon(words: list[str]) -> None:
    """Kills the command as soon as its run has a checkpoint."""
    checkpoints = Path("runs") / words[words.index("--name") + 1] / "checkpoints"
    process = subprocess.Popen([sys.executable, "-m", "tests.pages.reader", os.devnull, shlex.join(words)])
    while process.poll() is None and not (checkpoints.is_dir() and any(checkpoints.iterdir())):
        time.sleep(0.01)
    process.kill()
    process.wait()


def read(page: Path, before: list[str]) -> None:
    """Does all of it."""
    text = page.read_text(encoding="utf-8")
    lockstep.experiment.execute.create_run = shortened  # type: ignore[assignment]
    lockstep.cli.train.start = lockstep.cli.resume.start = partial(started, text)
    sys.path.insert(0, str(Path.cwd()))
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text)
    for command in before:
        type_in(command)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        follow(block, names)


if __name__ == "__main__":
    read(Path(sys.argv[1]), sys.argv[2:])
