"""Exceptions raised by llmopt.

Each message says what was wrong, what was expected and what to do. All exceptions derive from
`LLMOptError`, so one ``except`` catches them.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from llmopt.util.text import clean, short

HOPELESS = 5
"""A search ends after this number of evaluations if all of them failed."""

_LISTED = 10  # names that a message lists if one of them is similar
_VERY_MANY = 100
# No credit, a refused key or model, or a wrong address.
_PERMANENT_STATUS = frozenset({301, 302, 303, 307, 308, 401, 402, 403, 404})


class LLMOptError(Exception):
    """Base class of every error that llmopt raises on purpose."""


class SpaceError(LLMOptError, ValueError):
    """A search space is malformed or cannot be searched (such as an unbounded `Box`)."""


class ParameterError(LLMOptError, ValueError):
    """Parameters are not in the search space."""


class RewardError(LLMOptError, ValueError):
    """A reward is not a number (or, for several objectives, not one number each)."""


class TemplateError(LLMOptError, ValueError):
    """A prompt template cannot be read, compiled or rendered."""


class PromptTooLongError(LLMOptError, ValueError):
    """A prompt does not fit its token budget even with no history in it."""


class ParseError(LLMOptError, ValueError):
    """A model's reply could not be read as parameters.

    Attributes:
        raw: The unchanged reply.
        reason: The error, in words that can be sent back to the model.
        reasons: That of each point of the reply, if there are several.
    """

    def __init__(self, reason: str, raw: str = "", reasons: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.raw = raw
        self.reasons = tuple(reasons) or (reason,)

    @property
    def brief(self) -> str:
        """Each reason once, without what was expected."""
        return "; ".join(dict.fromkeys(reason.partition("; ")[0] for reason in self.reasons))

    def __reduce__(self) -> tuple[type[ParseError], tuple[str, str]]:
        return type(self), (self.reason, self.raw)


class PriceError(LLMOptError, ValueError):
    """A price is invalid, or the file of prices cannot be read."""


class StorageError(LLMOptError, OSError):
    """A run file cannot be read or written; earlier lines are intact."""


class StorageInUseError(StorageError):
    """Another process has the run file open for writing; try again later.

    Attributes:
        lent: Whether it waits for its model, and others may record results of the same search.
    """

    lent = False


class BudgetExceededError(LLMOptError):
    """A cap on requests, tokens or cost was reached before a request was sent.

    The optimizer keeps its trials and paid replies, and continues once the cap is raised. After
    the end of the process, only a search with ``storage=`` (or a stored study) does.

    Attributes:
        raised: Name of the cap, and a value with which the search continues: at least twice the old
            one; ``None`` if no higher value helps.
    """

    raised: tuple[str, float] | None = None


class SearchStopped(LLMOptError):
    """The model ended the search, if it may (`may_stop`), or a callback did.

    Every trial is kept. Later asks raise this again, without a request, until you do what the
    message says.

    Attributes:
        point: Number of the point that the model recommends, from 1; ``None`` if it names none.
    """

    def __init__(self, message: str, point: int | None = None) -> None:
        super().__init__(message)
        self.point = point

    def __reduce__(self) -> tuple[type, tuple[str, int | None]]:
        return type(self), (str(self), self.point)


class ClientError(LLMOptError):
    """A request to a model failed.

    Attributes:
        retryable: Whether the same request may succeed later.
        retry_after: Seconds to wait before a retry, as the server asked; or ``None``.
        status: HTTP status, if there was one.
        requests: Number of calls that were sent to the provider.
        unpriced: Number of abandoned calls that may be charged, at an unknown cost.
        cost: Estimated maximum cost, in US dollars, of other abandoned calls.
        estimated: Number of calls in `cost`.
        adapted: Whether the client has changed what it sends, so that a repeat may succeed now.
        permanent: Whether every further request would fail, too.
        exhausted: Whether a permanent error passes, as a usage limit or a long overload does:
            results are kept.
        complaint: Why the last answer could not be used, and the form wanted, if that is the cause.
    """

    retryable: bool = False
    adapted: bool = False
    permanent: bool = False
    exhausted: bool = False
    complaint: str = ""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        requests: int = 1,
        unpriced: int = 0,
        cost: float = 0.0,
        estimated: int = 0,
    ) -> None:
        super().__init__(clean(message))  # it may quote what a server said
        if retryable is not None:
            self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.requests = requests
        self.unpriced = unpriced
        self.cost = cost
        self.estimated = estimated


class ModelNotFoundError(ClientError):
    """A model name, file or package cannot be found; the message says how to get it."""

    permanent = True


class MissingKeyError(ClientError):
    """There is no API key; the message names the environment variable to set."""

    permanent = True


class RefusedKeyError(ClientError):
    """The provider rejected the API key; the message names the environment variable."""

    permanent = True


def is_permanent(error: Exception) -> bool:
    """Whether an error would recur with every request: random points would only hide it."""
    return isinstance(error, ImportError) or (
        isinstance(error, ClientError) and (error.permanent or error.status in _PERMANENT_STATUS)
    )


class NoTrialsError(LLMOptError, ValueError):
    """There is no best trial, because no trial is complete."""


class BrokenTaskError(RewardError):
    """Every evaluation of a task failed."""


class FallbackWarning(UserWarning):
    """The model delivered no usable point; a random one replaces it."""


_LIBRARIES = ("llmopt", "optuna", "nevergrad", "threading", "concurrent", "contextlib")


def warn_user(text: str, category: type[Warning] = FallbackWarning) -> None:
    """Issue a warning that names the running line of the user's code."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    if frame.f_back is None and frame.f_globals.get("__name__") == "threading":
        warnings.warn_explicit(text, category, "llmopt", 0)  # asked in a separate thread
        return
    warnings.warn(text, category, stacklevel=level)


