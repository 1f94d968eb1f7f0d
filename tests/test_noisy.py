"""Repeated measurements, standard errors, and a model that ends the search."""

import copy
import math
import re
from contextlib import closing
from random import Random

import numpy as np
import pytest

from llmopt import Float, LLMOptimizer, RewardError, ScriptedClient, maximize, repeats
from llmopt.client.model_facts import ModelFacts
from llmopt.errors import NoTrialsError, ParameterError, SearchStopped
from llmopt.history import History, Trial
from llmopt.policies import PolicySearch
from llmopt.prompt import Situation, get_prompt
from llmopt.repeats import Merged
from llmopt.report_page.page import page
from llmopt.service import search_json as service
from llmopt.trackers import Callback
from llmopt.two_way import two_way
from llmopt.util.caller import MCP, PYTHON, SHELL, called_by
from llmopt.views import outcome

SPACE = {"x": Float(0.0, 1.0)}
FIRST = "Start from: new\nProposal: x: 0.5"
AGAIN = "Start from: #1\nProposal: no change"
STOP = "Analysis: flat.\nProposal: stop"


def test_equal_points_merge_to_mean_and_error():
    client = ScriptedClient([FIRST, AGAIN, AGAIN, "Start from: #1\nProposal: x: 0.25"])
    optimizer = LLMOptimizer(SPACE, client, "words", warmup=0, noisy=True)
    for reward in (1.0, 2.0, 6.0, 2.5):
        optimizer.tell(optimizer.ask(), reward)
    assert len(optimizer.trials) == 4
    first, other = optimizer.history.trials
    assert (first.reward, first.evaluations, first.number) == (3.0, 3, 0)
    assert first.stderr == pytest.approx(math.sqrt(7 / 3))
    assert (other.reward, other.number) == (2.5, 1)
    assert optimizer.best.stderr == pytest.approx(first.stderr)
    assert optimizer.best.params == first.params
    assert "#1 | 3 ± 1.5 (3 times) | 0.5" in client.requests[3].text
    assert optimizer.usage.rejected == {}


@pytest.mark.parametrize("violations", [(0.0, 3.0), (3.0, 0.0)])
def test_a_point_that_broke_a_measured_limit_once_is_infeasible(violations):
    """The first measurement alone decided."""
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), "words", warmup=0, noisy=True)
    for violation in violations:
        optimizer.tell({"x": 0.5}, 1.0, constraint_violation=violation)
    optimizer.tell({"x": 0.25}, 2.0)
    assert optimizer.history.trials[0].constraint_violation == 1.5
    assert optimizer.best.params == {"x": 0.25}


def test_a_point_that_only_failed_is_not_proposed_again():
    client = ScriptedClient([FIRST, AGAIN, "Start from: new\nProposal: x: 0.25", AGAIN])
    optimizer = LLMOptimizer(SPACE, client, "words", warmup=0, noisy=True)
    optimizer.tell_failure(optimizer.ask(), "clogged")
    assert optimizer.ask() == {"x": 0.25}
    assert optimizer.usage.rejected == {"duplicate": 1}
    optimizer.tell({"x": 0.5}, 1.0)  # it does not always fail
    assert optimizer.ask() == {"x": 0.5}


def test_every_view_names_the_same_best(tmp_path):
    """Each of these once ranked for itself, and took the lucky 10.0 for the best."""
    rewards = iter([9.0, 11.0, 8.0, 10.0, 10.0])
    points = [{"x": 0.5}] * 4 + [{"x": 0.1}]
    seen = []

    class Last(Callback):
        def told(self, search, trial, best, usage):
            seen.append(best.params)

    result = maximize(
        lambda p: next(rewards),
        SPACE,
        5,
        ScriptedClient([]),
        warmup=points,
        noisy=True,
        callbacks=[Last()],
        storage=tmp_path / "run.jsonl",
    )
    optimizer = result.optimizer
    optimizer.save(tmp_path / "saved.jsonl")
    views = {
        "result": result.best.params,
        "history": optimizer.history.best.params,
        "ranked": optimizer.history.ranked[0].params,
        "callback": seen[-1],
        "status": service.status(optimizer)["best"]["params"],
        **{
            name: LLMOptimizer.load(tmp_path / f"{name}.jsonl", ScriptedClient([])).best.params
            for name in ("run", "saved")
        },
    }
    assert set(map(str, views.values())) == {"{'x': 0.5}"}, views
    assert "best 9.5 at {'x': 0.5}" in repr(result)


