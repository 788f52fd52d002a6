"""Finding the folder of a run by path or name."""

from difflib import get_close_matches
from pathlib import Path

from lockstep.run.settings import RunConfig

__all__ = ["HUB_PREFIX", "locate", "locate_checkpoint", "locate_sweep"]

HUB_PREFIX = "hub:"
"""Beginning of the name of a model on the Hugging Face Hub."""
_NEWEST = 5
"""Number of runs that an error message lists."""


def locate(text: str) -> Path:
    """Return the folder of a run, given by path or by its name inside `runs/`.

    Raises ValueError if there is no such run; the message names the nearest and the newest runs of `runs/`. A model on the Hub is no run folder.
    """
    root = Path(RunConfig.folder)
    candidates = [Path(text), root / text]
    for candidate in candidates:
        if (candidate / "config.json").is_file():
            return candidate
    there = next((candidate for candidate in candidates if text and candidate.is_dir()), None)
    if there is not None:
        held = sorted(path.parent for path in (*there.glob("*/config.json"), *there.glob("runs/*/config.json")))
        hint = f"; it holds runs, such as {held[0]}" if held else ""
        raise ValueError(f"{there} is not a run: it holds no config.json{hint}")
    if text and Path(text).exists():
        raise ValueError(f"{text} is not a run: a run is a folder")
    if text.startswith(HUB_PREFIX):
        raise ValueError(
            f"{text!r} is a model on the Hub: give a run folder, or its name in {root}/; only `lockstep play` and `lockstep eval`, and in Python "
            "lockstep.load and lockstep.evaluate, take models on the Hub"
        )
    newest = sorted(root.glob("*/config.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    known = [path.parent.name for path in newest]
    close = get_close_matches(Path(text).name, known, 1)
    hints = [f"did you mean {root / close[0]}?"] if close else []
    if len(known) > _NEWEST:
        hints.append(f"the newest in {root}/ are {', '.join(known[:_NEWEST])}")
    elif not close or len(known) > 1:
        hints.append(f"{root}/ holds {', '.join(sorted(known)) or 'no runs yet'}")
    raise ValueError(f"{text!r}: there is no such run; {' '.join(hints)}")


def locate_checkpoint(text: str) -> tuple[Path, int | None]:
    """Return the folder of a run, and the iteration if `text` is a checkpoint, such as `RUN/checkpoints/00000050`.

    Raises ValueError as `locate` does.
    """
    candidate = Path(text)
    if candidate.name.isdecimal() and candidate.parent.name == "checkpoints":
        return locate(str(candidate.parent.parent)), int(candidate.name)
    return locate(text), None


def locate_sweep(text: str) -> Path | None:
    """Return the folder of a sweep, given by path or by its name inside `runs/`; None if `text` is no folder of a sweep with runs."""
    candidates = [Path(text), Path(RunConfig.folder) / text]
    return next((candidate for candidate in candidates if text and _is_sweep(candidate)), None)


def _is_sweep(candidate: Path) -> bool:
    """Return True if the folder has runs of a sweep, which writes a log or a table of them: other folders may hold a folder `runs` too."""
    names = [path.parent.name for path in candidate.glob("runs/*/config.json")]
    return any((candidate / "logs" / f"{name}.log").exists() for name in names) or (
        bool(names) and (candidate / "runs.json").exists()
    )
