"""Searches that are stored, cut off, resumed, saved and loaded."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from test_optimizer import SPACE, make, numbered, outcome, search

from llmopt import (
    Float,
    LLMOptimizer,
    ScriptedClient,
    StorageError,
    minimize,
)
from llmopt.service import search_file as service


class TestResume:
    @pytest.fixture
    def whole(self, tmp_path):
        optimizer = self.open(tmp_path / "whole.jsonl")
        search(optimizer, 24)
        return tmp_path / "whole.jsonl", outcome(optimizer)

    @staticmethod
    def open(path, client=None, **options) -> LLMOptimizer:
        options = {"warmup": 4, "seed": 5, "storage": path, "batch_size": 2, **options}
        return LLMOptimizer(SPACE, client or ScriptedClient(numbered), **options)

    def test_how_the_model_is_asked_may_change_and_that_is_said(self, whole, caplog):
        path, expected = whole
        for options, words in (
            ({"seed": 6}, "another seed (there 5, now 6), and keeps the stored one"),
            ({"description": "better words"}, "description (there '', now 'better words')"),
            ({"batch_size": 1}, "another batch_size (there 2, now 1)"),
            ({"prompt": "opro"}, "another prompt"),
        ):
            caplog.clear()
            with contextlib.closing(self.open(path, **options)) as resumed:
                assert outcome(resumed)[:2] == expected[:2]
                assert resumed.seed == 5
            assert [r.message.count(words) for r in caplog.records] == [1], options

    def test_another_model_and_higher_caps_go_on_too(self, tmp_path, caplog):
        path = tmp_path / "run.jsonl"
        with contextlib.closing(self.open(path, max_requests=1)) as begun:
            begun.ask()
        other = ScriptedClient(numbered, name="other")
        with contextlib.closing(self.open(path, other, max_requests=9)) as resumed:
            assert resumed.limits.max_requests == 9
        (said,) = [r.message for r in caplog.records]
        assert "another model (there 'scripted', now 'other')" in said
        assert "another max_requests (there 1, now 9)" in said

    def test_load_keeps_what_the_search_was_given(self, tmp_path):
        optimizer = make([], may_stop=True, on_error="fallback", max_cost=1.5, max_tokens=7)
        optimizer.save(tmp_path / "saved.jsonl")
        loaded = LLMOptimizer.load(tmp_path / "saved.jsonl", ScriptedClient([]))
        assert loaded.limits == optimizer.limits
        options = loaded.started().options
        assert (options["may_stop"], options["on_error"]) == (True, "fallback")

    def test_a_loaded_search_asks_its_new_model_as_that_one_is_asked(self, whole):
        client = ScriptedClient(numbered)
        client.style = "completion"
        loaded = LLMOptimizer.load(whole[0], client)
        loaded.ask()
        assert client.requests[-1].style == "completion"
        assert loaded.started().facts == loaded._journal.state.started.facts

    def forged(self, path, change):
        """Change the first line of a file, and return the calls that read it."""
        with contextlib.closing(self.open(path)) as begun:
            begun.ask()
        start = json.loads(path.read_text().splitlines()[0])
        start.pop("crc", None)
        change(start)
        path.write_text(json.dumps(start) + "\n")
        return (
            lambda: LLMOptimizer.load(path, ScriptedClient([])),
            lambda: service.open_file(path, asks=False),
        )

    @pytest.mark.parametrize("name", ["custom", "props"])
    def test_a_file_brings_no_template(self, tmp_path, name):
        """A template of a file once wrote any bytes to any file."""
        template = {"name": name, "template": "{{ begin_user }}{{ evidence }}"}
        path = tmp_path / "run.jsonl"
        for call in self.forged(path, lambda start: start["options"].update(prompt=template)):
            with pytest.raises(StorageError, match="Pass the template again, as prompt="):
                call()
        given = LLMOptimizer.load(path, ScriptedClient([]), prompt="opro")
        assert given.prompt.name == "opro"

    @pytest.mark.parametrize("option", ["storage", "import_trials", "callbacks", "model"])
    def test_a_file_names_no_other_file(self, tmp_path, option):
        """A file that named a storage was once written to that place."""
        other = tmp_path / ("there.jsonl" if option == "import_trials" else "other.jsonl")
        if option == "import_trials":
            self.open(other).ask()
        named = {option: str(other)}
        for call in self.forged(tmp_path / "run.jsonl", lambda s: s["options"].update(named)):
            with pytest.raises(StorageError, match=f"'{option}'"):
                call()
        assert other.exists() == (option == "import_trials")

    def test_a_key_that_is_there_twice_is_refused(self, tmp_path):
        path = tmp_path / "run.jsonl"
        search = self.open(path)
        search.tell(search.ask(), 1.0)
        search.close()
        plain = re.sub(r',"crc":"\w+"}', "}", path.read_text())
        assert plain.count('"rewards":[1.0]') == 1
        path.write_text(plain.replace('"rewards":[1.0]', '"rewards":[1.0],"rewards":[9.0]'))
        with pytest.raises(StorageError, match="'rewards' is there twice"):
            LLMOptimizer.load(path, ScriptedClient([]))

    @pytest.mark.parametrize(
        "change", [{"identity": 5}, {"options": 5}, {"identity": {"space": []}}]
    )
    def test_a_first_line_of_other_types_is_refused_by_every_reader(self, tmp_path, change):
        for call in self.forged(tmp_path / "run.jsonl", lambda start: start.update(change)):
            with pytest.raises(StorageError, match=r"line 1|as llmopt wrote it"):
                call()

    def test_save_where_the_storage_vanished(self, tmp_path):
        optimizer = self.open(tmp_path / "run.jsonl")
        optimizer.tell({"x": 0.5, "k": 1}, 1.0)
        (tmp_path / "run.jsonl").unlink()
        (tmp_path / "saved.jsonl").write_text("an older one")
        optimizer.save(tmp_path / "saved.jsonl")
        assert len(LLMOptimizer.load(tmp_path / "saved.jsonl", ScriptedClient([])).trials) == 1

    def test_seed_drawn_at_random_is_kept(self, tmp_path):
        first = self.open(tmp_path / "a.jsonl", seed=None)
        first.ask()
        first.close()
        second = self.open(tmp_path / "a.jsonl", seed=None)
        assert second.seed == first.seed

    def test_load_reads_a_storage_file_without_touching_it(self, whole):
        path, expected = whole
        before = path.read_bytes()
        loaded = LLMOptimizer.load(path, ScriptedClient(numbered))
        assert outcome(loaded) == expected
        loaded.ask()
        assert path.read_bytes() == before


def test_a_setting_that_only_the_entry_point_makes_is_no_change(tmp_path, caplog):
    space, file = {"x": Float(0, 1)}, tmp_path / "s.jsonl"
    minimize(lambda point: point["x"], space, 2, ScriptedClient([]), warmup=2, storage=file)
    options = {"direction": "minimize", "warmup": 2, "total": 2, "storage": file}
    LLMOptimizer(space, ScriptedClient([]), **options).close()
    assert "may_stop" not in caplog.text
