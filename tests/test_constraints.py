"""Linear constraints and points to start with: in the space, the core and the file."""

from __future__ import annotations

import itertools
import json
from typing import ClassVar

import gymnasium as gym
import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, seeds

from llmopt import (
    Categorical,
    FallbackWarning,
    Float,
    Int,
    LLMOptimizer,
    ParameterError,
    ScriptedClient,
    Space,
    SpaceError,
    StorageError,
)
from llmopt.adapters.optuna import LLMSampler
from llmopt.cli import main
from llmopt.errors import LLMOptError
from llmopt.partners.cma import CMAPartner
from llmopt.resume_check import stored_state
from llmopt.service.mcp_tools import SearchFolder

XY = {"x": Float(0.0, 10.0), "y": Float(0.0, 10.0)}
LIMIT = "x + 2 * y <= 10"


def made(replies=(), space=XY, **options) -> LLMOptimizer:
    options.setdefault("warmup", 0)
    options.setdefault("constraints", LIMIT)
    options.setdefault("prompt", "props")
    return LLMOptimizer(space, ScriptedClient(list(replies)), seed=1, **options)


class TestText:
    @pytest.mark.parametrize(
        ("text", "inside", "outside"),
        [
            ("x <= y", (1.0, 1.0), (1.1, 1.0)),
            ("x < y", (1.0, 1.1), (1.0, 1.0)),
            ("2*x - (y + 3)/2 >= -1", (1.0, 0.0), (0.0, 9.0)),
            ("0 <= x - y < 3", (4.0, 2.0), (4.0, 1.0)),
            ("-x > -0.3", (0.2, 0.0), (0.3, 0.0)),
            ("x + x <= 0.6 * 1", (0.1 + 0.2, 0.0), (0.31, 0.0)),  # to rounding
            ("x <= y".ljust(2000), (1.0, 1.0), (1.1, 1.0)),
        ],
    )
    def test_is_read(self, text, inside, outside):
        space = Space(XY, constraints=text)
        assert space.admits(inside)
        assert not space.admits(outside)

    def test_names_need_not_be_identifiers(self):
        space = Space(
            {"layer size": Int(1, 100), "layer": Int(1, 9), "learning-rate": Float(0, 1)},
            constraints=["layer size <= 10 * layer", "learning-rate * 2 <= layer"],
        )
        assert space.admits((10, 1, 0.5))
        assert space.broken((11, 1, 0.6)) == {
            "layer size <= 10 * layer": 1.0,
            "learning-rate * 2 <= layer": pytest.approx(0.2),
        }
        box = Space.of(gym.spaces.Box(-1, 1, (2,))).constrained("params[0] <= params[1]")
        assert [box.admits(v) for v in ((0.0, 0.5), (0.5, 0.0))] == [True, False]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("x", "linear inequality"),
            ("x <= 4 if y == 1", "Exclude a combination of values with `forbidden`"),
            ("x <= 4 or y <= 1", "Exclude a combination of values with `forbidden`"),
            ("x != 1", "only <=, <, >=, > and == can be used"),
            ("x * y <= 1", r"`x \* y` is not linear"),
            ("1 <= 2", "names no parameter"),
            ("x - x <= 2", "names no parameter"),
            ("x <= 1e999", "finite"),
            ("x / 0 <= 1", "divides by 0"),
            ("__import__('os').system('true') < x", "not linear"),
            ("x <= " + "(" * 3000, "linear inequality"),
            ("(" * 900 + "x" + ")" * 900 + " < 1", "linear inequality"),
            ("x >= 11", "no point of the space"),
            ("x <= y".ljust(2001), "2001 characters"),
            (3, "an int"),
        ],
    )
    def test_what_is_none_is_refused(self, text, said):
        with pytest.raises(SpaceError, match=said):
            Space(XY, constraints=[text])

    def test_a_choice_cannot_be_constrained(self):
        with pytest.raises(SpaceError, match="`c` is a choice"):
            Space({"c": Categorical((1, 2)), "x": Int(0, 3)}, constraints="c <= x")


