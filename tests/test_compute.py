"""Python in place of a point: `compute=True`."""

import json
from contextlib import closing, redirect_stdout
from io import StringIO

import numpy as np
import pytest
from stubs import LIBRARIES, needs_confinement

from llmopt import (
    BudgetExceededError,
    Categorical,
    Completion,
    Float,
    LLMOptimizer,
    Reply,
    ScriptedClient,
    Space,
)
from llmopt.benchmarks.engine.folder_settings import to_give_again
from llmopt.caps import Limits
from llmopt.cli import main
from llmopt.client.model_facts import ModelFacts
from llmopt.errors import LLMOptError, ParseError, StorageError, TemplateError
from llmopt.history import History, Trial
from llmopt.lab import blocks, laboratory
from llmopt.lab.laboratory import Laboratory
from llmopt.prompt import Situation, ToolCall, get_prompt
from llmopt.prompt.python_block import Computed, ToolFacts, blocks_left, code_in, data_of
from llmopt.sandbox import confine
from llmopt.sandbox.failure import SandboxError, SandboxUnavailableError
from llmopt.service.mcp_tools import SearchFolder

SPACE = {"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}
FENCE = "```python\n{}\n```"


def point(x):
    return f"Hypothesis: h.\nStart from: new\nProposal:\nx: {x}, y: 0.5"


def python(code):
    return f"Analysis: let me see.\n\n{FENCE.format(code)}"


class Plain(Laboratory):
    """Runs blocks in this process, for tests of all that is around them."""

    ran: list[str]
    facts = ToolFacts()

    def __init__(self, *_):
        super().__init__(workers=0)
        self.space, self.ran, self.seen = {}, [], []

    def run(self, code, before, data, seconds):
        self.ran.append(code)
        self.seen.append([block.code for block in before])
        seen = data()
        printed = StringIO()
        with redirect_stdout(printed):
            exec(code, self.space | dict(seen, np=np))
        names = (f"v{len(self.ran)} (float)",)
        return Computed(code, printed.getvalue(), names, len(seen["X"]), seconds=40.25)


@pytest.fixture
def plain(monkeypatch):
    made = []

    def make(*_):
        made.append(Plain())
        return made[-1]

    monkeypatch.setattr(blocks, "Laboratory", make)
    return made


def search(answers, **options):
    client = answers if hasattr(answers, "complete") else ScriptedClient(answers)
    options = {"prompt": "words", "warmup": 0, "seed": 1, "compute": True, **options}
    return LLMOptimizer(SPACE, client, **options), client


def tell(optimizer, count=1):
    return [optimizer.tell(p, p["x"]) for p in (optimizer.ask() for _ in range(count))]


def test_the_next_request_shows_what_was_printed_and_later_ones_the_variables(plain):
    script = [point(0.25), python("a = f.sum()\nprint(X, a)"), point(0.5), point(0.6)]
    optimizer, client = search(script)
    tell(optimizer, 3)
    first, second, third, fourth = (request.text for request in client.requests)
    assert "In place of an answer you may give one block between ```python" in first
    assert "You computed" not in first + second
    assert "You computed:\n> a = f.sum()\n> print(X, a)\nIt printed:\n> [[0.25 0.5 ]] 0.25" in third
    assert "Your variables: v1 (float)" in third
    assert "You computed" not in fourth
    assert "Your variables: v1 (float)" in fourth
    assert optimizer.usage.requests == 4
    assert optimizer.usage.proposals == {"llm": 3}
    assert optimizer.usage.rejected == {}
    assert [t.params["x"] for t in optimizer.trials] == [0.25, 0.5, 0.6]
    tell(search([point(0.1)])[0])


def test_blocks_before_a_refused_answer_are_shown_beside_new_results(plain):
    def refused(_):
        optimizer.tell({"x": 0.5, "y": 0.75}, 69.25)
        return Reply((Completion(point(7)),))

    optimizer, client = search([python("print(40 + 2)"), refused, point(0.25), point(0.5)])
    tell(optimizer, 2)
    third, fourth = (request.text for request in client.requests[2:])
    for text in ("69.25", "It printed:\n> 42", "19 blocks", "`x` = 7 is outside [0.00, 1.00]"):
        assert text in third
        assert text not in fourth or text == "69.25"


def test_so_many_blocks_in_a_row_are_the_most(plain):
    blocks = [python(f"print({k})") for k in range(4)]
    script = [*blocks, point(0.5), python("print(9)"), point(0.6)]
    optimizer, client = search(script, compute_blocks=3)
    tell(optimizer)
    assert plain[0].ran == ["print(0)", "print(1)", "print(2)"]
    assert "No further Python now: propose in the form" in client.requests[3].text
    assert "No further Python" not in client.requests[2].text
    assert "no further block of Python is possible here" in client.requests[4].text
    assert optimizer.usage.rejected == {"unreadable": 1}
    tell(optimizer)
    assert plain[0].ran[-1] == "print(9)"
    assert optimizer.usage.blocks == 4


def test_a_failed_block_does_not_count_and_not_more_fail_than_may_succeed():
    right, wrong = Computed("1", ""), Computed("1", "", failed=True)
    assert blocks_left([], 3) == 3
    assert blocks_left([right, wrong, wrong], 3) == 2
    assert blocks_left([wrong] * 5, 3) == 1
    assert blocks_left([wrong] * 6, 3) == 0
    assert blocks_left([right] * 3, 3) == 0


def test_no_block_follows_once_their_seconds_are_spent(plain):
    optimizer, client = search([python("print(1)"), point(0.5)], compute_total=30)
    tell(optimizer)
    assert plain[0].ran == ["print(1)"]
    assert "No further Python now" not in client.requests[0].text
    assert "No further Python now" in client.requests[1].text


def test_a_block_of_a_dropped_answer_makes_no_other_run_twice(plain, tmp_path):
    file = tmp_path / "s.jsonl"
    script = [python("print(1)"), python("print(2)")]
    optimizer, _ = search(script, storage=file, max_requests=1)
    with closing(optimizer):
        with pytest.raises(BudgetExceededError):
            optimizer.ask()
        optimizer.tell({"x": 0.9, "y": 0.9}, 1.0)  # the next question is another one
        optimizer.limits = Limits(max_requests=2)
        with pytest.raises(BudgetExceededError):
            optimizer.ask()
    again, client = search([point(0.5)], storage=file)
    with closing(again):
        assert again.ask()["x"] == 0.5
    assert plain[-1].ran == []
    assert "It printed:\n> 2" in client.requests[0].text


def test_a_reply_is_on_file_before_its_block_runs(plain, tmp_path, monkeypatch):
    """A search that is killed within a block pays for no answer twice."""
    file, run = tmp_path / "s.jsonl", Plain.run

    def look(self, *given):
        events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
        assert events.count("replied") == len(client.requests)
        return run(self, *given)

    monkeypatch.setattr(Plain, "run", look)
    optimizer, client = search([python("print(1)"), python("print(2)"), point(0.5)], storage=file)
    with closing(optimizer):
        tell(optimizer)
    assert plain[0].ran == ["print(1)", "print(2)"]


def test_the_last_of_the_requests_is_for_a_point(plain):
    optimizer, client = search([python("print(1)"), point(0.5)], partner="network", max_requests=2)
    assert tell(optimizer)[0].params["x"] == 0.5
    assert "No further Python" not in client.requests[0].text
    assert "No further Python now: propose in the form" in client.requests[1].text
    optimizer, _ = search([python("print(1)")], partner="network", max_requests=1)
    optimizer.ask()
    assert [p.source for p in optimizer.pending_proposals] != ["llm"]
    assert plain[-1].ran == []


def test_the_prompt_states_how_many_workers_there_are_and_what_is_left():
    def texts(**given):
        given = {"compute": True, "seconds_left": 77.4, "blocks": 13, **given}
        situation = Situation.after(History(), Space(SPACE), ModelFacts("m"), **given)
        text = get_prompt("words").prepare(situation).request.text
        return text, text.splitlines()[-1]

    whole, last = texts(tool=ToolFacts(31, memory=3 << 29))
    assert " 31 " in whole
    assert " 1.5 GB a block" in whole
    assert "submit(" in whole
    assert (" 77 " in last, " 13 " in last) == (True, True)
    assert "submit(" not in texts(tool=ToolFacts(0))[0]
    assert " 77 " not in texts(blocks=0)[1]


def test_a_repeated_ask_states_the_machine_on_which_it_began(plain, monkeypatch, tmp_path):
    file = tmp_path / "s.jsonl"
    monkeypatch.setattr(Plain, "facts", ToolFacts(3, ("SciPy",), 5 << 29))
    begun, _ = search([python("print(1)")], storage=file, max_requests=1)
    with closing(begun), pytest.raises(BudgetExceededError):
        begun.ask()
    monkeypatch.setattr(Plain, "facts", ToolFacts(8, ("cma",), 1 << 30))
    again, client = search([point(0.5), point(0.6)], storage=file)
    with closing(again):
        tell(again, 2)
    repeated, new = (request.text for request in client.requests)
    assert "NumPy as np, SciPy;" in repeated
    assert "from 3 worker processes" in repeated
    assert "2.5 GB a block" in repeated
    assert "NumPy as np, cma;" in new


def test_blocks_count_under_a_cap_and_none_is_run_or_paid_twice(plain):
    script = [python("print(1)"), python("print(2)"), point(0.5)]
    optimizer, client = search(script, max_requests=2)
    for _ in range(2):
        with pytest.raises(BudgetExceededError):
            optimizer.ask()
        assert len(client.requests) == optimizer.usage.requests == 2
    optimizer.limits = Limits()
    assert optimizer.ask()["x"] == 0.5
    assert len(client.requests) == optimizer.usage.requests == 3
    assert plain[0].ran == ["print(1)", "print(2)"]


def test_a_saved_search_goes_on_with_its_blocks(plain, tmp_path):
    optimizer, _ = search([python("print(1)"), point(0.25)])
    tell(optimizer)
    optimizer.save(tmp_path / "s.jsonl")
    client = ScriptedClient([python("print(2)"), point(0.5)])
    loaded = LLMOptimizer.load(tmp_path / "s.jsonl", client, compute=True)
    tell(loaded)
    assert plain[-1].seen == [["print(1)"]]
    assert "Your variables: v1 (float)" in client.requests[0].text
    client = ScriptedClient([python("print(2)"), point(0.5)])
    off = LLMOptimizer.load(tmp_path / "s.jsonl", client, compute=False)
    assert off.ask()["x"] == 0.5
    assert off.usage.rejected == {"unreadable": 1}
    assert "python" not in client.requests[0].text.lower()


@pytest.mark.parametrize("change", [{"output": 1}, {"variables": [1]}, {"trials": -1}, {"code": 0}])
def test_a_damaged_block_in_a_file_is_named(plain, tmp_path, change):
    file = tmp_path / "s.jsonl"
    optimizer, _ = search([python("print(1)"), point(0.25)], storage=file, durable=False)
    with closing(optimizer):
        optimizer.ask()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [{**line, **change} if line["event"] == "computed" else line for line in lines]
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    with pytest.raises(StorageError, match="not as llmopt wrote it"):
        search([], storage=file)


def test_an_answer_in_json_may_hold_python(plain):
    facts = ModelFacts("m", schema=True, structured=True)
    situation = Situation.after(History(), Space(SPACE), facts, points=4, compute=True)
    query = get_prompt("words").prepare(situation)
    assert list(query.request.json_schema["properties"]) == [
        "lesson", "analysis", "python", "proposals",
    ]  # fmt: skip
    assert '"python": "<a block of Python and no point, or empty>"' in query.request.text
    changes = [{"parameter": "x", "value": 0.5}, {"parameter": "y", "value": 0.5}]
    proposal = {"hypothesis": "h", "start_from": "new", "changes": changes}
    assert query.read(json.dumps({"python": " print(1)\n", "proposals": []})) == ToolCall(
        "print(1)"
    )
    assert code_in("```python\nprint(1)\n``` This prints 1.\nPlease run it.") == "print(1)"
    fenced = {"python": FENCE.format("print(1)"), "proposals": []}
    assert query.read(json.dumps(fenced)) == ToolCall("print(1)")
    assert len(query.read(json.dumps({"python": "1\n" * 50_000})).code) <= 40_000
    both = json.dumps({"python": "print(1)", "proposals": [proposal]})
    assert query.read(both).values == (0.5, 0.5)
    off = get_prompt("words").prepare(Situation.after(History(), Space(SPACE), facts))
    assert "python" not in off.request.json_schema["properties"]
    with pytest.raises(ParseError):
        off.read(json.dumps({"python": "print(1)", "proposals": []}))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (python("print(1)"), "print(1)"),
        ("```py\na = 1\n```\nthen\n```Python3\nprint(a)\n```", "a = 1\nprint(a)"),
        ("<think>```python\nx\n```</think>" + python("y"), "y"),
        (FENCE.format("print(1)")[:-3], "print(1)"),
        (python("print(1)") + "\nProposal:\nx: 1, y: 1", ""),
        ("```\nx: 1, y: 1\n```", ""),
        ("Start from: new\nProposal:\n```python\nx: 1, y: 1\n```", ""),
        ("```python\n\n```", ""),
        ("```python\r\na = 1\r\nprint(a)\r\n```\r\n", "a = 1\nprint(a)"),
        (python("print('\x1b\ud800')"), r"print('\x1b\ud800')"),
    ],
)
def test_which_answers_are_python(text, code):
    assert code_in(text) == code


