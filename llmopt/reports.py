"""The report of any search: an object, a file, a folder or an Optuna storage."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmopt.client.scripted import ScriptedClient
from llmopt.code.views import StoredCode
from llmopt.errors import LLMOptError, StorageError, needs
from llmopt.journal import read_started
from llmopt.optimizer import LLMOptimizer
from llmopt.report_page.page import write_page
from llmopt.util.files import open_file, read_mapping
from llmopt.util.text import a_type, clean, short

_SQLITE = b"SQLite format 3\0"
_JOURNAL = b'{"op_code"'  # how each line of Optuna's journal begins
_STORAGES = ("optimizer.jsonl", "search.jsonl")  # in the folder of a run, of policies or of code


def report(
    search: Any,
    path: str | os.PathLike[str] = "report.html",
    *,
    title: str = "",
    study_name: str | None = None,
    reference: Sequence[float] | Mapping[str, float] | None = None,
) -> Path:
    """Write the report of a search as one self-contained HTML page, and return its path.

        llmopt.report("search.jsonl", "search.html")

    Args:
        search: An optimizer, the result of `minimize`, a `PolicySearch`, a `CodeOptimizer`, an
            Optuna study; or a storage file, a description of a search, the folder of an ``llmopt
            run``, or an Optuna storage: a database's URL, an SQLite file or a journal file.
        path: The file. An existing file is replaced.
        title: The page's title; by default the name of the file, the folder or the study.
        study_name: Which study of an Optuna storage; needed if it holds several.
        reference: Reference point of the hypervolume of several objectives, a number for each.

    Raises:
        ImportError: Optuna or Plotly is not installed.
        StorageError: The search cannot be read, or the page cannot be written.
        TypeError: `search` is no search.
    """
    if isinstance(search, str | os.PathLike):
        search, name = open_search(str(search), study_name)
        title = title or name
    elif not hasattr(search, "to_optuna") and not hasattr(search, "study_name"):
        raise TypeError(
            f"got {a_type(search)}: expected a search, an Optuna study, or the path of a storage "
            "file, a run folder or an Optuna storage"
        )
    return write_page(search, path, title=title, reference=reference)


def is_search(path: str) -> bool:
    """Whether a path or address is a search, not a benchmark's result file.

    Raises:
        StorageError: There is no such file.
    """
    file = Path(path)
    if "://" in path or file.is_dir():
        return True
    head = _head(file)
    if file.suffix in (".toml", ".json") and b'"cell"' not in head:
        return "space" in read_mapping(file)
    return head.startswith((_SQLITE, _JOURNAL)) or b'"event"' in head[:40]


def open_search(path: str, study_name: str | None = None) -> tuple[Any, str]:
    """Return the search that a path names, only to read it, and what it is called.

    Raises:
        ImportError: It is an Optuna storage, and Optuna is not installed.
        StorageError: It cannot be read, or holds no search.
    """
    if "://" in path:
        return _study(path, path, study_name), ""
    file = Path(path)
    if file.is_dir():
        storage = next(filter(Path.is_file, (file / name for name in _STORAGES)), None)
        if storage is None:
            raise StorageError(
                f"{file} is not the folder of an llmopt run: it has no {' or '.join(_STORAGES)}. "
                "Give such a folder, or a storage file"
            )
        return _stored(storage), clean(file.resolve().name)
    head = _head(file)
    if head.startswith(_SQLITE):
        return _study(f"sqlite:///{path}", path, study_name), ""
    if head.startswith(_JOURNAL):
        with needs("a report of an Optuna journal", "optuna", extra="report"):
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend
        return _study(JournalStorage(JournalFileBackend(path)), path, study_name), ""
    if file.suffix in (".toml", ".json") and "space" in read_mapping(file):
        storage = file.with_suffix(".jsonl")
        if not storage.exists():
            raise StorageError(
                f"{file} describes a search that has not begun: `llmopt ask {file}` begins it"
            )
        file = storage
    return _stored(file), clean(file.stem)


def _head(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            return bytes(file.read(200)).lstrip()
    except OSError as error:
        remedy = "" if path.exists() else (
            "; give a storage file, a run folder, the URL of an Optuna storage such as "
            "sqlite:///study.db, or a file that llmopt bench wrote"
        )  # fmt: skip
        raise StorageError(f"cannot read {path}: {error.strerror}{remedy}") from error


def _stored(path: Path) -> Any:
    """Return a stored search, from which nobody proposes."""
    if "functions" in read_started(path).identity:
        return StoredCode(path)
    nobody: dict[str, Any] = {"prompt": "words", "partner": None}
    return LLMOptimizer.load(path, ScriptedClient([]), **nobody)


def _study(storage: Any, shown: str, name: str | None) -> Any:
    """Return a study of a storage, which is never made."""
    with needs("a report of an Optuna study", "optuna", extra="report"):
        import optuna
    scheme, mark, rest = shown.partition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2]}" if mark else shown  # without a password
    try:
        if isinstance(storage, str):
            _check_database(storage, shown)
        names = optuna.get_all_study_names(storage)
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            listed = ", ".join(map(short, names[:10])) or "none"
            raise StorageError(
                f"{shown} holds no study {short(name)}: name one with --study NAME (study_name=). "
                f"Studies: {listed}"
            )
        return optuna.load_study(study_name=name, storage=storage)
    except LLMOptError:
        raise
    except Exception as error:  # of Optuna, SQLAlchemy, a database's driver
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StorageError(f"cannot read the Optuna storage: {clean(text)}") from error


def _check_database(url: str, shown: str) -> None:
    """Raise unless a database holds studies: Optuna would make its tables, and an SQLite file."""
    import sqlalchemy

    place = sqlalchemy.make_url(url)
    file = place.database or ":memory:"
    if place.get_backend_name() == "sqlite" and not Path(file).is_file():
        raise StorageError(f"cannot read {shown}: there is no file {file}")
    engine = sqlalchemy.create_engine(place)
    try:
        if not sqlalchemy.inspect(engine).has_table("studies"):
            raise StorageError(f"{shown} holds no study of Optuna: give another storage")
    finally:
        engine.dispose()
