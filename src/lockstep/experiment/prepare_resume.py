"""Checks before a run is resumed: the folder, its checkpoints, and the versions of the packages."""

import os
import pwd
from contextlib import suppress

from lockstep.config import Config
from lockstep.experiment.execute import check_checkpoint, open_run, save_config
from lockstep.experiment.resolve import iterations
from lockstep.experiment.start import announce_start, is_complete
from lockstep.experiment.storing import check_stored, remove_stored_after, store_rest
from lockstep.messages import print_warning
from lockstep.run.environment import packages
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import CheckpointDamaged, newest_intact, with_advice

__all__ = ["check_writable", "prepare_resume", "version_warning"]


def prepare_resume(folder: RunFolder, before: Config, config: Config, iteration: int | None, ranks: int) -> int | None:
    """Announce the start on `ranks` ranks, check the checkpoint, save the config, and return the iteration; None if the run is complete.

    The caller holds the run's lock. `before` is the config that was read from the folder. `iteration` None: the newest checkpoint that is
    intact, with a warning that names newer ones; 0: the start. Raises ValueError if there is no such checkpoint, it is damaged, this user
    can't write the folder, or another process has changed the config since it was read.
    """
    if open_run(folder.path)[1] != before:
        raise ValueError(f"{folder}/config.json was changed by another process meanwhile: call resume again")
    check_writable(folder)
    check_stored(folder, config.run)
    candidates = _candidates(folder, iteration)
    damaged: list[CheckpointDamaged] = []
    while candidates:
        found = newest_intact(folder, filter(None, candidates))
        damaged += found.damaged
        if found.state is None and 0 not in candidates:
            break
        for error in damaged:
            print_warning(f"{error}; resuming from an earlier one")
        damaged.clear()
        if is_complete(folder, config, found.iteration):
            if config.run.total_steps > before.run.total_steps and found.iteration < iterations(config):
                raise ValueError(
                    f"run.total_steps is {config.run.total_steps}: {folder} ended before its budget was used up, by run.stop_at_return or a hook, "
                    "and a larger budget does not continue it; start a new run"
                )
            store_rest(folder, config.run)
            return None
        announce_start(folder, config, ranks, found.iteration)
        try:
            if found.state is not None:  # this imports PyTorch, which takes seconds
                check_checkpoint(folder, config, found.iteration, found.state)
        except CheckpointDamaged as error:
            damaged.append(error)
            candidates = [number for number in candidates if number < found.iteration]
            continue
        if found.state is not None and (line := version_warning(folder)):
            print_warning(line)
        if iteration is not None:
            remove_stored_after(folder, config.run, iteration)
        if config != before:
            save_config(folder, config)
        folder.unmark_pruned()
        return found.iteration
    if iteration is not None:
        raise with_advice(damaged[0], folder.checkpoint(iteration))
    raise ValueError(f"{damaged[0]}; no earlier checkpoint is intact: --iteration 0 starts the run from the beginning")


def _candidates(folder: RunFolder, iteration: int | None) -> list[int]:
    """Return the iterations to resume from: `iteration`; None: all that have a checkpoint, or 0."""
    checkpoints = folder.checkpoints()
    if iteration is None:
        return checkpoints or [0]
    if iteration not in (0, *checkpoints):
        raise ValueError(
            f"iteration is {iteration}: {folder} has checkpoints of {', '.join(map(str, checkpoints)) or 'none'}"
        )
    return [iteration]


def check_writable(folder: RunFolder) -> None:
    """Raise ValueError if this user can't write what a resumed run writes, for example because the folder belongs to another user."""
    for path in (folder.path, folder.path / "checkpoints", folder.path / "metrics.jsonl", folder.path / "starts.jsonl"):
        if path.exists() and not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            number = path.stat().st_uid
            owner = str(number)
            with suppress(KeyError):  # a user of another host
                owner = pwd.getpwuid(number).pw_name
            raise ValueError(
                f"{path} can't be written by this user: it belongs to {owner}; copy the run, and resume the copy"
            )


def version_warning(folder: RunFolder) -> str | None:
    """Return a line that names the packages of which the run was made with other versions; None if there are none."""
    try:
        recorded = folder.environment().get("packages")
    except ValueError:
        return None
    if not isinstance(recorded, dict):
        return None
    changed = [
        f"{name} {version} ({before[:40]} in the run)"
        for name, version in packages().items()
        if isinstance(before := recorded.get(name), str) and before != version
    ]
    if not changed:
        return None
    return f"the packages are not those of the run, and may give different bits: {', '.join(changed)}"
