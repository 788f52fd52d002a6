"""Run the commands and programs of a page in order, in the current folder: python -m tests.pages.reader PAGE [COMMAND …]

Blocks with a title are written as files, `lockstep` commands run in this process, and Python blocks are executed. COMMANDs run before those of the
page. To save time, runs end after two iterations of at most 256 steps and one epoch and are not compiled, evaluations are of two episodes, and
`check` does not measure speed. A run on several ranks that the page does not use later is created and resolved, but not started.
"""

import dataclasses
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.pages.blocks import ROOT, Block, blocks, is_example

import lockstep.api
import lockstep.cli.resume
import lockstep.cli.train
import lockstep.experiment.execute
import lockstep.experiment.prepare_run
from lockstep.cli.main import main
from lockstep.config import Config
from lockstep.run.folder import RunFolder

_create, _open_or_create = lockstep.experiment.execute.create_run, lockstep.experiment.execute.open_or_create_run
_start = lockstep.cli.train.start
_RUN_HERE = ("lockstep ", "timeout ")
_TESTED_ELSEWHERE = ("lockstep bench", "lockstep sweep", "lockstep dashboard")
"""Prefixes of commands that other tests run."""


def shortened(config: Config) -> Config:
    """Return the config, cut to two short iterations."""
    steps = config.rollout.steps
    while steps > 256 and steps % (2 * (config.rollout.sequence_length or 1)) == 0:
        steps //= 2
    two = 2 * config.env.count * steps
    once = None if config.ppo.policy_epochs is None else 1
    return dataclasses.replace(
        config,
        rollout=dataclasses.replace(config.rollout, steps=steps),
        ppo=dataclasses.replace(config.ppo, epochs=1, policy_epochs=once, value_epochs=once),
        runtime=dataclasses.replace(config.runtime, compile="off"),
        run=dataclasses.replace(config.run, total_steps=min(two, config.run.total_steps), checkpoint_every=1),
    )


def create_short_run(config: Config, preset: str | None, ranks: int, asked: Config) -> object:
    """Call `create_run` with a shortened config."""
    return _create(shortened(config), preset, ranks, asked)


def open_or_create_short_run(config: Config, preset: str | None, ranks: int, asked: Config) -> object:
    """Call `open_or_create_run` with a shortened config."""
    return _open_or_create(shortened(config), preset, ranks, asked)


def start_if_needed(
    page: str, folder: RunFolder, sizes: Sequence[int], resume_from: int, hook: str | None, restarts: int
) -> int:
    """Call `start` without restarts if the page needs the run. Release its lock, as the end of the command's process would."""
    try:
        needed = sizes[0] == 1 or f"runs/{folder.path.name}" in page
        return _start(folder, sizes, resume_from, hook, 0) if needed else 0
    finally:
        folder.unlock()


def run_block(block: Block, names: dict[str, object]) -> None:
    """Run one block."""
    if block.language == "python" and not block.title and not is_example(block.text):
        exec(compile(block.text, "page", "exec"), names)
    elif block.language == "sh":
        for line in block.text.splitlines():
            if line.startswith(_RUN_HERE) and not line.startswith(_TESTED_ELSEWHERE):
                run_command(line)


def run_command(line: str) -> None:
    """Run one command. Raise AssertionError if it fails."""
    print(f"$ {line}", flush=True)
    typed = shlex.split(line.partition(" > ")[0], comments=True)
    words = [found for word in typed for found in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    if "--iteration" in words:
        words[words.index("--iteration") + 1] = "1"
    if "--iterations" in words:
        words[words.index("--iterations") + 1] = "1"
    if "--episodes" in words:
        words[words.index("--episodes") + 1] = "2"
    if words[1] == "check":
        words.append("--no-speed")
    if any("cuda" in word or "nccl" in word or "player-device" in word for word in words):
        return  # for a GPU
    if "--on" in words:
        return  # for a cluster: tests/clusters submits them
    if "s3://" in line:
        return  # for a server of object storage: tests/store has one
    if words[0] == "timeout":
        run_until_killed(words[words.index("lockstep") :])
    else:
        code = main(words[1:])
        assert code == 0, f"{line} gave {code}"


def run_until_killed(words: list[str]) -> None:
    """Run a command in a process, and kill it as soon as its run has a checkpoint."""
    checkpoints = Path("runs") / words[words.index("--name") + 1] / "checkpoints"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    process = subprocess.Popen([sys.executable, "-m", "tests.pages.reader", os.devnull, shlex.join(words)], env=environ)
    while process.poll() is None and not (checkpoints.is_dir() and any(checkpoints.iterdir())):
        time.sleep(0.01)
    process.kill()
    process.wait()


def run_page(page: Path, before: list[str]) -> None:
    """Run the commands in `before`, then all blocks of the page."""
    text = page.read_text(encoding="utf-8")
    lockstep.experiment.prepare_run.create_run = create_short_run  # type: ignore[assignment]
    lockstep.experiment.prepare_run.open_or_create_run = open_or_create_short_run  # type: ignore[assignment]
    lockstep.cli.train.start = lockstep.cli.resume.start = partial(start_if_needed, text)
    sys.path.insert(0, str(Path.cwd()))
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text)
    for command in before:
        run_command(command)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        run_block(block, names)


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), sys.argv[2:])
