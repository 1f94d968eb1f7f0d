"""Points that keep values: `ask(fixed=...)`, and queued points with some parameters."""

from __future__ import annotations

import json
import re

import pytest
from search_contract import Model

from llmopt import Categorical, Float, Int, LLMOptimizer, ScriptedClient, SearchStopped
from llmopt.cli import main
from llmopt.errors import ClientError, FallbackWarning, ParameterError
from llmopt.prompt.answer_parts import notes_of
from llmopt.service.search_json import status

SPACE = {"t": Float(0, 100), "k": Int(0, 5), "c": Categorical(["a", "b", "z"])}
BRANCHES = {
    "kind": Categorical(["net", "tree"]),
    "rate": Float(0, 1, when={"kind": "net"}),
    "depth": Int(1, 9, when={"kind": "tree"}),
    "w": Float(0, 1),
}


def words(*answers, **options):
    options = {"description": "a kiln", "compute": False, "seed": 0, **options}
    return LLMOptimizer(SPACE, Model(list(answers)), "words", **options)


def test_the_prompt_states_them_and_an_answer_with_others_is_sent_back():
    answer = "Hypothesis: hot\nStart from: new\nProposal: t: {}, k: 2, c: b"
    optimizer = words(answer.format(70), answer.format(80))
    assert optimizer.ask(fixed={"t": 80}) == {"t": 80.0, "k": 2, "c": "b"}
    said = "the next experiment has t = 80, and this point has t = 70"
    assert said in optimizer.client.requests[1].text
    assert optimizer.usage.rejected == {"fixed": 1}
    assert (
        "The next experiment has t: 80. Give these values in it"
        in optimizer.client.requests[0].text
    )
    assert optimizer.pending_proposals[0].explanation.startswith("Hypothesis: hot")


def test_queued_points_with_other_values_wait():
    optimizer = words()
    optimizer.enqueue({"t": 1, "k": 1, "c": "a"})
    optimizer.enqueue({"t": 80, "k": 1, "c": "a"})
    assert optimizer.ask(fixed={"t": 80})["t"] == 80.0
    assert optimizer.ask()["t"] == 1.0


def test_a_queued_point_with_some_parameters_is_completed(tmp_path):
    answer = "Hypothesis: warm\nStart from: new\nProposal: t: 60, k: 2, c: z"
    optimizer = words(answer, storage=tmp_path / "s.jsonl")
    optimizer.enqueue({"c": "z"}, "as a colleague wishes")
    optimizer.close()
    optimizer = words(answer, storage=tmp_path / "s.jsonl")
    assert optimizer.ask() == {"t": 60.0, "k": 2, "c": "z"}
    assert "(as a colleague wishes) has c: z" in optimizer.client.requests[0].text
    assert "Give one point in this answer." in optimizer.client.requests[0].text
    assert optimizer._journal.state.partial == ()
    explanation = optimizer.pending_proposals[0].explanation
    assert explanation.startswith("as a colleague wishes\nHypothesis: warm")
    assert notes_of(explanation).hypothesis == "warm"
    # The point that was replaced is still the model's once it has a result, too.
    optimizer.tell({"t": 61, "k": 2, "c": "z"}, 1.0, instead_of=optimizer.pending[0])
    late = optimizer.tell({"t": 60, "k": 2, "c": "z"}, 2.0)
    assert (late.source, late.explanation) == ("llm", explanation)
    random = words(warmup=2)
    random.enqueue({"c": "z"}, "a wish")
    assert random.ask()["c"] == "z"
    assert random.pending_proposals[0].explanation == "a wish"
    assert random.client.requests == []
    with pytest.raises(ValueError, match="one of its choices"):
        random.enqueue({"c": "q"})


