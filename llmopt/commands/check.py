"""``llmopt check MODEL``: one tiny optimization prompt, and its answer."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from llmopt.client.base import Client
from llmopt.client.http.retry import complete_with_retries
from llmopt.client.model_facts import ModelFacts, model_facts
from llmopt.client.model_string import get_client
from llmopt.commands.estimate import price_of, prices_of
from llmopt.commands.shared import add_option_argument, take_options
from llmopt.errors import ClientError, LLMOptError, ParseError
from llmopt.history import History, Trial
from llmopt.progress import waiting
from llmopt.prompt import Reading, check_prompt_for, prompt_for
from llmopt.prompt.situation import Situation
from llmopt.space import Float, Space
from llmopt.util.text import clean, cut

_SHOWN_CHARACTERS = 400
_MORE_ROOM = 8


def check(client: Client, prompt: str = "auto") -> tuple[str, bool]:
    """Ask a model for a point of a small problem; return the exchange and whether it was read.

    A truncated or empty answer is requested once more, with more room for hidden reasoning.
    """
    model = model_facts(client)
    made = prompt_for(prompt, model)
    check_prompt_for(made, client)
    query = made.prepare(_situation(model))
    failed: list[int] = []  # requests

    def note(error: ClientError) -> None:
        failed.append(error.requests)

    replies = [complete_with_retries(client, query.request, on_failure=note)]
    completion = replies[0].completions[0]
    again = ""
    if completion.finish_reason == "length" or not completion.text.strip():
        cap = query.request.max_tokens
        again = f", after {'an empty one' if not completion.text.strip() else 'a truncated one'}"
        replies.append(
            complete_with_retries(
                client,
                replace(query.request, max_tokens=cap and _MORE_ROOM * cap),
                on_failure=note,
            )
        )
        completion = replies[1].completions[0]
    reply = replies[-1].counted(query.request)
    text = completion.text
    shown = cut(text, _SHOWN_CHARACTERS)
    readable = True
    try:
        reading = query.read(text)
        assert isinstance(reading, Reading)  # `compute` is off
        values = ", ".join(f"{v:g}" for v in reading.values)
        read = f"x, y = {values}" + (" (moved into its range)" if reading.clipped else "")
    except ParseError as error:
        readable = False
        read = f"not readable: {error.reason}"
    answered = f" (answered as {reply.model})" if reply.model not in ("", model.name) else ""
    costs = [r.cost for r in replies]
    total = None if None in costs else sum(filter(None, costs))
    cost = "unknown" if total is None else f"${total:.6f}"
    if total and price_of(client):
        cost += f" (prices: {prices_of(client)})"
    form = " as JSON by a schema," if query.request.json_schema else ""
    requests = sum(r.requests for r in replies) + sum(failed)
    lines = {
        "model": model.name + answered,
        "prompt": f"{made.name},{form} {reply.prompt_tokens} tokens, {reply.cached_tokens} of them "
        "from the prefix cache",
        "answer": f"{shown.strip()!r}",
        "end": f"{completion.finish_reason}, {reply.completion_tokens} tokens{again}",
        "read as": read,
        "time": f"{sum(r.seconds for r in replies):.2f} s in {requests} "
        + ("request" if requests == 1 else "requests"),
        "cost": cost,
    }
    shown_lines = (f"{label:<8} {value}".replace("\n", " ") for label, value in lines.items())
    return clean("\n".join(shown_lines)), readable


def _situation(model: ModelFacts) -> Situation:
    """A bowl with its peak at (1, -2), seen at eight points."""
    space = Space({"x": Float(-5.0, 5.0), "y": Float(-5.0, 5.0)}, decimals=1)
    rng = np.random.default_rng(0)
    trials = []
    for number in range(8):
        x, y = values = tuple(round(value, 1) for value in space.sample(rng))
        reward = round(-((x - 1.0) ** 2) - (y + 2.0) ** 2, 2)
        trials.append(Trial(number, space.unflatten(values), values, (reward,)))
    return Situation.after(History(tuple(trials)), space, model, total=20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt check``."""
    parser.add_argument("model", metavar="MODEL", help="model string, such as smollm2")
    parser.add_argument(
        "--prompt", metavar="P", default="auto", help="prompt's name (default: what suits it)"
    )
    add_option_argument(parser)


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    take_options(vars(args))
    try:
        client = get_client(args.model)
    except ValueError as error:  # of an option, or an open quotation mark
        raise LLMOptError(str(error)) from None
    try:
        with waiting():
            text, readable = check(client, args.prompt)
    finally:
        close = getattr(client, "close", None)
        if close is not None:
            close()
    print(text)
    return 0 if readable else 1
