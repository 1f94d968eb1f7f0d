from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from llmopt.client import LocalClient, ScriptedClient, get_client
from llmopt.client.model_string import (
    PROVIDERS,
    OptionError,
    split_options,
    with_options,
)
from llmopt.errors import ModelNotFoundError


def test_gguf_path_and_options():
    client = get_client("gguf:/models/Qwen 3:8B.gguf", threads=3, name="qwen")
    assert isinstance(client, LocalClient)
    assert client.path == Path("/models/Qwen 3:8B.gguf")
    assert (client.threads, client.name) == (3, "qwen")


@pytest.mark.parametrize("thing", [None, 3, object(), ["smollm2"], ScriptedClient])
def test_what_is_no_client(thing):
    with pytest.raises(TypeError, match=r"a model string such as 'smollm2', or a client"):
        get_client(thing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("smolm2", "'smollm2'"),
        ("SmolLM2", "'smollm2'"),
        ("smollm2:foo", "'smollm2'"),
        ("ggufs:/m.gguf", "'gguf:/m.gguf'"),
        ("openia:gpt-6-luna", "'openai:gpt-6-luna'"),
        ("olama", "'ollama:MODEL'"),
        ("OpenAI", "'openai:MODEL'"),
        ("bedrok:m", "'bedrock:m'"),
        ("antropic:claude", "'anthropic:claude'"),
    ],
)
def test_unknown_strings_name_the_nearest(written, meant):
    with pytest.raises(ModelNotFoundError) as caught:
        get_client(written)
    message = str(caught.value)
    assert message.startswith(f"unknown model '{written}': did you mean {meant}")
    assert message.endswith("? `llmopt models` lists all model strings")
    assert len(message) < 200


@pytest.mark.parametrize("prefix", sorted(PROVIDERS))
def test_every_entry_leads_to_a_factory(prefix):
    entry = PROVIDERS[prefix]
    module = importlib.import_module(f"llmopt.client.{entry.module}")
    assert callable(getattr(module, entry.factory))
    assert entry.about.startswith(prefix)


# options


def test_options_come_with_the_string_in_the_types_of_the_signature():
    client = get_client(
        "openai:gpt-6-luna?effort=low&timeout=60&reasoning_tokens=4&local=True&cache=off"
        "&extra_body=%7B%22top_p%22%3A%200.9%7D"
        "&price=%7B%22input%22%3A%202%2C%20%22output%22%3A%2010%7D"
    )
    assert client.model == "gpt-6-luna"
    assert (client.effort, client.timeout, client.reasoning_tokens) == ("low", 60.0, 4)
    assert (client.local, client.cache, client.extra_body) == (True, "off", {"top_p": 0.9})
    assert client.price.output == 10
    assert get_client("openai:gpt-6-luna?timeout=60", timeout=5.0).timeout == 5.0
    assert get_client("folder:mail?timeout=5").timeout == 5.0
    assert get_client("smollm2?threads=2").threads == 2


@pytest.mark.parametrize(
    "model",
    [
        "openai:gpt-6-luna,api_key=KEY",
        "openai:gpt-6-luna api_key = KEY",
        "openai:KEY",
        "openai+https://api.example/KEY/v1:m",
    ],
)
def test_a_key_in_a_model_string_is_refused_and_not_shown(model):
    key = "sk-" + "a1B2" * 8
    with pytest.raises(OptionError, match="cannot be part of a model string") as caught:
        get_client(model.replace("KEY", key))
    assert key not in str(caught.value)
    get_client("openai:task-sk-a-very-long-name-of-a-model")


def test_options_of_the_command_line_are_put_into_the_string():
    model = with_options("openai:m?timeout=5", ["timeout=60", 'extra_body={"a": "b&c=d"}'])
    assert split_options(model) == ("openai:m", {"timeout": "60", "extra_body": '{"a": "b&c=d"}'})
    assert get_client(model).extra_body == {"a": "b&c=d"}
    assert with_options("gguf:what?.gguf", []) == "gguf:what?.gguf"
    for address in ("http://h/v1?key=s:m", "http://h:80/v1?key=s:m"):
        assert split_options(f"openai+{address}") == (f"openai+{address}", {})
    assert split_options("openai+http://h:80/v1:m?a=b") == ("openai+http://h:80/v1:m", {"a": "b"})
    with pytest.raises(OptionError, match="expected name=value"):
        with_options("openai:m", ["timeout"])