def test_a_queued_point_that_cannot_be_completed_lets_others_pass(tmp_path, recwarn):
    path, said = tmp_path / "s.jsonl", []

    def answer(request):
        said.extend(str(warning.message) for warning in recwarn)
        return "Hypothesis: warm\nStart from: new\nProposal: t: {}, k: {}, c: b".format(
            *re.search(r"has t: (\d+), k: (\d)", request.text).groups()
        )

    def made(*rows):
        table = [{"k": k, "c": c} for k, c in rows]
        return LLMOptimizer(
            SPACE, Model(answer), "words", description="a kiln", compute=False, seed=0,
            candidates=table, storage=path,
        )  # fmt: skip

    with made((1, "a"), (2, "b"), (3, "b")) as optimizer:
        optimizer.enqueue({"k": 3, "c": "b", "t": 9})
        for point in ({"k": 1}, {"t": 20, "k": 2}, {"k": 1, "t": 30}, {"t": 40, "k": 2}):
            optimizer.enqueue(point)
    with made((2, "b"), (5, "a")) as optimizer:
        assert optimizer.ask() == {"t": 20.0, "k": 2, "c": "b"}
        waits = [one.get("waits", "") for one in status(optimizer)["queued"]]
        assert [bool(why) for why in waits] == [True, True, True, False]
        assert waits[1] == "no candidate has k = 1"
        assert sum("no candidate has k = 1. Withdraw it, or add its row" in text for text in said)
        left = optimizer.queued
        assert left == [
            {"t": 9.0, "k": 3, "c": "b"},
            {"k": 1},
            {"k": 1, "t": 30},
            {"t": 40, "k": 2},
        ]
    with made((2, "b"), (3, "b"), (5, "a")) as optimizer:
        assert optimizer.queued == left
        assert optimizer.ask(2) == [left[0], {"t": 40.0, "k": 2, "c": "b"}]
        assert optimizer.queued == [{"k": 1}, {"k": 1, "t": 30}]
    assert "waits" not in status(LLMOptimizer.load(path, Model(answer)))["queued"][0]


@pytest.mark.filterwarnings("ignore::llmopt.FallbackWarning")
@pytest.mark.parametrize("partner", [None, "network"])
def test_conditions_and_constraints_hold(partner):
    options = {"constraints": "rate + w <= 1", "warmup": 3, "seed": 1, "on_error": "fallback"}
    options["max_fallbacks"] = None
    optimizer = LLMOptimizer(BRANCHES, ScriptedClient([]), "props", partner=partner, **options)
    for i in range(9):
        fixed = [{"kind": "net", "w": 0.9}, {"depth": 3}, {"rate": 0.8}][i % 3]
        point = optimizer.ask(fixed=fixed)
        assert point.items() >= fixed.items()
        assert ("depth" in point) == (point["kind"] == "tree")
        assert point.get("rate", 0) + point["w"] <= 1 + 1e-9 or "depth" in point
        optimizer.tell(point, point["w"])


def test_points_that_were_paid_for_before_the_model_failed_too_often_are_kept():
    answer = "Hypothesis: warm\nStart from: new\nProposal: t: 60, k: 2, c: z"
    answers = ("I pass.", answer, "I pass.", answer.replace("60", "70"))
    optimizer = words(*answers, attempts=1, max_fallbacks=1)
    with pytest.warns(FallbackWarning):
        optimizer.ask()
    optimizer.enqueue({"c": "z"})
    optimizer.enqueue({"t": 70})
    with pytest.raises(ClientError, match="gave no point again"):
        optimizer.ask(2)
    assert optimizer.ask(2) == [{"t": 60.0, "k": 2, "c": "z"}, {"t": 70.0, "k": 2, "c": "z"}]
    assert optimizer.queued == []


def test_candidates_and_small_spaces_give_each_point_once():
    table = [{"a": i % 4, "b": i} for i in range(20)]
    optimizer = LLMOptimizer(None, "network", seed=1, candidates=table, warmup=20)
    assert sorted(optimizer.ask(fixed={"a": 2})["b"] for _ in range(5)) == [2, 6, 10, 14, 18]
    small = LLMOptimizer({"x": Int(0, 3), "y": Int(0, 3)}, "network", seed=1, warmup=9)
    assert sorted(p["x"] for p in small.ask(4, fixed={"y": 1})) == [0, 1, 2, 3]


