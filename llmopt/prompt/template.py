"""Prompts made from Jinja2 templates; `llmopt.prompt` documents the variables."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any, Literal

import jinja2

from llmopt.client.base import Message, Request, Style
from llmopt.data import NO_DATA
from llmopt.errors import SpaceError, TemplateError, did_you_mean
from llmopt.history import History, Trial
from llmopt.prompt.answer import zero_point
from llmopt.prompt.budget import Keep, Selection, TokenBudget, fit, ranked
from llmopt.prompt.describe import (
    Entry,
    describe_goal,
    describe_params,
    describe_space,
    describe_step,
    describe_trial,
    names_of,
    quoted,
)
from llmopt.prompt.environment import TemplateEnvironment
from llmopt.prompt.kept import Kept
from llmopt.prompt.log import Log
from llmopt.prompt.python_block import (
    code_in,
    data_words,
    laboratory_variables,
    listed,
    shown_blocks,
)
from llmopt.prompt.reader import AnswerReader
from llmopt.prompt.reading import Point, Reading, ToolCall
from llmopt.prompt.situation import (
    Complaint,
    PromptCapabilities,
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

SHIPPED = ("words", "props", "props-ab", "props-plus", "opro")
_BEGIN_USER = f"\x00{secrets.token_hex(16)}\x00"  # what `begin_user` renders to: none can know it
MAX_TEMPLATE = 1_000_000
"""Characters of the longest template that is taken."""

_LEVELS = 32  # sizes of the log that are tried where a prompt has to be short
_COARSE = 2  # levels by which it is shortened, so that it seldom changes
_ROOM = 16_384  # tokens of an answer that reasons first, hidden reasoning included
_SHOWS_LOG = re.compile(r"\b(?:evidence|include|extends|import)\b")  # a template that may
_CACHED_TRIALS = 20_000  # formatted lines kept for the next prompt, about 200 bytes each


@dataclass(frozen=True)
class _Known:
    """What is the same in every prompt of a search."""

    space: Space
    words: dict[str, Any]  # variables that depend on the space alone
    entries: dict[int, tuple[Trial, Entry]] = field(default_factory=dict)  # by the trial's number


@dataclass(repr=False)
class TemplatePrompt:
    """A prompt rendered from a Jinja2 template. It can be pickled and holds no history.

    Args:
        template: The template's text.
        name: Short name for tables, files and messages.
        folder: Where the template's own includes are looked up.
        history: Which trials are shown: ``"all"``, ``"last"``, ``"best"``,
            ``"best+last"``, or a `Selection`.
        best: How many of the best.
        last: How many of the latest.
        order: ``"time"`` or ``"ascending"`` (worst first).
        labels: What the parameters are called; the space's names if not given.
        needs_description: Refuse to work without a description of the task.
        optimum: What the best value is thought to be. This is a hint that no honest
            benchmark gives unless it says so.
        temperature: Sampling temperature; ``None`` leaves the provider's default.
        max_tokens: Cap on the answer; ``None`` for 1024 + 16 for each parameter, at most
            half of the model's context.
        max_prompt_tokens: Cap on the prompt, which is never exceeded: trials are dropped
            instead, the oldest first for ``"all"`` and ``"last"``, the worst first for
            ``"best"``. Counted by the model's own tokenizer where there is one, else
            over-estimated by `estimate_tokens`.
        style: ``"chat"`` or ``"completion"``; as the client likes it if not given.
        answer_last: Whether answers give their reasons before the values. Then the last
            point of an answer counts, and the text before it is the explanation.
        changes: Whether an answer may name an earlier point and only the values that differ.
        reasons: What an answer gives before its values, for models that are held to a form
            (`ModelFacts.structured`); with none they are asked as text.
        log_tokens: Tokens of the `Log`, which grows at its end and is cut to about
            half where it is full. ``None`` shows the trials that `history` names.
        max_chars: Maximum characters of all messages, for chat windows. Beyond it the log is
            shortened, then the model's Python blocks, oldest first. A quarter of the limit is
            reserved for the log. ``None`` for no limit.
        sealed: Leave `folder` unread. `get_prompt` sets it for a prompt that was stored.

    Raises:
        TemplateError: The template has a syntax error, or is longer than `MAX_TEMPLATE`.
        ValueError: An option is not valid.
    """

    template: str
    name: str = "custom"
    folder: str | None = None
    history: Keep | Selection = "all"
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
    _compiled: jinja2.Template | None = field(default=None, init=False, compare=False)
    _log: Log | None = field(default=None, init=False, compare=False)
    _cache: _Known | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        self.history = self.selection
        self.best, self.last = self.history.best, self.history.last
        self.labels = None if self.labels is None else tuple(self.labels)
        self.reasons = tuple(self.reasons)
        one_of("order", self.order, ("time", "ascending"))
        one_of("style", self.style, (None, "chat", "completion"))
        check_counts(self, max_tokens=1, max_prompt_tokens=1, log_tokens=1, max_chars=1000)
        if len(self.template) > MAX_TEMPLATE:
            raise TemplateError(
                f"template {self.name!r} has more than {MAX_TEMPLATE:,} characters: shorten it"
            )
        self._compile()

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in self._options().items())
        return f"{type(self).__name__}({self.name!r}{', ' + given if given else ''})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None, "_cache": None, "_log": None}

    def _options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults of this prompt."""
        return changed_options(self, template=self.template, **_DEFAULTS.get(self.name, {}))

    @property
    def computes(self) -> bool:
        """Whether an answer may be a block of Python: the template says so to the model."""
        return self.changes and re.search(r"\bcompute\b", self.template) is not None

    @property
    def selection(self) -> Selection:
        """Which trials are shown."""
        kept = self.history
        return kept if isinstance(kept, Selection) else Selection(kept, self.best, self.last)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form with the options that are not the default, for `get_prompt`."""
        data: dict[str, Any] = {"name": self.name, **self._options()}
        for name in ("labels", "reasons"):
            if data.get(name):
                data[name] = list(data[name])
        if self.name not in SHIPPED:
            data["template"] = self.template
        return data

    def prepare(self, situation: Situation) -> Question:
        """Make the question for one situation; see `Prompt.prepare`."""
        space, known = situation.space, self._known(situation.space)
        labels = known.words["labels"]
        if self.needs_description and not situation.description.strip():
            raise TemplateError(
                f"prompt {self.name!r} needs the task in words and got no description: give "
                "description=, or take prompt 'props'"
            )
        model = situation.model
        style = self.style or model.style
        most = situation.points if self.changes else 1  # several only where each has its own start
        kept = None
        if situation.compute and self.changes:
            kept = Kept.of(space, labels, situation.kept, situation.variables)
        form = None  # that answers are held to, if the model can be
        structured = self.reasons and model.structured and style == "chat"
        if structured and len(labels) <= MOST_PARAMETERS:
            form = Form(
                space,
                labels,
                self.reasons,
                last=self.answer_last,
                changes=self.changes,
                may_stop=situation.may_stop,
                most=most,
                compute=situation.compute,
                kept=kept,
            )
        note = form.note if form else ""
        max_tokens = self._answer_tokens(situation)
        budget = TokenBudget.of(model, self.max_prompt_tokens, max_tokens)
        picked = self.selection.pick(situation.history)
        static = known.words | self._variables(situation, style, most)
        static["keeps"] = kept is not None
        place = self._places(situation, picked)
        # Removed while in use: another thread makes its own.
        log = vars(self).pop("_log", None) or Log()
        reads_log = _SHOWS_LOG.search(self.template) is not None
        if reads_log:
            log.read(situation.history, space, labels, count=budget.count)

        def render_log(k: int, complaint: Complaint | None) -> tuple[Message, ...]:
            # Not a token more or less from one proposal to the next, for the sake of caches.
            log.show(picked, (self.log_tokens or 0) * k // _LEVELS)
            text = self._render({**static, "evidence": log})
            over = len(text) - (self.max_chars or len(text))
            if over > 0 and k > _COARSE:
                return render_log(self._fewer_levels(k, len(text), log), complaint)
            if over > 0 and static["computed"]:
                room = sum(map(len, static["computed"])) - over
                fewer = {"computed": shown_blocks(situation.computed, room)}
                text = self._render({**static, **fewer, "evidence": log})
            return _messages(text, style, complaint, note)

        def render(k: int, complaint: Complaint | None) -> tuple[Message, ...]:
            shown = picked[:k][::-1]
            if place is not None:
                shown.sort(key=lambda t: place[id(t)])
            entries = self._entries(shown, known)
            best = None
            if k < len(situation.history.trials) and situation.history.best is not None:
                top = situation.history.best
                hidden = not any(t is top for t in shown)
                best = self._entries([top], known)[0] if hidden else None
            text = self._render(
                {
                    **static,
                    "evidence": log.show(shown),
                    "history": entries,
                    "lines": [e.line for e in entries],
                    "hidden": len(situation.history.trials) - len(shown),
                    "best": best,
                }
            )
            return _messages(text, style, complaint, note)

        messages = fit(
            self.name,
            render if self.log_tokens is None else render_log,
            lambda messages: budget.size(messages, style),
            budget,
            _LEVELS if self.log_tokens is not None else len(picked),
            situation.complaint if style == "chat" and model.chats else None,
            align=self.log_tokens is None and self.selection.keep == "all" and self.order == "time",
        )
        self._log = log
        request = Request(
            # A template, a name or an answer sent back may hold what fits in no request.
            messages=tuple(Message(m.role, clean(m.content)) for m in messages),
            n=situation.samples,
            style=style,
            temperature=self.temperature,
            max_tokens=max_tokens,
            seed=situation.seed,
            json_schema=None if form is None else form.schema,
        )
        points = [t.values for t in situation.history.trials] if self.changes else ()
        rejects = PromptCapabilities.of(self).rejects(situation.out_of_range)
        points_of = AnswerReader(
            space,
            labels,
            "reject" if rejects else "clip",
            form,
            last=self.answer_last or self.changes,
            changes=self.changes,
            points=points,
            may_stop=situation.may_stop,
            most=most,
            first=situation.iteration,
            kept=kept,
            original=_Originals(
                space, situation.history, self.log_tokens is None, log if reads_log else None
            ),
        )

        return Question(request, _Reader(points_of, form, situation.compute))

    def _fewer_levels(self, levels: int, characters: int, log: Log) -> int:
        """Return the level of the log at which a rendered text keeps to `max_chars`."""
        most, used = self.max_chars or 0, "\n".join(log.log)
        room = max(most - (characters - len(used)), most // 4)
        tokens = log.count(used) * room / max(len(used), 1)
        fewer = int(_LEVELS * tokens / (self.log_tokens or 1)) // _COARSE * _COARSE
        return max(_COARSE, min(fewer, levels - 1))

    def _answer_tokens(self, situation: Situation) -> int:
        if self.max_tokens is not None:
            return self.max_tokens
        usual = (_ROOM if self.changes else 1024) + 16 * len(situation.space) * situation.points
        context = situation.model.context_tokens
        return usual if context is None else max(1, min(usual, context // 2))

    def _places(self, situation: Situation, picked: list[Trial]) -> dict[int, int] | None:
        """Return the position of each trial, by its identity, in the order of showing.

        ``None`` where that is the order in which they were picked, reversed.
        """
        if self.order == "ascending":
            order = list(reversed(ranked(situation.history)))
        elif self.selection.keep in ("all", "last"):
            return None
        else:
            order = list(situation.history.trials)
        return {id(t): i for i, t in enumerate(order)}

    # One trial in words

    def _entries(self, trials: Sequence[Trial], known: _Known) -> list[Entry]:
        """Return trials in words; those of the last prompt are not described anew."""
        entries = []
        for trial in trials:
            found = known.entries.get(trial.number)
            if found is None or (found[0] is not trial and found[0] != trial):
                found = trial, describe_trial(trial, known.space, known.words["labels"])
                if trial.number < _CACHED_TRIALS:
                    known.entries[trial.number] = found
            entries.append(found[1])
        return entries

    # The template

    def _known(self, space: Space) -> _Known:
        """Return what prompts for a space have in common."""
        if self._cache is not None and (self._cache.space is space or self._cache.space == space):
            return self._cache
        labels = self.labels or space.names
        if len(labels) != len(space):
            raise SpaceError(
                f"prompt {self.name!r} is for exactly {len(labels)} parameters "
                f"({', '.join(labels)}) and the space has {len(space)}: take prompt 'props'"
            )
        asked = [labels[i] for i in space.asked]
        words = {
            "begin_user": _BEGIN_USER,
            "n": len(space),
            "labels": labels,
            "parameters": describe_space(space, labels, decimals=not self.changes),
            "zero": len(space) > 8 and zero_point(space) is not None,
            "answer": ", ".join(f"{label}: <value>" for label in asked),
            "step_size": describe_step(space),
            "optimum": None if self.optimum is None else f"{self.optimum:.6g}",
            "order": self.order,
            "chooses": any(isinstance(d, Categorical) for d in space.dimensions),
            "asked": asked,
            "branched": any(map(space.condition, range(len(space)))),
        }
        self._cache = _Known(space, words)
        return self._cache

    def _variables(self, situation: Situation, style: Style, most: int) -> dict[str, Any]:
        """Return the variables that a situation brings, but for the trials."""
        history, labels = situation.history, self.labels or situation.space.names
        return {
            "style": style,
            "directions": history.directions,
            "goal": describe_goal(history.directions, history.metrics),
            "objectives": names_of(history.directions, history.metrics),
            "description": quoted(situation.description.strip(), headings_alone=True),
            "notes": [quoted(note, headings_alone=True) for note in situation.notes],
            "iteration": situation.iteration,
            "total": situation.total,
            "samples": situation.samples,
            "pending": [describe_params(v, situation.space, labels) for v in history.pending],
            "noisy": situation.noisy,
            "seeded": situation.seeded,
            "may_stop": situation.may_stop,
            "points": most,
            "compute": situation.compute,
            "computed": shown_blocks(situation.computed),
            "blocks": situation.blocks,
            "data": quoted(_data_words(history)) if situation.compute else "",
            "variables": listed(situation.variables),
            **laboratory_variables(
                situation.compute_seconds,
                situation.compute_blocks,
                situation.seconds_left,
                situation.workers,
                situation.tools,
                situation.libraries,
            ),
        }

    def _compile(self) -> jinja2.Template:
        if self._compiled is None:
            file = f"{self.name}.j2" if self.name in SHIPPED else self.name
            try:
                if self.folder is None or self.sealed:
                    self._compiled = _shared_template(file, self.template)
                else:
                    beside = jinja2.FileSystemLoader(self.folder)
                    self._compiled = _make_template(file, self.template, beside)
            except Exception as error:
                raise _template_error(file, error, ()) from error
        return self._compiled

    def _render(self, variables: dict[str, Any]) -> str:
        template = self._compile()
        try:
            environment = template.environment
            assert isinstance(environment, TemplateEnvironment)
            return environment.render(template, variables)
        except Exception as error:
            raise _template_error(str(template.name), error, tuple(variables)) from error


def _data_words(history: History) -> str:
    trials = history.trials
    having = {k: t.data for k, t in enumerate(trials, start=1) if t.data is not NO_DATA}
    return data_words(having, len(trials))


def _make_template(file: str, text: str, *beside: jinja2.BaseLoader) -> jinja2.Template:
    """Compile a template, which may include the shipped ones and those of further loaders."""
    shipped = jinja2.FunctionLoader(shipped_template)
    loader = jinja2.ChoiceLoader([jinja2.DictLoader({file: text}), *beside, shipped])
    return TemplateEnvironment(loader, _SHOWN).get_template(file)


_shared_template = functools.lru_cache(maxsize=32)(_make_template)
"""Makes a template that includes no file of the user's; to compile `words` takes 20 ms."""