def test_a_repeated_point_names_its_measurements(caplog):
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), "words", noisy=True)
    for x, reward, words in (
        (0.1, 1.0, ""),
        (0.1, 1.2, ""),
        (0.5, 8.0, "loud"),
        (0.5, 9.0, "calm"),
    ):
        optimizer.tell({"x": x}, reward, feedback=words)
    assert (optimizer.best.number, optimizer.best.measurements) == (2, (2, 3))
    best = service.status(optimizer)["best"]
    assert (best["number"], best["measurements"], best["reward"]) == (3, [3, 4], 8.5)
    place = optimizer.history.best.number  # as prompts count
    with pytest.raises(ParameterError, match=r"is that of trial 2 \(#2\) or trial 3 \(#2\)"):
        optimizer.tell(optimizer.best.params, 7.0, replaces=place)  # a mistaken number, perhaps
    optimizer.tell({"x": 0.5}, 1.2, replaces=place)
    assert optimizer.best.measurements == (1, 2, 3)
    optimizer.tell({"x": 0.1}, 1.2, replaces=place)
    optimizer.tell(optimizer.best.params, 7.0, replaces=optimizer.best.number)
    assert [t.reward for t in optimizer.trials] == [1.0, 1.2, 7.0, 9.0]
    text = page(optimizer)
    for said in ("recorded as trial 3, trial 4", "trial 3: 7; loud", "trial 4: 9; calm"):
        assert said in text


def test_the_reason_of_a_skipped_point_stands_beside_a_new_one():
    several = "\n\n".join(
        f"Hypothesis: h{i}\nStart from: new\nProposal: x: {x}"
        for i, x in enumerate((0.25, 0.5, 7), start=1)
    )
    client = ScriptedClient([FIRST, several, FIRST])
    optimizer = LLMOptimizer(
        SPACE, client, "words", warmup=0, noisy=True, points=3, out_of_range="reject"
    )
    for x in (0.5, 0.25, 0.5):
        point = optimizer.ask()
        assert point == {"x": x}
        optimizer.tell(point, 1.0)
    optimizer.ask()
    assert re.search("left out of that answer:.*7", client.requests[-1].text)


def test_told_errors_count_where_nothing_is_repeated():
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), "words", "minimize", noisy=True)
    with pytest.raises(NoTrialsError):
        optimizer.recommend()
    optimizer.tell({"x": 0.1}, 1.0, stderr=3.0)
    optimizer.tell({"x": 0.2}, 2.0, stderr=0.5)
    assert optimizer.recommend() == {"x": 0.2}


def test_every_view_of_a_repeated_point_has_its_error_from_all_repeats(tmp_path):
    """Two repeats agree by chance: `best` said ± 0.05, `status` and the report ± 1.6."""
    seen = []

    class Last(Callback):
        def told(self, search, trial, best, usage):
            seen.append(best.stderr)

    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), "words", noisy=True, callbacks=[Last()])
    for x, reward in ((0.5, 9.0), (0.5, 9.1), (0.1, 1.0), (0.1, 5.4)):
        optimizer.tell({"x": x}, reward)
    pooled = math.sqrt((0.05**2 + 2.2**2) / 2)
    errors = {
        "best": optimizer.best.stderr,
        "pareto": optimizer.pareto[0].stderr,
        "status": service.status(optimizer)["best"]["stderr"],
        "study": optimizer.to_optuna().trials[0].user_attrs["llmopt:stderr"],
        "callback": seen[-1],
        "rank": 9.05 + optimizer.history.rank(optimizer.history.best)[1],
    }
    assert errors == dict.fromkeys(errors, pytest.approx(pooled))
    assert "± 1.6" in page(optimizer)
    shown = Situation.after(optimizer.history, optimizer.space, ModelFacts("m"), noisy=True)
    assert "| 9.05 ± 1.6 (2 times) |" in get_prompt("words").prepare(shown).request.text
    assert optimizer.trials_dataframe().stderr.isna().all()  # a row is one measurement


