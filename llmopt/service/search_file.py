"""A search that the shell and MCP open from its description or its file."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmopt.client.base import Client
from llmopt.client.model_string import (
    get_client,
    names_a_place,
    one_model,
    with_options,
)
from llmopt.client.scripted import ScriptedClient
from llmopt.errors import (
    LLMOptError,
    ModelNotFoundError,
    StorageError,
    StorageInUseError,
)
from llmopt.history import Proposal
from llmopt.journal import read_started
from llmopt.optimizer import Asker, LLMOptimizer, Recorder
from llmopt.points import cannot_be_used, not_allowed
from llmopt.reports import stored_search
from llmopt.resume_check import arguments_of, parameters_of, started_there
from llmopt.service.description import read_description
from llmopt.space import Space
from llmopt.space.constraints import read_constraints
from llmopt.util.files import nearby, read_mapping
from llmopt.util.text import cut

logger = logging.getLogger(__name__)

_PAUSE = 0.2  # seconds between two looks at a file that is in use
_SUFFIX = ".jsonl"
_EXAMPLES = {
    ".json": '{"space": {"x": {"type": "number", "minimum": 0, "maximum": 1}}, "direction": '
    '"minimize", "model": "smollm2"}',
    ".toml": 'model = "smollm2", direction = "minimize" and space.x = {type = "number", minimum = '
    "0, maximum = 1}",
}
AGENT = "agent"
"""The model of a search of `llmopt mcp` whose requests the agent answers itself."""

MOST_DESCRIPTION = 1_000_000
"""Bytes of a description of a search."""


def open_file(
    path: str | Path,
    *,
    model: str | None = None,  # in place of the one that is named there
    options: Sequence[str] = (),  # of the model, each ``name=value``
    packages: Sequence[str] = (),  # `compute_packages`, which no file may name
    wait: float = 0.0,  # seconds, for another process that has the file open
    asks: bool = True,  # else nothing is said of how its model is asked, and a model that cannot be
    # had does not matter to a search that has begun
    reads: bool = False,  # whether it is only read: no file is made, and none is waited for
) -> LLMOptimizer[Any]:
    """Open a search for asking and telling.

    `path` is a description (``.json`` or ``.toml``), whose storage lies beside it under the same
    name with ``.jsonl``, or a storage file.

    Raises:
        LLMOptError: The description or the file is not valid, or another process keeps it.
    """
    path = Path(path)
    if not path.name:  # "." or "/", which has no description beside it
        raise StorageError(f"cannot read {path}: it is a folder: give a regular file")
    if (described := description_of(path)) is not None:
        storage = described.with_suffix(_SUFFIX)
        description = read_mapping(described, most=MOST_DESCRIPTION)
        if model is None and asks:
            _check_harmless(described, description.get("model"))
        return open_described(
            description,
            storage,
            described.parent,
            model=model,
            options=options,
            packages=packages,
            wait=wait,
            asks=asks,
            reads=reads,
        )
    if not path.exists():
        raise StorageError(
            f"there is no {path}{nearby(path)}: give the description of a search (.json or .toml), "
            "or a file that storage= wrote"
        )
    if reads and (stored := _stored(path)) is not None:
        return stored
    arguments = _arguments(path)
    if model is None and asks:
        _check_harmless(path, arguments["client"])
    try:
        how: dict[str, Any] = {"model": model, "options": options, "packages": packages}
        return _open(arguments, path, **how, wait=wait, asks=asks)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{error}. Give --model") from None


def description_of(path: Path) -> Path | None:
    """Return the file that describes a search, given it or its storage; ``None`` without one."""
    for suffix in (".json", ".toml"):
        described = path.with_suffix(suffix)
        if path == described and not path.exists():
            raise StorageError(
                f"there is no {path}{nearby(path)}: give the path of an existing file. A "
                "description of a search holds its parameters, direction and model, such as "
                f"{_EXAMPLES[suffix]}"
            )
        if path == described or (path.suffix in ("", _SUFFIX) and described.is_file()):
            return described
    return None


def breaking(
    optimizer: LLMOptimizer[Any],
    described: Path,
    proposals: Sequence[Proposal],
    links: bool = True,
) -> list[str]:
    """Name the points that break a limit which was added while the model was asked."""
    space = optimizer.space
    try:
        data = read_mapping(described, most=MOST_DESCRIPTION, links=links)
        now = read_description(data, described.parent)
        limits = read_constraints(now.get("constraints", ()), space.names)
        if isinstance(now["space"], Space):
            limits = (*limits, *now["space"].limits)
        broken = [(p, space.broken(p.values, limits)) for p in proposals]
    except (LLMOptError, LookupError, TypeError, ValueError) as error:
        return [cannot_be_used(described, error)]
    return [not_allowed(space, p, f"breaks {', '.join(each)}") for p, each in broken if each]


def _check_harmless(path: Path, model: object) -> None:
    """Raise if a file alone would decide where prompts and keys go, or what is read or run."""
    if model == AGENT:
        raise LLMOptError(
            f"{path}: an agent answers the requests of this search, by ask() and answer() of "
            "`llmopt mcp`. Give --model to ask another one here"
        )
    if names_a_place(str(model)):
        said = cut(str(model), 100)
        raise StorageError(
            f"{path} names {said!r} as its model: an address, a file, a folder or a command is "
            f"asked only if you name it, too. Give --model {shlex.quote(said)}"
        )


def open_described(
    description: Mapping[str, Any],
    storage: Path | None,
    folder: Path,  # of the description
    *,
    client: Client | None = None,  # in place of a model
    **how: Any,  # as for `open_file`
) -> LLMOptimizer[Any]:
    """Open the search of a description as `open_file` does."""
    arguments = read_description(description, folder)
    return _open(arguments | ({} if client is None else {"client": client}), storage, **how)


def _open(
    arguments: dict[str, Any],
    path: Path | None,
    *,
    model: str | None = None,
    options: Sequence[str] = (),
    packages: Sequence[str] = (),
    wait: float = 0.0,
    asks: bool = True,
    reads: bool = False,
) -> LLMOptimizer[Any]:
    """Open a search by the arguments of `LLMOptimizer`."""
    arguments = {**arguments, "compute_packages": packages}
    if model is not None or options:
        named = model or str(arguments.get("client") or one_model(None, None))
        arguments["client"] = with_options(named, options)
    kind = Asker if asks and not reads else Recorder
    if not asks and path is not None and path.exists():
        arguments = _with_own_model(arguments, path)
    until, said = time.monotonic() + wait, False
    try:
        if reads:
            return _to_read(kind, arguments, path)
        while True:
            try:
                return _to_write(kind, arguments, path)
            except StorageInUseError:
                if time.monotonic() >= until:
                    raise
                if not said:
                    logger.warning(
                        "%s is in use by another program, perhaps an `llmopt ask` that waits for "
                        "its model: waiting up to %g s. To go on sooner, answer its request, or "
                        "end it (`lsof %s` names it)",
                        path, wait, path,
                    )  # fmt: skip
                    said = True
                time.sleep(_PAUSE)
            except LLMOptError:
                arguments = {} if asks else _without_table(arguments, path)
                if not arguments:
                    raise
    except (TypeError, ValueError) as error:
        if isinstance(error, LLMOptError):
            raise
        raise LLMOptError(str(error)) from error


def _to_write(
    kind: type[LLMOptimizer[Any]], arguments: dict[str, Any], path: Path | None
) -> LLMOptimizer[Any]:
    """Open a search; as it is stored, to record beside an ask that began before it was edited."""
    try:
        return kind(storage=path, **arguments)
    except StorageInUseError as error:
        if path is None or not error.lent or kind is not Recorder:
            raise
    optimizer = kind(storage=path, **_as_stored(arguments, path))
    logger.warning(
        "%s: `llmopt ask` waits for its model. What was edited since (candidates, limits, units) "
        "applies from the next `llmopt ask` on, and not yet here",
        path,
    )
    return optimizer


def _with_own_model(arguments: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the arguments with which a stored search keeps its model, and runs no Python."""
    found = {name: value for name, value in arguments.items() if name != "compute"}
    if path.is_file() and path.stat().st_size:
        stored = _arguments(path)
        found |= {"client": stored["client"], "prompt": stored["prompt"]}
    return found | {"client": _nobody(found.get("client"))}


