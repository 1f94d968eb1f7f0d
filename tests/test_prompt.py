"""Template prompts: what the model is shown, within which budget, and how mistakes are told."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import llmopt.prompt
from llmopt import LLMOptimizer, ScriptedClient
from llmopt.client.model_facts import ModelFacts
from llmopt.errors import PromptTooLongError, SpaceError, TemplateError
from llmopt.history import History, Trial
from llmopt.prompt import (
    PROMPT_VERSION,
    PROMPTS,
    Complaint,
    Prompt,
    PromptCapabilities,
    Situation,
    estimate_tokens,
    get_prompt,
)
from llmopt.prompt.python_block import Computed, ToolFacts
from llmopt.space import Categorical, Float, Int, Space

VERSION = 16
WORDING = {
    "_history": "35c9f1f0e8d8",
    "_laboratory": "d588da64bc9e",
    "_now": "bdf154c47d45",
    "opro": "c423a048f5b8",
    "props-ab": "1b4f0bb350f1",
    "props-plus": "b63d566ba6af",
    "props": "71c00a459693",
    "words": "930b65d1676e",
}
"""A digest of each template of this version of the prompts; a new template is a new line."""

BOX = Space.of(gym.spaces.Box(-6, 6, (3,)))
PAIR = Space({"x": Float(-6, 6), "y": Float(-6, 6)}, decimals=1)
NAMED = Space(
    {
        "lr": Float(1e-5, 0.1, log=True),
        "momentum": Float(0, 1, step=0.05),
        "layers": Int(1, 8),
        "optimizer": Categorical(["adam", "sgd, plain", None]),
    }
)
TEMPLATES = [name for name in PROMPTS if name != "columns"]


CONTINUES = ModelFacts("base", style="completion", chats=False)


def holding(context_tokens):
    return ModelFacts("m", context_tokens=context_tokens)


def trials(space, n, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        values = space.sample(rng)
        made.append(Trial(i, space.unflatten(values), values, (float(rng.normal()),)))
    return tuple(made)


def situation(space=BOX, n=5, **changes):
    history = changes.pop("history", None) or History(trials(space, n))
    return Situation(
        **{"space": space, "history": history, "iteration": n + 1, "total": 100, **changes}
    )


def eventful(space):
    made = list(trials(space, 6))
    made[1] = replace(made[1], rewards=None, state="failed", feedback="it\ndiverged")
    made[2] = replace(made[2], state="pruned")
    made[3] = replace(made[3], constraint_violation=0.25, feedback="fell over after 12 steps")
    return tuple(made)


def shown(query):
    return [m.content for m in query.request.messages]


def transcript(request):
    head = f"style={request.style} max_tokens={request.max_tokens}\n"
    parts = [f"--- {m.role} ---\n{m.content}\n" for m in request.messages]
    return head + "".join(parts)


# What is shown


@pytest.mark.parametrize(
    ("golden", "name", "space", "options", "changes"),
    [
        ("props_box", "props", BOX, {}, {}),
        ("props_optimum", "props", NAMED, {"optimum": 100}, {}),
        ("props_ab", "props-ab", PAIR, {}, {"total": None}),
        ("props_plus", "props-plus", BOX, {}, {"description": "Drive a car up a hill."}),
        ("opro", "opro", NAMED, {"best": 3}, {"description": "Accuracy of a network."}),
        ("props_completion", "props", BOX, {}, {"model": CONTINUES}),
    ],
)
def test_golden(golden, name, space, options, changes, check_golden):
    rng = np.random.default_rng(9)
    history = History(eventful(space), pending=(space.sample(rng), space.sample(rng)))
    query = get_prompt(name, **options).prepare(
        situation(
            space,
            6,
            history=history,
            notes=("Two other workers search along with you.",),
            complaint=Complaint("I do not know.", "no parameter values were found"),
            **changes,
        )
    )
    check_golden(golden, transcript(query.request))


def test_golden_first_ask_and_several_objectives(check_golden):
    query = get_prompt("props").prepare(situation(BOX, 0))
    check_golden("props_empty", transcript(query.request))
    several = tuple(
        replace(t, rewards=(t.rewards[0], float(i))) for i, t in enumerate(trials(BOX, 3))
    )
    history = History(several, directions=("maximize", "minimize"))
    query = get_prompt("props", history="best", best=2).prepare(situation(BOX, 3, history=history))
    check_golden("props_objectives", transcript(query.request))


@pytest.mark.parametrize("name", [n for n in TEMPLATES if n != "words"])  # it shows a table
def test_answer_in_the_format_of_the_history_is_read_back(name):
    space = PAIR
    query = get_prompt(name).prepare(situation(space, description="d"))
    line = next(li for li in shown(query)[1].splitlines() if "f = " in li).split("; f")[0]
    reading = query.read(f"{line}\nbecause")
    assert reading.values in [t.values for t in situation(space).history.trials]  # it is a copy
    assert reading.explanation == "because"


def test_prefix_is_stable_from_one_ask_to_the_next():
    prompt = get_prompt("props")
    before = prompt.prepare(situation(n=30, seed=1, notes=("a",)))
    after = prompt.prepare(
        situation(n=31, seed=2, notes=("b",), complaint=Complaint("raw", "reason"))
    )
    assert shown(before)[0] == shown(after)[0]
    listed = shown(before)[1].split("\n\n")[0]
    assert len(listed.splitlines()) == 31
    assert shown(after)[1].startswith(listed)


def test_complaints_go_to_chat_models_only():
    chat = get_prompt("props").prepare(situation(complaint=Complaint("", "reason 0."))).request
    assert [m.role for m in chat.messages] == ["system", "user", "assistant", "user"]
    assert chat.messages[2].content == "(no answer)"
    assert "reason 0." in chat.messages[3].content
    long = situation(complaint=Complaint("x" * 5000, "reason"))
    assert len(get_prompt("props").prepare(long).request.messages[2].content) < 700
    for model, roles in ((CONTINUES, ["user"]), (ModelFacts("m", chats=False), ["system", "user"])):
        raw = get_prompt("props").prepare(replace(long, model=model)).request
        assert [m.role for m in raw.messages] == roles
        assert "reason" not in raw.text.split("Evaluations")[1]


def test_request_settings():
    request = get_prompt("props").prepare(situation(seed=7)).request
    assert (request.seed, request.max_tokens) == (7, 1024 + 16 * 3)
    request = get_prompt("props", temperature=0.3, max_tokens=50).prepare(situation()).request
    assert (request.temperature, request.max_tokens) == (0.3, 50)
    request = get_prompt("props").prepare(situation(model=holding(1500))).request
    assert request.max_tokens == 750


def test_wrong_space_or_description():
    with pytest.raises(SpaceError, match=r"'props-ab' is for exactly 2 parameters .* has 3"):
        get_prompt("props-ab").prepare(situation(BOX))
    with pytest.raises(TemplateError, match="'props-plus' needs the task in words"):
        get_prompt("props-plus").prepare(situation(BOX, description="  "))


# The catalogue of `words`

SPACES = {
    "conditional": Space(
        {
            "kind": Categorical(["a", "b"]),
            "n": Int(1, 9),
            "lr": Float(1e-5, 0.1, log=True),
            "d": Float(0.0, 1.0, step=0.05, when={"kind": "b"}),
        }
    ),
    "weights": Space(
        {f"{a}<-{o}": Float(-2, 2) for a in ("push", "turn") for o in "abcdefghijklm"}
    ),
    "plain": Space({"gain": Float(-6, 6), "bias": Float(0, 1)}),
}
WORDS = {
    "weights": ("weights", 40, {"description": "A crane.\n# swings", "may_stop": True}),
    "conditional": ("conditional", 25, {"noisy": True, "points": 4, "total": 26}),
    "objectives": ("conditional", 14, {"may_stop": True, "points": 2}),
    "pairs": ("plain", 30, {"seeded": True, "description": "A kiln."}),
    "long": ("plain", 140, {"notes": ("Two workers.",), "model": ModelFacts("m", chats=True)}),
    "json": ("plain", 3, {"model": ModelFacts("m", structured=True), "points": 3, "compute": True}),
    "python": ("weights", 5, {"compute": True, "tool": ToolFacts(2, ("SciPy", "numba"))}),
}


def episode(rng, i, made, space, kind):
    """Return a trial of a search in which everything happens now and then."""
    values = space.sample(rng)
    if made and space.names[-1] != "d" and rng.random() < 0.5:  # a change of an earlier point
        values = (*made[rng.integers(i)].values[:-1], values[-1])
    sources = ["llm", "llm", "llm", "user", "cma", "network", "fallback"]
    source = "warmup" if i < 3 else sources[rng.integers(7)]
    state = ["complete"] * 7 + ["failed", "pruned"]
    state = state[rng.integers(9)] if i else "complete"
    rewards = tuple(rng.normal(5, 3, 2 if kind == "objectives" else 1).tolist())
    said = [
        f"Lesson: it is {i}.", "Analysis: long. " * 5, f"Hypothesis: h{i}. And more.",
        f"Start from: #{rng.integers(1, i + 2)}", f"Lesson {rng.integers(1, i + 2)} withdrawn: no.",
    ]  # fmt: skip
    feedback = ["", "it fell\nafter 12 steps", "# x\n- try 3\nended early", "line of it\n" * 40]
    samples = tuple(rng.normal(size=3).tolist()) if kind == "pairs" and i != 4 else ()
    return Trial(
        i, {}, values, None if state == "failed" else rewards, state=state, source=source,
        feedback=feedback[rng.integers(4)], samples=samples if state == "complete" else (),
        explanation="\n".join(said[k] for k in sorted(rng.permutation(5)[:3]))
        if source == "llm" else "a note | of mine" if source == "user" and i % 2 else "",
        stderr=abs(rng.normal()) if kind in ("pairs", "conditional") else None, clipped=i % 9 == 8,
        constraint_violation=0.25 * (i % 11 == 10), prompt_tokens=100.0 * (i // 3),
        kind="check" if i % 13 == 12 else "search",
        evaluations=1 + (kind == "conditional" and i % 3 == 0),
    )  # fmt: skip


@pytest.mark.parametrize("kind", WORDS)
def test_catalogue_of_words(kind, check_golden):
    name, n, options = WORDS[kind]
    space, rng, made = SPACES[name], np.random.default_rng(n), []
    for i in range(n):
        made.append(episode(rng, i, made, space, kind))
    directions = ("minimize", "maximize") if kind == "objectives" else ("maximize",)
    history = History(
        tuple(made), (space.sample(rng),), directions=directions, noisy="noisy" in options
    )
    if options.get("compute"):
        block = Computed("def f(x):\n    return 1\n" * 20, "out\n" * 30, ("w (array 3)",))
        options = {**options, "computed": (block, block), "variables": block.variables}
    request = (
        get_prompt("words")
        .prepare(situation(space, n, history=history, **{"total": None, **options}))
        .request
    )
    text = request.text if n < 50 else request.text[-9000:]
    check_golden(f"words_{kind}", f"{text}\n\n{json.dumps(request.json_schema, indent=1)}\n")


# Selection


def numbers(query, made):
    """Numbers of the trials in a prompt, in the order of showing."""
    history = [li for li in shown(query)[1].split("\n\n")[0].splitlines() if "params[0]" in li]
    by_params = {
        ", ".join(f"params[{i}]: {BOX.format(i, v)}" for i, v in enumerate(t.values)): t.number
        for t in made
    }
    return [by_params[li.split(";")[0]] for li in history]


def test_selection():
    made = trials(BOX, 12, seed=3)
    order = [t.number for t in History(made).ranked]

    def kept(**options):
        return numbers(
            get_prompt("props", **options).prepare(situation(history=History(made))), made
        )

    assert kept() == list(range(12))
    assert kept(history="last", last=3) == [9, 10, 11]
    assert kept(history="best", best=4) == sorted(order[:4])
    assert kept(history="best", best=4, order="ascending") == order[3::-1]
    assert kept(history="last", last=0) == []
    with pytest.raises(ValueError, match="history='newest'"):
        kept(history="newest")


# The token budget


@pytest.mark.parametrize("limit", [330, 400, 800, 4000, 100_000])
@pytest.mark.parametrize(
    "options", [{}, {"history": "best", "best": 70}, {"history": "last", "last": 30}]
)
def test_budget_is_kept_and_used(limit, options):
    count = estimate_tokens
    made = trials(BOX, 90)
    state = situation(history=History(made))
    prompt = get_prompt("props", max_prompt_tokens=limit, **options)
    empty = get_prompt("props", history="last", last=0).prepare(state)
    if sum(map(count, shown(empty))) + 24 > limit:
        with pytest.raises(PromptTooLongError, match=f"max_prompt_tokens={limit}"):
            prompt.prepare(state)
        return
    query = prompt.prepare(state)
    used = sum(map(count, shown(query))) + 24
    assert used <= limit
    kept = numbers(query, made)
    whole = numbers(get_prompt("props", **options).prepare(state), made)
    if kept != whole and options:
        more = estimate_tokens(
            "params[0]: -1.00, params[1]: -1.00, params[2]: -1.00; f = -0.123456\n"
        )
        assert used + 2 * more > limit  # one more would not have fitted


def test_budget_drops_the_oldest_or_the_worst():
    made = trials(BOX, 40, seed=5)
    state = situation(history=History(made))
    kept = numbers(get_prompt("props", max_prompt_tokens=1200).prepare(state), made)
    assert kept == list(range(kept[0], 40))
    assert kept[0] > 0
    kept = numbers(get_prompt("opro", best=40, max_prompt_tokens=1000).prepare(state), made)
    order = [t.number for t in History(made).ranked]
    assert 0 < len(kept) < 40
    assert kept == order[: len(kept)][::-1]


def test_dropping_keeps_the_prefix_for_several_asks():
    prompt = get_prompt("props", max_prompt_tokens=3000)
    made = trials(BOX, 200)
    starts = [
        numbers(prompt.prepare(situation(history=History(made[:n]))), made)[0]
        for n in range(150, 200)
    ]
    assert starts == sorted(starts)
    assert len(set(starts)) <= 50 // 4 + 2


def test_context_leaves_room_for_the_answer():
    state = situation(history=History(trials(BOX, 300)), model=holding(2000))
    request = get_prompt("props", max_tokens=600).prepare(state).request
    assert estimate_tokens(request.text) <= 1400
    with pytest.raises(PromptTooLongError, match="context of 700 tokens less max_tokens=600"):
        get_prompt("props", max_tokens=600).prepare(replace(state, model=holding(700)))


def test_estimate_is_an_over_estimate():
    assert estimate_tokens("params[0]: -1.25\n") == 2 + 3 + 1 + 1 + 1 + 3 + 1
    assert estimate_tokens("") == 0
    assert estimate_tokens("a  b") == 3
    assert estimate_tokens("é漢😀") == 2 + 3 + 4


# Templates of the user's own


def test_own_template_from_text_and_file(tmp_path):
    text = "{% for t in history %}{{ t.params }} -> {{ t.f }}\n{% endfor %}Next of {{ n }}?"
    query = get_prompt(text).prepare(situation(n=2))
    assert [m.role for m in query.request.messages] == ["user"]
    assert query.request.text.count(" -> ") == 2
    assert query.request.text.endswith("Next of 3?")
    (tmp_path / "mine.j2").write_text("{{ begin_user }}{% include 'part.txt' %}")
    (tmp_path / "part.txt").write_text("{{ iteration }}")
    for path in (tmp_path / "mine.j2", str(tmp_path / "mine.j2")):
        prompt = get_prompt(path)
        assert prompt.name == "mine.j2"
        assert prompt.prepare(situation(n=2)).request.text == "3"
    (tmp_path / "plain").write_text("Only words")
    assert get_prompt(str(tmp_path / "plain")).prepare(situation()).request.text == "Only words"


def test_own_template_extends_a_shipped_one():
    text = (
        "{% extends 'llmopt/props.j2' %}{% block task %}\nThe task: {{ description }}{% endblock %}"
    )
    request = get_prompt(text).prepare(situation(description="walk")).request
    assert "The task: walk" in request.messages[0].content
    assert request.messages[1].content.startswith("Evaluations")


def test_own_template_shows_the_log_of_one_that_it_includes():
    text = get_prompt("{% include 'llmopt/words.j2' %}").prepare(situation(n=2)).request.text
    assert "# Log" in text
    assert "Best first: #" in text


def test_what_a_prompt_does_not_say_of_itself_has_a_default():
    class Plain:
        name, labels = "plain", None

    assert PromptCapabilities.of(Plain()) == PromptCapabilities((), False, False, False, True)
    assert PromptCapabilities.of(get_prompt("words")) == PromptCapabilities(
        changes=True, computes=True
    )
    assert PromptCapabilities.of(get_prompt("props-ab")) == PromptCapabilities(labels=("a", "b"))
    assert PromptCapabilities.of(get_prompt("props-plus")) == PromptCapabilities(
        needs_description=True
    )
    assert PromptCapabilities.of(get_prompt("columns")) == PromptCapabilities(
        reads_description=False
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ n }}\n{{ iterations }}",
         r"'custom', line 2: 'iterations' is undefined; did you mean 'iter"),
        ("\n\n{% for t in history %}\n{{ t.score }}\n{% endfor %}",
         r"line 4: .*no attribute 'score'"),
        ("{{ n }}\n{{ n / 0 }}", r"line 2: ZeroDivisionError"),
        ("{{ n }}\n{% include 'nothing.j2' %}", r"line 2: it includes 'nothing.j2', which cannot"),
        ("{{ n }}\n{{ n|nofilter }}", r"line 2: No filter named 'nofilter'"),
        ("{{ n }}\n{% if %}", r"'custom', line 2: "),
        ("{{ n }}\n{% for x in y %}", r"line 2: .*end of template"),
        ("{% include 'llmopt/_now.j2' %}{{ x }}", r"'custom', line 1: 'x' is undefined"),
        ("{% extends 'custom' %}", r"'custom'.*(recursion|Recursion)"),
    ],
)  # fmt: skip
def test_template_errors_name_template_line_and_variable(text, message):
    with pytest.raises(TemplateError, match=message):
        get_prompt(text).prepare(situation())


def test_wrong_options():
    with pytest.raises(TypeError, match="colour"):
        get_prompt("props", colour="red")
    with pytest.raises(TypeError, match="prompt object"):
        get_prompt(get_prompt("props"), best=3)
    with pytest.raises(TypeError, match="got int for a prompt"):
        get_prompt(3)
    with pytest.raises(ValueError, match="max_tokens=0"):
        get_prompt("props", max_tokens=0)


# Keeping prompts


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("props", {}),
        ("props", {"history": "last", "last": 2, "optimum": 1.5}),
        ("props-ab", {"temperature": 0.7}),
        ("props-plus", {"max_prompt_tokens": 900}),
        ("opro", {"best": 8}),
        ("opro", {}),
        ("columns", {"best": 4}),
        ("{{ n }} {{ iteration }}", {"labels": ("p", "q")}),
    ],
)
def test_json_form_and_pickle_give_the_same_prompt(name, options):
    prompt = get_prompt(name, **options)
    assert isinstance(prompt, Prompt)
    state = situation(PAIR, description="d")
    first = prompt.prepare(state)
    data = prompt.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert set(data) - {"template"} == {"name", *options}
    for copy in (get_prompt(data), pickle.loads(pickle.dumps(prompt))):
        assert copy.to_dict() == data
        assert repr(copy) == repr(prompt)
        assert copy.prepare(state).request == first.request
    assert all(repr(v) in repr(prompt) for v in options.values())


def test_cached_lines_follow_the_history():
    prompt = get_prompt("props")
    made = trials(BOX, 3)
    prompt.prepare(situation(history=History(made)))
    changed = (made[0], replace(made[1], rewards=(123.0,)), *made[2:])
    assert "f = 123" in shown(prompt.prepare(situation(history=History(changed))))[1]
    other = Space.of(gym.spaces.Box(-6, 6, (3,)))
    again = Space({f"w{i}": Float(-6, 6) for i in range(3)})
    assert "w0: " in shown(prompt.prepare(situation(again, history=History(made))))[1]
    assert "params[0]: " in shown(prompt.prepare(situation(other, history=History(made))))[1]


# Templates that are not trusted

ATTACKS = (
    "{{ cycler.__init__.__globals__.os.popen('touch ' ~ description).read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ evidence.log.__class__.__base__ }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(evidence) }}",
    "{% set _ = lines.append('x') %}",
    *(
        f"{{{{ {attack} }}}}"
        for attack in (
            "evidence.history.trials[0].params.tofile(description)",
            "evidence.history",
            "evidence.space.sample",
            "evidence.count('x')",
            "evidence|attr('history')",
            "[evidence]|map(attribute='history')|join",
            "evidence.ranking.__self__",
            "evidence.lessons.__func__",
            "labels.count.__self__.__class__",
            "range(10 ** 9)|list",
        )
    ),
)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("stored", [True, False])
def test_templates_run_no_code(attack, stored, tmp_path):
    template = "{{ begin_user }}" + attack
    mark = tmp_path / "mark"
    with pytest.raises(TemplateError):
        get_prompt({"template": template} if stored else template).prepare(
            situation(description=str(mark))
        )
    assert not mark.exists()


def test_no_array_of_a_space_reaches_a_template(tmp_path):
    box = gym.spaces.Box(0, 255, (9,), dtype=np.uint8)
    mark = tmp_path / "mark"
    for attack in ("evidence.history.trials[0].params", "history[0].params"):
        prompt = f"{{{{ {attack}.tofile({str(mark)!r}) }}}}"
        search = LLMOptimizer(box, ScriptedClient(["1"]), prompt, warmup=1, seed=0)
        search.tell(search.ask(), 1.0)
        with pytest.raises(TemplateError):
            search.ask()
    assert not mark.exists()


def test_templates_may_compute_with_what_they_get():
    template = """
{%- for e in history|sort(attribute="number") %}
{%- if loop.last %}{{ e.rewards[0]|round(1) }}{% endif %}{% endfor %}
{{- "%.2f" % 1.5 }} {{ "{:.1f}".format(2) }} {{ "-" * 3 }} {{ evidence.ranking(1) }}
{%- macro upper(x) %}<{{ x.upper() }}>{% endmacro %} {{ upper(labels|join) }}
{%- set ns = namespace(k=0) %}{% for i in range(3) %}{% set ns.k = ns.k + i %}{% endfor %}
{{- ns.k }} {{ "u %s"|format(n) }}"""
    text = get_prompt(template).prepare(situation(PAIR, 4)).request.text
    assert re.fullmatch(r"-?[\d.]+1.50 2.0 --- #\d+ \(\S+\) <\S+>3 u 2", text), text


def test_a_stored_prompt_reads_no_file(tmp_path):
    (tmp_path / "secret").write_text("a secret")
    (tmp_path / "_history.j2").write_text("a secret")
    (tmp_path / "main.j2").write_text("{{ begin_user }}{% include 'secret' %}")
    mine = get_prompt(tmp_path / "main.j2")
    assert "a secret" in mine.prepare(situation()).request.text
    stored = json.loads(json.dumps(mine.to_dict()))
    assert stored["folder"] == str(tmp_path)
    for prompt in (get_prompt(stored), pickle.loads(pickle.dumps(get_prompt(stored)))):
        assert prompt.to_dict() == stored  # so that a run goes on with the prompt it began with
        with pytest.raises(TemplateError, match=r"'secret', which cannot be found .* its path"):
            prompt.prepare(situation())
    again = get_prompt(stored, folder=str(tmp_path))  # said by the caller, not by the file
    assert "a secret" in again.prepare(situation()).request.text
    with pytest.raises(TemplateError):
        get_prompt({**stored, "sealed": False}).prepare(situation())
    with pytest.raises(TemplateError):
        get_prompt({"name": str(tmp_path / "main.j2")})
    (tmp_path / "llmopt").mkdir()
    (tmp_path / "llmopt" / "_history.j2").write_text("a secret")
    shipped = get_prompt({"name": "props", "folder": str(tmp_path)})
    assert "a secret" not in shipped.prepare(situation()).request.text


def test_long_templates_are_refused(tmp_path):
    long = "x{{ n }}" + "x" * 1_000_000
    (tmp_path / "long.j2").write_text(long)
    for prompt in (tmp_path / "long.j2", {"template": long}, long):
        with pytest.raises(TemplateError, match="more than 1,000,000 characters"):
            get_prompt(prompt)


# Reading


def test_feedback_is_shown_up_to_its_limits():
    from llmopt.policies.report import MAX_FEEDBACK
    from llmopt.prompt.describe import FEEDBACK_CHARS, SHORT_FEEDBACK_CHARS

    assert MAX_FEEDBACK == FEEDBACK_CHARS
    long = trials(BOX, 1)[0]
    long = replace(long, feedback="word " * 2000)
    for name, most in (("words", FEEDBACK_CHARS), ("props", SHORT_FEEDBACK_CHARS)):
        told = (
            get_prompt(name)
            .prepare(situation(history=History((replace(long, source="llm"),))))
            .request.text
        )
        assert most - 20 < told.count("word ") * 5 <= most + 20


def test_the_page_of_prompts_shows_a_whole_prompt():
    hypotheses = (
        "Hypothesis: Adam at 0.001 with four layers gives a sound reference.\nStart from: new\n"
        "Proposal:\nlearning_rate: 0.001, layers: 4, optimizer: adam",
        "Lesson: Adam at 0.001 is too slow for five epochs.\nHypothesis: A rate of 0.003 ends near "
        "the minimum of the training loss.\nStart from: #1\nProposal:\nlearning_rate: 0.003",
        "Hypothesis: Three layers overfit less than four.\nStart from: #2\nProposal:\nlayers: 3",
    )
    client = ScriptedClient(hypotheses)
    optimizer = LLMOptimizer(
        {
            "learning_rate": Float(1e-5, 0.1, log=True),
            "layers": Int(1, 6),
            "optimizer": Categorical(["adam", "sgd"]),
        },
        client,
        "words",
        direction="minimize",
        description="Validation loss of a small convolutional network on 5,000 images, after five "
        "epochs",
        total=20,
        compute=False,
        points=4,
    )
    optimizer.tell(optimizer.ask(), 0.63, feedback="training loss 0.58, still falling at epoch 5")
    seen = "training loss 0.19; validation loss rose after epoch 3"
    optimizer.tell(optimizer.ask(), 0.41, feedback=seen)
    optimizer.ask()
    page = (Path(__file__).parents[1] / "docs" / "prompts.md").read_text()
    assert client.requests[-1].text.strip() in page


def test_complaints_are_dropped_before_giving_up():
    complaint = Complaint("x, y, z; " * 60, "r")
    bare = get_prompt("props", history="last", last=0).prepare(situation())
    limit = sum(map(estimate_tokens, shown(bare))) + 30
    query = get_prompt("props", max_prompt_tokens=limit).prepare(situation(complaint=complaint))
    assert len(query.request.messages) == 2


def test_reworded_prompts_have_another_version():
    templates = Path(llmopt.prompt.__file__).parent.glob("templates/*.j2")
    digests = {t.stem: hashlib.sha256(t.read_bytes()).hexdigest()[:12] for t in templates}
    assert (PROMPT_VERSION, digests) == (VERSION, WORDING), (
        "a new template is a line of WORDING; a changed one also raises PROMPT_VERSION "
        "(llmopt/client/base.py), so that recordings of the former wording still replay"
    )