def test_the_shell_fixes_misses_corrects_and_withdraws(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'model = "network"\ndirection = "maximize"\nwarmup = 9\nseed = 1\n[space]\n'
        't = { type = "number", minimum = 0, maximum = 100 }\nc = { enum = ["a", "z"] }\n'
    )

    def shell(*args):
        assert main([args[0], "s.toml", *args[1:]]) == 0
        return capsys.readouterr().out

    assert '"t": 80.0' in shell("ask", "--fixed", "t=80", "--fixed", "c=z")
    assert '"number": 1' in shell(
        "tell",
        '{"params": {"t": 79.6, "c": "z"}, "reward": 50, "instead_of": {"t": 80, "c": "z"}, '
        '"parts": {"yield": 51, "waste": 1}}',
    )
    assert '"corrected": 1' in shell(
        "tell", '{"params": {"t": 79.6, "c": "z"}, "reward": 5.0, "replaces": 1}'
    )
    assert '"reward": 5.0' in shell("status")
    shell("enqueue", '{"c": "a"}', "--words", "a wish")
    assert '"c": "a"' in shell("ask")
    assert '"pending": [\n' in shell("status")
    (asked,) = json.loads(shell("status"))["pending"]
    gone = json.loads(shell("withdraw", json.dumps(asked["params"])))
    assert gone == {**asked, "state": "withdrawn"}
    assert '"pending": []' in shell("status")
    queued = {"params": {"c": "z"}, "source": "user"}
    assert json.loads(shell("enqueue", '{"c": "z"}')) == queued
    assert json.loads(shell("status"))["queued"] == [queued]
    assert json.loads(shell("withdraw", '{"c": "z"}')) == {**queued, "state": "withdrawn"}
    point = {"t": 80, "c": "a"}
    shell("enqueue", json.dumps(point), '{"c": "z"}', "--words", "a wish")
    about = {"source": "user", "explanation": "a wish"}
    assert json.loads(shell("status"))["queued"] == [
        {"params": point, **about},
        {"params": {"c": "z"}, **about},
    ]
    gone = shell("withdraw", json.dumps(point), '{"c": "z"}', "--feedback", "no bottle")
    assert [json.loads(line)["feedback"] for line in gone.splitlines()] == ["no bottle"] * 2
    assert json.loads(shell("status"))["queued"] == []
    reason = ("--feedback", "wrong bottle")
    gone = json.loads(shell("withdraw", "--trial", "1", *reason))
    assert (gone["number"], gone["params"]["t"], gone["state"]) == (1, 79.6, "withdrawn")
    assert '"trials": 0' in shell("status")
    assert '"feedback": "wrong bottle"' in shell("status", "--trials")
    for wrong, said in (
        (("--trial", "2"), "one of 1 trials, counted from 1"),
        (("--trial", "1"), "withdrawn before"),
        (reason, "a point, such as p4, or --trial N"),
    ):
        assert main(["withdraw", "s.toml", *wrong]) == 2
        assert said in capsys.readouterr().err


def test_queued_points_with_some_parameters_are_withdrawn_one_by_one(tmp_path):
    optimizer = words(storage=tmp_path / "s.jsonl")
    points = [{"c": "z"}, {"t": 1.0, "k": 1, "c": "a"}, {"t": 50.0}]
    for point in points:
        optimizer.enqueue(point)
    assert optimizer.queued == [points[1], points[0], points[2]]
    optimizer.withdraw({"c": "z"})
    optimizer.close()
    optimizer = words(storage=tmp_path / "s.jsonl")
    assert optimizer.queued == points[1:]
    with pytest.raises(ValueError, match=r"neither pending nor queued.* Queued: "):
        optimizer.withdraw({"c": "z"})


def test_a_point_is_withdrawn_by_some_of_its_parameters_if_no_other_has_them():
    optimizer = words()
    points = [{"t": 1.0, "k": 1, "c": "a"}, {"t": 2.0, "k": 1, "c": "b"}, {"t": 3.0}]
    for point in points:
        optimizer.enqueue(point)
    with pytest.raises(ParameterError, match=r"2 points that wait for a result have these values"):
        optimizer.withdraw({"k": 1})
    optimizer.withdraw({"c": "a"})
    assert optimizer.queued == points[1:]
    assert optimizer.ask() == points[1]
    optimizer.withdraw({"k": 1})
    assert (optimizer.pending, optimizer.queued) == ([], points[2:])


