"""`lockstep push`: a run's agent on the Hugging Face Hub."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.arguments import Arguments
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

if TYPE_CHECKING:
    from lockstep.cli.agents import Performer
    from lockstep.report.summary import Evaluated

__all__ = ["main", "read"]

_EPISODES = 20


def main(argv: Sequence[str]) -> int:
    """Uploads the agent of the newest checkpoint with what tells of it, or lists that."""
    own = read(argv)
    folder = RunFolder.open(locate(own.run))

    from lockstep.hub.pushing import push, sign_in
    from lockstep.hub.repository import Repository

    repository = Repository(own.username, own.name or folder.path.resolve().name)
    api = None if own.dry_run else sign_in(repository)  # before an episode is played for it
    files = _gather(folder, repository.id, own)
    if api is None:
        _tell(repository.id, files, own.public)
        return 0
    address = push(api, repository, files, own.public)
    print(f"{address} ({'public' if own.public else 'private'}): {len(files)} files")
    print(f"lockstep play hub:{repository.id}")
    return 0


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The command line's own words. Raises ValueError for one that is wrong."""
    parser = Arguments(
        "push",
        "Puts the agent of a run's newest checkpoint on the Hugging Face Hub, with config, metrics, evaluation, video and a model card that has "
        "the command to train it again. Private unless you say --public. The token is that of HF_TOKEN or `hf auth login`.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    parser.add_argument("--username", required=True, metavar="U", help="your name on the Hub, or an organisation's")
    parser.add_argument("--name", metavar="REPO", help="the name of the model (default the run's)")
    parser.add_argument("--skip-play", action="store_true", help="leave the video out")
    parser.add_argument("--public", action="store_true", help="for everybody to see (default private)")
    parser.add_argument("--dry-run", action="store_true", help="list the files and print the card, without any network")
    parser.add_argument("--env.module", dest="module", metavar="M", help="the module that registers its environment")
    return parser.read(argv)


def _gather(folder: RunFolder, place: str, own: argparse.Namespace) -> dict[str, bytes | Path]:
    """The files by their names there. Evaluation and video are made where there are none of this agent."""
    from lockstep.cli.agents import Performer
    from lockstep.hub.files import CARD, VIDEO, published
    from lockstep.report.card import write_card
    from lockstep.report.evaluate import EVALUATION, SAMPLED_EVALUATION
    from lockstep.report.summary import summarize

    performer = Performer(str(folder.path), module=own.module)
    evaluated = _evaluated(performer, folder)
    files: dict[str, bytes | Path] = dict(published(folder, performer.policy.iteration))
    files[EVALUATION] = (folder.path / EVALUATION).read_bytes()
    summary = summarize(folder)
    if summary.sampled and summary.sampled.digest == evaluated.digest:
        files[SAMPLED_EVALUATION] = (folder.path / SAMPLED_EVALUATION).read_bytes()
    if not own.skip_play:
        files[VIDEO] = _film(performer)
    card = write_card(summary, evaluated, place, None if own.skip_play else VIDEO)
    return {CARD: card.encode(), **files}


def _evaluated(performer: "Performer", folder: RunFolder) -> "Evaluated":
    """The evaluation that the run's folder has of this agent, after one was made if there was none with an interval."""
    from lockstep.report.summary import summarize

    found = summarize(folder).evaluated
    if found is None or found.digest != performer.policy.digest or found.result.interval is None:
        performer.evaluate(_EPISODES)
        found = summarize(folder).evaluated
    assert found is not None
    return found


def _film(performer: "Performer") -> Path:
    if not performer.film.exists():
        try:
            performer.record(1)
        except ValueError as error:
            raise ValueError(f"{error}; --skip-play leaves the video out") from None
    return performer.film


def _tell(place: str, files: dict[str, bytes | Path], public: bool) -> None:
    from lockstep.hub.files import CARD

    print(f"{place}, {'public' if public else 'private'}; nothing was uploaded\n")
    sizes = {name: len(at) if isinstance(at, bytes) else at.stat().st_size for name, at in files.items()}
    width = max(map(len, sizes))
    for name, size in sizes.items():
        print(f"{name:<{width}}  {size:>12,} bytes")
    print(f"{'':<{width}}  {sum(sizes.values()):>12,} bytes\n")
    card = files[CARD]
    assert isinstance(card, bytes)
    print(card.decode(), end="")
