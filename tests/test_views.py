"""A search as a table, a picture and a page of a notebook."""

from __future__ import annotations

import math
import re
import sys
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from llmopt import (
    Categorical,
    Evaluation,
    Float,
    Int,
    LLMOptError,
    LLMOptimizer,
    RewardError,
    ScriptedClient,
    optimize,
)
from llmopt.history import Source, Trial
from llmopt.report import plots
from llmopt.report.data import SearchData

SPACE = {"x": Float(-5, 5), "kind": Categorical(["a", "b"])}
POINTS = [{"x": 1.0, "kind": "a"}, {"x": -2.5, "kind": "b"}, {"x": 0.0, "kind": "a"}]


def searched(**options):
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), warmup=POINTS, **options)
    for reward in (1.0, None, 3.0):
        optimizer.tell(optimizer.ask(), reward, feedback="<b>loud</b> & clear")
    return optimizer


def test_the_table_has_a_row_for_each_trial():
    pandas = pytest.importorskip("pandas")
    frame = searched().trials_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["number"]) == [0, 1, 2]
    assert list(frame["params_x"]) == [1.0, -2.5, 0.0]
    assert list(frame["params_kind"]) == ["a", "b", "a"]
    assert list(frame["state"]) == ["complete", "failed", "complete"]
    assert frame["reward"].isna().tolist() == [False, True, False]
    assert set(frame["source"]) == {"warmup"}
    assert frame.loc[frame["reward"].idxmax(), "params_x"] == 0.0


def test_trials_and_points_handed_out_are_counted_apart():
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), warmup=POINTS)
    optimizer.ask(2)
    for x in (1.0, 2.0, 3.0):
        optimizer.tell({"x": x, "kind": "b"}, x)
    page = re.sub(r"<[^>]+>", " ", optimizer._repr_html_())
    assert re.search(r"trials\s+3\s+proposed points\s+2 warmup", page)


def test_a_picture_has_the_points_of_every_source():
    pytest.importorskip("matplotlib")
    trials = [
        Trial(i, {"x": 0.0}, (0.0,), (float(i),), source=source)
        for i, source in enumerate(get_args(Source))
    ]
    axes = plots.history(SearchData("s", "s", (), ("maximize",), tuple(trials)))
    assert {c.get_label() for c in axes.collections} == set(get_args(Source))


def test_the_picture_shows_points_failures_and_the_best():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = searched().plot_history()
    labels = [t.get_text() for t in axes.get_legend().get_texts()]
    assert set(labels) == {"warmup", "failed", "best"}
    best = next(line for line in axes.lines if line.get_label() == "best")
    assert list(best.get_ydata()) == [1.0, 3.0, 3.0]
    lower = searched(direction="minimize").plot_history(axes)
    assert lower is axes
    assert list(axes.lines[-1].get_ydata()) == [1.0, 1.0, 1.0]


def test_a_notebook_shows_trials_and_nothing_in_them_is_markup():
    optimizer = searched()
    for page in (optimizer._repr_html_(), optimizer.trials._repr_html_()):
        assert "<table>" in page
        assert "&lt;b&gt;loud&lt;/b&gt; &amp; clear" in page
        assert "<b>loud" not in page
    assert "best reward</th><td>3<" in optimizer._repr_html_()


def test_several_objectives_have_a_column_each():
    pytest.importorskip("pandas")
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), direction=["maximize", "minimize"])
    optimizer.tell(POINTS[0], (1.0, 2.0))
    optimizer.tell_failure(POINTS[1])
    frame = optimizer.trials_dataframe()
    assert frame["reward_0"].tolist()[0] == 1.0
    assert frame["reward_1"].isna().tolist() == [False, True]
    pytest.importorskip("matplotlib")
    with pytest.raises(LLMOptError, match="2"):
        optimizer.plot_history()


@pytest.mark.parametrize(
    ("package", "call"),
    [("pandas", LLMOptimizer.trials_dataframe), ("matplotlib.pyplot", LLMOptimizer.plot_history)],
)
def test_a_missing_package_is_named(package, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"pip install {package.split('.')[0]}"):
        call(searched())


def of_costs():
    optimizer = LLMOptimizer(
        SPACE, ScriptedClient([]), direction={"cost": "minimize", "yield": "maximize"}
    )
    for k, point in enumerate(POINTS[:2]):
        optimizer.tell(point, {"cost": 1.0 + k, "yield": 5.0 + k})
    return optimizer