class TestSpace:
    def test_is_part_of_the_space(self):
        space = Space(XY, constraints=[LIMIT])
        stored = json.loads(json.dumps(space.to_dict()))
        assert Space.from_dict(stored) == space != Space(XY)
        assert Space.from_dict(stored).constraints == (LIMIT,)
        assert LIMIT in repr(space)
        assert "constraints" not in Space(XY).to_dict()
        assert Space(XY).constrained(()) == Space(XY)

    def test_draws_keep_them_and_cover_what_they_leave(self):
        space = Space(XY, constraints=[LIMIT, "x >= y"])
        rng = np.random.default_rng(0)
        points = np.array([space.sample(rng) for _ in range(500)])
        assert all(space.admits(tuple(p)) for p in points.tolist())
        assert points[:, 0].max() > 9
        assert points[:, 1].max() > 3

    @examples(30)
    @given(
        st.lists(st.sampled_from("fis"), min_size=2, max_size=4),
        st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=3),
        st.lists(st.sampled_from(["<=", "<", "=="]), min_size=3, max_size=3),
        seeds,
    )
    def test_any_point_that_exists_leads_to_samples(self, kinds, rows, signs, seed):
        kind = {"f": Float(-2, 3), "i": Int(-2, 3), "s": Float(-2, 3, step=0.25)}
        dimensions = {f"p{i}": kind[k] for i, k in enumerate(kinds)}
        rng = np.random.default_rng(seed)
        point = Space(dimensions).sample(rng)
        limits = []
        for row, sign in zip(rows, signs, strict=False):
            if any(row[: len(kinds)]):
                terms = " + ".join(f"{f} * p{i}" for i, f in enumerate(row[: len(kinds)]))
                bound = sum(f * v for f, v in zip(row, point, strict=False))
                limits.append(f"{terms} {sign} {bound + (sign == '<')!r}")
        space = Space(dimensions, constraints=limits[:2])
        for _ in range(5):
            values = space.sample(rng)
            assert space.admits(values)
            assert space.check(values) == values

    @pytest.mark.parametrize(
        ("kinds", "limits", "least"),  # different points of 15
        [
            ("ssss", ["a - 3*b - 2*c + 3*d == -4", "b - a - c - d == 3"], 8),
            ("ssii", ["-a + 3*c + d == 4.25", "3*a + 3*b - c + 2*d == 9.5"], 2),
            (
                "sfss",
                [
                    "-a - 3*b + 2*c + 2*d == 3.064377360417522",
                    "-2*a + b + 3*c + 3*d == 11.395207546527493",
                ],
                8,
            ),
        ],
    )
    def test_points_that_rounding_does_not_find(self, kinds, limits, least):
        kind = {"f": Float(-2, 3), "i": Int(-2, 3), "s": Float(-2, 3, step=0.25)}
        names = dict(zip("abcd", map(kind.get, kinds), strict=True))
        space, rng = Space(names, constraints=limits), np.random.default_rng(0)
        points = {space.sample(rng) for _ in range(15)}
        assert all(map(space.admits, points))
        assert len(points) >= least

    @pytest.mark.parametrize(
        ("dimension", "total"), [(Float(0, 1), 1), (Float(0, 1, step=0.05), 1), (Int(0, 100), 100)]
    )
    @pytest.mark.parametrize("text", ["{} == {}", "{1} <= {0} <= {1}"])
    def test_a_mixture_of_ten_parts(self, dimension, total, text):
        parts = " + ".join("abcdefghij")
        space = Space(dict.fromkeys("abcdefghij", dimension), constraints=text.format(parts, total))
        points = np.array([space.sample(np.random.default_rng(k)) for k in range(60)])
        assert np.abs(points.sum(axis=1) - total).max() < 1e-6 * total
        assert np.abs(points.mean(axis=0) - total / 10).max() < 0.06 * total
        assert points.std(axis=0).min() > 0.04 * total
        assert len({space.key(tuple(p)) for p in points.tolist()}) > 50

    def test_an_ordered_list_and_a_thin_slice(self):
        names = [f"x{i}" for i in range(12)]
        ordered = [f"{a} < {b}" for a, b in itertools.pairwise(names)]
        rng = np.random.default_rng(0)
        for dimension in (Float(0, 1), Int(0, 30)):
            space = Space(dict.fromkeys(names, dimension), constraints=ordered)
            points = [space.sample(rng) for _ in range(5)]
            assert all(list(p) == sorted(set(p)) for p in points)
            assert len(set(points)) == 5
        thin = Space({**XY, "k": Categorical(["a", "b"])}, constraints="x + y <= 1e-6")
        assert all(sum(thin.sample(rng)[:2]) <= 2e-6 for _ in range(5))

    def test_contradictions_are_refused_soon(self):
        limits = [["x + y <= 1", "x >= 0.9", "y >= 0.9"], ["x < y", "y < x"]]
        for kind in (Float(0, 1), Int(0, 10**6)):
            for texts in limits if isinstance(kind, Float) else limits[1:]:
                with pytest.raises(SpaceError, match=r"no point .*widen the ranges, or drop"):
                    Space({"x": kind, "y": kind}, constraints=texts)


