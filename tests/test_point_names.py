"""The name of a point means what `ask` printed, whatever was told, corrected or withdrawn since."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from test_service import run, write

from llmopt import Int, LLMOptimizer
from llmopt.client.scripted import ScriptedClient
from llmopt.errors import LLMOptError, ParameterError
from llmopt.service.search_file import open_file
from llmopt.service.search_json import enqueue, point_named, tell, withdraw

SPACE = {"k": Int(0, 3), "j": Int(0, 2)}


def make(**options):
    return LLMOptimizer(SPACE, ScriptedClient.nobody("x"), warmup=0, seed=0, **options)


def asked(optimizer, *points):
    """Ask for points, each with words that no other one has, and return them."""
    for point in points:
        number = len(optimizer.returned_proposals) + 1
        optimizer.enqueue(point, f"words {number}")
        optimizer.ask()
    return points


def check(optimizer):
    """Check that each name has its own parameters, words and seed, and at most one trial."""
    state, returned = optimizer._journal.state, optimizer.returned_proposals
    held = Counter(each.asked for each in (*state.trials, *state.pending) if each.asked)
    assert set(held.values()) <= {1}
    for number in held:
        proposal = returned[number - 1]
        assert point_named(optimizer, f"p{number}") == optimizer.space.unflatten(proposal.values)
    assert all(proposal == returned[proposal.asked - 1] for proposal in state.pending)
    assert [p.asked for p in state.pending] == sorted(p.asked for p in state.pending)
    for trial in state.trials:
        assert not trial.asked or trial.explanation == returned[trial.asked - 1].explanation


def step(optimizer, source, rng, folder):
    """Do anything with a search, right or wrong."""
    count, reward = len(optimizer.returned_proposals), rng.random()
    point = {"k": rng.randint(0, 3), "j": rng.randint(0, 2)}
    name = f"p{rng.randint(1, count or 1)}"
    given, trial = rng.choice([point, name]), rng.choice([rng.randint(1, 9), name])
    told = {"params": given, "reward": reward}
    told |= rng.choice([{}, {"instead_of": name}, *[{"replaces": trial}] * 3])
    match rng.randrange(9):
        case 0 | 1:
            asked(optimizer, point)
        case 2 | 3 | 4:
            pending = [f"p{p.asked}" for p in optimizer.pending_proposals]
            (trial,) = tell(optimizer, [told])
            if given == name and "instead_of" not in told:
                values = optimizer.returned_proposals[int(name[1:]) - 1].values
                assert trial["params"] == optimizer.space.unflatten(values)
                assert name not in pending or trial["point"] == name
        case 5:
            before = optimizer.trials
            try:
                list(tell(optimizer, [told, {"params": name, "reward": 1.0}]))
            except LLMOptError:
                assert optimizer.trials == before
                raise
        case 6:
            rng.choice([lambda: withdraw(optimizer, [name], None, ""),
                        lambda: withdraw(optimizer, [], trial, "why")])()  # fmt: skip
        case 7:
            enqueue(optimizer, [name])
            optimizer.ask()
        case 8:
            source.tell(point, reward, replaces=rng.choice([0, None]) if source.trials else None)
            source.save(folder / "source.jsonl")
            optimizer.import_trials(folder / "source.jsonl")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [{}, {"noisy": True}, {"noisy": True, "seeded": True}])
def test_no_sequence_of_calls_changes_what_a_name_means(how, tmp_path):
    done = 0
    for seed in range(12):
        rng, source = random.Random(seed), make(**how)
        optimizer = make(storage=tmp_path / f"{seed}.jsonl", **how)
        for _ in range(25):
            try:
                step(optimizer, source, rng, tmp_path)
                done += 1
            except LLMOptError:
                pass
            check(optimizer)
        state = optimizer._journal.state
        optimizer.close()
        with make(storage=tmp_path / f"{seed}.jsonl", **how) as again:
            there = again._journal.state
            assert (there.trials, there.pending) == (state.trials, state.pending)
            assert [t.asked for t in there.trials] == [t.asked for t in state.trials]
    assert done > 100


@pytest.mark.parametrize("how", [["--reward", "5"], ["--failed", "the pump broke"]])
def test_a_result_is_corrected_to_that_of_another_pending_point(how, tmp_path, capsys, caplog):
    file = write(tmp_path, model="network")
    first, second = run(capsys, "ask", file, "-n", "2")
    run(capsys, "tell", file, "p2", *how)
    (right,) = run(capsys, "tell", file, "p1", "--replaces", "p2")
    assert (right["point"], right["params"]) == ("p1", first["params"])
    assert (right["old_params"], right["pending_again"]) == (second["params"], "p2")
    assert f"pending again: {second['params']}" in caplog.text
    assert run(capsys, "ask", file, "--again") == [second]
    said = run(capsys, "tell", file, "--replaces", "p2", "--reward", "3", status=2)
    assert "expected the number of one of 1 trials" in said  # none of p2 any more
    (back,) = run(capsys, "tell", file, json.dumps(second["params"]), "--replaces", "p1")
    assert (back["point"], back["params"]) == ("p2", second["params"])
    assert run(capsys, "ask", file, "--again") == [first]
    run(capsys, "tell", file, "p1", "--replaces", "1")
    (trial,) = run(capsys, "tell", file, "p2", "--reward", "7")
    assert (trial["point"], trial["params"]) == ("p2", second["params"])
    said = run(capsys, "tell", file, "p1", "--replaces", "p2", status=2)
    assert "p1 has its result, trial 1: correct it with --replaces 1" in said
    run(capsys, "withdraw", file, "--trial", "p1")
    assert run(capsys, "enqueue", file, "p1")[0]["params"] == first["params"]


def test_a_trial_of_another_point_is_no_result_of_its_name(tmp_path, capsys):
    file = write(tmp_path, model="network")
    first, second = run(capsys, "ask", file, "-n", "2")
    run(capsys, "tell", file, '{"k": 1}', "--instead-of", "p2", "--reward", "5")
    (right,) = run(capsys, "tell", file, "p1", "--replaces", "p2")
    assert (right["params"], "instead_of" in right) == (first["params"], False)
    run(capsys, "tell", file, "p2", "--reward", "6")
    run(capsys, "tell", file, '{"k": 2}', "--replaces", "p2")  # it was neither
    said = run(capsys, "tell", file, "p2", "--reward", "7", status=2)
    assert "p2 has its result, trial 2, which was measured at another point" in said
    assert run(capsys, "enqueue", file, "p2")[0]["params"] == second["params"]
    run(capsys, "withdraw", file, "--trial", "2")
    run(capsys, "ask", file)
    (trial,) = run(capsys, "tell", file, "p2", "--reward", "8")  # p3 is its point
    assert (trial["point"], trial["params"]) == ("p3", second["params"])
    assert open_file(file, reads=True).pending == []


def test_of_equal_points_the_corrected_one_is_the_named_one():
    optimizer = make(noisy=True, seeded=True)
    asked(optimizer, *[{"k": 1, "j": 1}] * 2)
    first, second = optimizer.pending_proposals
    tell_one = lambda told: next(iter(tell(optimizer, [told])))  # noqa: E731
    tell_one({"params": "p2", "reward": 5.0})
    tell_one({"params": {"k": 1, "j": 1}, "replaces": "p2", "reward": 6.0})
    assert optimizer.pending_proposals == [first]  # its point was right
    right = tell_one({"params": "p1", "replaces": "p2"})
    assert (right["point"], right["pending_again"]) == ("p1", "p2")
    assert optimizer.trials[0].seed == first.seed != second.seed
    assert optimizer.pending_proposals == [second]


def test_a_correction_in_python_is_to_the_pending_point():
    optimizer = make()
    first, second = asked(optimizer, {"k": 1, "j": 1}, {"k": 2, "j": 2})
    optimizer.tell(second, 5.0)
    assert optimizer.tell(first, 5.0, replaces=0).explanation == "words 1"
    assert optimizer.pending == [second]
    optimizer.withdraw(trial=0)
    with pytest.raises(ParameterError, match="was withdrawn, and the point given is pending"):
        optimizer.tell(second, 5.0, replaces=0)


def test_one_call_that_contradicts_itself_records_nothing():
    optimizer = make()
    asked(optimizer, {"k": 1, "j": 1}, {"k": 2, "j": 2}, {"k": 3, "j": 2})
    list(tell(optimizer, [{"params": "p2", "reward": 1.0}]))
    correction = {"params": "p1", "replaces": "p2"}
    for other in (
        {"params": "p1", "reward": 2.0},
        {"params": {"k": 0, "j": 0}, "instead_of": "p1", "reward": 2.0},
        {"replaces": 1, "reward": 2.0},
    ):
        with pytest.raises(LLMOptError, match="tell them one by one; nothing was recorded"):
            list(tell(optimizer, [other, correction]))
    list(tell(optimizer, [correction, {"params": "p2", "reward": 2.0}]))
    assert [t.asked for t in optimizer.trials] == [1, 2]


def test_a_point_that_was_withdrawn_for_a_reason_is_run_again(tmp_path):
    answers = [f"Hypothesis: more k{k}\nStart from: new\nProposal: k: {k}, j: 1" for k in range(4)]
    about = {"description": "d", "prompt": "words", "storage": tmp_path / "s.jsonl"}
    with LLMOptimizer(SPACE, ScriptedClient(answers), compute=False, points=1, **about) as search:
        search.ask(2)
        (gone,) = withdraw(search, ["p2"], None, "spilled on the\nbench")
        assert (gone["point"], gone["feedback"]) == ("p2", "spilled on the\nbench")
        with pytest.raises(LLMOptError, match=r"'p2' \(it was withdrawn; `enqueue` runs"):
            list(tell(search, [{"params": {"k": 0}, "instead_of": "p2", "reward": 1.0}]))
        search.ask()
        said = "The point k: 1, j: 1 was withdrawn before it had a result: spilled on the bench."
        (again,) = enqueue(search, ["p2"])
        assert (again["explanation"], again["source"]) == ("Hypothesis: more k1", "user")
        assert enqueue(search, ["p2"], "mine")[0]["explanation"] == "mine"
        with pytest.raises(LLMOptError, match="no point 'p9'"):
            enqueue(search, ["p9"])
        withdraw(search, ["p1"], None, "")
        search.ask(3)
        texts = [request.messages[-1].content for request in search.client.requests]
        assert [said in text for text in texts] == [False, False, True, False]
        assert "withdrawn" not in texts[-1]  # it is pending again, and p1 has no reason
        state = search._journal.state
    with LLMOptimizer(
        SPACE, ScriptedClient.nobody("x"), compute=False, points=1, **about
    ) as search:
        assert search._journal.state.dropped == state.dropped
        assert [(change.of, change.words) for change in search.changes] == [
            ("p2", "withdrawn before it had a result: spilled on the\nbench"),
            ("p1", "withdrawn before it had a result"),
        ]
        search.enqueue({"k": 3, "j": 2})
        search.withdraw({"k": 3, "j": 2}, feedback="no bottle")
        search.tell_failure({"k": 2, "j": 2}, "the pump broke")
        search.withdraw(trial=0)
        assert search.changes[-2].of == "k = 3, j = 2"
        assert search.trials[0].feedback == search.changes[-1].words == "the pump broke"


def test_a_withdrawn_point_keeps_its_hypothesis_when_it_is_run_again_or_told_by_name(tmp_path):
    answers = [
        f"Lesson: l{k}\nHypothesis: more k{k}\nStart from: new\nProposal: k: {k}, j: 1"
        for k in range(4)
    ]
    how = {"compute": False, "points": 1, "prompt": "words", "storage": tmp_path / "s.jsonl"}
    with LLMOptimizer(SPACE, ScriptedClient(answers), warmup=0, **how) as search:
        for _ in range(3):
            search.ask()
        withdraw(search, ["p1", "p2"], None, "the pump broke")
        search.enqueue({"k": 3, "j": 0})
        enqueue(search, ["p2"])
        search.enqueue({"k": 3, "j": 2})
        assert [p.values for p in search.queued_proposals] == [(3, 0), (1, 1), (3, 2)]
        search.ask(3)
        assert [p.source for p in search.pending_proposals] == ["llm", "user", "llm", "user"]
        with pytest.raises(LLMOptError, match=r"'p1'.*`enqueue` runs it again"):
            list(tell(search, [{"params": "p1", "replaces": 1}]))
        told = [{"params": "p1", "reward": 1.0}, {"point": "p2", "reward": 2.0}]
        first, second = tell(search, told)  # p5 is the point of p2
        assert (first["point"], second["point"]) == ("p1", "p5")
        assert [t.source for t in search.trials] == ["llm", "llm"]
        assert search.trials[0].explanation == search.returned_proposals[0].explanation
        (again,) = tell(search, [{"params": "p1", "reward": 1.0}])  # a repeat is the user's
        assert "point" not in again
        search.ask()
        text = search.client.requests[-1].messages[-1].content
        assert 'lesson: l1\nhypothesis: "more k1" -> +1 against the best, #1' in text
        assert "run again" not in text
        state = search._journal.state
    with LLMOptimizer(SPACE, ScriptedClient([]), warmup=0, **how) as search:
        there = search._journal.state
        assert (there.trials, there.pending) == (state.trials, state.pending)
