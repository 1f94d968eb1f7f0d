"""Prompts made from Jinja2 templates; `llmopt.prompt` documents the variables."""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llmopt.client.base import Message, Request, Style
from llmopt.data import NO_DATA
from llmopt.errors import SpaceError, TemplateError, did_you_mean
from llmopt.history import Trial
from llmopt.prompt.answer_parts import OutOfRange, zero_point
from llmopt.prompt.answer_reader import AnswerReader, Originals
from llmopt.prompt.describe import (
    Entries,
    Entry,
    describe_goal,
    describe_params,
    describe_space,
    describe_step,
    names_of,
    number,
    quoted,
)
from llmopt.prompt.kept_variables import Kept
from llmopt.prompt.log import Log
from llmopt.prompt.python_block import data_words, laboratory_variables, listed, shown_blocks
from llmopt.prompt.shown_trials import KEEP, Keep, TokenBudget, fit, pick, ranked
from llmopt.prompt.situation import (
    Complaint,
    Question,
    Situation,
    changed_options,
    chat_messages,
    check_counts,
)
from llmopt.prompt.structured import MOST_PARAMETERS, Form
from llmopt.space import Categorical, Space
from llmopt.util.arguments import one_of
from llmopt.util.text import clean

_BEGIN_USER = f"\x00{secrets.token_hex(16)}\x00"  # what `begin_user` renders to: none can know it
MAX_TEMPLATE = 1_000_000
"""Characters of the longest template that is taken."""

_LEVELS = 16  # sizes of the log that are tried where a prompt has to be short
_ROOM = 16_384  # tokens of an answer that reasons first, hidden reasoning included
_SHOWS_LOG = re.compile(r"\b(?:evidence|include|extends|import)\b")  # a template that may