class TestOptimizer:
    def test_the_model_is_told_and_warm_up_keeps_them(self):
        optimizer = made(["x: 1, y: 1"], warmup=30)
        points = optimizer.ask(30)
        assert all(p["x"] + 2 * p["y"] <= 10 for p in points)
        optimizer.ask()
        request = optimizer.client.requests[0]
        assert LIMIT in request.messages[-1].content
        assert LIMIT not in request.messages[0].content  # which prefix caches keep

    @pytest.mark.parametrize("out_of_range", ["clip", "reject"])
    def test_a_point_that_breaks_one_is_a_complaint_and_never_moved(self, out_of_range):
        optimizer = made(["x: 10, y: 5", "x: 2, y: 3"], out_of_range=out_of_range)
        assert optimizer.ask() == {"x": 2.0, "y": 3.0}
        assert not optimizer.pending_proposals[0].clipped
        assert "breaks x + 2 * y <= 10 (by 10)" in optimizer.client.requests[1].text
        assert optimizer.usage.rejected == {"constraint": 1}

    def test_the_network_keeps_them(self):
        space = Space(XY, constraints=LIMIT)
        optimizer = LLMOptimizer(space, "network", seed=0, warmup=3)
        for _ in range(15):
            point = optimizer.ask()
            assert space.admits(space.flatten(point))
            optimizer.tell(point, point["x"] + 3 * point["y"])
        assert optimizer.usage.fallbacks <= 3

    def test_all_points_of_a_small_space_and_no_others(self):
        space = {"k": Int(0, 9), "m": Int(0, 9)}
        optimizer = made(space=space, constraints="k + m <= 3", warmup=10)
        assert len({(p["k"], p["m"]) for p in optimizer.ask(10)}) == 10
        with pytest.warns(FallbackWarning, match="every point of the space"):
            optimizer.ask()

    def test_a_told_point_that_breaks_one_ranks_last(self):
        optimizer = made()
        trial = optimizer.tell({"x": 10, "y": 5}, 100.0)
        assert trial.constraint_violation == 10.0
        optimizer.tell({"x": 1, "y": 1}, 0.0)
        assert optimizer.best.reward == 0.0
        trial = optimizer.tell({"x": 10, "y": 5}, 100.0, constraint_violation=1.5)
        assert trial.constraint_violation == 11.5

    def test_cma_keeps_them(self):
        pytest.importorskip("cma")
        space = Space(XY, constraints=LIMIT)
        optimizer = made()
        for x in (9.0, 8.0):
            optimizer.tell({"x": x, "y": 0.0}, x)
        rng = np.random.default_rng(0)
        points = CMAPartner(0).propose(space, optimizer.history, rng, 50, set())
        assert len(points) > 20
        assert all(space.admits(p.values) for p in points)

    def test_a_point_to_ask_must_keep_them(self):
        with pytest.raises(ParameterError, match=r"warmup\[0\]: .* breaks x \+ 2"):
            made(warmup=[{"x": 10, "y": 5}])
        with pytest.raises(ParameterError, match=r"breaks x \+ 2 \* y <= 10 \(by 10\)"):
            made().enqueue({"x": 10, "y": 5})


