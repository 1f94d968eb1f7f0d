"""Attacks on the Optuna adapter: hostile storages, forks, kills, failing writes, caps of many."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import multiprocessing
import os
import signal
import sys
import time

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from llmopt import Completion, Reply, ScriptedClient
from llmopt.adapters.optuna import LLMSampler
from llmopt.client.base import Request
from llmopt.errors import FallbackWarning, LLMOptError

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are forked and killed as on Linux"
)
XY = {"x": FloatDistribution(-5, 5), "y": IntDistribution(0, 9)}
FIRST = optuna.create_trial(params={"x": 1.0, "y": 1}, distributions=XY, value=1.0)
WAIT = 120  # seconds; only a failure takes that long

HUGE = "x" * 3_000_000
DEEP = "[" * 100_000
NESTED: list = []
for _ in range(5000):
    NESTED = [NESTED]


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text for you")

    __repr__ = __str__


VALUES = {
    "huge text": HUGE,
    "deep JSON": DEEP,
    "nested list": NESTED,
    "no text": Unprintable(),
    "NaN": math.nan,
    "infinity": math.inf,
    "huge integer": 10**400,
    "negative": -5,
    "list": [1, "a", None],
    "mapping": {"a": {"b": [1]}, "x": "y"},
    "number": 7,
    "none": None,
    "true": True,
    "NUL and escapes": "\x00\x1b[2J\ud800",
    "template": "{{ cycler.__init__.__globals__ }}{% for %}",
    "array": np.zeros(3),
}
# What the adapter reads.
NAMES = (
    "feedback", "stderr", "source", "explanation",
    "prompt_tokens", "completion_tokens", "seconds", "cost", "model",
)  # fmt: skip
USER = ["feedback", "stderr", *(f"llmopt:{name}" for name in NAMES)]
SYSTEM = ["llmopt:proposal", "llmopt:drawn", "llmopt:named", "fixed_params"]


def answer(request: Request) -> Reply:
    rng = np.random.default_rng([*request.text.encode("utf-8", "replace"), 1])
    text = f"x: {rng.uniform(-5, 5):.4f}, y: {rng.integers(10)}"
    return Reply((Completion(text),), prompt_tokens=90, completion_tokens=10, cost=0.5)


def sampler(**options) -> LLMSampler:
    options = {"n_startup_trials": 0, "seed": 1, "on_error": "raise", **options}
    return LLMSampler(ScriptedClient(answer), **options)


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def seeded(**options) -> optuna.Study:
    study = optuna.create_study(sampler=sampler(**options))
    study.add_trial(FIRST)
    return study


def asks_well(study: optuna.Study) -> str:
    """Ask for a trial, check that the model proposed it, and return what it was shown."""
    trial = study.ask(XY)
    written = study._storage.get_trial(trial._trial_id).user_attrs
    assert written["llmopt:source"] == "llm"
    study.tell(trial, 2.0)
    text = study.sampler.client.requests[-1].text
    assert len(text) < 200_000
    return text


class TestHostileAttributes:
    @pytest.mark.parametrize("prompt", ["props", "words"])
    @pytest.mark.parametrize("value", VALUES)
    def test_of_finished_trials(self, value, prompt):
        study = seeded(prompt=prompt)
        storage = study._storage
        for x, state in enumerate((TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)):
            trial = study.ask(XY if x else {"x": XY["x"]})
            trial.suggest_int("y", 0, 9)
            for name in USER:
                storage.set_trial_user_attr(trial._trial_id, name, VALUES[value])
            for name in SYSTEM:
                storage.set_trial_system_attr(trial._trial_id, name, VALUES[value])
            values = [1.0] if state == TrialState.COMPLETE else None
            storage.set_trial_state_values(trial._trial_id, state, values)
        asks_well(study)

    @pytest.mark.parametrize("name", SYSTEM)
    @pytest.mark.parametrize("value", VALUES)
    def test_of_trials_under_way(self, value, name):
        study = seeded()
        trial = study.ask()
        study._storage.set_trial_system_attr(trial._trial_id, name, VALUES[value])
        asks_well(study)

    @pytest.mark.parametrize(
        "text",
        [
            "7",
            "[1, 2]",
            '"text"',
            '{"x": "text", "y": null}',
            '{"x": NaN, "y": Infinity}',
            '{"x": 1e999, "y": -1e999}',
            '{"x": [1], "y": {}}',
            '{"x": ' + "9" * 5000 + ', "y": 1}',
            '{"c": 99, "x": 1}',
            '{"unknown": 1}',
            DEEP,
        ],
    )
    def test_forged_proposals(self, text):
        study = seeded()
        trial = study.ask()
        with contextlib.suppress(ValueError, RecursionError):
            text = json.loads(text)
        study._storage.set_trial_system_attr(trial._trial_id, "llmopt:proposal", text)
        asks_well(study)

    def test_a_forged_proposal_for_choices(self):
        space = {"c": CategoricalDistribution(["a", "b"]), "x": FloatDistribution(0, 1)}
        client = ScriptedClient(["c: a, x: 0.5"])
        study = optuna.create_study(
            sampler=LLMSampler(client, n_startup_trials=0, on_error="raise")
        )
        study.add_trial(
            optuna.create_trial(params={"c": "b", "x": 0.1}, distributions=space, value=1.0)
        )
        for index in (99, -99, 0.5, "a", None, [0]):
            trial = study.ask()
            point = {"c": index, "x": 0.25}
            study._storage.set_trial_system_attr(trial._trial_id, "llmopt:proposal", point)
        assert study.ask(space).params == {"c": "a", "x": 0.5}

    @pytest.mark.parametrize("value", VALUES)
    def test_of_the_study(self, value):
        study = seeded(max_requests=10, max_cost=100.0)
        storage, study_id = study._storage, study._study_id
        storage.set_study_user_attr(study_id, "hint", VALUES[value])
        storage.set_study_system_attr(study_id, "study:metric_names", VALUES[value])
        storage.set_study_system_attr(study_id, "llmopt:call:forged", VALUES[value])
        asks_well(study)

    def test_ten_thousand_attributes_are_not_all_shown(self):
        study = seeded()
        for i in range(10_000):
            study.set_user_attr(f"note{i}", "y" * 500)
        assert len(asks_well(study)) < 40_000

    @pytest.mark.parametrize("value", ["list", "no text", "NaN", "mapping"])
    def test_of_constraints(self, value):
        study = seeded()
        trial = study.ask(XY)
        for name in ("constraints", "constraints:size"):
            study._storage.set_trial_system_attr(trial._trial_id, name, VALUES[value])
        study._storage.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [1.0])
        asks_well(study)


class TestOtherTrials:
    @pytest.mark.parametrize("name", ["TPESampler", "NSGAIISampler", "QMCSampler", "CmaEsSampler"])
    @pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
    def test_of_other_samplers_and_back(self, name):
        if name == "CmaEsSampler":
            pytest.importorskip("cmaes")
        other = getattr(optuna.samplers, name)
        study = optuna.create_study(sampler=other(seed=1))
        study.optimize(evaluate, n_trials=6)
        for _ in range(2):
            study.sampler = sampler()
            study.optimize(evaluate, n_trials=2)
            sources = [t.user_attrs["llmopt:source"] for t in study.trials[-2:]]
            assert sources == ["llm", "llm"]
            study.sampler = other(seed=2)
            study.optimize(evaluate, n_trials=2)

    def test_with_as_many_values_as_it_has_no_objectives(self):
        study = seeded()
        frozen = optuna.create_trial(params={"x": 2.0, "y": 2}, distributions=XY, value=1.0)
        study.add_trial(frozen)
        study.get_trials(deepcopy=False)[-1].values = [1.0, 2.0]
        assert "y: 2; failed: the value was 1.0, 2.0" in asks_well(study)

    def test_ten_thousand_that_were_killed(self):
        study = seeded()
        frozen = optuna.create_trial(
            params={"x": 0.5, "y": 2}, distributions=XY, state=TrialState.RUNNING
        )
        for i in range(10_000):
            frozen.params = {"x": i / 5000, "y": i % 10}
            study._storage.create_new_trial(study._study_id, template_trial=frozen)
        assert len(asks_well(study)) < 40_000

    def test_with_clocks_of_other_zones(self):
        study = seeded()
        for zone in (None, datetime.UTC):
            frozen = optuna.create_trial(params={"x": 2.0, "y": 2}, distributions=XY, value=1.0)
            frozen.datetime_complete = datetime.datetime(2026, 1, 1, tzinfo=zone)
            study._storage.create_new_trial(study._study_id, template_trial=frozen)
        asks_well(study)


class Failing(InMemoryStorage):
    """A storage whose n-th write from now on fails, or every one from there."""

    left = math.inf
    forever = False

    def _write(self):
        self.left -= 1
        if self.left < 0 and (self.forever or self.left == -1):
            raise OSError("the disk is full")

    def set_trial_user_attr(self, *args):
        self._write()
        super().set_trial_user_attr(*args)

    def set_trial_system_attr(self, *args):
        self._write()
        super().set_trial_system_attr(*args)

    def set_study_system_attr(self, *args):
        self._write()
        super().set_study_system_attr(*args)


class TestFailingWrites:
    @pytest.mark.parametrize("n", range(12))
    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_no_reply_is_paid_for_twice(self, n, batch_size):
        def run(break_at):
            own = sampler(max_requests=50, batch_size=batch_size)
            own.client._replies = [answer]
            storage = Failing()
            study = optuna.create_study(sampler=own, storage=storage)
            study.add_trial(FIRST)
            storage.left = break_at
            taken = 0
            while taken < 3:
                try:
                    trial = study.ask(XY)
                except OSError:
                    continue
                taken += 1
                study.tell(trial, float(taken))
            return own.usage

        broken, whole = run(n), run(math.inf)
        # A write that fails within a batch loses what this ask had read, and no more.
        assert whole.requests <= broken.requests <= whole.requests + batch_size - 1
        assert broken.proposals == whole.proposals

    @pytest.mark.parametrize("n", range(8))
    def test_a_cap_counts_what_could_not_be_stored_at_once(self, n):
        storage = Failing()
        workers = [sampler(max_requests=2) for _ in range(2)]
        for worker in workers:
            worker.client._replies = [answer]
        study = optuna.create_study(storage=storage)
        study.add_trial(FIRST)
        storage.left = n
        for worker in (*workers, *workers):
            study.sampler = worker
            with contextlib.suppress(OSError, LLMOptError):
                study.ask(XY)
        assert sum(worker.usage.requests for worker in workers) == 2


def journal(path) -> JournalStorage:
    # By default the lock of a killed process holds the others up for half a minute.
    lock = JournalFileSymlinkLock(str(path), grace_period=5)
    return JournalStorage(JournalFileBackend(str(path), lock))


def evaluate(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", -5, 5) ** 2 + trial.suggest_int("y", 0, 9)


def spend(path, calls, delay, n_trials, **caps) -> None:
    """Work on the study, noting each call of the model in a file before it is answered."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def noted(request):
        with open(calls, "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(delay)
        return answer(request)

    own = LLMSampler(ScriptedClient(noted), n_startup_trials=0, seed=0, on_error="raise", **caps)
    study = optuna.load_study(study_name="s", storage=journal(path), sampler=own)
    study.optimize(evaluate, n_trials=n_trials)


@linux
class TestProcesses:
    @pytest.fixture
    def study(self, tmp_path):
        study = optuna.create_study(study_name="s", storage=journal(tmp_path / "j"))
        study.add_trial(FIRST)
        return study

    def start(self, n, *args, **caps):
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=spend, args=args, kwargs=caps) for _ in range(n)]
        for worker in workers:
            worker.start()
        return workers

    @pytest.mark.parametrize(
        "caps", [{"max_requests": 12}, {"max_cost": 6.0}, {"max_tokens": 1200}]
    )
    def test_four_workers_keep_one_cap(self, study, tmp_path, caps):
        calls, most = tmp_path / "calls", 12
        workers = self.start(4, tmp_path / "j", calls, 0.02, 50, **caps)
        for worker in workers:
            worker.join(WAIT)
        assert not any(w.is_alive() for w in workers)
        spent = len(calls.read_text().splitlines())
        assert most <= spent <= most + 3  # each of the other three may be a request beyond
        # Whoever comes later finds nothing left.
        late = self.start(1, tmp_path / "j", calls, 0.0, 5, **caps)[0]
        late.join(WAIT)
        assert late.exitcode == 1
        assert len(calls.read_text().splitlines()) == spent

    def test_what_killed_workers_sent_counts(self, study, tmp_path):
        calls = tmp_path / "calls"
        for round_ in range(2):
            workers = self.start(4, tmp_path / "j", calls, 0.05, 50, max_requests=40)
            until = time.monotonic() + WAIT
            wanted = 8 * (round_ + 1)
            while len(calls.read_text().split() if calls.exists() else []) < wanted:
                assert time.monotonic() < until
                time.sleep(0.005)
            for worker in workers:
                os.kill(worker.pid, signal.SIGKILL)
                worker.join()
        workers = self.start(4, tmp_path / "j", calls, 0.0, 50, max_requests=40)
        for worker in workers:
            worker.join(WAIT)
        spent = len(calls.read_text().splitlines())
        # A killed worker's last request counts, whether it was sent or about to be.
        assert 40 - 2 * 4 <= spent <= 40 + 3
        points = [tuple(t.params.values()) for t in study.trials if t.state.name == "COMPLETE"]
        assert len(set(points)) > 0.95 * len(points)


class TestCaps:
    def test_forged_entries_cannot_raise_a_cap(self):
        study = seeded(max_requests=2, on_error="fallback")
        forged = {"requests": -100, "tokens": -1, "cost": -1e9}
        study._storage.set_study_system_attr(study._study_id, "llmopt:call:forged", forged)
        study.ask(XY)
        study.ask(XY)
        with pytest.warns(FallbackWarning, match="max_requests=2") as caught:
            study.optimize(evaluate, n_trials=7)  # at random, and more than `max_fallbacks`
        assert len(caught) == 1
        assert study.sampler.usage.proposals == {"llm": 2, "fallback": 7}

    def test_a_cap_counts_the_calls_of_earlier_runs_without_one(self):
        study = seeded()
        study.ask(XY)
        study.ask(XY)
        study.sampler = seeded(max_requests=3).sampler
        study.ask(XY)
        assert study.sampler.left == {"requests": 0}
        assert study.sampler.usage.requests == 1