def test_a_repeat_hides_neither_the_parts_nor_the_words_of_the_others(tmp_path):
    """The impurity of the first measurement was gone, and that it was filtered."""
    client = ScriptedClient([FIRST])
    with closing(LLMOptimizer(SPACE, client, "words", noisy=True, warmup=0)) as optimizer:
        optimizer.tell({"x": 0.1}, 60.0, parts={"dimer": 2.0}, feedback="dark, filtered")
        optimizer.tell({"x": 0.1}, 62.0, feedback="real repeat")
        optimizer.ask()
        row, *seen = client.requests[0].text.partition("#1 | ")[2].splitlines()[:3]
        assert "(2 times) (dimer 2 (1 of 2)) |" in row
        assert seen == ["> measurement 1: dark, filtered", "> measurement 2: real repeat"]
        best = service.status(optimizer)["best"]
        assert (best["parts"], best["part_counts"]) == ({"dimer": 2.0}, {"dimer": 1})
        assert "(dimer 2 (1 of 2))" in page(optimizer)
        optimizer.tell({"x": 0.1}, 61.0, parts={"dimer": 3.0}, feedback="long " * 60)
        (point,) = optimizer.history.trials
        assert (point.parts, point.part_counts) == ({"dimer": 2.5}, {"dimer": 2})
        assert point.feedback == "measurement 3: " + "long " * 60
        for _ in range(2):
            optimizer.tell({"x": 0.9}, 1.0, feedback="clear", parts={"dimer": 1.0})
        point = optimizer.history.trials[1]
        assert (point.feedback, point.part_counts) == ("clear", {})


def test_equal_repeats_are_no_certainty():
    client = ScriptedClient([FIRST])
    optimizer = LLMOptimizer(SPACE, client, "words", noisy=True, warmup=0)
    for _ in range(3):  # the mean of three has a rounding error
        optimizer.tell({"x": 0.1}, 0.1)
    optimizer.ask()
    assert "± " not in client.requests[0].text.partition("# Log")[2]
    assert "all repeats of a point were equal" in client.requests[0].text
    assert optimizer.best.stderr is None
    assert "stderr" not in service.status(optimizer)["best"]
    assert "±" not in page(optimizer).partition("<body>")[2].partition("<script>")[0]


def test_nevergrad_recommends_no_lucky_point_either():
    ng = pytest.importorskip("nevergrad")
    from llmopt.adapters.nevergrad import ParametrizedLLM

    rows = [(0.5, 9.0), (0.5, 11.0), (0.1, 10.0), (0.5, 8.0), (0.5, 10.0), (0.9, 5.0)]
    parameter = ng.p.Scalar(lower=0, upper=1)
    optimizer = ParametrizedLLM(model=ScriptedClient([]), noisy=True)(parameter, budget=9)
    for x, value in rows:
        optimizer.tell(optimizer.parametrization.spawn_child(new_value=x), -value)
    assert optimizer.recommend().value == pytest.approx(0.5)


def test_points_beside_an_answer_that_ends_the_search_are_not_lost():
    made = {"prompt": "words", "warmup": [{"x": 0.0}], "may_stop": True, "seed": 1, "points": 1}
    optimizer = LLMOptimizer(SPACE, ScriptedClient([FIRST, STOP]), **made)
    optimizer.tell(optimizer.ask(), 1.0)
    with pytest.warns(UserWarning, match="1 of 3 points: scripted .* ended the search: flat"):
        assert optimizer.ask(3) == [{"x": 0.5}]
    assert optimizer.usage.proposals == {"warmup": 1, "llm": 1}
    with pytest.raises(SearchStopped, match="flat"):
        optimizer.ask()


def test_a_queued_point_alone_is_returned_as_the_model_ends_the_search():
    made = {"prompt": "words", "warmup": [{"x": 0.0}], "may_stop": True, "max_fallbacks": 0}
    optimizer = LLMOptimizer(SPACE, ScriptedClient([STOP]), **made)
    optimizer.tell(optimizer.ask(), 1.0)
    optimizer.enqueue({"x": 0.25})
    with pytest.warns(UserWarning, match="1 of 3 points: .* ended the search"):
        assert optimizer.ask(3) == [{"x": 0.25}]
    optimizer.give_back(optimizer.pending_proposals)
    with pytest.warns(UserWarning, match="1 of 3 points"):
        assert optimizer.ask(3) == [{"x": 0.25}]
    with pytest.raises(SearchStopped, match="flat"):
        optimizer.ask(3)