class TestStart:
    NOW = "the current production setting"

    def test_comes_first_and_the_model_is_told_what_it_is(self):
        optimizer = made(["x: 1, y: 1"], start={self.NOW: {"x": 3, "y": 2}}, warmup=2)
        first, second = optimizer.ask(), optimizer.ask()
        assert first == {"x": 3.0, "y": 2.0}
        optimizer.tell(first, 5.0)
        optimizer.tell(second, 4.0)
        optimizer.ask()
        text = optimizer.client.requests[0].messages[-1].content
        assert "The point x: 3.0, y: 2.0 is the current production setting." in text
        trial = optimizer.trials[0]
        assert (trial.source, trial.explanation) == ("user", self.NOW)

    def test_a_list_and_later_points(self):
        optimizer = made(["x: 1, y: 1"], start=[{"x": 3, "y": 2}])
        optimizer.enqueue({"x": 4, "y": 2}, "what a colleague would try")
        optimizer.enqueue({"x": 5, "y": 2})
        assert [p["x"] for p in optimizer.ask(4)] == [3, 4, 5, 1]

    @pytest.mark.parametrize("given", [{"x": 3, "y": 2}, 3, "x", {1: {"x": 3, "y": 2}}])
    def test_what_it_is_not(self, given):
        with pytest.raises((ValueError, ParameterError), match="start"):
            made(start=given)

    def test_goes_on_after_a_kill(self, tmp_path):
        path = tmp_path / "run.jsonl"
        options = {"start": {self.NOW: {"x": 3, "y": 2}, "": {"x": 1, "y": 2}}, "storage": path}
        first = made(**options)
        assert first.ask()["x"] == 3
        first.enqueue({"x": 9, "y": 0}, "a guess")
        first.close()
        again = made(**options)
        assert [p.explanation for p in again.pending_proposals] == [self.NOW]
        assert [p["x"] for p in again.ask(2)] == [1, 9]
        again.close()
        loaded = LLMOptimizer.load(path, ScriptedClient([]))
        assert [p.explanation for p in loaded.pending_proposals] == [self.NOW, "", "a guess"]
        assert loaded.space.constraints == (LIMIT,)
        loaded.save(tmp_path / "copy.jsonl")
        copy = LLMOptimizer.load(tmp_path / "copy.jsonl", ScriptedClient([]))
        assert copy.pending_proposals == loaded.pending_proposals
        with pytest.raises(StorageError, match="start "):
            made(storage=path)
        with pytest.raises(TypeError, match="start"):
            LLMOptimizer.load(path, start=[])


