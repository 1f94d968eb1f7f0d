"""Prompts: from a history to a request, and from an answer back to a point.

`get_prompt` takes a shipped prompt's name, or your own template as text or as a path:

- ``"words"``: what f is, a log of the experiments with feedback, hypotheses and lessons, which
  grows at its end; for capable chat models, and their default;
- ``"props"``: n labelled parameters, every trial, iteration k of N (ProPS);
- ``"props-ab"``: its form for exactly two parameters, called ``a`` and ``b``;
- ``"props-plus"``: the same with the task in words (ProPS+);
- ``"opro"``: the 20 best trials, worst first (OPRO);
- ``"columns"``: one line of letters a parameter, for the embedded model and its adapter.

A template is Jinja2 with strict undefined variables, no autoescaping, ``trim_blocks`` and
``lstrip_blocks``, rendered in Jinja2's sandbox. The text before ``{{ begin_user }}`` is the
system message and should not change during a search. The text after it is the user message;
its changing parts come last, so that prefix caches hit. Without the mark all is one user
message. A template may include or extend its neighbours, and the shipped ones as
``llmopt/props.j2``. A template out of a file of a run includes the shipped ones only.

Variables: ``begin_user``, ``style``, ``n``, ``labels``, ``parameters`` (the ranges in words),
``answer`` (the first line of an answer), ``goal``, ``directions``, ``objectives``, ``history`` (the
trials shown, each an `Entry`), ``lines``, ``order``, ``hidden`` (how many are not shown), ``best``
(if it is one of them), ``pending``, ``iteration``, ``total``, ``description``,
``notes``, ``evidence`` (a `Log`), ``noisy``, ``seeded``, ``may_stop``, ``points``, ``asked``,
``branched``, ``chooses``, ``numeric``, ``step_size``, ``optimum``, ``best_known``, ``low`` (budgets
that run low). Those of Python (``compute``): ``computed``, ``blocks``, ``variables``, ``keeps``,
``data``, ``tools``, ``workers``, ``cores``, ``compute_seconds``,
``compute_blocks``, ``seconds_left``, ``most_output``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmopt.client.base import PROMPT_VERSION, Client, client_name
from llmopt.client.model_facts import ModelFacts, model_facts
from llmopt.errors import StorageError, TemplateError, did_you_mean
from llmopt.prompt.answer_parts import Reading, ToolCall
from llmopt.prompt.columns.columns import ColumnsPrompt
from llmopt.prompt.describe import Entry
from llmopt.prompt.situation import (
    Complaint,
    Prompt,
    PromptCapabilities,
    Question,
    Situation,
)
from llmopt.prompt.template import MAX_TEMPLATE, SHIPPED, TemplatePrompt, shipped_prompt
from llmopt.util.files import read_text
from llmopt.util.text import cut, estimate_tokens

__all__ = [
    "PROMPTS",
    "PROMPT_VERSION",
    "ColumnsPrompt",
    "Complaint",
    "Entry",
    "Prompt",
    "PromptCapabilities",
    "Question",
    "Reading",
    "Situation",
    "TemplatePrompt",
    "ToolCall",
    "estimate_tokens",
    "get_prompt",
    "prompt_for",
]

PROMPTS = (*SHIPPED, "columns")
"""Names of the shipped prompts."""


def get_prompt(prompt: str | Path | Mapping[str, Any] | Prompt, **options: Any) -> Prompt:
    """Return a prompt object.

    Args:
        prompt: A shipped prompt's name; a path to a template (a `Path`, the name of an
            existing file, or any text that ends in ``.j2``); a template's text; the mapping
            that a prompt's ``to_dict`` returned; or a prompt object, which is returned as it
            is. A mapping is not trusted: files that its template includes are not read.
        **options: Options of `TemplatePrompt` or `ColumnsPrompt`, such as
            ``history="best"``, ``best=10`` or ``max_prompt_tokens=4000``.

    Raises:
        TemplateError: There is no such prompt or file, or its template is not valid.
        TypeError: An option does not exist for this prompt.
        ValueError: An option is not valid.
    """
    if isinstance(prompt, Mapping):
        return _stored(prompt, options)
    if isinstance(prompt, str):
        if prompt == "columns":
            return ColumnsPrompt(**options)
        if prompt in SHIPPED:
            return shipped_prompt(prompt, **options)
        if "{{" in prompt or "{%" in prompt:
            return TemplatePrompt(prompt, **options)
        if not _is_path(prompt):
            raise TemplateError(
                f"unknown prompt {cut(prompt, 60)!r}; {did_you_mean(prompt, PROMPTS)}; or give a "
                "template: a path, or text with {{ variables }}"
            )
        prompt = Path(prompt)
    if isinstance(prompt, Path):
        try:
            text = read_text(prompt, most=4 * MAX_TEMPLATE)
        except StorageError as error:
            raise TemplateError(
                f"{error}; give the path of a Jinja2 template in UTF-8, or a shipped prompt's name "
                f"({', '.join(PROMPTS)})"
            ) from error
        name = prompt.name if prompt.name not in PROMPTS else f"./{prompt.name}"
        return TemplatePrompt(text, **{"name": name, "folder": str(prompt.parent), **options})
    if not isinstance(prompt, Prompt):
        raise TypeError(
            f"got {type(prompt).__name__} for a prompt, expected a name ({', '.join(PROMPTS)}), "
            "a template's text or path, or an object with prepare(situation)"
        )
    if options:
        raise TypeError(
            f"options {sorted(options)} cannot be given with a prompt object: set them on it"
        )
    return prompt


def _stored(stored: Mapping[str, Any], options: dict[str, Any]) -> Prompt:
    given = {"name": "custom", **stored, **options}
    name, sealed = given.pop("name"), "folder" not in options
    if name == "columns" and "template" not in given:
        return ColumnsPrompt(**given)
    given["sealed"] = sealed
    if "template" in given:
        return TemplatePrompt(given.pop("template"), name=name, **given)
    return shipped_prompt(name, **given)


def _is_path(text: str) -> bool:
    try:
        return "\n" not in text and (text.endswith(".j2") or Path(text).is_file())
    except (OSError, ValueError):  # too long for a file name, or with a null byte
        return False


def is_shipped(prompt: object) -> bool:
    """Whether a prompt (or what its ``to_dict`` gave) is a shipped one, and brings no template.

    Only such a prompt is taken from a file or a folder, which may be somebody else's.
    """
    if isinstance(prompt, Mapping):
        options = set(prompt) - {"template", "folder"}
        return options == set(prompt) and prompt.get("name") in PROMPTS
    return isinstance(prompt, str) and prompt in (*PROMPTS, "auto")


def prompt_for(prompt: str | Path | Mapping[str, Any] | Prompt, model: ModelFacts) -> Prompt:
    """Return a prompt as `get_prompt`; ``"auto"`` means the one that suits the model."""
    return get_prompt(model.default_prompt if prompt == "auto" else prompt)


def check_prompt_for(prompt: Prompt, client: Client) -> None:
    """Raise if a client cannot answer the questions of a prompt.

    Raises:
        ValueError: The prompt is `ColumnsPrompt`, and the client gives no probabilities; or it is
            another one, and the client reads numbers alone.
    """
    facts = model_facts(client)
    if not isinstance(prompt, ColumnsPrompt) and not facts.reads_text:
        raise ValueError(
            f"the model {facts.name!r} reads numbers alone, and the prompt {prompt.name!r} is in "
            "words: leave `prompt` out, or take another model"
        )
    if isinstance(prompt, ColumnsPrompt) and not facts.columns:
        raise ValueError(
            f"{client_name(client)} does not give the probabilities that the prompt "
            f"{prompt.name!r} needs: take prompt 'props', or a model that runs in this process"
        )
