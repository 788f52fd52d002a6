"""A policy from the Hub: the three files that it acts by, in the client's cache. Nothing that comes from there is ever run."""

import re
from pathlib import Path

from lockstep.hub.files import AGENT, CONFIG, STATE
from lockstep.hub.repository import PREFIX, Repository, client, told
from lockstep.run.locate import locate_checkpoint

__all__ = ["fetch", "find"]

_LARGEST = {AGENT: 4_000_000_000, CONFIG: 1_000_000, STATE: 1_000_000}
"""Bytes. That of a large network with images is some ten million. `restore_agent` compares the config with the weights that there are."""
_PATIENCE = 10.0
"""Seconds for an answer."""


def find(run: str, iteration: int | None) -> tuple[Path, int | None]:
    """The run's folder and the checkpoint that are meant by `hub:USER/NAME`, the folder of a checkpoint, or a run.

    Args:
        run: What the user wrote.
        iteration: The checkpoint that was asked for; None: the newest.

    Raises ValueError, in one line, when there is no such thing.
    """
    if run.startswith(PREFIX):
        return fetch(Repository.parse(run), iteration), iteration
    path, own = locate_checkpoint(run)
    if own is not None and iteration not in (None, own):
        raise ValueError(
            f"iteration is {iteration}: {run} is the checkpoint of iteration {own}; leave one of the two out"
        )
    return path, iteration if own is None else own


def fetch(repository: Repository, iteration: int | None = None) -> Path:
    """Downloads config and agent of a checkpoint, None: the newest, into the client's cache. What is there already is not asked for again.

    Returns a folder as of a run. Raises ValueError, in one line: no such model, a private one, not one of lockstep's, too large, no network.
    """
    hub = client()
    api = hub.HfApi()
    with told(repository):
        found = api.model_info(repository.id, revision=repository.revision, files_metadata=True, timeout=_PATIENCE)
        sizes = {file.rfilename: file.size for file in found.siblings or ()}
        wanted = _wanted(repository, sizes, iteration)
        # the commit that was looked at, whatever is pushed meanwhile
        paths = [Path(api.hf_hub_download(repository.id, name, revision=found.sha)) for name in wanted]
    return paths[0].parent


def _wanted(repository: Repository, sizes: dict[str, int | None], iteration: int | None) -> list[str]:
    """Names of files, the config's first. They are put together here: none is taken over from the Hub."""
    where = f"{PREFIX}{repository.id}"
    held = sorted(int(match[1]) for name in sizes if (match := re.fullmatch(rf"checkpoints/(\d{{8}})/{STATE}", name)))
    if not held or CONFIG not in sizes:
        raise ValueError(f"{where} is no model of lockstep: it has no {CONFIG} or no checkpoint")
    if iteration is not None and iteration not in held:
        raise ValueError(f"iteration is {iteration}: {where} has checkpoints of {', '.join(map(str, held))}")
    place = f"checkpoints/{held[-1] if iteration is None else iteration:08d}"
    names = {CONFIG: CONFIG, f"{place}/{STATE}": STATE, f"{place}/{AGENT}": AGENT}
    for name, kind in names.items():
        size = sizes.get(name)
        if size is None:
            raise ValueError(f"{where} is no model of lockstep: it has no {name}")
        if size > _LARGEST[kind]:
            raise ValueError(f"{where}: {name} has {size:,} bytes; at most {_LARGEST[kind]:,} are read")
    return list(names)