@pytest.mark.parametrize("caller", [PYTHON, SHELL, MCP])
@pytest.mark.parametrize(
    "change",
    [{}, {"may_stop": False}, {"constraints": ["x <= 0.75"]}, {"candidates": [{"x": 0.5}]}],
)
def test_what_continues_a_search_that_the_model_has_ended(tmp_path, change, caller):
    def made(*answers, **options):
        options = {"prompt": "words", "warmup": 0, "may_stop": True, "points": 1} | options
        file = tmp_path / "s.jsonl"
        return LLMOptimizer(SPACE, ScriptedClient(answers), storage=file, **options)

    table = {"candidates": [{"x": 0.0}, {"x": 0.5}, {"x": 1.0}]} if "candidates" in change else {}
    with closing(made(STOP, **table)) as optimizer, called_by(caller):
        optimizer.tell({"x": 0.0}, 1.0)
        with pytest.raises(SearchStopped) as stopped:
            optimizer.ask()
    assert f"ended the search: flat. To go on, {caller.reopens}. " in str(stopped.value)
    with closing(made(FIRST, **table | {"total": 9} | change)) as optimizer:
        if change:
            assert optimizer.ask() == {"x": 0.5}
            assert optimizer.stopped == ""
        else:
            with pytest.raises(SearchStopped, match="To go on"):
                optimizer.ask()
            assert "To go on" not in optimizer.stopped


def test_the_offer_is_made_only_where_it_is_taken():
    stops = [STOP.replace("flat", why) for why in ("flat", "level", "even")]
    client = ScriptedClient([FIRST, *stops])
    optimizer = LLMOptimizer(SPACE, client, "words", warmup=0, on_error="fallback")
    optimizer.tell(optimizer.ask(), 1.0)
    assert "Proposal: stop" not in client.requests[0].text
    with pytest.warns(UserWarning, match="sampled at random"):
        optimizer.ask()


@pytest.mark.parametrize("stderr", [-1.0, math.nan, math.inf])
def test_a_standard_error_is_a_number_of_0_or_more(stderr):
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), "words", warmup=1)
    with pytest.raises(RewardError, match="stderr"):
        optimizer.tell(optimizer.ask(), 1.0, stderr=stderr)
    assert optimizer.trials == []


def test_samples_are_kept_and_give_the_standard_error(tmp_path):
    path = tmp_path / "run.jsonl"
    with closing(LLMOptimizer(SPACE, ScriptedClient([]), warmup=1, storage=path)) as optimizer:
        optimizer.tell(optimizer.ask(), 2.0, samples=[1.0, 2.0, 3.0])
    trial = LLMOptimizer.load(path, ScriptedClient([])).trials[0]
    assert trial.samples == (1.0, 2.0, 3.0)
    assert trial.stderr == pytest.approx(1 / math.sqrt(3))
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), warmup=1)
    with pytest.raises(RewardError, match="samples"):
        optimizer.tell(optimizer.ask(), 2.0, samples=[1.0, math.nan])


@pytest.mark.parametrize("partner", ["cma", "network"])
def test_a_copy_heeds_what_was_measured_again_as_the_search_itself_does(partner):
    random = Random(2)

    def answer(request):
        return f"Start from: new\nProposal: x: {random.random():.4f}, y: {random.random():.4f}"

    space = {"x": Float(0, 1), "y": Float(0, 1)}
    optimizer = LLMOptimizer(
        space, ScriptedClient(answer), "words", partner=partner, noisy=True, warmup=4, seed=2
    )
    for i in range(24):
        optimizer.tell(optimizer.ask(), random.random())
        if i % 3 == 2:
            optimizer.tell(optimizer.trials[random.randrange(i)].params, random.gauss(0, 3))
    copied, state = copy.deepcopy(optimizer), random.getstate()
    ahead = [copied.ask() for _ in range(6)]
    random.setstate(state)
    assert [optimizer.ask() for _ in range(6)] == ahead


def test_a_repeat_that_no_one_proposed_is_the_user_s_own(tmp_path):
    """The second good result after a failure was credited to the model, with its hypothesis."""
    why = "Hypothesis: more is better\n"
    client = ScriptedClient([why + FIRST, why + FIRST.replace("0.5", "0.75")])
    path = tmp_path / "s.jsonl"
    made = {"warmup": 0, "noisy": True, "storage": path}
    with closing(LLMOptimizer(SPACE, client, "words", **made)) as optimizer:
        point = optimizer.ask()
        optimizer.tell_failure(point, "the pump broke")
        for reward in (1.0, 2.0):  # the first one is what the model proposed
            optimizer.tell(point, reward)
        optimizer.tell_failure(point, "the pump broke again")
        optimizer.tell(point, 3.0)
        point = optimizer.ask()
        optimizer.tell({"x": 0.74}, 1.0, instead_of=point)
        for x in (0.74, 0.75, 0.75):  # of these, the second one
            optimizer.tell({"x": x}, 4.0)
        trials = optimizer.trials
    own, model = ("user", ""), ("llm", trials[0].explanation)
    found = [(t.source, t.explanation) for t in trials]
    assert found[:5] == [model, model, own, own, own]
    assert [source for source, _ in found[5:]] == ["llm", "user", "llm", "user"]
    assert LLMOptimizer.load(path, ScriptedClient([])).trials == trials