def add_point(error: Exception, params: object, number: int) -> None:
    """Add a note with the point and its trial number to an objective's exception."""
    if type(error).__module__.partition(".")[0] == "llmopt":
        return
    error.add_note(f"llmopt: the objective raised this in trial {number}, at {short(params)}")
    if isinstance(error, TypeError) and isinstance(params, dict) and "dict" in str(error):
        error.add_note(
            "llmopt: the objective gets one dict with all parameters, so compute with its values: "
            f"point[{next(iter(params), 'x')!r}]"
        )


def did_you_mean(name: str, valid: Iterable[str], least: float = 0.6, most: int = _LISTED) -> str:
    """Return the valid names as a phrase: ``"did you mean 'a'? Valid: 'a', 'b'"``.

    Without a near name the question is omitted. A long list of names is shortened to `most`. A name
    is near if its similarity is at least `least`, from 0 to 1.
    """
    names = sorted(set(valid))
    if not names:
        return "there are none"
    near = difflib.get_close_matches(name, names, n=3, cutoff=least)
    ordered = near + [n for n in names if n not in near]
    left = len(ordered) - most if near or len(ordered) > _VERY_MANY else 0
    listed = ", ".join(map(repr, ordered[:most] if left > 0 else ordered))
    more = f", and {left} more" if left > 0 else ""
    return (f"did you mean {near[0]!r}? " if near else "") + f"Valid: {listed}{more}"


@contextlib.contextmanager
def needs(what: str, package: str, *, extra: str = "", otherwise: str = "") -> Iterator[None]:
    """Raise an `ImportError` that says how to install a package, if an import inside fails.

    Args:
        what: The feature that needs the package: the first words of the message.
        package: The package's name.
        extra: The extra of llmopt that installs it, if there is one.
        otherwise: Another remedy: the last words of the message.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "llmopt":
            raise  # no package is missing: this is a fault of ours
        command = install_hint(extra) if extra else f"pip install {package}"
        said = f"{what} needs {package} ({error}): {command}{otherwise}"
        # The import of a missing package adds nothing; in a broken one it says where.
        cause = None if isinstance(error, ModuleNotFoundError) else error
        raise ImportError(said, name=package) from cause


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an extra, or of several with commas."""
    names, project = extra.split(","), Path(__file__).resolve().parents[1] / "pyproject.toml"
    if project.is_file():  # a checkout may be newer than what was installed of it
        import tomllib

        extras = tomllib.loads(project.read_text("utf-8"))["project"]["optional-dependencies"]
        packages = [package for name in names for package in extras[name]]
    else:
        import importlib.metadata

        marks = [f'extra == "{name}"' for name in names]
        lines = [line.split("; ") for line in importlib.metadata.requires("llmopt") or ()]
        packages = [line[0] for line in lines if line[-1] in marks]
    return "pip install " + " ".join(f'"{package}"' for package in dict.fromkeys(packages))


def described(error: BaseException) -> str:
    """Return an exception that ended a search or an evaluation in words."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    return f"{type(error).__name__}: {error}".rstrip(": ")
