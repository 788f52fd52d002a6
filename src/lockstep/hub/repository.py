"""Name of a model repository on the Hub, and conversion of errors of the Hub client to messages of one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from lockstep.run.locate import HUB_PREFIX

__all__ = ["PREFIX", "Repository", "client", "readable_errors"]

PREFIX = HUB_PREFIX
_MISSING = "the Hub needs huggingface_hub; pip install 'lockstep-rl[hub]'"


@dataclass(frozen=True)
class Repository:
    """Name of a model repository, with a revision."""

    user: str
    """User or organization."""
    name: str
    revision: str | None = None
    """Branch, tag or commit; None means the newest commit of `main`."""

    def __post_init__(self) -> None:
        """Raise ValueError if the Hub does not allow the name. The message is one line."""
        utils = _imported().utils
        try:
            utils.validate_repo_id(self.id)
        except utils.HFValidationError:
            raise ValueError(
                f"{self.id!r} is not a valid model name on the Hub: USER/NAME consists of at most 96 letters, digits, '-', '_' and '.', "
                "without '--' and '..', and neither part begins or ends with '-' or '.'"
            ) from None

    @classmethod
    def parse(cls, text: str) -> "Repository":
        """Parse `hub:USER/NAME` or `hub:USER/NAME@REVISION`. Raises ValueError for anything else."""
        path, separator, revision = text.removeprefix(PREFIX).partition("@")
        user, _, name = path.partition("/")
        if not user or not name or bool(separator) != bool(revision):
            raise ValueError(f"run is {text!r}: a model on the Hub is given as hub:USER/NAME or hub:USER/NAME@REVISION")
        return cls(user, name, revision or None)

    @property
    def id(self) -> str:
        """Id of the repository on the Hub, `USER/NAME`."""
        return f"{self.user}/{self.name}"


def _imported() -> ModuleType:
    """Import huggingface_hub. Raises ValueError if the package is not installed."""
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils  # this also imports `constants` and `logging`
    except ImportError:
        raise ValueError(_MISSING) from None
    return huggingface_hub


def client() -> ModuleType:
    """Return the package `huggingface_hub` with progress bars and warnings disabled. Raises ValueError if it is not installed."""
    hub = _imported()
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity_error()
    return hub


@contextmanager
def readable_errors(repository: Repository) -> Iterator[None]:
    """Convert errors of the client to ValueErrors of one line, which contain neither the token nor text from the server."""
    try:
        yield
    except Exception as error:
        line = _line(error, repository)
        if line is None:
            raise
        raise ValueError(line) from None


def _line(error: BaseException, repository: Repository) -> str | None:
    """Return the message for the user, or None if the error is a bug in the program."""
    hub = _imported()
    errors = hub.errors
    where, endpoint = f"{PREFIX}{repository.id}", hub.constants.ENDPOINT
    if isinstance(error, RuntimeError):  # failed transfer of a large file, with or without its cause
        cause = error.__cause__ and _line(error.__cause__, repository)
        return cause or f"{where}: transfer of a large file failed ({type(error).__name__}); try again"
    if isinstance(error, errors.GatedRepoError):
        return f"{where} is gated: ask its owner for access on {endpoint}/{repository.id}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{where} has no revision {repository.revision!r}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{where} does not exist, or it is private and the token does not give access (set HF_TOKEN or run "
            "`hf auth login`)"
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"{where}: a file was deleted during the download; try again"
    if isinstance(error, errors.HfHubHTTPError):
        reads = error.response.request.method in ("GET", "HEAD")
        return _refusal(error.response.status_code, reads, repository, endpoint)
    # HTTPError comes from httpx, under the name that the client re-exports; ConnectionError from hf_xet and from offline mode
    if isinstance(error, (errors.HTTPError, ConnectionError, TimeoutError, errors.LocalEntryNotFoundError)):
        return f"cannot connect to the Hub at {endpoint} ({type(error).__name__})"
    if isinstance(error, UnicodeError):
        return "the token for the Hub contains invalid characters; check HF_TOKEN or run `hf auth login`"
    if isinstance(error, (errors.XetDownloadError, errors.CorruptedCacheException)):
        return f"{where}: transfer of a large file failed ({type(error).__name__}); try again"
    if isinstance(error, OSError):
        return f"{where}: a local file cannot be read or written ({error.strerror or type(error).__name__})"
    return None


def _refusal(status: int, reads: bool, repository: Repository, endpoint: str) -> str:
    if status == 401:
        return f"{endpoint} rejected the token; create one on {endpoint}/settings/tokens, then set HF_TOKEN or run `hf auth login`"
    if status == 403 and reads:
        return f"the token has no permission to read {repository.id}; it needs the role `read`, or access to this repository"
    if status == 403:
        return f"the token has no permission to write to {repository.id}; it needs the role `write`, and {repository.user} must be your user or organization"
    return f"{endpoint} returned HTTP status {status} for {repository.id}; " + (
        "try again later" if status in (408, 429) or status >= 500 else "nothing was changed"
    )