def test_the_latest_trial_never_happened_and_keeps_its_number(tmp_path):
    optimizer = words("Start from: new\nProposal: t: 60, k: 2, c: z", storage=tmp_path / "s.jsonl")
    for t in (10, 20):
        optimizer.tell({"t": t, "k": 1, "c": "a"}, float(t), data={"curve": [1.0, t]})
    optimizer.withdraw(trial=1, feedback="wrong bottle")
    with pytest.raises(ValueError, match="trial=2: expected the number of one of 2 trials"):
        optimizer.withdraw(trial=2)
    optimizer.tell({"t": 30, "k": 1, "c": "a"}, 3.0, data={"curve": [2.0]})
    optimizer.ask()
    assert re.search(r"#2 \| withdrawn \|.*\n.*wrong bottle", optimizer.client.requests[0].text)
    optimizer.close()
    optimizer = words(storage=tmp_path / "s.jsonl")
    assert [t.params["t"] for t in optimizer.trials] == [10.0, 20.0, 30.0]
    assert (optimizer.trials[1].old_rewards, optimizer.trials[1].feedback) == (
        ((20.0,),), "wrong bottle"
    )  # fmt: skip
    assert optimizer.trials[2].data["curve"] == [2.0]
    assert optimizer.best.number == 0


def test_an_earlier_trial_never_happened_and_its_point_is_free(tmp_path):
    def resumed():
        return words("Start from: new\nProposal: t: 10, k: 1, c: a", storage=tmp_path / "s.jsonl")

    optimizer = resumed()
    optimizer.tell({"t": 5, "k": 1, "c": "a"}, 1.0)
    optimizer.tell_failure({"t": 10, "k": 1, "c": "a"}, "the pump broke")
    optimizer.tell({"t": 20, "k": 1, "c": "a"}, 9.0, feedback="mixed up", parts={"waste": 1.0})
    optimizer.tell({"t": 30, "k": 1, "c": "a"}, 3.0)
    for number in (1, 2):
        optimizer.withdraw(trial=number)
    optimizer.close()
    optimizer = resumed()
    assert [t.state for t in optimizer.trials[1:]] == ["withdrawn", "withdrawn", "complete"]
    assert (optimizer.best.number, status(optimizer)["trials"]) == (3, 2)
    assert optimizer.ask() == {"t": 10.0, "k": 1, "c": "a"}  # again, without a complaint
    text = optimizer.client.requests[0].text
    assert "#2 | withdrawn |" in text
    assert "\n> the pump broke\n" in text  # the reason, but nothing of a result
    assert not any(said in text for said in ("mixed up", "failed", "waste"))
    assert optimizer.tell({"t": 20, "k": 1, "c": "a"}, 2.0, replaces=2).state == "complete"
    optimizer.close()
    other = words()
    assert other.import_trials(tmp_path / "s.jsonl").taken == 3
    table = LLMOptimizer(None, "network", candidates=[{"x": 1}], warmup=1)
    table.tell_failure(table.ask(), "the pump broke")
    with pytest.raises(SearchStopped, match="withdraw a failed trial to repeat its run"):
        table.ask()
    table.withdraw(trial=0)
    assert table.ask() == {"x": 1}


