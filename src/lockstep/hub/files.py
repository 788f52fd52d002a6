"""Files of a run that are published on the Hub: those that describe the agent or are needed to use it."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping

from lockstep.config import VERSION, Config
from lockstep.config.decode import encode
from lockstep.experiment.execute import open_run
from lockstep.files import WEIGHTS_LIMIT, read_file
from lockstep.run.checkpoint import Checkpoint
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import STATE, encode_state

__all__ = ["AGENT", "CARD", "CONFIG", "STATE", "VIDEO", "is_ours", "published"]

CARD, CONFIG = "README.md", "config.json"
VIDEO = "replay.mp4"
"""File name under which the Hub shows the video of an agent."""
AGENT = "agent.safetensors"
_OURS = re.compile(
    r"README\.md|replay\.mp4|config\.json|environment\.json|metrics\.jsonl|evaluation(?:-sampled)?\.json|checkpoints/\d{8}/(agent\.safetensors|state\.json)"
)
_PRIVATE = ("command", "host")
"""Keys of environment.json that are not published, because they reveal folders and names on the machine."""


def is_ours(name: str) -> bool:
    """Return True if a push writes, replaces or deletes the file of this name."""
    return _OURS.fullmatch(name) is not None


def published(folder: RunFolder, iteration: int) -> dict[str, bytes]:
    """Return the contents of the files to publish, by their names on the Hub, without card, evaluation and video.

    Together they have the layout of a run folder with a single checkpoint, which holds only the agent. Raises ValueError if a file is missing
    or broken. The message is one line.
    """
    checkpoint = Checkpoint(folder.checkpoint(iteration))
    try:
        agent = read_file(checkpoint.path / AGENT, WEIGHTS_LIMIT)
    except OSError as error:
        raise ValueError(f"checkpoint {checkpoint.path}: {AGENT} cannot be read: {error.strerror}") from None
    counters = {name: value for name, value in checkpoint.state.items() if name != "sha256"}
    environment = {name: value for name, value in folder.environment().items() if name not in _PRIVATE}
    target = f"checkpoints/{iteration:08d}"
    return {
        CONFIG: _json({"version": VERSION, **encode(_without_local_values(open_run(folder.path)[1]))}),
        "environment.json": _json(environment),
        "metrics.jsonl": "".join(f"{json.dumps(row)}\n" for row in folder.metrics()).encode(),
        f"{target}/{AGENT}": agent,
        f"{target}/{STATE}": encode_state(counters, {AGENT: hashlib.sha256(agent).hexdigest()}),
    }


def _without_local_values(config: Config) -> Config:
    """Return the config with defaults for the values that belong to this machine: the folder of runs, the object storage and the rendezvous address."""
    default = Config()
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, folder=default.run.folder, store=None),
        runtime=dataclasses.replace(config.runtime, rendezvous=default.runtime.rendezvous),
    )


def _json(content: Mapping[str, object]) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()