class TestOtherLimits:
    """A search resumes with other constraints and forbidden combinations."""

    SPACE: ClassVar = {"a": Int(1, 3), "kind": Categorical(["u", "v", "w"])}

    def made(self, path, constraints=(), forbidden=(), replies=(), **options):
        space = Space(self.SPACE, forbidden=forbidden)
        options = {"prompt": "words", "compute": False, **options}
        return made(replies, space, constraints=constraints, storage=path, **options)

    def test_later_points_obey_and_all_trials_are_judged_by_them(self, tmp_path, caplog):
        path, old = tmp_path / "s.jsonl", {"a": 3, "kind": "u"}
        start = [{"a": 3, "kind": "v"}]
        with self.made(path, start=start) as optimizer:
            optimizer.tell(old, 9.0)
            optimizer.tell(optimizer.ask(), 2.0)  # the start point
            optimizer.enqueue({"a": 3, "kind": "w"})
            pending = optimizer.ask()
        caplog.clear()
        limits = {"constraints": ["a <= 2"], "forbidden": [{"a": 1, "kind": "u"}], "start": start}
        answers = [f"Start from: #1\nProposal: {p}" for p in ("a: 3, kind: u", "a: 2, kind: u")]
        with self.made(path, **limits, replies=answers) as optimizer:
            assert "resumes with other constraints (there [], now ['a <= 2']); other" in caplog.text
            assert "the other constraints make 2 trials infeasible, and 0 feasible" in caplog.text
            assert [t.constraint_violation for t in optimizer.trials] == [1.0, 1.0]
            assert optimizer.best.params == old
            assert optimizer.pending == [pending]
            assert optimizer.ask() == {"a": 2, "kind": "u"}
            assert "- a <= 2" in optimizer.client.requests[0].text
            assert "never a = 1 and kind = u together" in optimizer.client.requests[0].text
            corrected = optimizer.tell(old, 8.0, replaces=0)
            assert corrected.constraint_violation == 1.0
            feasible = optimizer.tell({"a": 2, "kind": "u"}, 1.0)
            assert optimizer.best == feasible
        caplog.clear()
        loaded = LLMOptimizer.load(path, ScriptedClient([]))
        with self.made(path, **limits) as optimizer:
            assert caplog.text == ""
            assert loaded.space.to_dict() == optimizer.space.to_dict()
            assert loaded.trials == optimizer.trials
        with self.made(path, start=start) as optimizer:
            optimizer.enqueue({"a": 3, "kind": "w"})

    @pytest.mark.parametrize("noisy", [False, True])
    def test_the_measured_part_of_a_violation_stays(self, tmp_path, noisy):
        path, how = tmp_path / "s.jsonl", {"noisy": noisy}
        with self.made(path, ["a <= 2"], **how) as optimizer:
            optimizer.tell({"a": 3, "kind": "u"}, 9.0, constraint_violation=0.1)
            optimizer.tell({"a": 3, "kind": "v"}, 8.0)
            optimizer.tell({"a": 2, "kind": "u"}, 7.0)
            optimizer.tell({"a": 3, "kind": "w"}, 6.0, constraint_violation=0.3)
            optimizer.withdraw(trial=3)
            totals = [t.constraint_violation for t in optimizer.trials]
            assert totals == pytest.approx([1.1, 1.0, 0.0, 0.0])
        with self.made(path, ["a <= 1"], **how) as optimizer:
            totals = [t.constraint_violation for t in optimizer.trials]
            assert totals == pytest.approx([2.1, 2.0, 1.0, 0.0])
            corrected = optimizer.tell({"a": 3, "kind": "u"}, 9.5, replaces=0)
            assert corrected.constraint_violation == pytest.approx(2.1)
            restored = optimizer.tell({"a": 3, "kind": "w"}, 6.0, replaces=3)
            assert restored.constraint_violation == pytest.approx(2.3)
        with self.made(path, forbidden=[{"a": 3, "kind": "v"}], **how) as optimizer:
            totals = [t.constraint_violation for t in optimizer.trials]
            assert totals == pytest.approx([0.1, 1.0, 0.0, 0.3])
            assert optimizer.best.reward == 7.0
            study = optimizer.to_optuna()
            assert [t.values[0] for t in study.best_trials] == [7.0]
            moved = optimizer.tell({"a": 3, "kind": "u"}, 9.0, replaces=0, constraint_violation=0)
            assert moved.constraint_violation == 0.0
            assert optimizer.best.reward == 9.0
        other = made((), Space(self.SPACE), constraints=["a <= 2"], **how)
        other.import_trials(path)
        totals = [t.constraint_violation for t in other.trials]
        assert totals == pytest.approx([1.0, 1.0, 0.0, 1.3])

    @pytest.mark.parametrize("prompt", ["words", "props"])
    def test_a_forbidden_combination_has_no_amount(self, prompt):
        limits = {"constraints": ["a <= 2"], "forbidden": [{"a": {">": 1}, "kind": "v"}]}
        client = ScriptedClient(["Start from: #1\nProposal: a: 1, kind: u"])
        optimizer = LLMOptimizer(Space(self.SPACE, **limits), client, prompt, warmup=1)
        never = "never a > 1 and kind = v together"
        for a, broken in ((2, never), (3, rf"a <= 2 \(by 1\), {never}")):
            with pytest.raises(ParameterError, match=f"breaks {broken}$"):
                optimizer.enqueue({"a": a, "kind": "v"})
            optimizer.tell({"a": a, "kind": "v"}, 1.0)
        said = ["has a forbidden combination", "violates the constraints by 2"]
        trials = optimizer.to_optuna().trials
        assert [t.user_attrs["llmopt:violated"] for t in trials] == said
        optimizer.ask()
        assert all(text in client.requests[0].text for text in said)

    def test_a_queued_point_that_breaks_one_waits(self, tmp_path):
        path, whole, part = tmp_path / "s.jsonl", {"a": 3, "kind": "u"}, {"a": 3}
        with self.made(path, warmup=9) as optimizer:
            optimizer.enqueue(whole)
            optimizer.enqueue(part)
        with self.made(path, ["a <= 2"], warmup=9) as optimizer:
            with pytest.warns(UserWarning, match="a queued point waits") as said:
                assert optimizer.ask()["a"] < 3
            texts = [str(warning.message) for warning in said]
            assert "u'} breaks a <= 2. Withdraw it, or lift the limit" in texts[0]
            assert "no point has a = 3 within the constraints (a <= 2). Withdraw it" in texts[1]
            assert optimizer.queued == [whole, part]
            optimizer.withdraw(part)
        with self.made(path, warmup=9) as optimizer:
            assert optimizer.ask() == whole

    def test_all_points_that_are_left_are_found(self, tmp_path):
        path = tmp_path / "s.jsonl"
        with self.made(path, warmup=9) as optimizer:
            for a in (2, 3):
                for kind in ("u", "v", "w"):
                    optimizer.tell({"a": a, "kind": kind}, 1.0)
        with self.made(path, ["a <= 2"], warmup=9) as optimizer:
            points = [optimizer.ask() for _ in range(3)]
            assert sorted(p["kind"] for p in points if p["a"] == 1) == ["u", "v", "w"]

    def test_an_answer_that_was_paid_for_is_checked_by_the_new_ones(self, tmp_path):
        path = tmp_path / "s.jsonl"
        answers = ["a: 3, kind: u", "a: 1, kind: u"]
        with self.made(path, replies=answers[:1], prompt="props") as optimizer:
            optimizer._settle = lambda *_: 1 / 0  # a kill before the ask is recorded
            with pytest.raises(ZeroDivisionError):
                optimizer.ask()
        with self.made(path, ["a <= 2"], replies=answers[1:], prompt="props") as optimizer:
            assert optimizer.ask() == {"a": 1, "kind": "u"}

    def test_the_shell_and_an_agent_change_them(self, tmp_path, capsys, caplog):
        searches = SearchFolder(tmp_path, ("network",))
        space = {"a": {"type": "integer", "minimum": 1, "maximum": 3}}
        searches.create_search("s", space, "maximize")
        searches.tell("s", {"a": 3}, 9.0)
        assert searches.create_search("s", space, "maximize", constraints=["a<=2"])["trials"] == 1
        points = [p["params"]["a"] for p in searches.ask("s", 2)["points"]]
        assert sorted(points) == [1, 2]
        file = tmp_path / "s.json"
        described = json.loads(file.read_text())
        assert described.pop("constraints") == ["a<=2"]
        file.write_text(json.dumps({**described, "forbidden": [{"a": 2}]}))
        capsys.readouterr()
        caplog.clear()
        assert main(["status", str(file)]) == 0  # before anything is recorded
        assert json.loads(capsys.readouterr().out)["best"].get("constraint_violation") is None
        assert "constraints make 0 trials infeasible, and 1 feasible" in caplog.text
        assert stored_state(file.with_suffix(".jsonl")).trials[0].constraint_violation == 1.0
        caplog.clear()
        assert main(["tell", str(file), '{"a": 1}', "--reward", "3"]) == 0
        assert "other constraints (there ['a<=2'], now []); other forbidden" in caplog.text
        with pytest.raises(LLMOptError, match="other direction"):
            searches.create_search("s", space, "minimize")