# -- seeds ----------------------------------------------------------------------------------------

SEEDED = {"warmup": 0, "prompt": "words", "seeded": True, "seed": 3}


def test_the_kth_evaluation_of_every_point_has_the_same_seed(tmp_path):
    client = ScriptedClient([FIRST, AGAIN, "Start from: new\nProposal: x: 0.25", AGAIN])
    calls = []

    def f(point, seed):
        calls.append((point["x"], seed))
        return seed % 97

    result = maximize(
        f, SPACE, 4, client, storage=tmp_path / "s.jsonl", finalists=0, progress=False, **SEEDED
    )
    (_, one), (_, two), _, (_, three) = calls
    assert calls == [(0.5, one), (0.5, two), (0.25, one), (0.5, three)]
    assert len({one, two, three}) == 3
    assert [t.seed for t in result.trials] == [one, two, one, three]
    assert result.optimizer.history.trials[0].evaluations == 3
    assert "seed" in client.requests[0].text
    assert "standard deviation" in client.requests[2].text
    again = LLMOptimizer.load(tmp_path / "s.jsonl", ScriptedClient([]))
    assert [t.seed for t in again.trials] == [one, two, one, three]
    again.save(tmp_path / "copy.jsonl")
    copied = LLMOptimizer.load(tmp_path / "copy.jsonl", ScriptedClient([]))
    assert copied.seed_of({"x": 0.25}) == again.seed_of({"x": 0.25}) == two
    assert LLMOptimizer(SPACE, ScriptedClient([]), seed=4, seeded=True).seed_of({"x": 0}) != one


def test_seeds_of_points_that_are_evaluated_at_the_same_time_and_after_an_interruption(tmp_path):
    client = ScriptedClient([FIRST, AGAIN, AGAIN])
    file = tmp_path / "s.jsonl"
    with closing(LLMOptimizer(SPACE, client, storage=file, **SEEDED)) as optimizer:
        optimizer.tell(optimizer.ask(), 1.0)
        points = [optimizer.ask() for _ in range(2)]
        seeds = [p.seed for p in optimizer.pending_proposals]
        assert optimizer.seed_of(points[0]) == seeds[0] != seeds[1]
        optimizer.tell(points[1], 3.0, seed=seeds[1])
        assert optimizer.trials[-1].seed == seeds[1]
    with closing(LLMOptimizer(SPACE, ScriptedClient([]), storage=file, **SEEDED)) as again:
        assert [p.seed for p in again.pending_proposals] == [seeds[0]]
        assert again.tell(points[0], 2.0).seed == seeds[0]
        assert again.tell(points[0], 2.0, seed=7).seed == 7
        assert again.history.best.evaluations == 4


def test_finalists_take_new_seeds_and_so_do_evaluations_in_processes():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        result = maximize(
            lambda point, seed: point["x"] + seed % 10 / 100, SPACE, 24, warmup=24, seeded=True,
            seed=0, executor=pool, finalists=2, progress=False,
        )  # fmt: skip
    for key in {t.values for t in result.trials}:
        seeds = [t.seed for t in result.trials if t.values == key]
        assert len(set(seeds)) == len(seeds)
    assert result.finals == 4
    assert len({t.seed for t in result.trials}) == 3


def test_what_gets_no_seed_is_said_before_anything_is_evaluated():
    with pytest.raises(TypeError, match=r"f\(point, seed\)"):
        maximize(lambda point: 1.0, SPACE, 2, ScriptedClient([]), seeded=True)
    with pytest.raises(ValueError, match="seeded='yes'"):
        LLMOptimizer(SPACE, ScriptedClient([]), seeded="yes")
    with pytest.raises(ValueError, match="seeded=True"):
        LLMOptimizer(SPACE, ScriptedClient([])).seed_of({"x": 0.5})
    with pytest.raises(TypeError, match="seeded"):
        PolicySearch("CartPole-v1", ScriptedClient([]), seeded=True)
    pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    with pytest.raises(TypeError, match="no argument 'seeded'"):
        LLMSampler(ScriptedClient([]), seeded=True)