def test_names_of_objectives_are_those_of_columns_and_axes(tmp_path):
    pandas = pytest.importorskip("pandas")
    optimizer = of_costs()
    frame = optimizer.trials_dataframe()
    assert frame["reward_cost"].tolist() == [1.0, 2.0]
    named = LLMOptimizer(
        SPACE, ScriptedClient([]), direction={"cost": "minimize", "yield": "maximize"}
    )
    assert named.import_trials(pandas.DataFrame(frame)).counts == {"taken": 2}
    pytest.importorskip("matplotlib").use("Agg")
    axes = optimizer.plot_pareto(objectives=("yield", "cost"))
    assert axes.get_xlabel().startswith("yield")
    assert optimizer.plot_slices(objective="yield").axes[0].get_ylabel() == "yield"
    for wrong in ((0, 5), (0, 0), ("cost", "time"), "cost"):
        with pytest.raises(LLMOptError, match="objectives="):
            optimizer.plot_pareto(objectives=wrong)
    with pytest.raises(LLMOptError, match="'cost', 'yield'"):
        optimizer.plot_slices(objective="reward")
    with pytest.raises(TypeError, match="expected Matplotlib axes"):
        optimizer.plot_pareto("cost")
    with pytest.raises(RewardError, match="missing: 'yield'"):
        optimizer.tell(POINTS[0], {"cost": 1.0})


def test_the_hypervolume_grows_with_the_front():
    pytest.importorskip("matplotlib").use("Agg")
    pytest.importorskip("optuna")
    axes = of_costs().plot_hypervolume(reference=(3.0, 4.0))
    (line,) = axes.lines or [None]
    shown = line.get_ydata() if line is not None else axes.collections[0].get_offsets()[:, 1]
    assert list(shown) == [2.0, 3.0]  # (3 - 1) * (5 - 4), and (3 - 2) * (6 - 5) more
    assert list(line.get_xdata()) == [1, 2]  # as plot_history counts
    assert axes.get_facecolor()[:3] == (1.0, 1.0, 1.0)  # no style of Optuna
    assert of_costs().plot_hypervolume() is not None
    from matplotlib import pyplot

    given, before = pyplot.gca(), len(pyplot.get_fignums())
    assert of_costs().plot_hypervolume(ax=given) is given
    assert len(pyplot.get_fignums()) == before
    with pytest.raises(TypeError, match="expected Matplotlib axes"):
        of_costs().plot_hypervolume(ax="cost")
    optimizer = of_costs()
    optimizer.tell(POINTS[2], (0.0, 100.0), constraint_violation=1.0)
    axes = optimizer.plot_hypervolume(reference=(3.0, 4.0))
    (line,) = axes.lines or [None]
    shown = line.get_ydata() if line is not None else axes.collections[0].get_offsets()[:, 1]
    assert list(shown) == [2.0, 3.0, 3.0]
    assert optimizer.hypervolume({"yield": 4.0, "cost": 3.0}) == 3.0
    assert optimizer.hypervolume((0.0, 4.0)) == 0.0  # everything is beyond it
    with pytest.raises(LLMOptError, match="several objectives"):
        searched().plot_hypervolume()
    with pytest.raises(LLMOptError, match="no trial has a result"):
        LLMOptimizer(SPACE, ScriptedClient([]), direction=("minimize",) * 2).hypervolume()
    for wrong in ((1.0,), {"cost": 3.0}, {"cost": 3.0, "yeild": 4.0}, (1.0, math.nan), 5, ("a", 1)):
        with pytest.raises(
            LLMOptError,
            match="expected a finite number for each objective, as a list or by name: 'cost'",
        ):
            optimizer.hypervolume(wrong)


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_the_hypervolume_is_that_of_optuna(objectives):
    optuna = pytest.importorskip("optuna")
    pytest.importorskip("matplotlib").use("Agg")
    from optuna.visualization.matplotlib import plot_hypervolume_history

    rng, names = np.random.default_rng(objectives), ["minimize", "maximize", "minimize", "maximize"]
    directions, worst = names[:objectives], [1.0, 0.0, 1.0, 0.0][:objectives]
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), direction=directions, seed=1)
    study = optuna.create_study(directions=directions)
    for k in range(24):
        rewards = [float(r) for r in np.round(rng.uniform(-0.1, 1.1, objectives), 1)]  # with ties
        optimizer.tell({"x": k / 10, "kind": "a"}, rewards)
        study.add_trial(optuna.trial.create_trial(values=rewards))
    (theirs,) = plot_hypervolume_history(study, worst).lines
    axes = optimizer.plot_hypervolume(worst)
    (ours,) = axes.lines
    corner = ", ".join(f"{number:.4g}" for number in worst)
    assert axes.get_ylabel() == f"hypervolume, reference ({corner})"
    assert all(tick == int(tick) for tick in axes.get_xticks())
    assert ours.get_ydata() == pytest.approx(theirs.get_ydata(), abs=1e-12)
    assert optimizer.hypervolume(worst) == ours.get_ydata()[-1] > 0