class TestOptuna:
    @staticmethod
    def objective(trial):
        x, k = trial.suggest_float("x", 0, 10), trial.suggest_int("k", 0, 10)
        if k > 2:
            x += trial.suggest_float("z", 0, 10)
        return x + k

    @staticmethod
    def far(request):
        names = [n for n in ("x", "k", "z") if f"{n}: <value>" in request.text]
        rng = np.random.default_rng(request.seed)
        return ", ".join(f"{n}: {rng.integers(10)}" for n in names)

    def test_keeps_them_in_start_up_and_after_and_in_branches(self):
        client = ScriptedClient(self.far)
        limits = ["x + 2 * k <= 10", "z <= x"]
        sampler = LLMSampler(client, prompt="props", n_startup_trials=5, seed=0, constraints=limits)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.optimize(self.objective, n_trials=25)
        for trial in study.trials[1:]:
            assert trial.params["x"] + 2 * trial.params["k"] <= 10 + 1e-6
        known = [t.params for t in study.trials[6:] if "z" in t.params]
        assert known
        assert all(p["z"] <= p["x"] + 1e-6 for p in known)
        assert "- x + 2 * k <= 10" in client.requests[0].messages[-1].content
        assert "- z <= x\n" in client.requests[-1].messages[-1].content

    def test_the_first_trial_keeps_them_though_nothing_is_known_of_it(self):
        for seed in range(10):
            sampler = LLMSampler(ScriptedClient([]), seed=seed, constraints="x + k <= 10")
            study = optuna.create_study(sampler=sampler)
            study.optimize(self.objective, n_trials=1)
            assert study.trials[0].params["x"] + study.trials[0].params["k"] <= 10

    def test_an_enqueued_point_comes_with_its_words(self):
        client = ScriptedClient(self.far)
        sampler = LLMSampler(client, prompt="props", n_startup_trials=2, constraints="x + k <= 10")
        study = optuna.create_study(sampler=sampler)
        study.enqueue_trial({"x": 9, "k": 2}, user_attrs={"words": "what production uses"})
        study.optimize(self.objective, n_trials=3)
        text = client.requests[0].messages[-1].content
        assert "The point k: 2, x: 9.0 is what production uses." in text
        assert "violates the constraints by 1" in text

    def test_a_contradiction_is_an_error(self):
        sampler = LLMSampler(ScriptedClient([]), n_startup_trials=1, constraints="x <= -1")
        study = optuna.create_study(sampler=sampler)
        with pytest.raises(SpaceError, match="no point"):
            study.optimize(self.objective, n_trials=2)