def _to_read(
    kind: type[LLMOptimizer[Any]], arguments: dict[str, Any], path: Path | None
) -> LLMOptimizer[Any]:
    """Open a search only to read it."""
    begun = _stored(path) if path is not None and os.path.lexists(path) else None
    if begun is not None:  # its points to start with may be no candidates any more
        arguments.pop("start", None)
    try:
        optimizer = kind(**arguments)  # whether the description is valid
    except LLMOptError:
        if begun is None or not _fault_of_table(arguments, path):  # of which there was a warning
            raise
        return begun
    return begun or optimizer


def _without_table(arguments: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Return the arguments of a stored search if its table of candidates is at fault; else none."""
    if path is None or not (fault := _fault_of_table(arguments, path)):
        return {}
    logger.warning("%s is used without its candidates: %s", path, fault)
    return _as_stored(arguments, path)


def _as_stored(arguments: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the arguments of a stored search, without the rows of its candidates."""
    own = {"compute_packages": arguments["compute_packages"]}
    return _with_own_model(_arguments(path) | own, path)


def _fault_of_table(arguments: Mapping[str, Any], path: Path | None) -> str:
    """Say why a table of candidates cannot be used, as while its user edits it; else nothing."""
    if "candidates" not in arguments:
        return ""
    space, constraints = arguments["space"], arguments.get("constraints", ())
    known = parameters_of(started_there(path))
    try:
        Space.among(space, arguments["candidates"], constraints, known)
    except LLMOptError as error:
        return str(error)
    return ""


def _nobody(model: Any) -> Any:
    """Return a model by its name, or one that answers nothing if there is none of that name."""
    if isinstance(model, str):
        try:
            if not names_a_place(model):
                return get_client(model)
        except LLMOptError:
            pass
        return ScriptedClient.nobody(model)
    return model


def _stored(path: Path) -> LLMOptimizer[Any] | None:
    """Return a stored search for reading, even if a process has it open; ``None`` if empty."""
    if not path.is_symlink() and path.stat().st_size == 0:
        return None
    read_started(path, links=False)  # the folder may be somebody else's
    return stored_search(path)


def _arguments(path: Path) -> dict[str, Any]:
    """Return the arguments of a stored search."""
    try:
        return arguments_of(read_started(path), {}, path)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(
            f"{path}, line 1: it is not as llmopt wrote it ({type(error).__name__}: {error}). "
            "Restore the file from a copy"
        ) from error
