"""Points as structured answers: the schema, the way back to text, and who is asked so."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from llmopt import Categorical, Float, Int, Space
from llmopt.client.http.request_form import closed
from llmopt.client.model_facts import ModelFacts, model_facts
from llmopt.client.model_string import get_client
from llmopt.errors import ParseError
from llmopt.history import History, Trial
from llmopt.prompt import get_prompt
from llmopt.prompt.situation import Situation
from llmopt.prompt.structured import MOST_PARAMETERS, Form

SPACE = Space({"x": Float(-5.0, 5.0), "k": Int(1, 9), "kind": Categorical(("adam", "sgd"))})
MODEL = ModelFacts("m", schema=True, structured=True)


def situation(space=SPACE, model=MODEL, **more):
    values = tuple(d.value(0) for d in space.dimensions) if space is SPACE else (0.0,) * len(space)
    trial = Trial(0, space.unflatten(values), values, (1.0,))
    return Situation(space, History((trial,)), 2, model=model, **more)


def query(prompt, **more):
    return get_prompt(prompt).prepare(situation(**more))


def answer(**fields):
    return json.dumps(fields)


def assert_strict(schema):
    """What the strict modes of OpenAI, Anthropic and Gemini ask for, and what they refuse."""
    if schema.get("type") == "object":
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
        assert all(
            len(name) <= 64 and name.replace("-", "_").isascii() for name in schema["properties"]
        )
        for inner in schema["properties"].values():
            assert_strict(inner)
    if schema.get("type") == "array":
        assert_strict(schema["items"])
    assert not {"minimum", "maximum", "pattern", "minItems", "oneOf"} & set(schema)


@pytest.mark.parametrize("prompt", ["words", "props", "opro", "props-plus"])
def test_the_schema_is_closed_and_the_reasons_come_first(prompt):
    made = query(prompt, description="A bowl.")
    schema = made.request.json_schema
    assert_strict(schema)
    first, *_, last = schema["properties"]
    assert schema["properties"][first]["type"] == "string"
    assert last in ("point", "changes")
    assert "as one JSON object" in made.request.text
    # It must not change from ask to ask: providers compile and cache it.
    later = get_prompt(prompt).prepare(
        replace(situation(description="A bowl."), iteration=9, seed=4)
    )
    assert later.request.json_schema == schema
    pickle.loads(pickle.dumps(made)).read(_answer_for(prompt))


def _answer_for(prompt):
    point = {"x": 1.5, "k": 3, "kind": "sgd"}
    if prompt == "words":
        changes = [{"parameter": n, "value": v} for n, v in point.items()]
        return answer(
            lesson="none", analysis="A.", hypothesis="H.", start_from="new", changes=changes
        )
    return answer(explanation="Because x: 4, k: 4, kind: adam failed.", point=point)


@pytest.mark.parametrize("prompt", ["words", "props", "opro"])
@pytest.mark.parametrize("wrap", ["{}", "```json\n{}\n```", "<think>{{no}}</think>\n{}"])
def test_an_answer_is_read_with_its_reasons(prompt, wrap):
    reading = query(prompt).read(wrap.format(_answer_for(prompt)))
    assert reading.values == (1.5, 3, "sgd")
    if prompt == "words":
        assert "Hypothesis: H." in reading.explanation
    else:
        assert reading.explanation == "Because x: 4, k: 4, kind: adam failed."


def test_only_what_differs_from_an_earlier_point():
    text = answer(
        lesson="k matters\nmuch", analysis="", hypothesis="", start_from="#1",
        changes=[{"parameter": "k", "value": 7}],
    )  # fmt: skip
    reading = query("words").read(text)
    assert reading.values == (-5.0, 7, "adam")
    assert query("words").read(text.replace("#1", "point #1")).values == reading.values
    assert "Lesson: k matters much" in reading.explanation
    with pytest.raises(ParseError, match="no point #9") as caught:
        query("words").read(text.replace("#1", "#9"))
    assert caught.value.raw == text.replace("#1", "#9")  # it is sent back as it came


def test_names_that_no_field_may_have():
    labels = ("params[0]", "params[1]", "größe der schritte")
    form = Form(Space({name: Float(0, 1) for name in labels}), labels, ("Explanation",))
    assert_strict(form.schema)
    keys = list(form.schema["properties"]["point"]["properties"])
    (read,) = form.answers({"explanation": "e", "point": dict.fromkeys(keys, 0.5)})
    assert (read.values, read.explanation) == ({0: 0.5, 1: 0.5, 2: 0.5}, "e")
    alike = Form(Space({"a b": Float(0, 1), "a_b": Float(0, 1)}), ("a b", "a_b"), ("Why",))
    assert len(alike.schema["properties"]["point"]["properties"]) == 2


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"point": 3}', '{"point": [1]}', "{" * 5000])
def test_what_is_no_structured_answer(text):
    with pytest.raises(ParseError):
        query("props").read(text)


def test_who_is_asked_for_text():
    text = query("props", model=ModelFacts("m", schema=True))
    assert text.request.json_schema is None
    assert "JSON" not in text.request.text
    assert get_prompt("props", style="completion").prepare(situation()).request.json_schema is None
    assert get_prompt("{{ answer }}", reasons=()).prepare(situation()).request.json_schema is None
    many = Space({f"w{i}": Float(0, 1) for i in range(MOST_PARAMETERS + 1)})
    assert query("props", space=many).request.json_schema is None


def test_a_parameter_named_like_a_word_of_schemas_stays_in_strict_ones():
    names = ("maxLength", "type", "enum", "properties", "required", "items")
    space = Space({name: Float(0, 1) for name in names})
    made = query("props", space=space, model=ModelFacts("m", schema=True, structured=True))
    schema = closed(made.request.json_schema)
    assert_strict(schema)
    point = schema["properties"]["point"]
    assert tuple(point["properties"]) == tuple(point["required"]) == names
    assert "maxLength" not in schema["properties"]["explanation"]
    values = {name: 0.5 for name in names}
    assert made.read(answer(explanation="e", point=values)).values == (0.5,) * 6


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai:gpt-6-luna", True),
        ("openai:gpt-6-luna?structured=false", False),
        ("openai:gpt-6-luna?structured=auto", True),
        ("anthropic:claude-haiku-4-5", True),
        ("gemini:gemini-3.5-flash", True),
        ("gemini-legacy:gemini-3.5-flash", False),
        ("mistral:m", True),
        ("deepseek:m", False),
        ("deepseek:m?structured=true", True),
        ("ollama:m", True),
        ("litellm:m", False),
        ("openai+http://127.0.0.1:1/v1:m", False),
        ("openai+http://127.0.0.1:1/v1:m?structured=true", True),
        ("openai+https://eu.api.openai.com/v1:m", True),
        ("smollm2", True),
        ("smollm2?structured=false", False),
    ],
)
def test_auto_follows_what_the_provider_documents(model, expected, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert model_facts(get_client(model)).structured is expected
