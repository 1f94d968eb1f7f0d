"""Prompts of a search over code: the request for code, and the request for a repair."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import numpy as np

from llmopt.client.base import Message
from llmopt.code.candidate import CodeTrial
from llmopt.code.checks import Function
from llmopt.errors import PromptTooLongError
from llmopt.policies.episode import standard_error
from llmopt.prompt.describe import quoted
from llmopt.prompt.shown_trials import TokenBudget
from llmopt.prompt.template import shipped_template
from llmopt.sandbox.sandbox import WorkerLimits
from llmopt.util.arguments import one_of
from llmopt.util.text import cut, estimate_tokens, first_line

INSTRUCTION = (
    "You write Python code that is run and scored, and you improve it step by step. Read the "
    "feedback, say what it tells you, and write the whole code again in a better version."
)
_ANSWER = (
    "First one to three sentences: what the feedback shows, and what you change; you will see them "
    "again beside the score. Then the complete code in one block that starts with ```python and "
    "ends with ```."
)
_RUN = " Or, in place of all this, one block to run, between ```run and ``` alone."
MAX_SENT_BACK = 20_000
"""Maximum characters of a rejected answer that are sent back and stored."""

_LISTED = 20
"""Maximum tries in the list of all tries; older ones are dropped."""

_IDEA = 400
"""Maximum characters of the reasoning shown for each try, and of why it failed."""

_FEEDBACK = 2500
"""Maximum characters of feedback on the latest try; four times as many for the code to improve, and
fewer if the model's context is short."""

_LONG = 2000
"""Characters from which on a source is shown by its differences, if these are short."""

_ENDLESS = TokenBudget(None)


@dataclass(frozen=True)
class CodePrompt:
    """The parts of a prompt that are constant during a search.

    Attributes:
        functions: The functions to write.
        objective: The purpose of the code.
        description: What the user knows of the task; advice for the model.
        documentation: Description of the functions that the code may call.
        imports: Modules that the code may import.
        direction: ``"maximize"`` or ``"minimize"``.
        scoring: Description of the score, and of its maximum.
        computes: Whether an answer may be a block of Python to run.
        worker: What the process of the code may use.
    """

    functions: tuple[Function, ...]
    objective: str = ""
    description: str = ""
    documentation: str = ""
    imports: tuple[str, ...] = ()
    direction: str = "maximize"
    scoring: str = ""
    computes: bool = False
    worker: WorkerLimits = field(default_factory=WorkerLimits)

    def __post_init__(self) -> None:
        names = [f.name for f in self.functions]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"functions {names}: expected at least one, with different names")
        one_of("direction", self.direction, ("maximize", "minimize"))

    def messages(
        self,
        current: CodeTrial | None,
        trials: Sequence[CodeTrial],
        budget: TokenBudget = _ENDLESS,
        turn: tuple[int, int] | None = None,
        computing: Mapping[str, Any] | None = None,
    ) -> tuple[Message, ...]:
        """Return the conversation that requests the next candidate.

        `current` is the try to improve; a negative number marks code that was never scored. It and
        the latest try are shown with their sources, the others in one line each; what is shown is
        shortened until it fits into the budget. `turn` is the number of this try and how many
        follow it, `computing` the variables of `llmopt.code.computing.variables_of`.

        Raises:
            PromptTooLongError: The prompt does not fit even without earlier tries.
        """
        shorter = ((False, 0, _FEEDBACK >> k) for k in range(5))
        for sizes in ((True, _LISTED, _FEEDBACK), (False, _LISTED, _FEEDBACK), *shorter):
            text = self._render(current, trials, turn, computing or {}, *sizes)
            if budget.holds(text):
                return (Message("user", text),)
        raise PromptTooLongError(
            f"the prompt takes {estimate_tokens(text)} tokens without earlier tries, and "
            f"{budget.why} leaves {budget.limit}: shorten "
            "the documentation, lower max_output_tokens, or use a model with a longer context"
        )

    def _render(
        self,
        current: CodeTrial | None,
        trials: Sequence[CodeTrial],
        turn: tuple[int, int] | None,
        computing: Mapping[str, Any],
        latest: bool,
        listed: int,
        feedback: int,
    ) -> str:
        last = trials[-1] if trials and latest else None
        if last is not None and current is not None and last.number == current.number:
            last = None
        whole = feedback if feedback < _FEEDBACK else 4 * _FEEDBACK
        log = trials[max(0, len(trials) - listed) :] if len(trials) > 1 else ()
        return _template().render(
            instruction=INSTRUCTION,
            objective=self.objective,
            scoring=self.scoring,
            direction=self.direction,
            description=self.description,
            functions=[_described(f) for f in self.functions],
            documentation=self.documentation,
            imports=self.imports,
            samples=list(_samples(self.functions)),
            log=[_logged(t, trials) for t in log],
            all_listed=len(log) == len(trials),
            spread=any(t.samples for t in trials),
            turn=turn,
            latest=_shown(last, feedback, current) if last is not None else None,
            current=_shown(current, whole) if current is not None else None,
            answer=_ANSWER + _RUN * self.computes,
            may_stop=any(t.reward is not None for t in trials),
            seconds=self.worker.call_seconds,
            megabytes=self.worker.memory_bytes >> 20,
            compute=self.computes,
            **computing,
        )