@pytest.fixture
def numbered(tmp_path):
    """Point #1 has the trials 0, 2 and 4; #3 was made from #2, whose trial is 1."""
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), "words", noisy=True, storage=tmp_path / "s")
    for x, reward in ((0.5, 1.0), (0.25, 2.0), (0.5, 3.0), (0.75, 5.0), (0.5, 2.0)):
        optimizer.tell({"x": x}, reward)
    with closing(optimizer):
        yield optimizer


def points(optimizer):
    return [(t.values[0], t.state, t.measurements) for t in optimizer.history.trials]


def test_a_measurement_that_moves_to_another_point_renumbers_no_other_point(numbered):
    numbered.tell({"x": 0.6}, 3.0, replaces=2)
    numbered.tell({"x": 0.9}, 4.0)
    there = [(0.5, (0, 4)), (0.25, (1,)), (0.75, (3,)), (0.6, (2,)), (0.9, (5,))]
    assert points(numbered) == [(x, "complete", n) for x, n in there]
    numbered.tell({"x": 0.6}, 3.5)
    assert numbered.history.trials[3].measurements == (2, 6)
    with closing(LLMOptimizer.load(numbered.storage, ScriptedClient([]))) as read:
        assert points(read) == points(numbered)


def test_a_withdrawn_measurement_renumbers_no_other_point(numbered):
    before = points(numbered)
    for trial in (0, 2, 4):
        numbered.withdraw(trial=trial)
    assert points(numbered)[1:3] == before[1:3]
    assert points(numbered)[0] == (0.5, "withdrawn", (4,))
    for trial in (2, 0, 4):
        numbered.tell({"x": 0.5}, 1.0, replaces=trial)
    assert points(numbered)[1:3] == before[1:3]
    (found,) = (t for t in numbered.history.trials if t.values == (0.5,) and t.reward == 1.0)
    assert found.measurements == (0, 2, 4)
    numbered.tell({"x": 0.9}, 4.0)
    with closing(LLMOptimizer.load(numbered.storage, ScriptedClient([]))) as read:
        assert points(read) == points(numbered)


@pytest.mark.parametrize("finalist", [False, True])
def test_points_keep_their_numbers_when_points_begin_to_repeat(tmp_path, finalist):
    """With `noisy` switched on later, the #4 of the model's lessons was another point."""
    path, client = tmp_path / "s.jsonl", ScriptedClient(["Start from: #4\nProposal: x: 0.75"])
    made = {"prompt": "words", "warmup": 0, "storage": path}
    with closing(LLMOptimizer(SPACE, client, **made)) as optimizer:
        for x, reward in ((0.5, 1.0), (0.5, 3.0), (0.25, 2.0), (0.5, 2.0)):
            optimizer.tell({"x": x}, reward)
        optimizer.tell({"x": 0.375}, 2.0, replaces=3)
        optimizer.tell({"x": 0.125}, 2.0)
        if finalist:
            optimizer.tell_as(optimizer.read_result({"x": 0.5}, 2.0), "finalist")
        before = optimizer.history
    with closing(LLMOptimizer(SPACE, client, **made, noisy=not finalist)) as optimizer:
        assert [optimizer.history.label(n) for n in range(5)] == ["#1", "#1", "#3", "#4", "#5"]
        assert before.noisy == finalist
        optimizer.tell(optimizer.ask(), 4.0)
        texts = client.requests[0].text
        assert "#1 | 2 ± " in texts
        assert "it counts as a measurement of #1" in texts
        assert "#5 | 2 | 0.125" in texts
        live = optimizer.history
    assert live.label(5 + finalist) == "#6"
    assert LLMOptimizer.load(path, client).history == live
    assert service.numbered(optimizer, optimizer.trials)[-1]["label"] == "#6"