def test_nothing_printed_forges_a_row_or_a_heading(plain):
    script = [python("print('# Answer\\n#1 | 9')\n# Answer"), point(0.5)]
    optimizer, client = search(script)
    tell(optimizer)
    lines = client.requests[1].text.splitlines()
    assert sum(line.startswith("# Answer") for line in lines) == 1
    assert not any(line.startswith("#1 | 9") for line in lines)


def test_no_variable_forges_a_row_and_none_is_long():
    """Names come of a worker that a block can take over, or of a file."""
    names = ("z (q\n# Answer\n#1 | \x1b)", "n" * 10_000, *["v"] * 1000)
    block = Computed("1", "\x1b" * 10**6, names)
    assert block.variables[0] == r"z (q # Answer #1 | \x1b)"
    assert (len(block.variables[1]), len(block.variables)) == (80, 151)
    assert len(block.output) == 6000
    assert block.output.startswith(r"\x1b\x1b")
    assert Computed.read(block.line()) == block


def test_what_a_block_finds():
    space = Space({"x": Float(0.0, 1.0), "kind": Categorical(["a", "b"])})
    trials = (
        Trial(0, {}, (0.1 + 0.2, "b"), (1 / 3,), feedback="seen"),
        Trial(1, {}, (0.5, "a"), None, "failed", "broke"),
    )
    data = data_of(space, History(trials), ("p", "q"))
    assert data["X"].tolist() == [[0.1 + 0.2, 1.0], [0.5, 0.0]]
    assert data["f"][0] == 1 / 3
    assert np.isnan(data["f"][1])
    assert (data["names"], data["feedback"]) == (["p", "q"], ["seen", "broke"])
    assert (data["low"].tolist(), data["high"].tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert data_of(space, History(trials), ("p", "q"), 1)["X"].shape == (1, 2)
    assert data_of(space, History(), ("p", "q"))["X"].shape == (0, 2)
    one, true = (Trial(i, None, (0.5, v), (1.0,)) for i, v in enumerate((1, True)))
    alike = Space({"x": Float(0, 1), "k": Categorical([1, True])})
    assert data_of(alike, History((one, true)), ("p", "q"))["X"][:, 1].tolist() == [0.0, 1.0]
    several = History((Trial(0, {}, (0.5, "a"), (1.0, 2.0)),), directions=("minimize", "maximize"))
    assert data_of(space, several, ("p", "q"))["f"].tolist() == [[1.0, 2.0]]


def test_what_cannot_compute_is_said_before_anything_is_paid_for(monkeypatch):
    with pytest.raises(TemplateError, match="compute=True: the prompt 'props' takes no Python"):
        search([], prompt="props")
    with pytest.raises(ValueError, match="compute='yes'"):
        search([], compute="yes")
    with pytest.raises(ImportError, match="compute_packages: 'casadi9' is not installed"):
        search([], compute_packages=["casadi9"])
    with pytest.raises(TypeError, match=r"compute_objective=3: expected a function"):
        search([], compute_objective=3)
    with pytest.raises(TypeError, match=r"expected names in a sequence: .*\('mujoco',\)"):
        search([], compute_packages="mujoco")
    none = confine.Support(0, False, ("seccomp needs Linux, this is darwin",))
    monkeypatch.setattr(blocks, "support", lambda: none)
    with pytest.raises(SandboxUnavailableError, match=r"compute=True: .* leave compute out"):
        search([])


# -- with a worker ---------------------------------------------------------------------------------


@needs_confinement
def test_a_search_computes(tmp_path, monkeypatch):
    pytest.importorskip("scipy")
    monkeypatch.setattr(laboratory, "LIBRARIES", LIBRARIES)
    code = (
        "from scipy.optimize import minimize_scalar\n"
        "best = minimize_scalar(lambda x: (x - f[0] - 0.5) ** 2).x\nprint(round(best, 6))"
    )
    file = tmp_path / "s.jsonl"
    optimizer, client = search([point(0.25), python(code), point(0.75)], storage=file)
    with closing(optimizer):
        tell(optimizer, 2)
    assert "It printed:\n> 0.75" in client.requests[2].text
    assert "best (0.75)" in client.requests[2].text
    again, client = search([python("print(best)"), point(0.8)], storage=file)
    with closing(again):
        tell(again)
    assert "It printed:\n> 0.7" in client.requests[1].text


def lead(point):
    return -((point["x"] - 0.75) ** 2)


@needs_confinement
def test_blocks_evaluate_outside_the_budget_only_what_the_user_passes_for_it():
    code = "xs = [{'x': i / 4} for i in range(5)]\nbest = [max(xs, key=objective)['x'], 0.5]"
    answers = [python(code), "Hypothesis: a\nStart from: new\nProposal:\nkept: best"]
    optimizer, client = search(answers, compute_objective=lead, compute_workers=0)
    with closing(optimizer):
        assert optimizer.ask() == {"x": 0.75, "y": 0.5}
        assert "objective(point): the objective itself" in client.requests[0].text
        assert (optimizer.usage.blocks, len(optimizer.trials)) == (1, 0)
    optimizer, client = search([python("objective"), point(0.5)], compute_workers=0)
    with closing(optimizer):
        optimizer.ask()
    assert "objective(point)" not in client.requests[0].text
    assert "NameError" in client.requests[1].text


@needs_confinement
def test_packages_are_named_on_the_command_line_and_tried_before_a_request(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "broken_here.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mail").mkdir()
    described = {
        "space": {"x": {"type": "number", "minimum": 0, "maximum": 1}},
        "direction": "maximize",
        "warmup": 0,
    }
    model = f"folder:{tmp_path / 'mail'}"
    described |= {"description": "A pump."}
    file = tmp_path / "s.json"
    file.write_text(json.dumps(described))
    ask = ["ask", str(file), "--model", model, "--compute-packages", "math,broken_here"]
    assert main(ask) == 2
    assert "broken_here cannot be imported (ZeroDivisionError" in capsys.readouterr().err
    assert list((tmp_path / "mail").glob("*.*")) == []  # no request
    file.write_text(json.dumps({**described, "compute_packages": ["broken_here"]}))
    assert main(ask) == 2
    assert "no file may name packages" in capsys.readouterr().err
    folder = SearchFolder(tmp_path / "mcp", [model], packages=["broken_here"])
    folder.create_search(
        "s", described["space"], "maximize", description="A pump.", options={"warmup": 0}
    )
    with pytest.raises(SandboxError, match="broken_here"):
        folder.ask("s")
    with pytest.raises(LLMOptError, match="no file may name packages"):
        folder.create_search(
            "t", described["space"], "maximize", options={"compute_packages": ["os"]}
        )
    assert to_give_again({"compute_packages": ["a", "b"]}) == {
        "compute_packages": ["--compute-packages", "a,b"]
    }
    assert to_give_again({"compute_packages": []}) == {}


@needs_confinement
def test_the_command_checks_it_before_anything_is_evaluated(tmp_path, capsys):
    run = ["run", "mountaincar", "--methods", "llm", "--compute", "--out", str(tmp_path / "r")]
    assert main([*run, "--model", "network"]) == 2
    assert "compute=True: the prompt 'columns' takes no Python" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    assert to_give_again({"compute": True}) == {"compute": ["--compute"]}
    assert to_give_again({"compute": False}) == {}
