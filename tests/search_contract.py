"""What every search that asks a model must do: the library's, the adapters' and the one over code.

Subclass `SearchContract` in the tests of a search, as `provider_contract` is for providers.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from llmopt import (
    BudgetExceededError,
    ClientError,
    Completion,
    Evaluation,
    MissingKeyError,
    ModelNotFoundError,
    Reply,
    ScriptedClient,
    SearchStopped,
)
from llmopt.caps import Limits
from llmopt.client.base import Request
from llmopt.client.providers.openai import OpenAIClient
from llmopt.errors import FallbackWarning
from llmopt.history import Usage
from llmopt.sandbox.confine import support
from llmopt.trackers import Callback

SECRET = "sk-planted+KEY/0123456789abcdef"
STOP = "Analysis: it is flat here.\nHypothesis: done\nStart from: #1\nProposal: stop"


_models: dict[int, Model] = {}


class Model(ScriptedClient):
    """A scripted model that the copies of a search share, so that all its requests are counted."""

    def __reduce__(self) -> Any:
        _models[id(self)] = self
        return _model, (id(self),)


def _model(number: int) -> Model:
    return _models[number]


class Keyless(Model):
    """A model whose key is missing until it is set."""

    key = False

    def check_ready(self) -> None:
        if not self.key:
            raise MissingKeyError("set the environment variable", requests=0)


class Recorder(Callback):
    """Notes what it is told; raises `error` at the result of that number."""

    def __init__(self, at: int = -1, error: type[Exception] = RuntimeError) -> None:
        self.seen: list[int] = []
        self.reasons: list[str] = []
        self.at, self.error = at, error

    def told(self, search: Any, trial: Any, best: Any, usage: Any) -> None:
        self.seen.append(trial.number)
        if trial.number == self.at:
            raise self.error("enough")

    def ended(self, search: Any, reason: str) -> None:
        self.reasons.append(reason)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


class SearchContract:
    """The checks; a subclass gives the methods of the first part."""

    own_file: ClassVar[bool] = True
    """Whether the search writes `storage` itself, and nothing else does."""
    other_caps: ClassVar[bool] = True
    """Whether a search that goes on may have other options."""
    keeps_failed_asks: ClassVar[bool] = False
    """Whether an ask that failed leaves a trial, which later requests show."""
    offers_stop: ClassVar[bool] = True
    has_ranges: ClassVar[bool] = True
    takes_callbacks: ClassVar[bool] = False
    takes_evaluations: ClassVar[bool] = False
    reports: ClassVar[bool] = True
    clones: ClassVar[tuple[Callable[[Any], Any], ...]] = (copy.deepcopy, pickled)

    def open(self, client: Any, storage: Path | None = None, **options: Any) -> Any:
        """Return a search that asks from the first point on; one that is stored goes on."""
        raise NotImplementedError

    def answer(self, number: float) -> str:
        """Return an answer with a point; other numbers, other points."""
        raise NotImplementedError

    def block(self, code: str) -> str:
        """Return an answer with Python to run before a point."""
        return f"```python\n{code}\n```"

    def ask(self, search: Any) -> Any:
        return search.ask()

    def tell(self, search: Any, point: Any, reward: float) -> None:
        search.tell(point, reward)

    def fail(self, search: Any, reason: str) -> None:
        """Ask for a point whose evaluation fails."""
        search.tell_failure(self.ask(search), reason)

    def values(self, search: Any) -> list[Any]:
        """Return the evaluated points in order."""
        return [trial.values for trial in search.trials if trial.rewards]

    def spender(self, search: Any) -> Any:
        """Return what has the caps and the usage of the search."""
        return search

    def usage(self, search: Any) -> Usage:
        return self.spender(search).usage

    def close(self, search: Any) -> None:
        search.close()

    def report(self, search: Any, path: Path) -> Path:
        """Write the search as a page."""
        return search.report(path)

    def reopen(self, search: Any, client: Any, storage: Path, **options: Any) -> Any:
        """Return the search as another process goes on with it."""
        self.close(search)
        return self.open(client, storage, **options)

    def advance(self, search: Any, points: int = 1) -> str:
        """Evaluate points, and return why the search ended before, or ``""``."""
        for _ in range(points):
            try:
                point = self.ask(search)
            except (BudgetExceededError, SearchStopped) as end:
                return str(end)
            self.tell(search, point, float(len(self.values(search))))
        return ""

    # -- what the checks are made of --------------------------------------------------------

    def reply(self, number: float, **spent: Any) -> Reply:
        return Reply((Completion(self.answer(number)),), **spent)

    def numbered(self, request: Request) -> Reply:
        """Answer with a point that depends on the whole request, so that any difference shows."""
        rng = np.random.default_rng(int(request.digest()[:12], 16))
        return self.reply(round(rng.uniform(-5, 5), 2), prompt_tokens=100, completion_tokens=10)

    @contextlib.contextmanager
    def opened(self, *args: Any, **options: Any) -> Iterator[Any]:
        search = self.open(*args, **options)
        try:
            yield search
        finally:
            self.close(search)

    # -- caps -------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("name", "cap", "spent"),
        [
            ("max_requests", 2, {}),
            ("max_tokens", 100_000, {"prompt_tokens": 49_000, "completion_tokens": 1_000}),
            ("max_cost", 0.6, {"cost": 0.3}),
        ],
    )
    def test_a_cap_ends_it_and_nothing_more_is_sent(self, name, cap, spent):
        client = Model([self.reply(i, **spent) for i in range(4)])
        with self.opened(client, **{name: cap}) as search:
            reason = self.advance(search, 4)
            assert f"{name}={cap}" in reason
            assert len(self.values(search)) == len(client.requests) == 2
            assert self.usage(search).requests == 2
            assert self.advance(search) == reason
            assert len(client.requests) == 2

    @pytest.mark.parametrize("name", ["max_requests", "max_tokens", "max_cost"])
    def test_a_cap_of_nothing_sends_nothing(self, name):
        client = Model([self.reply(1, cost=0.0)])
        with self.opened(client, **{name: 0}) as search:
            assert name in self.advance(search)
            assert client.requests == []

    def test_an_unknown_price_keeps_no_cap_on_the_cost(self):
        client = Model([self.reply(i, cost=None) for i in range(3)])
        with self.opened(client, max_cost=5.0) as search:
            assert "price" in self.advance(search, 3)
            assert len(client.requests) == 1

    @pytest.mark.parametrize("caps", [{"max_requests": 1}, {"max_cost": 9.0}])
    def test_calls_that_failed_or_were_given_up_count(self, caps, tmp_path):
        said = {"max_requests": "max_requests=1", "max_cost": "abandoned"}[next(iter(caps))]
        client = Model([ClientError("silence", unpriced=1), self.reply(1, cost=0.0)])
        search = self.open(client, tmp_path / "run", **caps)
        with contextlib.suppress(ClientError):  # or the cap, where that is reached by it
            self.advance(search)
        for _ in range(2):
            assert said in self.advance(search)
            if self.own_file:
                usage = self.usage(search)
                assert (usage.requests, usage.failed_requests, usage.unpriced) == (1, 1, 1)
                search = self.reopen(search, client, tmp_path / "run", **caps)
        assert len(client.requests) == 1
        self.close(search)

    def test_a_cap_holds_after_a_resume_and_can_be_raised(self, tmp_path):
        path, client = tmp_path / "run", Model([self.reply(i) for i in range(4)])
        search = self.open(client, path, max_requests=2)
        self.advance(search, 3)
        search = self.reopen(search, client, path, max_requests=2)
        assert "max_requests=2" in self.advance(search)
        if self.other_caps:
            search = self.reopen(search, client, path, max_requests=3)
            assert "max_requests=3" in self.advance(search, 2)
            assert len(self.values(search)) == len(client.requests) == 3
        self.close(search)

    def test_its_caps_can_be_raised_at_any_time(self):
        client = Model([self.reply(i) for i in range(4)])
        with self.opened(client, max_requests=1) as search:
            assert "max_requests=1" in self.advance(search, 2)
            spender = self.spender(search)
            assert spender.left == {"requests": 0}
            with pytest.raises(TypeError, match="expected caps by name"):
                spender.limits = 3
            spender.limits = Limits(max_requests=3)
            assert spender.left == {"requests": 2}
            assert "max_requests=3" in self.advance(search, 3)
            assert len(self.values(search)) == len(client.requests) == 3

    def test_caps_that_are_set_later_count_what_was_spent_before(self):
        client = Model([self.reply(i) for i in range(4)])
        with self.opened(client) as search:
            assert self.advance(search, 2) == ""
            spender = self.spender(search)
            spender.limits = Limits(max_requests=3)
            assert spender.left == {"requests": 1}
            assert "max_requests=3" in self.advance(search, 3)
            assert len(self.values(search)) == len(client.requests) == 3

    # -- keys -------------------------------------------------------------------------------

    @pytest.mark.parametrize("on_error", ["raise", "fallback"])
    def test_a_missing_key_is_an_error_before_anything_is_evaluated(self, on_error, tmp_path):
        path, client = tmp_path / "run", Keyless([self.reply(1)])
        options = {"on_error": on_error} if on_error != "raise" else {}
        search = self.open(client, path, **options)
        for _ in range(2):
            with pytest.raises(MissingKeyError):
                self.advance(search)
        assert self.values(search) == client.requests == []
        if self.own_file:
            assert not path.exists() or path.read_bytes() == b""
        client.key = True
        assert self.advance(search) == ""
        assert len(self.values(search)) == 1
        self.close(search)

    def test_a_search_that_goes_on_checks_its_key_too(self, tmp_path):
        path, client = tmp_path / "run", Keyless([self.reply(1), self.reply(2)])
        client.key = True
        search = self.open(client, path)
        self.advance(search)
        search = self.reopen(search, client, path)
        before = path.read_bytes() if self.own_file else b""
        if self.other_caps:  # else it was checked by this process
            client.key = False
            with pytest.raises(MissingKeyError):
                self.advance(search)
            assert not self.own_file or path.read_bytes() == before
        assert len(client.requests) == 1
        self.close(search)

    def test_a_missing_model_is_never_replaced_by_random_points(self):
        client = Model([ModelNotFoundError("no such model")])
        with self.opened(client, on_error="fallback") as search:
            with pytest.raises(ModelNotFoundError, match="no such model"):
                self.advance(search)
            assert self.usage(search).fallbacks == 0

    def test_a_key_is_in_no_file_log_name_or_copy(self, tmp_path, caplog):
        pytest.importorskip("openai")
        path = tmp_path / "run"
        with caplog.at_level(logging.DEBUG):
            search = self.open(OpenAIClient("gpt-4o", api_key=SECRET), path, max_requests=0)
            shown = repr(search) + str(search) + self.advance(search)
            self.close(search)
        if self.clones:
            shown += str(pickle.dumps(search))
        files = [file.read_bytes().decode("utf-8", "replace") for file in tmp_path.iterdir()]
        assert SECRET not in shown + caplog.text + "".join(files)

    def test_a_model_that_gives_no_point_again_and_again_ends_it(self, tmp_path):
        client = Model([*["no idea"] * 4, self.reply(1)])
        search = self.open(client, tmp_path / "run", attempts=1, max_fallbacks=2)
        with pytest.warns(FallbackWarning) as caught:
            self.advance(search, 2)
        lines = {Path(w.filename).name for w in caught if w.category is FallbackWarning}
        assert lines <= {"search_contract.py", "test_search_contract.py"}  # the caller's
        for _ in range(2):  # it is asked anew each time
            with pytest.raises(ClientError, match="max_fallbacks=2"):
                self.advance(search)
        assert len(self.values(search)) == self.usage(search).fallbacks == 2
        assert self.advance(search) == ""
        assert self.usage(search).proposals["llm"] == 1
        assert len(client.requests) == self.usage(search).requests == 5
        self.close(search)

    def test_random_points_follow_a_failed_request_and_never_end_at_a_cap(self):
        client = Model([ClientError("down"), self.reply(1)])
        options = {"on_error": "fallback", "max_requests": 2, "max_fallbacks": 2}
        with self.opened(client, **options) as search:
            with pytest.warns(FallbackWarning, match="down"):
                assert self.advance(search, 2) == ""
            with pytest.warns(FallbackWarning, match="from here on.*max_requests=2"):
                assert self.advance(search, 4) == ""  # no failure of the model
            assert len(self.values(search)) == 6
            usage = self.usage(search)
            assert (usage.requests, usage.failed_requests, usage.fallbacks) == (2, 1, 5)

    # -- copies -----------------------------------------------------------------------------

    def test_a_copy_goes_on_as_the_original_would_and_changes_nothing_of_it(self, tmp_path):
        for number, clone in enumerate(self.clones):
            path = tmp_path / str(number) if self.own_file else None
            with self.opened(Model(self.numbered), path) as search:
                self.advance(search, 2)
                before = path and path.read_bytes()
                copied = clone(search)
                assert self.usage(copied) == self.usage(search)
                self.advance(copied, 2)
                assert len(self.values(search)) == 2
                assert self.usage(search).requests == 2
                assert (path and path.read_bytes()) == before
                self.advance(search, 2)
                assert self.values(copied) == self.values(search)
                assert self.usage(copied) == self.usage(search)

    # -- going on ---------------------------------------------------------------------------

    def test_a_search_that_goes_on_elsewhere_gives_the_same_points(self, tmp_path):
        client = Model(self.numbered)
        with self.opened(client, tmp_path / "whole") as search:
            self.advance(search, 4)
            whole, requests = self.values(search), len(client.requests)
        client = Model(self.numbered)
        search = self.open(client, tmp_path / "parts")
        for _ in range(4):
            self.advance(search)
            search = self.reopen(search, client, tmp_path / "parts")
        assert self.values(search) == whole
        assert len(client.requests) == requests
        self.close(search)

    def test_a_failure_of_the_model_loses_nothing_that_is_paid(self, tmp_path):
        replies = ["no answer", ClientError("down"), ClientError("down"), self.reply(1)]
        path, client = tmp_path / "run", Model(replies)
        search = self.open(client, path)
        for _ in range(2):
            with pytest.raises(ClientError, match="down"):
                self.advance(search)
            if self.own_file:
                search = self.reopen(search, client, path)
        assert self.advance(search) == ""
        usage = self.usage(search)
        assert len(client.requests) == 4  # "no answer" was paid for once
        assert (usage.requests, usage.failed_requests) == (4, 2)
        if not self.keeps_failed_asks:
            assert client.requests[1] == client.requests[2] == client.requests[3]
            assert usage.rejected == {"unreadable": 1}
        self.close(search)

    def test_a_block_of_python_is_run_once_and_paid_for_once(self, tmp_path):
        if not self.own_file or support().problems:
            pytest.skip("it stores no block, or none is run here")
        path, options = tmp_path / "run", {"compute": True, "compute_workers": 0}
        client = Model([self.block("print(6 * 7)"), ClientError("down"), self.reply(1)])
        search = self.open(client, path, **options)
        with pytest.raises(ClientError, match="down"):
            self.advance(search)
        search = self.reopen(search, client, path, **options)
        assert self.advance(search) == ""
        assert "It printed:\n> 42" in client.requests[2].text
        assert client.requests[1] == client.requests[2]
        usage = self.usage(search)
        assert (usage.blocks, usage.requests, usage.rejected) == (1, 3, {})
        self.close(search)

    # -- results ----------------------------------------------------------------------------

    def test_a_failed_evaluation_is_shown_with_its_reason_and_is_no_result(self):
        client = Model([self.reply(i) for i in range(3)])
        with self.opened(client) as search:
            self.advance(search)
            self.fail(search, "the belt jammed")
            assert len(self.values(search)) == 1
            self.advance(search)
            assert "the belt jammed" in client.requests[2].text
            assert "the belt jammed" not in client.requests[1].text
            assert self.usage(search).requests == 3

    def test_the_parts_of_a_score_are_in_the_next_prompt(self):
        if not self.takes_evaluations:
            pytest.skip("its results are those of another library, or its own")
        client = Model([self.reply(i) for i in range(2)])
        with self.opened(client) as search:
            parts = {"desired": 3.25, "undesired": 1.0}
            self.tell(search, self.ask(search), Evaluation(2.25, parts=parts))
            self.advance(search)
        assert "desired 3.25" in client.requests[1].text

    def test_a_value_that_was_moved_into_its_range_is_marked_also_after_a_resume(self, tmp_path):
        if not self.has_ranges:
            pytest.skip("its candidates are code")
        path, options = tmp_path / "run", {"out_of_range": "clip"}
        client = Model([self.reply(9), self.reply(1), self.reply(2)])
        search = self.open(client, path, **options)
        self.advance(search, 2)
        search = self.reopen(search, client, path, **options)
        self.advance(search)
        marks = [r.text.count("not as you gave it: moved into the ranges") for r in client.requests]
        assert marks == [0, 1, 1]
        self.close(search)

    def test_the_model_ends_the_search_if_it_may(self):
        if not self.offers_stop:
            pytest.skip("its prompt offers no end")
        client = Model([self.reply(1), STOP])
        with self.opened(client, may_stop=True) as search:
            reason = self.advance(search, 3)
            assert "ended the search" in reason
            assert len(self.values(search)) == 1
            assert len(client.requests) == 2
        client = Model([self.reply(1), STOP, self.reply(2)])
        with self.opened(client, may_stop=False) as search:
            assert self.advance(search, 2) == ""
            assert "Proposal: stop" not in client.requests[0].text

    def test_a_report_shows_the_points_and_what_was_said_of_them(self, tmp_path):
        if not self.reports:
            pytest.skip("it has no report")
        client = Model(lambda request: self.answer(len(client.requests)))
        with self.opened(client, description="the belt of a plant") as search:
            self.advance(search, 2)
            self.fail(search, "the belt jammed")
            page = self.report(search, tmp_path / "page.html").read_text()
        assert "the belt jammed" in page
        assert [f'id="t{i}"' in page for i in range(4)] == [True] * 3 + [False]

    # -- callbacks --------------------------------------------------------------------------

    def test_callbacks_see_each_result_and_the_end(self, caplog):
        if not self.takes_callbacks:
            pytest.skip("it takes none")
        broken, sound = Recorder(at=0), Recorder()
        client = Model(self.numbered)
        with self.opened(client, callbacks=[broken, sound]) as search:
            assert self.advance(search, 3) == ""
            for clone in self.clones:
                self.advance(clone(search))
        assert sound.seen == broken.seen == [0, 1, 2]
        assert len(sound.reasons) == 1
        assert sum("enough" in record.getMessage() for record in caplog.records) == 1

    def test_a_callback_may_end_the_search(self):
        if not self.takes_callbacks:
            pytest.skip("it takes none")
        ending = Recorder(at=1, error=SearchStopped)
        with self.opened(Model(self.numbered), callbacks=[ending]) as search:
            assert self.advance(search, 5) == "enough"
            assert len(self.values(search)) == 2
