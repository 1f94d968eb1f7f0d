"""Facts of models: sizes in names, and the prompt that suits each."""

import pytest

from llmopt import LLMOptimizer, get_client
from llmopt.client.model_facts import model_facts, size_in_name


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("ollama:llama3.2:1b", 1e9),
        ("vllm:Qwen/Qwen2.5-Coder-1.5B-Instruct", 1.5e9),
        ("groq:gpt-oss-20b", 20e9),
        ("mixtral-8x7b", 56e9),
        ("qwen3-30b-a3b", 30e9),
        ("openai:gpt-6-sol", None),
        ("anthropic:claude-opus-5", None),
        ("lib2b2:x", None),
    ],
)
def test_size_in_a_name(name, size):
    assert size_in_name(name) == size


@pytest.mark.parametrize(
    ("model", "prompt"),
    [
        ("openai:gpt-6-sol", "words"),
        ("anthropic:claude-opus-5", "words"),
        ("gemini:gemini-3-pro", "words"),
        ("groq:gpt-oss-20b", "words"),
        ("ollama:llama3.2:1b", "props"),
        ("folder:/nowhere", "words"),
        ("smollm2", "columns"),
    ],
)
def test_the_prompt_that_suits_a_model(model, prompt):
    client = get_client(model)
    assert model_facts(client).default_prompt == prompt
    assert LLMOptimizer(_space(), client).prompt.name == prompt


def _space():
    from llmopt import Float

    return {"x": Float(0.0, 1.0)}
