"""A failing disk and a kill at every change of Optuna's journal and of Nevergrad's dump.

The tests take a sample of the changes. All of them, for every way to fail::

    python tests/attacks/test_adapter_storage.py
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

optuna = pytest.importorskip("optuna")
ng = pytest.importorskip("nevergrad")

sys.path.insert(0, str(Path(__file__).parent))
from faults import FAILURES, KILLS, Faults, killed  # noqa: E402
from optuna.storages import JournalStorage  # noqa: E402
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock  # noqa: E402
from test_storage_attacks import Model, quiet  # noqa: E402

from llmopt.adapters.nevergrad import LLM, ParametrizedLLM  # noqa: E402
from llmopt.adapters.optuna import LLMSampler  # noqa: E402
from llmopt.errors import LLMOptError  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
# Somebody frees some space, and calls again. Optuna asserts that a trial which it could not tell
# was told, and its lock raises a RuntimeError where it cannot be given back.
REFUSALS = (OSError, LLMOptError, AssertionError, RuntimeError)
DONE = optuna.trial.TrialState.COMPLETE


def mend(path: Path) -> None:
    """Remove the lines that Optuna does not read past, as docs/workers.md says."""
    kept: list[bytes] = []
    path.touch()
    for line in path.read_bytes().splitlines(keepends=True):
        with contextlib.suppress(ValueError):
            json.loads(line)
            kept += [line] * line.endswith(b"\n")
    path.write_bytes(b"".join(kept))


def journal(folder: Path, model: Model, tries: int = 12) -> tuple[Any, int]:
    """Go on with a study to four trials; return their values and the requests counted."""
    path = folder / "j"
    lock = JournalFileSymlinkLock(str(path))
    lock.grace_period = 0.05  # seconds until a lock that another process left is taken away
    sampler = LLMSampler(model, n_startup_trials=1, seed=1, max_requests=50, on_error="raise")
    study: Any = None
    for _ in range(tries):
        with contextlib.suppress(*REFUSALS):
            if study is None:
                storage = JournalStorage(JournalFileBackend(str(path), lock))
                study = optuna.create_study(
                    storage=storage, study_name="s", load_if_exists=True, sampler=sampler
                )
            while len(study.get_trials(states=(DONE,))) < 4:
                study.optimize(lambda trial: trial.suggest_float("x", -5, 5), n_trials=1)
            break
    values = [t.value for t in study.get_trials(states=(DONE,))]
    with contextlib.suppress(LLMOptError):
        sampler.meter.flush()
    ledger = sampler._asker._ledger
    ledger.attach(sampler.meter, study)
    return values, ledger.total().requests


def dump(folder: Path, model: Model) -> tuple[Any, int]:
    """Ask, tell and dump, or go on from the last dump that is whole."""
    path = folder / "run.pkl"
    optimizer: Any = None
    if path.exists():
        optimizer = LLM.load(path)
        optimizer.meter.client = model
    else:
        optimizer = ParametrizedLLM(model=model, prompt="props", warmup=0)(1, 50)
        optimizer.parametrization.random_state = np.random.RandomState(7)
    while optimizer.num_tell < 3:
        candidate = optimizer.ask()
        optimizer.tell(candidate, float(candidate.value[0]))
        for _ in range(5):
            with contextlib.suppress(OSError):
                # Nevergrad writes in place: a kill would leave half of a pickle.
                optimizer.dump(folder / "new.pkl")
                os.replace(folder / "new.pkl", path)
                break
        else:
            raise OSError("the disk stays full: asking for more would be paid for in vain")
    return [t.values for t in optimizer.history.trials], optimizer.usage.requests


def text(number: int) -> str:
    return f"x: {number % 10_000 / 1000 - 5:.3f}, params[0]: {number % 10_000 / 1000 - 5:.3f}"


SCENARIOS = {"journal": journal, "dump": dump}


def attack(name: str, home: Path, at: int, how: str) -> str:
    """Hit one change; return what was hit."""
    folder = home / "files"
    folder.mkdir(parents=True)
    model, play = Model(home / "calls", text), SCENARIOS[name]
    where = f"{name}, {how} at change {at}"
    torn = name == "journal" and how in ("kill torn", "short")
    ended = torn or how in KILLS or how == "full"
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with quiet():
        if how in KILLS:
            hit = "kill" if killed(lambda: play(folder, model), folder, at, how) else ""
        else:
            with Faults(folder, at, how) as faults:
                if torn:  # the process ends at the first error
                    with contextlib.suppress(Exception):
                        journal(folder, model, tries=1)
                elif how == "full":
                    with contextlib.suppress(OSError, LLMOptError, AttributeError, AssertionError):
                        play(folder, model)
                else:
                    found, requests = play(folder, model)
            hit = faults.hit
        if torn:
            mend(folder / "j")
        if ended:  # and now there is space again, for a new process
            found, requests = play(folder, model)
    calls = model.calls()
    assert len(found) == (4 if name == "journal" else 3), where
    again = calls.total() - len(calls)
    # A process that ended could not store the reply that was under way.
    assert again <= ended, f"{where}: {again} requests were paid again"
    # A study counts a call before it is made, and a dump after it.
    counted = requests if name == "journal" else requests + ended
    assert calls.total() <= counted <= calls.total() + ended, f"{where}: {requests} of {calls}"
    return hit


def changes(name: str, home: Path) -> int:
    (home / "files").mkdir(parents=True)
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with quiet(), Faults(home / "files", 0, "once") as faults:
        SCENARIOS[name](home / "files", Model(home / "calls", text))
    return faults.count


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "step"), [("dump", 2), ("journal", 10)])
def test_nothing_paid_is_lost_or_paid_twice(tmp_path, name, step):
    count = changes(name, tmp_path / "whole")
    ways = (*KILLS, *FAILURES)
    hits = [
        attack(name, tmp_path / f"{at}", at, ways[k % len(ways)])
        for k, at in enumerate(range(1, count + 1, step))
    ]
    assert sum(map(bool, hits)) > 2


def main() -> None:
    warnings.simplefilter("ignore")
    for name in SCENARIOS:
        with tempfile.TemporaryDirectory() as home:
            count = changes(name, Path(home) / "whole")
            hits, wrong = Counter[str](), []
            for at in range(1, count + 1):
                for how in (*KILLS, *FAILURES):
                    try:
                        hits[how] += bool(attack(name, Path(home) / f"{at}-{how}", at, how))
                    except Exception as error:
                        wrong.append(f"{how} at {at}: {type(error).__name__}: {error}"[:300])
            print(f"{name}: {count} changes, {hits.total()} hit {dict(hits)}, {len(wrong)} wrong")
            print("\n".join(wrong[:40]), flush=True)


if __name__ == "__main__":
    main()