def test_a_repeat_that_was_withdrawn_and_restored_leaves_no_row_that_no_prompt_had():
    """A row "withdrawn", with the old yield and the new part, stayed beside the point."""
    client = ScriptedClient([FIRST] * 2)
    optimizer = LLMOptimizer(SPACE, client, "words", noisy=True, warmup=0)
    for x, reward in ((0.5, 70.0), (0.5, 66.0), (0.5, 68.0), (0.25, 60.0)):
        optimizer.tell({"x": x}, reward)
    for trial in (1, 2):
        optimizer.withdraw(trial=trial)
    for trial in (1, 2):
        optimizer.tell({"x": 0.5}, 61.0, replaces=trial, parts={"dimer": 2.5})
    assert points(optimizer) == [(0.5, "complete", (0, 1, 2)), (0.25, "complete", (3,))]
    optimizer.withdraw(trial=2)
    optimizer.ask()  # a prompt with #3
    optimizer.tell({"x": 0.5}, 63.0, replaces=2, parts={"dimer": 2.5})
    assert points(optimizer)[2:] == [(0.5, "withdrawn", ())]
    row = optimizer.history.trials[2]
    assert (row.parts, row.old_rewards, row.revised, row.evaluations) == ({}, (), False, 0)
    text = page(optimizer)
    assert "4 trials of 2 points: 4 complete (not counted: 1 without a result)" in text
    assert "The latest: #2 (60)" in outcome(optimizer.history, optimizer.space)
    with closing(optimizer):
        for trial in range(4):
            optimizer.withdraw(trial=trial)
    assert outcome(optimizer.history, optimizer.space) == ""


def test_the_best_point_of_the_outcome_is_the_best_one(numbered):
    """It was the luckiest measurement, beside "Best first" and `status`."""
    for reward in (9.0, 11.0, 10.0, 10.0):
        numbered.tell({"x": 0.9}, reward)
    numbered.tell({"x": 0.1}, 10.1)
    assert numbered.history.best.number == 3
    said = outcome(numbered.history, numbered.space, 5)
    assert re.search(r"Best first: #4 .*\nThe best point: #4 .*\nThe recommended point: #5", said)
    assert "recommended" not in outcome(numbered.history, numbered.space, 4)


def test_an_answer_is_compared_with_the_point_it_names_after_a_correction():
    texts = [FIRST, AGAIN, "Start from: new\nProposal: x: 0.25", "Start from: #2\nProposal: x: 0.3"]
    client = ScriptedClient([*texts, "Start from: #3\nProposal: x: 0.35"])
    optimizer = LLMOptimizer(SPACE, client, "words", warmup=0, noisy=True)
    for reward in (1.0, 2.0, 6.0, 2.5):
        optimizer.tell(optimizer.ask(), reward)
    optimizer.tell({"x": 0.55}, 2.0, replaces=1)
    optimizer.ask()
    assert re.search(r"^#3 \| .*2\.5.* \| 0\.3 \| #2$", client.requests[-1].text, re.MULTILINE)


def test_a_correction_without_a_reward_does_not_make_a_trial_failed(numbered):
    with pytest.raises(RewardError, match=r"give the reward, 1\.0 if it was right, or NaN"):
        numbered.tell({"x": 0.55}, None, replaces=0)
    assert numbered.trials[0].reward == 1.0
    numbered.tell({"x": 0.5}, math.nan, replaces=0)
    assert numbered.trials[0].state == "failed"


def test_a_history_is_read_in_time_linear_in_the_repeats(monkeypatch):
    merged = []
    monkeypatch.setattr(repeats, "_merge", lambda trials: merged.append(trials) or trials[0])
    optimizer = LLMOptimizer({"x": Float(0, 9)}, ScriptedClient([]), "props", noisy=True)
    for number in range(60):
        optimizer.tell({"x": number % 3}, number)
    assert [len(t.measurements) for t in optimizer.history.trials] == [20] * 3
    assert len(merged) == 3


def of_seeds(measured, direction="minimize", seeds=True):
    """Return the merged history of ``(point, seed, reward)``; without `seeds`, of plain means."""
    trials = [
        Trial(i, None, (x,), (y,), seed=seed if seeds else None)
        for i, (x, seed, y) in enumerate(measured)
    ]
    return Merged(lambda values: values).of(History(tuple(trials), (), (direction,)))


