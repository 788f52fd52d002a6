"""`lockstep push`: upload a run's agent to the Hugging Face Hub."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.agents import LoadedPolicy, add_checkpoint
from lockstep.cli.arguments import Arguments
from lockstep.envs.engine import EnvironmentFailed
from lockstep.files import read_file
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

if TYPE_CHECKING:
    from lockstep.report.summary import Evaluated

__all__ = ["main", "read"]

_EPISODES = 20


def main(argv: Sequence[str]) -> int:
    """Upload the newest agent, or list the files with `--dry-run`. Return the exit code."""
    args = read(argv)
    folder = RunFolder.open(locate(args.run))

    from lockstep.hub.pushing import push, sign_in
    from lockstep.hub.repository import Repository

    repository = Repository(args.username, args.name or folder.path.resolve().name)
    # before any episode is played, so that a failed sign-in is reported at once
    api = None if args.dry_run else sign_in(repository)
    files = _collect_files(folder, repository.id, args, ("push", *argv))
    if api is None:
        _print_dry_run(repository.id, files, args.public)
        return 0
    address = push(api, repository, files, args.public)
    print(f"{address} ({'public' if args.public else 'private'}): {len(files)} files")
    print(f"lockstep play hub:{repository.id}")
    return 0


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises ValueError for bad input. The message is one line."""
    parser = Arguments(
        "push",
        "Puts the agent of a run on the Hugging Face Hub, with config, metrics, evaluation, video and a model card that has "
        "the command to train it again. Private unless you say --public. The token is that of HF_TOKEN or `hf auth login`.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or its name in runs/")
    add_checkpoint(parser)
    parser.add_argument("--username", required=True, metavar="U", help="your user name on the Hub, or an organization")
    parser.add_argument("--name", metavar="REPO", help="name of the model (default: that of the run)")
    parser.add_argument("--skip-play", action="store_true", help="upload no video")
    parser.add_argument("--public", action="store_true", help="make the model public (default: private)")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the files and print the model card, without uploading"
    )
    parser.add_argument("--env.module", dest="module", metavar="M", help="module that registers the environment")
    return parser.read(argv)


def _collect_files(
    folder: RunFolder, repository_id: str, args: argparse.Namespace, command: Sequence[str]
) -> dict[str, bytes | Path]:
    """Return the files by their names in the repository. Write evaluation and video unless the run folder has them."""
    from lockstep.hub.files import CARD, VIDEO, published
    from lockstep.report.card import write_card
    from lockstep.report.evaluate import EVALUATION, SAMPLED_EVALUATION
    from lockstep.report.summary import summarize

    loaded = LoadedPolicy(str(folder.path), args.iteration, module=args.module, command=command)
    evaluated = _current_evaluation(loaded, folder)
    files: dict[str, bytes | Path] = dict(published(folder, loaded.policy.iteration))
    files[EVALUATION] = read_file(folder.path / EVALUATION)
    summary = summarize(folder)
    if summary.sampled and summary.sampled.digest == evaluated.digest:
        files[SAMPLED_EVALUATION] = read_file(folder.path / SAMPLED_EVALUATION)
    if not args.skip_play:
        files[VIDEO] = _current_video(loaded)
    card = write_card(summary, evaluated, repository_id, None if args.skip_play else VIDEO)
    return {CARD: card.encode(), **files}


def _current_evaluation(loaded: LoadedPolicy, folder: RunFolder) -> "Evaluated":
    """Return the evaluation in the run folder. Write it first if it is of another agent or has no confidence interval."""
    from lockstep.report.summary import summarize

    evaluated = summarize(folder).evaluated
    if evaluated is None or evaluated.digest != loaded.policy.digest or evaluated.result.interval is None:
        loaded.store(loaded.evaluate(_EPISODES))
        evaluated = summarize(folder).evaluated
    assert evaluated is not None
    return evaluated


def _current_video(loaded: LoadedPolicy) -> Path:
    """Return the path of the video of this agent. Record it if it does not exist."""
    if not loaded.video_path.exists():
        try:
            loaded.record(1)
        except (ValueError, EnvironmentFailed) as error:
            kind = EnvironmentFailed if isinstance(error, EnvironmentFailed) else ValueError
            raise kind(f"{error}; --skip-play leaves the video out") from error.__cause__
    return loaded.video_path


def _print_dry_run(repository_id: str, files: dict[str, bytes | Path], public: bool) -> None:
    from lockstep.hub.files import CARD

    print(f"{repository_id}, {'public' if public else 'private'}; nothing was uploaded\n")
    sizes = {name: len(file) if isinstance(file, bytes) else file.stat().st_size for name, file in files.items()}
    width = max(map(len, sizes))
    for name, size in sizes.items():
        print(f"{name:<{width}}  {size:>12,} bytes")
    print(f"{'':<{width}}  {sum(sizes.values()):>12,} bytes\n")
    card = files[CARD]
    assert isinstance(card, bytes)
    print(card.decode(), end="")
