"""A model's place on the Hub, and what can go wrong on the way there, told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

__all__ = ["PREFIX", "Repository", "client", "told"]

PREFIX = "hub:"
_MISSING = "the Hub needs huggingface_hub; pip install 'lockstep-rl[hub]'"


@dataclass(frozen=True)
class Repository:
    """A repository of a model, and a state of it."""

    user: str
    """Or organisation."""
    name: str
    revision: str | None = None
    """A branch, tag or commit; None: the newest of `main`."""

    def __post_init__(self) -> None:
        """Raises ValueError, in one line, for a name that the Hub doesn't allow."""
        utils = _imported().utils
        try:
            utils.validate_repo_id(self.id)
        except utils.HFValidationError:
            raise ValueError(
                f"{self.id!r} can't be the name of a model on the Hub: USER/NAME are letters, digits, '-', '_' and '.', at most 96, "
                "without '--' and '..', and neither begins nor ends with '-' or '.'"
            ) from None

    @classmethod
    def parse(cls, text: str) -> "Repository":
        """Reads `hub:USER/NAME` or `hub:USER/NAME@REVISION`. Raises ValueError for anything else."""
        place, at, revision = text.removeprefix(PREFIX).partition("@")
        user, _, name = place.partition("/")
        if not user or not name or bool(at) != bool(revision):
            raise ValueError(f"{text!r}: a model on the Hub is hub:USER/NAME, or hub:USER/NAME@REVISION")
        return cls(user, name, revision or None)

    @property
    def id(self) -> str:
        """As the Hub writes it."""
        return f"{self.user}/{self.name}"


def _imported() -> ModuleType:
    """Raises ValueError where the package is missing."""
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils  # which imports constants and logging too
    except ImportError:
        raise ValueError(_MISSING) from None
    return huggingface_hub


def client() -> ModuleType:
    """The package `huggingface_hub`, which shows no bars and no warnings. Raises ValueError where it is missing."""
    hub = _imported()
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity_error()
    return hub


@contextmanager
def told(repository: Repository) -> Iterator[None]:
    """Turns what the client raises into a ValueError of one line, in which there is no token and nothing that the server wrote."""
    try:
        yield
    except Exception as error:
        line = _line(error, repository)
        if line is None:
            raise
        raise ValueError(line) from None


def _line(error: BaseException, repository: Repository) -> str | None:
    """What it means for the user; None: it is a fault of the program."""
    hub = _imported()
    errors = hub.errors
    where, endpoint = f"{PREFIX}{repository.id}", hub.constants.ENDPOINT
    if isinstance(error, RuntimeError):  # about large files, with or without what it is due to
        cause = error.__cause__ and _line(error.__cause__, repository)
        return cause or f"{where}: a large file did not get through ({type(error).__name__}); try again"
    if isinstance(error, errors.GatedRepoError):
        return f"{where} is gated: ask its owner for access on {endpoint}/{repository.id}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{where} has no revision {repository.revision!r}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{where}: there is no such model, or it is private and there is no token that may see it (HF_TOKEN, or "
            "`hf auth login`)"
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"{where} has lost a file while it was read; try again"
    if isinstance(error, errors.HfHubHTTPError):
        return _refusal(error.response.status_code, repository, endpoint)
    # HTTPError: of httpx, under whatever name the client has it today; ConnectionError: of hf_xet, and offline mode
    if isinstance(error, (errors.HTTPError, ConnectionError, TimeoutError, errors.LocalEntryNotFoundError)):
        return f"the Hub can't be reached at {endpoint} ({type(error).__name__})"
    if isinstance(error, UnicodeError):
        return "the Hub's token holds characters that no token has; see HF_TOKEN and `hf auth login`"
    if isinstance(error, (errors.XetDownloadError, errors.CorruptedCacheException)):
        return f"{where}: a large file did not get through ({type(error).__name__}); try again"
    if isinstance(error, OSError):
        return f"{where} can't be read or kept here ({error.strerror or type(error).__name__})"
    return None


def _refusal(status: int, repository: Repository, endpoint: str) -> str:
    if status == 401:
        return f"{endpoint} does not accept the token; make one on {endpoint}/settings/tokens, then `hf auth login` or HF_TOKEN"
    if status == 403:
        return f"the token may not write to {repository.id}; it needs the role `write`, and {repository.user} must be yours"
    return f"{endpoint} answered {status} for {repository.id}; " + (
        "try again later" if status in (408, 429) or status >= 500 else "nothing was changed"
    )
