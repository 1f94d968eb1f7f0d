"""CMA-ES beside the model: `LLMOptimizer(partner="cma")`."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections import Counter

import numpy as np
import pytest

import llmopt.partners.cma
from llmopt import (
    Categorical,
    ClientError,
    Completion,
    FallbackWarning,
    Float,
    Int,
    LLMOptError,
    LLMOptimizer,
    Reply,
    ScriptedClient,
    Space,
    SpaceError,
    StorageError,
)
from llmopt.benchmarks.methods.baselines import GaussianGrammarClient
from llmopt.errors import install_hint
from llmopt.history import History, Trial
from llmopt.partners import PARTNERS
from llmopt.partners.cma import CMAPartner, losses_of

SPACE = {"x": Float(-5.0, 5.0), "y": Float(-5.0, 5.0), "z": Float(-5.0, 5.0)}
GOAL = np.array([2.0, -1.0, 3.0])


def sphere(point) -> float:
    return -float(((np.array(list(point.values())) - GOAL) ** 2).sum())


class Knower:
    """Proposes points at a distance from the goal, which shrinks with every request."""

    style = "chat"
    name = "knower"

    def __init__(self, distance: float, shrink: float = 1.0) -> None:
        self.distance = distance
        self.shrink = shrink
        self.requests = []

    def complete(self, request) -> Reply:
        self.requests.append(request)
        self.distance *= self.shrink
        way = np.random.default_rng([request.seed, 0]).standard_normal(3)
        x, y, z = np.clip(GOAL + self.distance * way / np.linalg.norm(way), -5, 5)
        text = f"x: {x:.9f}, y: {y:.9f}, z: {z:.9f}"
        return Reply((Completion(text),), "knower", cost=0.0)


def make(client=None, space=SPACE, **options) -> LLMOptimizer:
    options.setdefault("warmup", 6)
    options.setdefault("seed", 1)
    options.setdefault("partner", "cma")
    return LLMOptimizer(space, client or GaussianGrammarClient(), **options)


def go(optimizer, count, f=sphere):
    points = []
    for _ in range(count):
        points.append(optimizer.ask())
        optimizer.tell(points[-1], f(points[-1]))
    return points


def sources(optimizer):
    return [t.source for t in optimizer.trials]


class TestShares:
    def test_the_model_is_asked_for_its_own_points_only(self):
        client = Knower(1.0)
        optimizer = make(client)
        points = optimizer.ask(46)
        assert len({tuple(p.values()) for p in points}) == 46
        asked = len(client.requests)
        assert optimizer.usage.proposals == {"warmup": 6, "cma": 40 - asked, "llm": asked}
        assert asked == 20  # before anything is told, half

    @pytest.mark.parametrize("partners", [*((name,) for name in PARTNERS), tuple(PARTNERS)])
    def test_they_take_turns_one_to_one(self, partners):
        optimizer = make(Knower(2.0), partner=list(partners))
        names = ["llm", *partners]
        go(optimizer, 6 + 8 * len(names))
        assert sources(optimizer)[6:] == names * 8

    def test_a_model_that_does_not_deliver_loses_no_turn_of_the_partner(self):
        optimizer = make(ScriptedClient(["no idea"] * 1000), attempts=1, max_fallbacks=None)
        with pytest.warns(FallbackWarning):
            go(optimizer, 46)
        assert Counter(sources(optimizer)[6:]) == {"fallback": 20, "cma": 20}
        assert optimizer.usage.fallback_share == 1.0


class TestCapOnRequests:
    """`max_requests` with a partner: one design by the model, then the partner."""

    @pytest.mark.parametrize("on_error", ["raise", "fallback"])
    @pytest.mark.parametrize(
        ("partner", "others"), [("cma", {"cma"}), (list(PARTNERS), set(PARTNERS))]
    )
    def test_the_model_proposes_first_and_the_partner_the_rest(self, partner, others, on_error):
        optimizer = make(Knower(0.5), partner=partner, max_requests=1, warmup=0, on_error=on_error)
        go(optimizer, 40)
        told = sources(optimizer)
        assert told[0] == "llm"
        assert set(told[1:]) == others
        assert optimizer.usage.requests == 1
        assert optimizer.usage.proposals == Counter(told)

    @pytest.mark.parametrize("on_error", ["raise", "fallback"])
    def test_the_partner_takes_over_within_a_batch(self, on_error):
        """The cap is reached in the midst of an ask: what the model gave before is kept."""
        client = ScriptedClient(["x: 1, y: 1, z: 1", "x: 2, y: 2, z: 2"])
        optimizer = make(
            client, partner="cma", max_requests=2, warmup=0, prompt="props", on_error=on_error
        )
        points = optimizer.ask(3)
        assert [p["x"] for p in points[:2]] == [1.0, 2.0]
        assert [p.source for p in optimizer.pending_proposals] == ["llm", "llm", "cma"]
        assert optimizer.usage.fallbacks == 0

    def test_a_call_that_fails_spends_its_request(self):
        client = ScriptedClient([ClientError("down")] * 2)
        optimizer = make(client, partner="cma", max_requests=2, warmup=0)
        with pytest.raises(ClientError):
            optimizer.ask()
        with pytest.raises(ClientError):
            optimizer.ask()
        optimizer.ask()
        assert [p.source for p in optimizer.pending_proposals] == ["cma"]


class TestPartner:
    @pytest.mark.parametrize("direction", ["maximize", "minimize"])
    def test_begins_at_the_best_point_told_before(self, direction):
        sign = 1 if direction == "maximize" else -1
        optimizer = make(warmup=0, direction=direction)
        best = {"x": 4.0, "y": -4.0, "z": 4.0}
        for point, reward in ((best, 3.0), ({"x": -4.0, "y": 4.0, "z": -4.0}, 1.0)):
            optimizer.tell(point, sign * reward)
        optimizer.tell({"x": 0.0, "y": 0.0, "z": 0.0}, 9.0 * sign, constraint_violation=1.0)
        optimizer.ask(200)
        own = np.array([p.values for p in optimizer.pending_proposals if p.source == "cma"])
        assert np.abs(own.mean(0) - [4.0, -4.0, 4.0]).max() < 1.2
        # A sixth of the range, a little less for the bounds.
        assert 0.8 < own.std(0).min() <= own.std(0).max() < 1.8

    def test_finds_what_it_seeks_with_a_model_that_knows_nothing(self):
        optimizer = make(Knower(8.0), batch_size=4)
        go(optimizer, 300)  # every second point is the model's
        assert optimizer.best.reward > -0.5

    def test_failures_are_worse_than_all_and_end_no_search(self):
        optimizer = make(GaussianGrammarClient())
        for _ in range(150):
            point = optimizer.ask()
            if point["x"] < 0:
                optimizer.tell_failure(point, "no")
            else:
                optimizer.tell(point, sphere(point))
        failed = [t.state == "failed" for t in optimizer.trials]
        assert sum(failed[-50:]) < sum(failed[6:56]) or not sum(failed[6:56])
        assert optimizer.best.reward > -0.5
        optimizer = make()
        for _ in range(40):
            optimizer.tell_failure(optimizer.ask())
        assert "cma" in sources(optimizer)

    def test_it_leaves_a_place_where_everything_fails(self):
        space, rng = Space(SPACE), np.random.default_rng(0)
        emitter, trials = CMAPartner(3), []
        for i in range(400):
            (point,) = emitter.propose(space, History(tuple(trials)), rng, 1, set())
            inside = all(abs(v) < 4.2 for v in point.values)  # where it begins
            rewards = None if inside else (point.values[0],)
            state = "complete" if rewards else "failed"
            trials.append(Trial(i, None, point.values, rewards, state, source="cma"))
        assert sum(t.state == "complete" for t in trials) > 100

    def test_flat_and_huge_rewards_end_no_search(self):
        for f in (lambda p: 0.0, lambda p: 1.7e308 * np.sign(p["x"])):
            optimizer = make()
            points = go(optimizer, 120, f)
            assert np.isfinite([list(p.values()) for p in points]).all()

    def test_losses_keep_the_order_of_ranks(self):
        ranks = [(0.0, -1e300), (0.0, 1e300), (0.5, -9.0), (1e308, 0.0), (math.inf, math.inf)]
        losses = losses_of(ranks)
        assert losses == sorted(losses)
        assert len(set(losses)) == 5
        assert np.isfinite(losses).all()

    def test_numbers_of_every_kind(self):
        space = {
            "k": Int(0, 30),
            "lr": Float(1e-5, 1.0, log=True),
            "fixed": Float(2.0, 2.0),
            "step": Float(0.0, 1.0, step=0.1),
        }
        optimizer = make(space=space)
        go(optimizer, 150, lambda p: -((p["k"] - 17) ** 2) - (math.log10(p["lr"]) + 3) ** 2)
        assert optimizer.best.params["k"] == 17
        assert optimizer.best.params["lr"] == pytest.approx(1e-3, rel=0.5)
        assert {t.values[2] for t in optimizer.trials} == {2.0}

    @pytest.mark.filterwarnings("ignore::llmopt.FallbackWarning")
    def test_a_small_space_is_exhausted_without_repeats(self):
        optimizer = make(space={"k": Int(0, 3), "m": Int(0, 3)}, warmup=0)
        points = go(optimizer, 16, lambda p: p["k"])
        assert len({tuple(p.values()) for p in points}) == 16
        with pytest.warns(FallbackWarning, match="every point of the space"):
            optimizer.ask(3)

    def test_the_global_generator_is_left_alone(self):
        np.random.seed(7)
        before = np.random.get_state()[1].copy()
        go(make(), 40)
        np.testing.assert_array_equal(np.random.get_state()[1], before)

    def test_reading_at_once_is_reading_one_by_one(self):
        space, rng = Space(SPACE), np.random.default_rng(3)
        partner, trials = CMAPartner(5), []
        for i in range(150):
            history = History(tuple(trials))
            state = copy.deepcopy(rng.bit_generator.state)
            (proposal,) = partner.propose(space, history, rng, 1, set())
            if i % 10 == 0:
                rng.bit_generator.state = state
                assert CMAPartner(5).propose(space, history, rng, 1, set()) == [proposal]
            reward = float(i > 90 and proposal.values[0])
            source = "cma" if i % 3 else "llm"
            trials.append(Trial(i, None, proposal.values, (reward,), source=source))

    def test_an_interrupt_while_reading_loses_nothing(self, monkeypatch):
        expected, optimizer = make(seed=4), make(seed=4)
        go(expected, 40)
        learn = CMAPartner._learn

        def interrupted(self):
            monkeypatch.setattr(CMAPartner, "_learn", learn)
            raise KeyboardInterrupt

        for _ in range(40):
            if len(optimizer.trials) == 20:
                monkeypatch.setattr(CMAPartner, "_learn", interrupted)
            try:
                point = optimizer.ask()
            except KeyboardInterrupt:
                point = optimizer.ask()
            optimizer.tell(point, sphere(point))
        assert CMAPartner._learn is learn
        assert [t.values for t in optimizer.trials] == [t.values for t in expected.trials]


class TestKeeping:
    @pytest.mark.parametrize("way", ["pickle", "copy", "save"])
    def test_copies_go_on_alike(self, tmp_path, way):
        optimizer = make(batch_size=3, partner=["network", "cma"])
        go(optimizer, 31)
        if way == "save":
            optimizer.save(tmp_path / "run.jsonl")
            other = LLMOptimizer.load(tmp_path / "run.jsonl", GaussianGrammarClient())
        else:
            copied = pickle.loads(pickle.dumps(optimizer))
            other = copied if way == "pickle" else copy.deepcopy(optimizer)
        assert go(other, 25) == go(optimizer, 25)

    def test_another_partner_is_refused(self, tmp_path):
        for first, second in (("cma", None), (None, "cma")):
            path = tmp_path / f"{first}.jsonl"
            with make(partner=first, storage=path) as optimizer:
                optimizer.ask()
            with pytest.raises(StorageError, match=r"partner \(there"):
                make(partner=second, storage=path)


class TestErrors:
    def test_choices(self):
        with pytest.raises(SpaceError, match="'kind' is a choice"):
            make(space={"x": Float(0, 1), "kind": Categorical(["a", "b"])})

    @pytest.mark.parametrize("partner", ["CMA", "tpe", True, 1])
    def test_unknown(self, partner):
        names = ", ".join(map(repr, PARTNERS))
        expected = f"expected {names}, a list|names of partners, such as 'cma'"
        with pytest.raises(ValueError, match=expected):
            make(partner=partner)

    def test_package_missing(self, monkeypatch):
        monkeypatch.setattr(llmopt.partners.cma, "find_spec", lambda name: None)
        with pytest.raises(LLMOptError, match=re.escape(install_hint("bench"))):
            make()
        make(partner=None)

    def test_several_objectives(self):
        for partner in (*PARTNERS, list(PARTNERS)):
            said = re.escape(f"partner={partner!r} searches one objective, and there are 2")
            with pytest.raises(ValueError, match=said):
                make(direction=["maximize", "minimize"], partner=partner)