def test_a_correction_keeps_what_it_does_not_give_again(tmp_path, caplog):
    limits = {"constraints": "t <= 50", "storage": tmp_path / "s.jsonl"}
    optimizer = words(**limits)
    first = {"feedback": "brown", "parts": {"yield": 7.0}, "constraint_violation": 0.5, "seed": 3}
    optimizer.tell({"t": 60, "k": 1, "c": "a"}, 7.0, stderr=0.1, data={"u": [1.0]}, **first)
    optimizer.tell({"t": 5, "k": 1, "c": "a"}, None, feedback="it broke")
    corrected = optimizer.tell({"t": 52, "k": 1, "c": "a"}, 8.0, replaces=0)
    assert (corrected.feedback, corrected.parts, corrected.seed) == ("brown", {"yield": 7.0}, 3)
    assert (corrected.constraint_violation, corrected.stderr) == (2.5, None)
    assert "trial 0 was corrected to another point: it was {'t': 60" in caplog.text
    caplog.clear()
    again = {"feedback": "", "parts": {}, "constraint_violation": 0.0}
    optimizer.tell({"t": 40, "k": 1, "c": "a"}, 8.0, replaces=0, **again)
    caplog.clear()
    assert optimizer.tell({"t": 5, "k": 1, "c": "a"}, 1.0, replaces=1).feedback == ""
    assert not caplog.text
    optimizer.close()
    trial = words(**limits).trials[0]
    assert (trial.feedback, trial.parts, trial.constraint_violation) == ("", {}, 0.0)
    assert trial.data["u"] == [1.0]


def test_values_that_break_a_constraint_by_themselves_are_named():
    space = {"oil": Float(0, 1), "water": Float(0, 1), "wax": Float(0, 1)}
    optimizer = LLMOptimizer(space, "network", constraints=["oil + water == 1"])
    with pytest.raises(ParameterError, match=r"oil = 0.5, water = 0.7 breaks oil \+ water == 1 by"):
        optimizer.enqueue({"oil": 0.5, "water": 0.7})


def test_some_parameters_withdraw_a_queued_point_with_more_of_them():
    optimizer = words()
    for point in ({"c": "z", "t": 25}, {"c": "z"}, {"c": "a", "t": 25}, {"c": "a", "k": 1}):
        optimizer.enqueue(point)
    with pytest.raises(ParameterError, match="2 points that wait for a result have these values"):
        optimizer.withdraw({"c": "a"})
    optimizer.withdraw({"c": "z"})  # that very point comes first
    optimizer.withdraw({"c": "z"})
    optimizer.withdraw({"k": 1})
    assert optimizer.queued == [{"c": "a", "t": 25}]
    with pytest.raises(ParameterError, match="neither pending nor queued"):
        optimizer.withdraw({"t": 26})


def test_the_shell_says_what_to_write(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'model = "network"\ndirection = "maximize"\n[space]\n'
        't = { type = "number", minimum = 0, maximum = 100 }\nc = { enum = ["a", "z"] }\n'
    )
    assert main(["tell", "s.toml", '{"t": 5, "c": "a"}', "--reward", "1"]) == 0

    def refused(command, *args):
        assert main([command, "s.toml", *args]) == 2
        return capsys.readouterr().err

    point = '{"t": 50, "c": "a"}'
    said = refused("tell", point, "--reward", "1", "--feedback", "brown", "oil")
    assert "'oil' is no point" in said
    assert 'quote the text: --feedback "brown oil"' in said
    said = refused("tell", "--replaces", "1", "--failed", "after", "2", "h")
    assert '--failed "after 2 h"' in said
    assert '--words "a wish"' in refused("enqueue", point, "--words", "a", "wish")
    said = refused("withdraw", "--trial", "1", "--feedback", "no", "gas")
    assert '--feedback "no gas"' in said
    assert "quote the whole object" in refused("tell", "t:50", "c:a", "--reward", "1")
    assert "5 is no point" in refused("tell", point, "5", "--reward", "1", "--feedback", "hot")
    for text in ('{"t": "7,5", "c": "a"}', '{"t": 7,5, "c": "a"}', '{"t": "7,5"}'):
        assert "write 7.5" in refused("enqueue", text)
        assert "write 7.5" in refused("tell", text, "--replaces", "1")
    assert "write 7.5" in refused("ask", "--fixed", "t=7,5")
    (tmp_path / "t.csv").write_text('t,c,reward\n"7,5",a,1\n')
    assert "write 7.5" in refused("tell", "--import", "t.csv")
    assert "--replaces 1 changes nothing in trial 1: give" in refused("tell", "--replaces", "1")
    assert main(["withdraw", "s.toml", "--trial", "1"]) == 0
    assert main(["tell", "s.toml", "--replaces", "1"]) == 0
