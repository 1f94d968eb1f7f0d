"""Reads searches from objects, files and databases as `SearchData`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmopt.client.base import client_name
from llmopt.client.scripted import ScriptedClient
from llmopt.errors import LLMOptError, StorageError, needs
from llmopt.history import History, Proposal, Trial
from llmopt.report.data import SearchData, parameters_of, point_of, unfinished_point
from llmopt.space import Space
from llmopt.util.files import open_file, read_json_object, read_mapping
from llmopt.util.text import a_type, clean, curve_in, cut, short

if TYPE_CHECKING:
    from llmopt.optimizer import LLMOptimizer

_SQLITE = b"SQLite format 3\0"
_JOURNAL = b'{"op_code"'  # how each line of Optuna's journal begins
_RUN_CONFIG, _RUN_STORAGE = "config.json", "optimizer.jsonl"  # in the folder of a run
_RESUME = "To resume, run the same program again with the same storage."
_SETTINGS = {
    "batch_size": "points a request", "warmup": "warm-up points", "partner": "partners",
    "noisy": "noisy", "total": "trials planned", "max_requests": "cap on requests",
    "max_tokens": "cap on tokens", "max_cost": "cap on cost (US dollars)", "task": "task",
}  # fmt: skip


def read_search(source: Any, study_name: str | None = None) -> SearchData:
    """Return the data of a report about a search.

    Args:
        source: An `LLMOptimizer`, the result of `minimize`, a `PolicySearch`, a Nevergrad optimizer
            of llmopt, an Optuna study, a storage file of llmopt, the folder of an ``llmopt run``,
            or an Optuna storage: a database's URL, an SQLite file or a journal file.
        study_name: Which study of an Optuna storage; needed if it holds several.

    Raises:
        StorageError: The file cannot be read, or holds no search.
        TypeError: `source` is something else.
        ImportError: An Optuna storage is read, and Optuna is not installed.
    """
    if isinstance(source, SearchData):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _of_path(str(source), study_name)
    if hasattr(source, "search_data"):  # a Nevergrad optimizer
        data: SearchData = source.search_data()
        return data
    if hasattr(source, "optimizer"):  # a result, or a PolicySearch
        return _of_result(source)
    if hasattr(source, "trials") and hasattr(source, "space"):
        return _of_optimizer(source, source.start_event())
    if hasattr(source, "trials") and hasattr(source, "study_name"):
        from llmopt.report.studies import of_study

        return of_study(source)
    raise TypeError(
        f"got {a_type(source)}: expected an optimizer, a result, a PolicySearch, an "
        "Optuna study, or the path of a storage file, a run folder or an Optuna storage"
    )


def is_search(path: str) -> bool:
    """Whether a path or address is a search, not a benchmark's result file.

    Raises:
        StorageError: There is no such file.
    """
    file = Path(path)
    if "://" in path or file.is_dir():
        return True
    if not file.exists():
        raise _no_such(path)
    if not file.is_file():
        return False
    _refuse_description(file)
    head = _head(file)
    return head.startswith((_SQLITE, _JOURNAL)) or b'"event"' in head[:40]


def _refuse_description(file: Path) -> None:
    """Raise if a file describes a search for `llmopt ask`, or is to be one and cannot be read."""
    if file.suffix not in (".toml", ".json") or b'"cell"' in _head(file):
        return
    if "space" in read_mapping(file):
        storage = file.with_suffix(".jsonl")
        begun = "" if storage.exists() else f" (`llmopt ask {file}` begins it)"
        raise StorageError(
            f"{file} describes a search, and a report is made of its storage: give {storage}{begun}"
        )


def _no_such(path: str) -> StorageError:
    return StorageError(
        f"cannot read {path}: there is no such file; give a storage file, a run folder, the URL of "
        "an Optuna storage such as sqlite:///study.db, or a file that llmopt bench wrote"
    )


def _head(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            return bytes(file.read(200)).lstrip()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error


def _of_path(path: str, study_name: str | None) -> SearchData:
    if "://" in path:
        return _of_optuna_storage(path, path, study_name)
    file = Path(path)
    if file.is_dir():
        return _of_run_folder(file)
    if not file.exists():
        raise _no_such(path)
    head = _head(file)
    if head.startswith(_SQLITE):
        return _of_optuna_storage(f"sqlite:///{path}", path, study_name)
    if head.startswith(_JOURNAL):
        with needs("a report of an Optuna journal", "optuna", extra="optuna"):
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend
        return _of_optuna_storage(JournalStorage(JournalFileBackend(path)), path, study_name)
    optimizer, start = _load(file)
    data = _of_optimizer(optimizer, start)
    return replace(data, title=_title_of(file), origin=f"storage file {path}", resume=_RESUME)


def _load(path: Path) -> tuple[LLMOptimizer[Any], Event]:
    """Return a stored search, for reading only, and the first line of its file."""
    from llmopt.optimizer import LLMOptimizer

    start = start_of(list(islice(read_events(path), 1)), path)
    # No partner and no prompt of theirs: nothing is proposed.
    nobody: dict[str, Any] = {"prompt": "words", "partner": None}
    return LLMOptimizer.load(path, ScriptedClient([]), **nobody), start


def _of_optimizer(optimizer: LLMOptimizer[Any], start: Event) -> SearchData:
    options, storage = start["options"], optimizer.storage
    origin = "a search in this process" if storage is None else f"storage file {storage}"
    return of_history(
        optimizer.space, optimizer.trials, optimizer.history, origin,
        resume="" if storage is None else _RESUME,
        usage=optimizer.usage, ended=optimizer.stopped, planned=options.get("total"),
        description=str(options.get("description") or ""),
        facts=tuple(_facts(start, optimizer.space.constraints)),
        unfinished=unfinished_points(
            optimizer.space, optimizer.trials, optimizer.pending_proposals
        ),
        title=_title_of(storage),
    )  # fmt: skip


def _title_of(file: Path | None) -> str:
    """Return what a search is called: its file, or the folder of its run."""
    if file is None:
        return "Search"
    in_run = file.name == _RUN_STORAGE and (file.parent / _RUN_CONFIG).is_file()
    return clean(file.resolve().parent.name if in_run else file.stem)


def unfinished_points(
    space: Space, trials: Sequence[Trial[Any]], proposals: Iterable[Proposal]
) -> tuple[Trial[Any], ...]:
    """Return the points that were asked for and have no result, numbered after the trials."""
    return tuple(
        unfinished_point(
            number, point_of(space, p.values), source=p.source, explanation=p.explanation
        )
        for number, p in enumerate(proposals, start=len(trials))
    )


def of_history(
    space: Space,
    trials: Sequence[Trial[Any]],
    history: History,
    origin: str,
    *,
    title: str = "Search",
    **facts: Any,
) -> SearchData:
    """Return the data of a report about a search over a space.

    Args:
        space: The space.
        trials: All trials; repeated evaluations are separate.
        history: The trials as the prompts show them.
        origin: The source of the search, in words.
        title: What the search is called.
        **facts: Further fields of `SearchData`.
    """
    flat = [replace(t, params=point_of(space, t.values)) for t in trials]
    curves = {t.number: curve_in(t.feedback) for t in flat}
    data = SearchData(
        title=title,
        origin=origin,
        parameters=parameters_of(space),
        directions=history.directions,
        metrics=history.metrics,
        trials=tuple(flat),
        merged=tuple(_merged(space, flat, history)) if history.noisy else (),
        curves={number: curve for number, curve in curves.items() if curve},
        **facts,
    )
    return data.with_best()


def _merged(space: Space, trials: Sequence[Trial[Any]], history: History) -> Iterator[Trial[Any]]:
    """Yield the trials of a noisy history under the numbers of their first measurements."""
    first: dict[Any, int] = {}
    for t in trials:
        if t.state == "complete":
            first.setdefault(space.key(t.values), t.number)
    others = iter([t.number for t in trials if t.state != "complete"])
    for t in history.trials:
        number = first[space.key(t.values)] if t.state == "complete" else next(others)
        yield replace(t, number=number, params=point_of(space, t.values))


def _facts(start: Event, constraints: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield how a search was set up, as the first line of its file says it."""
    client = start["client"]
    yield "model", clean(client if isinstance(client, str) else client_name(client))
    prompt = start["prompt"]
    name = prompt.get("name", "") if isinstance(prompt, Mapping) else prompt
    yield "prompt", cut(clean(name), 80)
    for constraint in constraints:
        yield "constraint", clean(constraint)
    for option, label in _SETTINGS.items():
        value = start["options"].get(option)
        if value not in (None, False, [], {}, ""):
            yield label, cut(clean(_plain(value)), 400)
    yield "seed", str(start["seed"])
    yield "llmopt", clean(start["llmopt"])


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {v}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _of_result(source: Any) -> SearchData:
    data = read_search(source.optimizer)
    ended = str(getattr(source, "stopped", "")) or data.ended
    title = data.title
    if hasattr(source, "policy"):
        title = str(dict(data.facts).get("task", "")).partition(", ")[0]
        title = title.removeprefix("environment: ") or "Policy search"
    try:
        chosen = source.best
        same = [t for t in data.trials if t.values == chosen.values and t.rewards]
        best = data.best if not same or len(data.directions) > 1 else same[0]
        if best is not None and data.best is not None and best.values == data.best.values:
            best = data.best
    except LLMOptError:  # there is no complete trial
        best = None
    return replace(data, ended=ended, title=title, best=best)