@functools.cache
def _template() -> jinja2.Template:
    own, shared = jinja2.PackageLoader("llmopt.code"), jinja2.FunctionLoader(shipped_template)
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([own, shared]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("code_function.j2")


def complaint(reason: str, blocks: int = 0) -> str:
    """Return the repair request: the fault of an answer, and the form of the next one.

    `blocks` is the number of blocks that the model may give before it.
    """
    before = " To run Python before that, give it between ```run and ``` alone."
    return (
        f"This cannot be used: {reason}\nCorrect it and give the complete code again, in one "
        f"```python block.{before * (blocks > 0)}"
    )


def _shown(trial: CodeTrial, feedback: int, base: CodeTrial | None = None) -> Mapping[str, Any]:
    words = quoted(trial.feedback.strip(), headings_alone=True)
    return {
        "number": trial.number if trial.number >= 0 else None,
        "score": _score(trial),
        "source": trial.source.strip() if base is None else _beside(trial, base),
        "feedback": shorten(words, feedback),
    }


def _beside(trial: CodeTrial, base: CodeTrial) -> str:
    """Return a source, or its difference from `base`, which is shown in full, if that is short."""
    source = trial.source.strip()
    if len(source) < _LONG:
        return source
    lines = base.source.strip().splitlines(), source.splitlines()
    changes = list(difflib.unified_diff(*lines, n=1, lineterm=""))[2:]
    text = "\n".join(["(the code to improve, with these differences:)", *changes])
    return text if len(text) < len(source) / 2 else source


def _score(trial: CodeTrial) -> str | None:
    if trial.reward is None:
        return None
    error = standard_error(trial.samples)
    return f"{trial.reward:.6g}" + (f" ± {error:.2g}" if error is not None else "")


def _described(function: Function) -> Mapping[str, str]:
    first, *rest = function.doc.splitlines() or [""]
    doc = "\n".join([first, *(f"    {line}" if line else "" for line in rest)])
    return {"signature": function.signature, "doc": doc, "output": str(function.output)}


def _logged(trial: CodeTrial, trials: Sequence[CodeTrial]) -> Mapping[str, Any]:
    """Return the entry of one try in the list of all tries."""
    parent = next((t for t in trials if t.number == trial.parent), None)
    difference = ""
    if parent is not None and trial.reward is not None and parent.reward is not None:
        difference = f"{trial.reward - parent.reward:+.4g}"
        if trial.samples and len(trial.samples) == len(parent.samples):
            pairs = [a - b for a, b in zip(trial.samples, parent.samples, strict=True)]
            error = standard_error(pairs)
            difference += f" ± {error:.2g}" if error is not None else ""
    return {
        "number": trial.number,
        "score": _score(trial),
        "parent": trial.parent,
        "difference": difference,
        "lines": len(trial.source.strip().splitlines()),
        "own": trial.origin == "user",
        "why": cut(first_line(trial.feedback), _IDEA),
        "idea": shorten(" ".join(trial.explanation.split()), _IDEA),
    }


def shorten(text: str, most: int) -> str:
    """Cut a text to about `most` characters, at the end of a line or sentence."""
    if len(text) <= most:
        return text
    part = text[:most]
    for end in ("\n", ". ", " "):
        at = part.rfind(end)
        if at > most // 2:
            return f"{part[: at + 1].rstrip()}{end.strip(' .')} ..."
    return f"{part} ..."


def _samples(functions: Sequence[Function]) -> list[str]:
    """Return one example of the inputs of each function."""
    lines = []
    with np.printoptions(precision=4, threshold=64, suppress=True, linewidth=100):
        for function in functions:
            if function.samples:
                pairs = zip(function.parameters, function.samples[0], strict=False)
                shown = ", ".join(f"{name}={value!r}" for name, value in pairs)
                lines.append(f"{function.name} may be called with {shown}")
    return lines