class TestNevergrad:
    def test_keeps_them_and_tells_the_model(self):
        ng = pytest.importorskip("nevergrad")
        from llmopt.adapters.nevergrad import ParametrizedLLM

        client = ScriptedClient(lambda request: "x: 9, k: 9")
        space = ng.p.Instrumentation(
            x=ng.p.Scalar(lower=0, upper=10), k=ng.p.Scalar(lower=0, upper=10).set_integer_casting()
        )
        made = ParametrizedLLM(
            client, prompt="props", warmup=5, constraints="x + 2 * k <= 10", max_fallbacks=None
        )
        optimizer = made(space, budget=12)
        optimizer.suggest_known("what production uses", x=8.0, k=1)
        optimizer.suggest(x=9.0, k=0)
        seen = []

        def loss(x, k):
            seen.append((x, k))
            return x + k

        with pytest.warns(FallbackWarning):  # the model says the same again and again
            optimizer.minimize(loss)
        assert seen[:2] == [(9.0, 0), (8.0, 1)]  # Nevergrad's order: last in, first out
        assert all(x + 2 * k <= 10 + 1e-6 for x, k in seen)
        text = client.requests[0].messages[-1].content
        assert "- x + 2 * k <= 10" in text
        assert "The point x: 8.0, k: 1 is what production uses." in text
