"""Finding the folder of a run by path or name."""

from difflib import get_close_matches
from pathlib import Path

from lockstep.run.settings import RunConfig

__all__ = ["locate", "locate_checkpoint"]


def locate(text: str) -> Path:
    """Return the folder of a run, given by path or by its name inside `runs/`. The ValueError names the nearest run of `runs/`."""
    root = Path(RunConfig.folder)
    places = [Path(text), root / text]
    for place in places:
        if (place / "config.json").is_file():
            return place
    there = next((place for place in places if text and place.is_dir()), None)
    if there is not None:
        raise ValueError(f"{there} is not a run: it holds no config.json")
    if text and Path(text).exists():
        raise ValueError(f"{text} is not a run: a run is a folder")
    known = sorted(path.parent.name for path in root.glob("*/config.json"))
    close = get_close_matches(Path(text).name, known, 1)
    hint = f"did you mean {root / close[0]}?" if close else f"{root}/ holds {', '.join(known) or 'no runs yet'}"
    raise ValueError(f"{text!r}: there is no such run; {hint}")


def locate_checkpoint(text: str) -> tuple[Path, int | None]:
    """Return the folder of a run, and the iteration if `text` is a checkpoint, `RUN/checkpoints/00000050`. Raises ValueError as `locate` does."""
    place = Path(text)
    if place.name.isdecimal() and place.parent.name == "checkpoints":
        return locate(str(place.parent.parent)), int(place.name)
    return locate(text), None