def _of_optuna_storage(storage: Any, shown: str, study_name: str | None) -> SearchData:
    with needs("a report of an Optuna study", "optuna", extra="optuna"):
        import optuna

        from llmopt.report.studies import of_study
    try:
        if isinstance(storage, str):
            _check_database(storage)
        if study_name is None:
            names = optuna.get_all_study_names(storage)
            if len(names) != 1:
                listed = ", ".join(map(repr, names[:10])) or "none"
                raise StorageError(
                    f"{_without_password(shown)} holds {len(names)} studies ({listed}): name one "
                    "with --study NAME (study_name=)"
                )
            study_name = names[0]
        study = optuna.load_study(study_name=study_name, storage=storage)
    except LLMOptError:
        raise
    except KeyError as error:
        listed = ", ".join(map(repr, optuna.get_all_study_names(storage)[:10])) or "none"
        raise StorageError(
            f"{_without_password(shown)} holds no study {short(study_name)}. Studies: {listed}"
        ) from error
    except Exception as error:  # of Optuna, SQLAlchemy, a database's driver
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StorageError(f"cannot read the Optuna storage: {clean(said)}") from error
    return replace(of_study(study), origin=f"Optuna study in {_without_password(shown)}")


def _check_database(url: str) -> None:
    """Raise unless a database holds studies: Optuna would make its tables, and an SQLite file."""
    import sqlalchemy

    place, shown = sqlalchemy.make_url(url), _without_password(url)
    file = place.database or ":memory:"
    if place.get_backend_name() == "sqlite" and not (
        file.startswith("file:") or Path(file).is_file()
    ):
        raise StorageError(
            f"cannot read {shown}: there is no such file; three slashes precede a path from here, "
            "sqlite:///study.db, and four an absolute one"
        )
    engine = sqlalchemy.create_engine(place)
    try:
        if not sqlalchemy.inspect(engine).has_table("studies"):
            raise StorageError(
                f"{shown} holds no study of Optuna: give the storage that the study was made with"
            )
    finally:
        engine.dispose()