@dataclass(repr=False)
class TemplatePrompt:
    """A prompt rendered from a Jinja2 template. It can be pickled and holds no history.

    Args:
        template: The template's text.
        name: Short name for tables, files and messages.
        folder: Where the template's own includes are looked up.
        history: Which trials are shown: ``"all"``, ``"last"`` or ``"best"``.
        best: How many of the best.
        last: How many of the latest.
        order: ``"time"`` or ``"ascending"`` (worst first).
        labels: What the parameters are called; the space's names if not given.
        needs_description: Refuse to work without a description of the task.
        optimum: A hint at the best value, which no honest benchmark gives without saying so.
        temperature: Sampling temperature; ``None`` leaves the provider's default.
        max_tokens: Cap on the answer; ``None`` for 1024 + 16 for each parameter, at most
            half of the model's context.
        max_prompt_tokens: Cap on the prompt, which is never exceeded: trials are dropped
            instead, the oldest first for ``"all"`` and ``"last"``, the worst first for
            ``"best"``. Counted by the model's tokenizer, or over-estimated by `estimate_tokens`.
        style: ``"chat"`` or ``"completion"``; as the client likes it if not given.
        answer_last: Whether the reasons precede the values: the text before the last point is
            the explanation.
        changes: Whether an answer may name an earlier point and only the values that differ.
        reasons: What an answer gives before its values, for models that are held to a form
            (`ModelFacts.structured`); with none they are asked as text.
        log_tokens: Tokens of the `Log`, which grows at its end and is cut to about
            half where it is full. ``None`` shows the trials that `history` names.
        max_chars: Maximum characters of all messages, for chat windows. Beyond it the log is
            shortened, to a quarter at least, then the model's Python blocks, oldest first.
        sealed: Leave `folder` unread. `get_prompt` sets it for a prompt that was stored.

    Raises:
        TemplateError: The template has a syntax error, or is longer than `MAX_TEMPLATE`.
        ValueError: An option is not valid.
    """

    template: str
    name: str = "custom"
    folder: str | None = None
    history: Keep = "all"
    best: int = 20
    last: int = 20
    order: Literal["time", "ascending"] = "time"
    labels: tuple[str, ...] | None = None
    needs_description: bool = False
    optimum: float | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_prompt_tokens: int | None = None
    style: Style | None = None
    answer_last: bool = False
    changes: bool = False
    reasons: tuple[str, ...] = ()
    log_tokens: int | None = None
    max_chars: int | None = None
    sealed: bool = field(default=False, compare=False)
    _log: Log | None = field(default=None, init=False, compare=False)
    _lines: Entries | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        self.labels = None if self.labels is None else tuple(self.labels)
        self.reasons = tuple(self.reasons)
        one_of("history", self.history, KEEP)
        one_of("order", self.order, ("time", "ascending"))
        one_of("style", self.style, (None, "chat", "completion"))
        check_counts(self, best=0, last=0, max_tokens=1, max_prompt_tokens=1, log_tokens=1)
        check_counts(self, max_chars=1000)
        if len(self.template) > MAX_TEMPLATE:
            raise TemplateError(
                f"template {self.name!r} has more than {MAX_TEMPLATE:,} characters: shorten it"
            )
        self._compile()

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in self._options().items())
        return f"{type(self).__name__}({self.name!r}{', ' + given if given else ''})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lines": None, "_log": None}

    def _options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults of this prompt."""
        return changed_options(self, template=self.template, **_DEFAULTS.get(self.name, {}))

    @property
    def computes(self) -> bool:
        """Whether an answer may be a block of Python: the template says so to the model."""
        return self.changes and re.search(r"\bcompute\b", self.template) is not None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form with the options that are not the default, for `get_prompt`."""
        options = {k: [*v] if isinstance(v, tuple) else v for k, v in self._options().items()}
        template = {} if self.name in SHIPPED else {"template": self.template}
        return {"name": self.name, **options, **template}

    def prepare(self, situation: Situation) -> Question:
        """Make the question for one situation; see `Prompt.prepare`."""
        space, history, model = situation.space, situation.history, situation.model
        labels = self.labels or space.names
        if self.needs_description and not situation.description.strip():
            raise TemplateError(
                f"prompt {self.name!r} needs the task in words and got no description: give "
                "description=, or take prompt 'props'"
            )
        if len(labels) != len(space):
            raise SpaceError(
                f"prompt {self.name!r} is for exactly {len(labels)} parameters "
                f"({', '.join(labels)}) and the space has {len(space)}: take prompt 'props'"
            )
        style = self.style or model.style
        most = situation.points if self.changes else 1  # several only where each has its own start
        kept = form = None
        if situation.compute and self.changes:
            kept = Kept.of(space, labels, situation.kept, situation.variables)
        structured = self.reasons and model.structured and style == "chat"
        if structured and len(labels) <= MOST_PARAMETERS:
            form = Form(
                space, labels, self.reasons, last=self.answer_last, changes=self.changes,
                may_stop=situation.may_stop, most=most, compute=situation.compute, kept=kept,
            )  # fmt: skip
        max_tokens = self._answer_tokens(situation)
        budget = TokenBudget.of(model, self.max_prompt_tokens, max_tokens)
        variables = self._variables(situation, labels) | {
            "style": style, "points": most, "keeps": kept is not None
        }  # fmt: skip
        picked = pick(history, self.history, self.best, self.last)
        log = None
        if _SHOWS_LOG.search(self.template):
            # Removed while in use: another thread makes its own.
            log = vars(self).pop("_log", None) or Log()
            log.read(history, space, labels)
        if self.log_tokens is None:
            entries, text = len(picked), self._text_of_trials(variables, situation, picked, log)
        else:
            entries, text = self._text_of_log(variables, situation, picked, log)

        def render(k: int, complaint: Complaint | None) -> tuple[Message, ...]:
            return _messages(text(k), style, complaint, form.note if form else "")

        messages = fit(
            self.name,
            render,
            lambda messages: budget.size(messages, style),
            budget,
            entries,
            situation.complaint if style == "chat" and model.chats else None,
            align=self.log_tokens is None and self.history == "all" and self.order == "time",
        )
        self._log = log
        request = Request(
            # A template, a name or an answer sent back may hold what fits in no request.
            messages=tuple(Message(m.role, clean(m.content)) for m in messages),
            style=style,
            temperature=self.temperature,
            max_tokens=max_tokens,
            seed=situation.seed,
            json_schema=None if form is None else form.schema,
        )
        usual: OutOfRange = "reject" if self.changes else "clip"
        read = AnswerReader(
            space,
            labels,
            usual if situation.out_of_range == "auto" else situation.out_of_range,
            form,
            last=self.answer_last or self.changes,
            changes=self.changes,
            points=[t.values for t in history.trials] if self.changes else (),
            may_stop=situation.may_stop,
            most=most,
            first=situation.iteration,
            kept=kept,
            computes=situation.compute,
            original=Originals(space, history, self.log_tokens is None, log),
        )
        return Question(request, read)

    def _text_of_trials(
        self, variables: dict[str, Any], situation: Situation, picked: list[Trial], log: Log | None
    ) -> Callable[[int], str]:
        """Return what renders the prompt with the first k of the picked trials."""
        history, order = situation.history, list(situation.history.trials)
        lines = vars(self).pop("_lines", None) or Entries()
        entry = lines.read(history, situation.space, variables["labels"])
        self._lines = lines
        if self.order == "ascending":
            order = ranked(history)[::-1]
        place = {id(t): i for i, t in enumerate(order)}

        def text(k: int) -> str:
            shown = sorted(picked[:k], key=lambda t: place[id(t)])
            best = history.best if len(shown) < len(order) else None
            hidden = best is not None and all(t is not best for t in shown)
            entries = [entry[id(t)] for t in shown]
            trials = {
                "evidence": log and log.show(shown),
                "history": entries,
                "lines": [e.line for e in entries],
                "hidden": len(order) - len(shown),
                "best": entry[id(best)] if hidden else None,
            }
            return self._render({**variables, **trials})

        return text

    def _text_of_log(
        self, variables: dict[str, Any], situation: Situation, picked: list[Trial], log: Log | None
    ) -> tuple[int, Callable[[int], str]]:
        """Return what renders the prompt with k levels of the log, and the most levels.

        With all levels the text has at most `max_chars` characters, if the log can be shortened to
        a quarter and the model's blocks can be dropped.
        """
        tokens, chars = self.log_tokens or 0, self.max_chars

        def text(k: int) -> str:
            # Not a token more or less from one proposal to the next, for the sake of caches.
            evidence = log and log.show(picked, tokens * k // _LEVELS)
            return self._render({**variables, "evidence": evidence})

        if chars is None or len(text(_LEVELS)) <= chars:
            return _LEVELS, text
        levels = bisect_right(range(_LEVELS), chars, key=lambda k: len(text(k))) - 1
        levels = max(levels, _LEVELS // 4)
        over = len(text(levels)) - chars
        if over > 0 and situation.computed:
            room = sum(map(len, variables["computed"])) - over
            variables["computed"] = shown_blocks(situation.computed, room)
        return levels, text

    def _answer_tokens(self, situation: Situation) -> int:
        if self.max_tokens is not None:
            return self.max_tokens
        usual = (_ROOM if self.changes else 1024) + 16 * len(situation.space) * situation.points
        context = situation.model.context_tokens
        return usual if context is None else max(1, min(usual, context // 2))

    def _variables(self, situation: Situation, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return the variables of the templates, but for the trials."""
        space, history = situation.space, situation.history
        same = ("iteration", "total", "noisy", "seeded", "may_stop", "compute", "blocks")
        return {
            "begin_user": _BEGIN_USER,
            **_space_words(space, labels, not self.changes),
            "optimum": None if self.optimum is None else f"{self.optimum:.6g}",
            "best_known": None if (best := situation.best_known) is None else number(best, 12),
            "low": situation.low,
            "order": self.order,
            "directions": history.directions,
            "goal": describe_goal(history.directions, history.metrics),
            "objectives": names_of(history.directions, history.metrics),
            "description": quoted(situation.description.strip(), headings_alone=True),
            "notes": [quoted(note, headings_alone=True) for note in situation.notes],
            "pending": [describe_params(v, space, labels) for v in history.pending],
            **{name: getattr(situation, name) for name in same},
            **self._python_variables(situation),
        }

    def _python_variables(self, situation: Situation) -> dict[str, Any]:
        """Return the variables on blocks of Python."""
        trials = situation.history.trials
        data = {k: t.data for k, t in enumerate(trials, start=1) if t.data is not NO_DATA}
        parts = dict.fromkeys(name for t in trials for name in t.parts)
        violated = any(t.constraint_violation > 0 for t in trials)
        words = data_words(data, len(trials), parts=parts, violated=violated)
        return {
            "computed": shown_blocks(situation.computed),
            "data": quoted(words) if situation.compute else "",
            "variables": listed(situation.variables),
            **laboratory_variables(
                situation.compute_seconds,
                situation.compute_blocks,
                situation.seconds_left,
                situation.tool,
                situation.tools,
            ),
        }

    def _render(self, variables: dict[str, Any]) -> str:
        template = self._compile()
        try:
            # Not `template.render`, which would rewrite the traceback that names the line.
            return "".join(template.root_render_func(template.new_context(variables)))
        except Exception as error:
            raise _template_error(str(template.name), error, tuple(variables)) from error

    def _compile(self) -> jinja2.Template:
        file = f"{self.name}.j2" if self.name in SHIPPED else self.name
        try:
            return _compiled(file, self.template, None if self.sealed else self.folder)
        except Exception as error:
            raise _template_error(file, error, ()) from error


@lru_cache(maxsize=32)
def _space_words(space: Space, labels: tuple[str, ...], decimals: bool) -> dict[str, Any]:
    """Return the variables that depend on the space alone."""
    asked = [labels[i] for i in space.asked]
    return {
        "n": len(space),
        "labels": labels,
        "parameters": describe_space(space, labels, decimals=decimals),
        "zero": len(space) > 8 and zero_point(space) is not None,
        "answer": ", ".join(f"{label}: <value>" for label in asked),
        "step_size": describe_step(space),
        "chooses": any(isinstance(d, Categorical) for d in space.dimensions),
        "numeric": not all(isinstance(d, Categorical) for d in space.dimensions),
        "asked": asked,
        "branched": any(map(space.condition, range(len(space)))),
    }


@lru_cache(maxsize=32)
def _compiled(file: str, text: str, folder: str | None) -> jinja2.Template:
    """Return a template, which may include those of its folder and the shipped ones.

    To compile `words` takes 20 ms.
    """
    beside = [] if folder is None else [jinja2.FileSystemLoader(folder)]
    shipped = jinja2.FunctionLoader(shipped_template)
    loader = jinja2.ChoiceLoader([jinja2.DictLoader({file: text}), *beside, shipped])
    environment = _Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(file)


class _Environment(ImmutableSandboxedEnvironment):
    """Renders prompts. Of the objects in `_SHOWN` a template may use the names listed alone.

    Loops and the text that they build are not limited: a template is to be read before it is used.
    """

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether an attribute may be read."""
        allowed = _SHOWN.get(type(obj))
        return (allowed is None or attr in allowed) and super().is_safe_attribute(obj, attr, value)


_SHOWN: dict[type, tuple[str, ...]] = {
    Entry: tuple(Entry.__annotations__),
    Log: (
        "header", "log", "dropped", "has_errors", "paired", "drawn", "lessons", "ranking",
        "best_values", "choices", "latest", "noise",
    ),
}  # fmt: skip
"""What templates may use of the objects that they get."""

_WHY: dict[str, Any] = {"reasons": ("Explanation",)}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "words": {
        "log_tokens": 6_000,
        "max_chars": 30_000,
        "answer_last": True,
        "changes": True,
        "reasons": ("Lesson", "Analysis", "Hypothesis", "Start from"),
    },
    "props": _WHY,
    "props-ab": {"labels": ("a", "b"), **_WHY},
    "props-plus": {"needs_description": True, **_WHY},
    # OPRO (Yang et al. 2023, section 5.1) shows the 20 best pairs, worst first.
    "opro": {"history": "best", "best": 20, "order": "ascending", **_WHY},
}
SHIPPED = tuple(_DEFAULTS)
"""The names of the shipped templates."""


def shipped_prompt(name: str, **options: Any) -> TemplatePrompt:
    """Return one of the shipped template prompts with some options changed."""
    text = shipped_template(f"{name}.j2") if name in SHIPPED else None
    if text is None:
        raise TemplateError(f"unknown prompt {name!r}; {did_you_mean(str(name), SHIPPED)}")
    return TemplatePrompt(text, name=name, **{**_DEFAULTS[name], **options})


def shipped_template(file: str) -> str | None:
    """Return a shipped template's text by its file name, or ``None``."""
    name = file.removeprefix("llmopt/")
    path = resources.files("llmopt.prompt.templates") / name
    if "/" in name or "\\" in name or not name.endswith(".j2") or not path.is_file():
        return None
    return path.read_text(encoding="utf-8")


def _messages(
    text: str, style: Style, complaint: Complaint | None, note: str = ""
) -> tuple[Message, ...]:
    system, marked, user = text.partition(_BEGIN_USER)
    if not marked:
        system, user = "", text
    system, user = system.strip(), user.strip()
    if note and system:
        system = f"{system}\n\n{note}"
    elif note:
        user = f"{user}\n\n{note}"
    if style == "completion":
        return (Message("user", f"{system}\n\n{user}\n".lstrip()),)
    return chat_messages(system, user, complaint)


def _template_error(name: str, error: Exception, variables: tuple[str, ...]) -> TemplateError:
    """Say in which template, on which line and with which variable something went wrong."""
    line: int | None = None
    if isinstance(error, jinja2.TemplateSyntaxError):
        name, line = error.name or name, error.lineno
    trace = error.__traceback__
    while trace is not None and not isinstance(error, jinja2.TemplateSyntaxError):
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if isinstance(template, jinja2.Template):
            name = template.name or name
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    where = f"template {name!r}" + (f", line {line}" if line is not None else "")
    what = str(error) or type(error).__name__
    if isinstance(error, jinja2.TemplateNotFound):
        what = (
            f"it includes {what!r}, which cannot be found next to it or among the shipped ones "
            "(a prompt out of a file of a run reads nothing next to it: give its path again)"
        )
    elif not isinstance(error, jinja2.TemplateError):
        what = f"{type(error).__name__}: {what}"
    undefined = re.match(r"'(\w+)' is undefined", what)
    if isinstance(error, jinja2.UndefinedError) and undefined and variables:
        what += f"; {did_you_mean(undefined[1], variables)}"
    return TemplateError(f"{where}: {what}")