_SHOWN = {
    Entry: tuple(entry_field.name for entry_field in fields(Entry)),
    Log: (
        "header", "log", "dropped", "has_errors", "paired", "drawn", "lessons", "ranking",
        "shown_again", "latest", "standstill", "failed", "noise", "roughness",
    ),
}  # fmt: skip
"""What templates may use of the objects that they get."""

_WHY: dict[str, Any] = {"reasons": ("Explanation",)}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "words": {
        "log_tokens": 9_000,
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


@dataclass(frozen=True)
class _Originals:
    """Returns the evaluated point that a written one equals to the digits that a prompt shows."""

    space: Space
    history: History
    lines: bool  # whether the prompt shows values as `Space.format` does
    log: Log | None  # which shows them otherwise, if the prompt has it

    def __call__(self, point: Point) -> Point:
        """Return the evaluated or pending point, or the written one if it is a new one."""
        log = self.log
        if log is not None and vars(log).get("history") is not self.history:
            log = None  # it has gone on to a later prompt
        for trial in reversed(self.history.trials):
            if self._equal(point, trial.values, self.lines, log, trial):
                return tuple(trial.values)
        for pending in self.history.pending:
            if self._equal(point, pending, True):
                return tuple(pending)
        return point

    def _equal(
        self,
        written: Point,
        values: Point,
        lines: bool,
        log: Log | None = None,
        trial: Trial | None = None,
    ) -> bool:
        for i, (a, b) in enumerate(zip(written, values, strict=True)):
            if a == b:
                continue
            if not (isinstance(a, float) and isinstance(b, float)):
                return False
            shown = [self.space.format(i, b)] if lines else []
            if log is not None and trial is not None:
                shown.append(log.value(trial, i))
            if a not in map(float, shown):
                return False
        return True


@dataclass(frozen=True)
class _Reader:
    """Reads points, and Python if the answers may be that."""

    points_of: AnswerReader
    form: Form | None
    computes: bool

    def __call__(
        self, text: str, index: int = 0, earlier: Sequence[str] = ()
    ) -> Reading | ToolCall:
        """Return the points of an answer, or its Python; see `Question.read`."""
        code = ""
        if self.computes:
            code = code_in(text) if self.form is None else self.form.code(text) or code_in(text)
        return ToolCall(code) if code else self.points_of(text)
