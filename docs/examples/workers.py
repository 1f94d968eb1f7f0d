"""Two worker processes on one Optuna study.

Each worker asks the model itself. The study's storage holds what the others evaluate at the
moment, so that no two workers evaluate the same point. Workers of one machine share a journal file;
for many machines give the address of a database.

    python workers.py
    python workers.py postgresql+psycopg://user:password@localhost/optuna
"""

import collections
import subprocess
import sys

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from llmopt.adapters.optuna import LLMSampler

TRIALS = 12


def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -5, 5)
    y = trial.suggest_int("y", -5, 5)
    return (x - 1) ** 2 + (y + 2) ** 2


def journal(path: str) -> JournalStorage:
    return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))


def join(url: str, seed: int) -> optuna.Study:
    return optuna.create_study(
        study_name="two-workers",
        storage=optuna.storages.RDBStorage(url) if "://" in url else journal(url),
        sampler=LLMSampler("network", n_startup_trials=5, seed=seed),
        load_if_exists=True,
    )


def work(url: str, seed: int) -> None:
    enough = optuna.study.MaxTrialsCallback(TRIALS)
    join(url, seed).optimize(objective, n_trials=TRIALS, callbacks=[enough])


if __name__ == "__main__":
    storage = sys.argv[1] if len(sys.argv) > 1 else "two-workers.log"
    if len(sys.argv) == 3:
        work(storage, int(sys.argv[2]))
        sys.exit()
    study = join(storage, seed=0)  # the tables are made once
    commands = [[sys.executable, __file__, storage, str(seed)] for seed in (1, 2)]
    workers = [subprocess.Popen(command) for command in commands]
    if any(worker.wait() for worker in workers):
        sys.exit("a worker failed")
    points = [tuple(sorted(trial.params.items())) for trial in study.trials]
    sources = collections.Counter(t.user_attrs["llmopt:source"] for t in study.trials)
    print(f"{len(points)} trials, {len(set(points))} different points, from: {dict(sources)}")
    print(f"best value {study.best_value:.4f} at {study.best_params}")