def test_tell_takes_an_evaluation_and_says_which_name_is_wrong():
    optimizer = LLMOptimizer(
        SPACE, ScriptedClient([]), direction={"cost": "minimize", "yield": "maximize"}
    )
    given = Evaluation((2.0, 6.0), "slow", {"a": [1.0]}, constraint_violation=0.5)
    trial = optimizer.tell(POINTS[0], given)
    assert (trial.rewards, trial.feedback, trial.constraint_violation) == ((2.0, 6.0), "slow", 0.5)
    assert list(trial.data) == ["a"]
    assert "constraints violated by 0.5" in repr(trial)
    assert optimizer.tell(POINTS[1], Evaluation((1.0, 5.0)), feedback="fast").feedback == "fast"
    assert optimizer.tell(POINTS[2], Evaluation({"yield": 1.0, "cost": 2.0})).rewards == (2.0, 1.0)
    with pytest.raises(RewardError, match="feedback= is given, and the Evaluation has it, too"):
        optimizer.tell(POINTS[0], given, feedback="fast")
    with pytest.raises(RewardError, match="missing: 'yield'; unknown: 'yeild'"):
        optimizer.tell(POINTS[0], {"cost": 1.0, "yeild": 2.0})
    wrong = "{'cost': 1.0, 'yeild': 2.0}"
    named = "'cost', 'yield'; missing: 'yield'; unknown: 'yeild'; None in place of all of them"
    for returned in ({"cost": 1.0, "yeild": 2.0}, Evaluation({"cost": 1.0, "yeild": 2.0})):
        with pytest.raises(RewardError) as raised:
            optimize(
                lambda x, returned=returned: returned, SPACE, 3, ScriptedClient([]),
                directions={"cost": "minimize", "yield": "maximize"}, progress=False,
            )  # fmt: skip
        before, _, after = str(raised.value).partition(": expected one number for each objective: ")
        assert wrong in before
        assert after.startswith(named)


def test_progress_names_the_objectives(capfd):
    optimize(
        lambda x: (x["x"], 2.0), SPACE, 3, ScriptedClient([]),
        directions={"cost": "minimize", "yield": "maximize"}, progress=True, warmup=POINTS,
    )  # fmt: skip
    assert "warmup cost 1 yield 2, 1 on the Pareto front" in capfd.readouterr().err


def test_a_home_folder_is_meant_by_its_sign(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with LLMOptimizer(SPACE, ScriptedClient([]), storage="~/s.jsonl") as optimizer:
        optimizer.tell(POINTS[0], 1.0, data={"a": [1.0]})
        assert optimizer.report("~/r.html") == tmp_path / "r.html"
        optimizer.save("~/copy.json")
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"s.jsonl", "s.jsonl.data", "r.html", "copy.json"}
    assert "~" not in names
    with pytest.raises(TypeError, match="expected the path of a page"):
        optimizer.report(3)


def test_a_notebook_shows_the_front_and_the_best_of_each_objective():
    page = re.sub(r"<[^>]+>", " ", of_costs()._repr_html_())
    assert re.search(r"trials on the Pareto front\s+2\s+best cost\s+1\s+best yield\s+6\s", page)
    unnamed = LLMOptimizer(SPACE, ScriptedClient([]), direction=["minimize", "maximize"])
    unnamed.tell(POINTS[0], (1.0, 2.0), constraint_violation=1.0)
    assert "best objective 2</th><td>no feasible trial yet" in unnamed._repr_html_()


def test_tab_completion_offers_no_names_of_the_package_itself():
    names = dir(searched())
    assert {"ask", "tell", "propose", "give_back", "pending_proposals", "report"} <= {*names}
    internal = {"check_asks", "inform", "left_by", "meter", "next_seed", "start_event", "observe"}
    assert not internal & {*names}


# -- pictures in every style ----------------------------------------------------------------


def fragile():
    """A search that always fails above 0.02, with a bad first trial."""
    space = {"rate": Float(1e-4, 0.1, log=True), "batch": Int(8, 256, log=True)}
    optimizer = LLMOptimizer(space, ScriptedClient([]), direction="minimize")
    for k in range(32):
        point = {"rate": 10.0 ** (-4 + k / 11), "batch": 8 + 8 * k}
        if point["rate"] > 0.02:
            optimizer.tell_failure(point, "it diverged")
        else:
            optimizer.tell(point, 1000.0 if k in (0, 3) else 1.0 + k % 5)
    return optimizer


@pytest.fixture
def pyplot():
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    with pyplot.style.context("default"):  # a plot of Optuna sets a style for all that follow
        yield pyplot
    pyplot.close("all")