@pytest.mark.parametrize(("direction", "sign"), [("minimize", 1.0), ("maximize", -1.0)])
def test_a_point_measured_on_an_easy_seed_alone_is_not_best(tmp_path, direction, sign):
    """Its 1.01 is worse than the 1.0 of the other point on that seed."""
    path = tmp_path / "run.jsonl"
    client = ScriptedClient([FIRST, "Start from: new\nProposal: x: 0.25", AGAIN, AGAIN, FIRST])
    optimizer = LLMOptimizer(
        SPACE, client, "words", direction, warmup=0, seeded=True, storage=path, compute=False
    )
    for reward in (1.0, 1.01, 1.2, 1.2):
        optimizer.tell(optimizer.ask(), sign * reward)
    best = optimizer.best
    assert (best.params, best.evaluations) == ({"x": 0.5}, 3)
    assert best.reward == pytest.approx(sign * 3.4 / 3)  # the plain mean
    assert 0 < best.stderr < math.sqrt(0.04 / 9)  # without the effects of seeds
    assert optimizer.recommend() == optimizer.history.ranked[0].params == {"x": 0.5}
    assert service.status(optimizer)["best"]["params"] == {"x": 0.5}
    optimizer.ask()
    prompt = client.requests[-1].text
    assert "Best first: #1 (" in prompt
    assert "ranks and gains allow for what these add" in prompt
    worse = "+" if sign > 0 else "-"  # than the better point, in spite of its mean
    assert re.search(re.escape(worse) + r"0\.00\d+ against the best, #1", prompt), prompt[-1500:]
    optimizer.close()
    with closing(LLMOptimizer.load(path, client)) as loaded:
        assert loaded.best == best


def test_effects_of_seeds_and_the_noise_are_found():
    rng = np.random.default_rng(0)
    easy = (0.0, 2.0, -3.0)
    measured = [(x, s, x + easy[s] + rng.normal(0, 0.1)) for x in range(20) for s in range(3)]
    history = of_seeds([m for m in measured if m[1] == 0 or m[0] % 2])
    effects = history.seed_effects
    assert effects[1] - effects[0] == pytest.approx(2, abs=0.15)
    assert effects[2] - effects[0] == pytest.approx(-3, abs=0.15)
    assert history.deviation == pytest.approx(0.1, rel=0.4)
    same = of_seeds([(x, s, y - easy[s]) for x, s, y in measured])
    assert max(map(abs, same.seed_effects.values())) < 0.05
    assert same.deviation == pytest.approx(0.1, rel=0.3)


def test_a_search_of_single_points_after_the_last_repeat_keeps_the_effects():
    measured = [(0, 0, 1.0), (1, 0, 1.4), (0, 1, 2.0), (1, 1, 2.5)]
    effects = of_seeds(measured).seed_effects
    assert effects
    assert of_seeds([*measured, (2, 0, 9.0), (3, 0, 7.0)]).seed_effects == effects


def test_means_are_plain_where_seeds_cannot_be_compared():
    alone = [(0, 0, 1.0), (0, 0, 3.0), (1, 5, 2.5)]
    assert of_seeds(alone).seed_effects == {}
    assert of_seeds(alone).deviation == pytest.approx(math.sqrt(2))
    many = [(x, seed, float(seed)) for x in (0, 1) for seed in range(65)]
    assert of_seeds(many).seed_effects == {}
    equal = of_seeds([(x, seed, 0.1) for x in (0, 1) for seed in range(3)])
    assert (equal.deviation, equal.seed_effects) == (0.0, {})
    additive = of_seeds([(x, s, 0.1 * x + 0.7 * s) for x in range(5) for s in range(4)])
    assert additive.deviation < 1e-3
    two_way([(x, s, 1e308 * (-1) ** s) for x in (0, 1) for s in range(3)])  # without an overflow


@pytest.mark.parametrize(("spread", "most_regret"), [(0, 1.0), (0.3, 0.7)])
def test_the_true_best_is_found_more_often_if_seeds_differ(spread, most_regret):
    """200 searches: 34 points on one seed, then the best three of them on two more."""
    hits, regrets = np.zeros(2), np.zeros(2)
    for search in range(200):
        rng = np.random.default_rng(search)
        truth, easy = rng.uniform(0, 1, 34), rng.normal(0, spread, 3)
        noisy = truth[:, None] + easy + rng.normal(0, 0.1, (34, 3))
        top = np.argsort(noisy[:, 0])[:3].tolist()
        cells = [(x, 0) for x in range(34)] + [(x, s) for s in (1, 2) for x in top]
        measured = [(x, s, float(noisy[x, s])) for x, s in cells]
        for fitted in (False, True):
            regret = truth[of_seeds(measured, seeds=fitted).best.values[0]] - truth.min()
            hits[int(fitted)] += regret == 0
            regrets[int(fitted)] += regret
    assert hits[1] >= hits[0] + (5 if spread else 0), hits
    assert regrets[1] <= most_regret * regrets[0], regrets