def _without_password(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if mark else address


def _of_run_folder(folder: Path) -> SearchData:
    """Read the folder of an ``llmopt run``: the model's search beside the other methods."""
    config_file, storage = folder / _RUN_CONFIG, folder / _RUN_STORAGE
    if not config_file.is_file():
        raise StorageError(
            f"{folder} is not a run folder: it has no config.json. Give the folder that llmopt "
            "run wrote, or a storage file"
        )
    if not storage.is_file():
        raise StorageError(f"{folder} holds no model's search: it has no {storage.name}")
    run = read_json_object(config_file).get("run")
    run = run if isinstance(run, dict) else {}
    optimizer, start = _load(storage)
    stopped: dict[str, Any] = {}
    if (folder / "stopped.json").is_file():
        stopped = read_json_object(folder / "stopped.json")
    data = _of_optimizer(optimizer, start)
    warmup, rivals = _rivals(folder / "trials.jsonl")
    trials = [
        replace(t, source="warmup") if t.number < warmup and t.source == "user" else t
        for t in data.trials
    ]
    data = replace(
        data,
        title=clean(run.get("task") or folder.name),
        origin=f"run folder {folder}",
        resume="To resume, repeat the command.",
        trials=tuple(trials),
        ended=clean(stopped.get("llm") or data.ended),
        rivals=rivals,
    )
    return data.with_best()


def _rivals(path: Path) -> tuple[int, dict[str, list[float | None]]]:
    """Return how many warm-up points all methods share, and each one's results behind them."""
    if not path.is_file():
        return 0, {}
    found: dict[str, list[float | None]] = {}
    for line in read_events(path):
        method, returns = line.get("method"), line.get("returns")
        if line.get("round", "search") != "search" or not isinstance(method, str):
            continue
        if not isinstance(returns, list) or not all(isinstance(r, (int, float)) for r in returns):
            raise StorageError(f"{path}: a line of it is not as llmopt run wrote it: restore it")
        sound = returns and not line.get("failure")
        found.setdefault(clean(method), []).append(sum(returns) / len(returns) if sound else None)
    shared = found.pop("warmup", [])
    rivals = {name: [*shared, *means] for name, means in found.items() if name != "llm"}
    return len(shared), rivals