def test_a_logarithmic_axis_has_few_plain_ticks(pyplot):
    figure = fragile().plot_slices()
    figure.canvas.draw()
    ticks = ["0.0001", "0.001", "0.01", "0.1"], ["10", "30", "100"]
    for ax, expected in zip(figure.axes, ticks, strict=True):
        assert [t.get_text() for t in ax.get_xticklabels() if t.get_text()] == expected
        assert not [t for t in ax.get_xticklabels(minor=True) if t.get_text()]
        boxes = [t.get_window_extent() for t in ax.get_xticklabels()]
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_pictures_take_their_colours_from_the_style(pyplot, style):
    from matplotlib.colors import to_rgb

    with pyplot.style.context(style):
        axes = fragile().plot_history()
        best = next(line for line in axes.lines if line.get_label() == "best")
        ink, paper = to_rgb(pyplot.rcParams["text.color"]), to_rgb(axes.get_facecolor())
        assert to_rgb(best.get_color()) == ink
        slices = fragile().plot_slices().axes[0]
        latest = slices.collections[0].get_facecolors()[-1]
        assert abs(sum(latest[:3]) - sum(paper)) > 1.0  # the last trials are the strongest
    late = pyplot.figure().add_subplot(facecolor="black")  # axes of another style than the active
    late.xaxis.label.set_color("white")
    fragile().plot_history(late)
    best = next(line for line in late.lines if line.get_label() == "best")
    assert to_rgb(best.get_color()) == (1.0, 1.0, 1.0)


def test_no_legend_hides_data(pyplot):
    _, (first, second) = pyplot.subplots(1, 2)
    before = first.get_position().height
    fragile().plot_history(first)
    of_costs().plot_pareto(second)
    assert first.get_position().height < before  # there is room for it within the picture
    importance = pytest.importorskip("optuna") and fragile().plot_importance()
    for ax in (fragile().plot_history(), of_costs().plot_pareto(), importance, first, second):
        ax.figure.canvas.draw()
        legend, frame = ax.get_legend().get_window_extent(), ax.get_window_extent()
        label = ax.xaxis.label.get_window_extent()
        assert legend.y1 <= label.y0 + 1 < frame.y0
        assert legend.y0 >= 0
    given = pyplot.figure()
    fragile().plot_slices(given)
    given.canvas.draw()
    (legend,) = given.legends
    lowest = min(ax.get_tightbbox().y0 for ax in given.axes)
    assert legend.get_window_extent().y1 <= lowest + 1


def test_failed_trials_are_marked_at_their_parameters(pyplot):
    optimizer = fragile()
    rate = optimizer.plot_slices().axes[0]
    (failed,) = [c for c in rate.collections if c.get_label() == "failed"]
    assert min(failed.get_offsets()[:, 0]) > 0.02
    assert set(failed.get_offsets()[:, 1]) == {0.0}  # at the frame
    assert rate.get_xlim()[0] < 1e-4
    assert 0.1 < rate.get_xlim()[1] < 0.2  # the range of the parameter
    history = optimizer.plot_history()
    (failed,) = [c for c in history.collections if c.get_label() == "failed"]
    assert len(failed.get_offsets()) == len(optimizer.history.failed)


def test_a_sign_in_a_legend_has_no_colour_of_one_trial(pyplot):
    (legend,) = fragile().plot_slices().legends
    texts = [text.get_text() for text in legend.get_texts()]
    place = next(i for i, text in enumerate(texts) if "beyond the axis" in text)
    red, green, blue, _ = legend.legend_handles[place].get_facecolors()[0]
    assert red == green == blue < 0.6


def test_axes_say_which_direction_is_better(pyplot):
    assert fragile().plot_history().get_ylabel() == "reward (smaller is better)"


def test_an_importance_is_sorted_and_says_what_it_leaves_out(pyplot):
    pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    space = {
        "kind": Categorical(["a", "b"]),
        "deep": Float(0, 1, when={"kind": "a"}),
        "x": Float(0, 1),
        "y": Float(0, 1),
    }
    optimizer = LLMOptimizer(space, ScriptedClient([]))
    for k in range(30):
        point = {"kind": "ab"[k % 2], "x": k / 30, "y": (k * 0.37) % 1}
        optimizer.tell({**point, "deep": 0.5} if k % 2 == 0 else point, point["x"] + k % 3)
    axes = optimizer.plot_importance()
    assert [bars.get_label() for bars in axes.containers] == ["fANOVA", "PED-ANOVA"]
    strong = [bar.get_width() for bar in axes.containers[0]]
    assert strong == sorted(strong)  # the most important one is on top
    assert "deep (only some trials have it)" in axes.get_xlabel()
