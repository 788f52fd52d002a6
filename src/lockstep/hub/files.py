"""What of a run goes to the Hub: all that plays it and tells of it, nothing that only training needs."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping

from lockstep.config import VERSION, Config
from lockstep.config.decode import encode
from lockstep.experiment.execute import open_run
from lockstep.run.checkpoint import Checkpoint
from lockstep.run.folder import RunFolder

__all__ = ["AGENT", "CARD", "CONFIG", "STATE", "VIDEO", "is_ours", "published"]

CARD, CONFIG = "README.md", "config.json"
VIDEO = "replay.mp4"
"""The name under which the Hub shows the film of an agent."""
AGENT, STATE = "agent.safetensors", "state.json"
_OURS = re.compile(
    r"README\.md|replay\.mp4|config\.json|environment\.json|metrics\.jsonl|evaluation(?:-sampled)?\.json|checkpoints/\d{8}/(agent\.safetensors|state\.json)"
)
_OF_THE_MACHINE = ("command", "host")
"""Of environment.json: what tells of folders and names on the machine, not of the run."""


def is_ours(name: str) -> bool:
    """Whether a push writes, and replaces, the file of that name."""
    return _OURS.fullmatch(name) is not None


def published(folder: RunFolder, iteration: int) -> dict[str, bytes]:
    """Files by the names that they have on the Hub, without card, evaluation and video. It is again the folder of a run, that of a single
    checkpoint with nothing but its agent.

    Raises ValueError, in one line, for files that are missing or broken.
    """
    checkpoint = Checkpoint(folder.checkpoint(iteration))
    try:
        agent = (checkpoint.path / AGENT).read_bytes()
    except OSError as error:
        raise ValueError(f"checkpoint {checkpoint.path}: {AGENT} can't be read ({error.strerror})") from None
    state = {**checkpoint.state, "files": {AGENT: hashlib.sha256(agent).hexdigest()}}
    noted = {name: value for name, value in folder.environment().items() if name not in _OF_THE_MACHINE}
    place = f"checkpoints/{iteration:08d}"
    return {
        CONFIG: _json({"version": VERSION, **encode(_anywhere(open_run(folder.path)[1]))}),
        "environment.json": _json(noted),
        "metrics.jsonl": "".join(f"{json.dumps(row)}\n" for row in folder.metrics()).encode(),
        f"{place}/{AGENT}": agent,
        f"{place}/{STATE}": _json(state),
    }


def _anywhere(config: Config) -> Config:
    """Without the folder that runs are in here, and the address at which ranks have met."""
    default = Config()
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, folder=default.run.folder),
        runtime=dataclasses.replace(config.runtime, rendezvous=default.runtime.rendezvous),
    )


def _json(content: Mapping[str, object]) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()
