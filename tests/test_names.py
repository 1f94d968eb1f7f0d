"""What a user of Optuna, scikit-optimize or SMAC types first, and what the message says to type."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import llmopt
from llmopt import Float, LLMOptimizer, RewardError, ScriptedClient, maximize, minimize, optimize
from llmopt.util.arguments import check_names

SPACE = {"x": Float(-5, 5), "y": Float(-5, 5)}


def f(point):
    return point["x"] ** 2


def search(f=f, space=SPACE, n_trials=8, client=None, call=minimize, **options):
    options = {"warmup": 8, **options}
    return call(f, space, n_trials, client or ScriptedClient([]), **options)


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match="did you mean 'alpha'"):
        check_names("f", ["alpah"], ["alpha", "beta"])


def test_none_is_no_description():
    assert search(description=None, callbacks=None, n_trials=2, warmup=2).trials
    pytest.importorskip("gymnasium")
    from llmopt.policies import PolicySearch

    with PolicySearch("CartPole-v1", ScriptedClient([]), description=None) as policies:
        assert policies.optimizer._options.description


def test_none_is_no_description_of_a_sampler():
    pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    assert LLMSampler(ScriptedClient([]), description=None).prompt


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: search(lambda x, y: x), TypeError, ("(x, y)", "one argument", "f(**point)")),
        (lambda: search(lambda: 1.0), TypeError, ("()", "one argument")),
        (lambda: search(f=None), TypeError, ("f=None", "function")),
        (lambda: search(lambda p: {"loss": 1.0}), RewardError, ("loss", "one of its values")),
        (lambda: search(lambda p: (1.0, 2.0)), RewardError, ("llmopt.optimize(", "directions=")),
        (lambda: search(lambda p: [1.0]), RewardError, ("[1.0]", "[0]")),
        (lambda: search(lambda p: "1.5"), RewardError, ("'1.5'", "float()")),
        (lambda: search(lambda p: (1.0, {"a": 1})), RewardError, ("(number, words); None",)),
        (lambda: search(lambda p: np.ones(2)), RewardError, ("llmopt.optimize(",)),
        (lambda: search(lambda p: np.ones(1)), RewardError, ("item()",)),
        (lambda: search(storage=3), TypeError, ("storage=3", "path of a file")),
        (lambda: search(lambda p: 1j), RewardError, ("1j", "a real number")),
        (lambda: search(lambda p: None), RewardError, ("return missing",)),
        (lambda: search(n_trials=-3), ValueError, ("n_trials=-3", "at least 1")),
        (lambda: search(n_trials=0), ValueError, ("n_trials=0", "at least 1")),
        (lambda: search(n_trials=10.0), ValueError, ("n_trials=10.0", "whole number")),
        (lambda: search(n_trials="10"), ValueError, ("n_trials='10'", "whole number")),
        (lambda: search(n_trials=None), TypeError, ("needs n_trials",)),
        (lambda: search(seed=-1), ValueError, ("seed=-1", "whole number")),
        (lambda: search(seed=0.5), ValueError, ("seed=0.5", "whole number")),
        (lambda: search(warmup=-1), ValueError, ("warmup=-1", "at least 0")),
        (lambda: search(warmup="none"), ValueError, ("warmup='none'", "'auto'")),
        (lambda: search(callbacks=print), TypeError, ("callbacks=", "list of callbacks")),
        (lambda: search(callbacks=[print]), TypeError, ("told(", "llmopt.trackers.Callback")),
        (lambda: search(catch="ValueError"), TypeError, ("catch='ValueError'", "exception")),
        (lambda: search(catch=[ValueError]), TypeError, ("catch=[", "tuple")),
        (lambda: search(catch=ValueError("x")), TypeError, ("catch=ValueError", "exception")),
        (lambda: search(progress="bar"), ValueError, ("progress='bar'", "True, False, None")),
        (lambda: search(client=3), TypeError, ("3", "model")),
        (lambda: search(space=[(-5, 5)]), Exception, ("Float(",)),
        (lambda: search(space={}), Exception, ("space is empty", "at least one")),
        (lambda: search(direction="minimize"), TypeError, ("no direction=", "maximize()")),
        (lambda: search(directions=["minimize"]), TypeError, ("optimize(",)),
        (lambda: search(call=optimize), TypeError, ("directions=", "optimize()")),
        (lambda: search(call=optimize, directions="minimize"), TypeError, ("directions=[",)),
        (
            lambda: search(call=optimize, directions=["min", "max"]),
            ValueError,
            ("directions=['min', 'max']", "did you mean 'minimize'"),
        ),
        (lambda: search(call=maximize, n_trial=3), TypeError, ("did you mean 'n_trials'",)),
        (lambda: search(finalists=-1), ValueError, ("finalists=-1",)),
        (lambda: search(finalists=5), ValueError, ("finalists=5", "at most")),
        (lambda: search(max_cost=-1), ValueError, ("max_cost=-1", "0 or more")),
        (lambda: search(max_requests=1.5), ValueError, ("max_requests=1.5", "whole number")),
        (lambda: search(description=3), ValueError, ("description=3", "string")),
        (lambda: search(noisy="yes"), ValueError, ("noisy='yes'", "True, False")),
        (lambda: search(batch_size=0), ValueError, ("batch_size=0", "1")),
        (lambda: search(points=0), ValueError, ("points=0",)),
        (lambda: search(start={"x": 1, "y": 2}), Exception, ("start",)),
        (lambda: search(start=[{"x": 9, "y": 0}]), Exception, ("9", "[-5.0, 5.0]")),
        (lambda: LLMOptimizer(SPACE, direction="min"), ValueError, ("did you mean 'minimize'",)),
        (lambda: LLMOptimizer(SPACE, direction=-1), ValueError, ("direction=-1", "maximize")),
        (lambda: LLMOptimizer(SPACE, direction=[]), ValueError, ("at least one",)),
        (lambda: LLMOptimizer(), TypeError, ("space",)),
        (lambda: LLMOptimizer(SPACE, ScriptedClient([])).ask("3"), ValueError, ("n='3'",)),
        (lambda: LLMOptimizer(SPACE, ScriptedClient([])).ask(0), ValueError, ("n=0",)),
        (
            lambda: LLMOptimizer(SPACE, ScriptedClient([])).tell(1.0, 2.0),
            Exception,
            ("float", "dict"),
        ),
        (
            lambda: LLMOptimizer(SPACE, ScriptedClient([])).tell({"x": 1}, 2.0),
            Exception,
            ("'y'",),
        ),
        (
            lambda: LLMOptimizer(SPACE, ScriptedClient([])).tell({"x": 1, "y": 1}, "2"),
            Exception,
            ("reward='2'", "number"),
        ),
        (
            lambda: LLMOptimizer(SPACE, ScriptedClient([])).tell({"x": 1, "y": 1}, (1.0, 2.0)),
            Exception,
            ("direction=[",),
        ),
        (lambda: LLMOptimizer(SPACE, ScriptedClient([])).best, Exception, ("tell()",)),
    ],
)
def test_a_mistake_says_what_to_type(call, error, parts):
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert "\n" not in text
    assert len(text) < 400


def test_a_search_that_never_asks_its_model_says_so_when_it_is_made(caplog):
    with caplog.at_level(logging.WARNING):
        search(n_trials=8, warmup=20)
    assert (
        "warmup=20 is not less than the 8 points planned: the model is never asked" in caplog.text
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        LLMOptimizer(SPACE, ScriptedClient([]), total=9, warmup=8)
        LLMOptimizer(SPACE, "network", total=12)
    assert "never asked" not in caplog.text


def test_a_sampler_says_how_many_trials_are_random_at_the_first_one(caplog):
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(logging.INFO)  # another test may have changed it
    study = optuna.create_study(sampler=LLMSampler("network", seed=0))
    with caplog.at_level(logging.INFO):
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    optuna.logging.disable_propagation()
    said = [r.created for r in caplog.records if "The first 10 trials" in r.getMessage()]
    assert len(set(said)) == 1


def test_pending_lists_parameters_and_history_trials():
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), warmup=4)
    points = optimizer.ask(3)
    assert optimizer.pending == points
    assert [p.source for p in optimizer.pending_proposals] == ["warmup"] * 3
    for params in optimizer.pending:
        optimizer.tell(params, 1.0)
    assert [t.params for t in optimizer.history] == points
    several = LLMOptimizer(SPACE, ScriptedClient([]), direction=["minimize", "maximize"])
    several.tell({"x": 0, "y": 0}, (1.0, 2.0))
    with pytest.raises(llmopt.LLMOptError, match=r"2 objectives has no single best.*\.pareto"):
        _ = several.best
    assert len(several.pareto) == 1


def test_an_async_objective_is_refused_before_it_is_called():
    async def later(point):
        return 1.0

    class Later:
        __call__ = staticmethod(later)

    for objective in (later, Later()):
        with pytest.raises(TypeError, match=r"asyncio\.run.*aask"):
            search(objective)
