"""Searches in one folder, for agents: what `llmopt mcp` offers, without the protocol.

A search NAME is ``NAME.json``, its description, and ``NAME.jsonl``, its storage, open only while a
call lasts: several servers may share a folder, and each may be killed at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from llmopt.client.base import Completion, Reply, Request
from llmopt.data import read_data_file
from llmopt.errors import ClientError, LLMOptError, SearchStopped, did_you_mean
from llmopt.optimizer import LLMOptimizer
from llmopt.packing import DataError
from llmopt.service.description import read_description
from llmopt.service.search_file import AGENT, MOST_DESCRIPTION, breaking, open_described
from llmopt.service.search_json import (
    enqueue,
    leaders,
    numbered,
    of_proposal,
    status,
    tell,
    withdraw,
)
from llmopt.util.arguments import MOST_AT_ONCE, whole_number
from llmopt.util.files import make_folder, read_mapping, write_bytes_atomically
from llmopt.util.text import short

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MOST_SEARCHES = 1000
_MOST_POINTS = 100  # of one ask
_MOST_TEXT = 100_000  # characters of an answer, of feedback
_SHOWS = "ask() shows the new request"


class _Unanswered(ClientError):
    """A request that the agent is to answer."""

    def __init__(self, request: Request) -> None:
        super().__init__("the agent has not answered yet", requests=0, retryable=False)
        self.request = request


class _AgentClient:
    """A model that is the agent: it answers one request with the text that was brought along.

    An answer to another request than `wanted` (see `_id_of`), if that is given, is not used.
    """

    name = AGENT
    default_prompt = "words"
    priced = True
    local = True  # an aborted call is free

    def __init__(self, answer: str | None = None, wanted: str = "") -> None:
        self.answer, self.wanted = answer, wanted

    def complete(self, request: Request) -> Reply:
        if self.answer is None or self.wanted not in ("", _id_of(request)):
            raise _Unanswered(request)
        answer, self.answer = self.answer, None
        return Reply((Completion(answer),), AGENT, 0, 0, 0, cost=0.0)


def _id_of(request: Request) -> str:
    return sha256(request.text.encode()).hexdigest()[:8]


class SearchFolder:
    """Searches in one folder; nothing outside is read or written.

    Agents may have `models` asked, the first by default, beside themselves. `caps` on requests,
    tokens and cost hold for each search. Blocks of Python may import `packages`. To change a
    search, another process that has it open is waited for.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        models: Sequence[str] = ("smollm2",),
        caps: Mapping[str, Any] | None = None,
        wait: float = 120.0,
        packages: Sequence[str] = (),
    ) -> None:
        self._folder = Path(folder).resolve()
        self._models = (*models, AGENT)
        self._caps = {k: v for k, v in (caps or {}).items() if v is not None}
        self._how: dict[str, Any] = {"wait": wait, "packages": packages}
        make_folder(self._folder, "give another --folder")

    # -- files ----------------------------------------------------------------------------

    def _paths(self, name: Any) -> tuple[Path, Path]:
        """Return where description and storage of a search are."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise LLMOptError(
                f"name={str(name)[:80]!r}: expected 1 to 64 letters, digits, - and _, such as "
                "'learning-rate'"
            )
        return self._folder / f"{name}.json", self._folder / f"{name}.jsonl"

    @contextlib.contextmanager
    def _search(
        self, name: Any, client: _AgentClient | None = None, **how: bool
    ) -> Iterator[LLMOptimizer[Any]]:
        described, storage = self._paths(name)
        if not described.exists():
            raise LLMOptError(
                f"there is no search {name!r}; {did_you_mean(name, self._names())}"
                if self._names()
                else f"there is no search {name!r}: create_search makes one"
            )
        opened = self._open(_read(described), storage, client, **how)
        with contextlib.closing(opened) as optimizer:
            yield optimizer

    def _open(
        self,
        description: Mapping[str, Any],
        storage: Path | None,
        client: _AgentClient | None = None,
        **how: bool,  # `asks` and `reads`, as for `open_file`
    ) -> LLMOptimizer[Any]:
        model = description.get("model") or self._models[0]
        if model not in self._models:
            raise LLMOptError(
                f"model={str(model)[:100]!r} may not be asked here: expected one of "
                f"{', '.join(self._models)} (the server's option --model names them)"
            )
        own = {
            k: min(v, description[k]) if _is_number(description.get(k)) else v
            for k, v in self._caps.items()
        }
        changed = {**description, "model": model, **own}
        client = (client or _AgentClient()) if model == AGENT else None
        if client is not None:
            # Its request is no failure to fall back from; and it answers one at a time. It would
            # take a random point for its own: it gets a new request, as often as it needs one.
            changed = {"attempts": MOST_AT_ONCE, "max_fallbacks": 0, **changed}
            changed |= {"on_error": "raise", "batch_size": 1, "model": ""}
        return open_described(changed, storage, self._folder, client=client, **how, **self._how)

    def _names(self) -> list[str]:
        found = sorted(p.stem for p in self._folder.glob("*.json") if not p.is_symlink())
        return [name for name in found if _NAME.fullmatch(name)]

    # -- what an agent may do; `mcp` shows it these words ----------------------------------

    def create_search(
        self,
        name: str,
        space: dict[str, Any] | None = None,
        direction: str | dict[str, str] | None = None,
        model: str | None = None,
        description: str = "",
        constraints: list[str] | None = None,
        start: list[dict[str, Any]] | None = None,
        options: dict[str, Any] | None = None,
        candidates: str | list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Begin a search, or go on with one that was begun with the same arguments.

        Only `candidates`, `constraints` and `forbidden` may differ from those before.

        Args:
            name: Letters, digits, - and _.
            space: A JSON schema for each parameter: {"lr": {"type": "number", "minimum": 1e-5,
                "maximum": 0.1, "log": true}, "layers": {"type": "integer", "minimum": 1,
                "maximum": 6}, "act": {"enum": ["relu", "tanh"]}}. A number may have a
                "unit", such as "°C". A parameter that only some points have says when:
                "when": {"act": "relu", "layers": {">": 2}}.
            direction: "maximize" or "minimize" (needed), or with a name for the score
                {"yield": "maximize"}.
            model: Who proposes points: a model that the server allows, or "agent" for yourself.
            description: The task in words, for the model.
            constraints: Linear inequalities such as "2 * a + b <= 40".
            start: Known points: [{"params": {...}, "words": "the current setting"}].
            options: Further ones: seed, warmup (random points first), partner ("cma" or
                "network"), prompt, noisy, may_stop, points, total, out_of_range, batch_size,
                max_cost, forbidden (combinations: [{"act": "tanh", "layers": 1}]).
            candidates: The only points that exist: objects with the parameters, or the name of a
                .csv file in the folder of the searches. Without `space`, every column is a
                parameter.
        """
        described, storage = self._paths(name)
        given: dict[str, Any] = {"space": space, "direction": direction, "model": model}
        if direction is None:
            del given["direction"]
        given |= {"description": description, "constraints": constraints, "start": start}
        given["candidates"] = candidates
        clash = set(given) & set(options or {})
        if clash:
            raise LLMOptError(f"options: {', '.join(sorted(clash))} is a separate argument")
        kept = {k: v for k, v in given.items() if v is not None} | (options or {})
        text = json.dumps(kept, indent=2)
        if len(text) >= MOST_DESCRIPTION:
            raise LLMOptError(f"the description has more than {MOST_DESCRIPTION} characters")
        if not os.path.lexists(described):
            if len(self._names()) >= _MOST_SEARCHES:
                raise LLMOptError(f"there are {_MOST_SEARCHES} searches in this folder: no more")
            if storage.exists() and not os.path.lexists(described):  # else it was begun meanwhile
                said = f"there is a file {name}.jsonl of something else: take another name"
                raise LLMOptError(said)
            self._open(json.loads(text), None)  # report errors before it is stored
            with contextlib.suppress(FileExistsError):  # another server was quicker
                write_bytes_atomically(described, text.encode() + b"\n", anew=True)
        if _read(described) != json.loads(text):
            there, here = _read(described), json.loads(text)
            other = [k for k in {**there, **here} if there.get(k) != here.get(k)]
            if set(other) - {"candidates", "constraints", "forbidden"}:
                raise LLMOptError(
                    f"there is another search {name!r}, with other {', '.join(other)} ({other[0]}: "
                    f"{short(there.get(other[0]))}): take another name, or give the same"
                )
            with contextlib.closing(self._open(here, storage)):  # whether it accepts them
                write_bytes_atomically(described, text.encode() + b"\n")
        warning = ", ".join(
            f"{key}={kept[key]} is capped: this server allows at most {most}"
            for key, most in self._caps.items()
            if _is_number(kept.get(key)) and kept[key] > most
        )
        return self.status(name) | ({"warning": warning} if warning else {})

    def list_searches(self) -> list[dict[str, Any]]:
        """List the searches that are kept here."""
        found = []
        for name in self._names():
            with contextlib.suppress(LLMOptError):
                data = _read(self._paths(name)[0])
                space = read_description(data, self._folder)["space"]
                found.append(
                    {
                        "name": name,
                        "direction": data["direction"],
                        "parameters": list(getattr(space, "names", space or ())),
                        "model": data.get("model") or self._models[0],
                        "description": str(data.get("description", ""))[:200],
                    }
                )
        return found

    def ask(self, name: str, n: int = 1, fixed: dict[str, Any] | None = None) -> dict[str, Any]:
        """Get the next points to evaluate, or a request that you are to answer first.

        Args:
            name: The search.
            n: How many points; 1 if you are the search's model.
            fixed: Values that these points keep: {"temperature": 80}.
        """
        n = whole_number("n", n, 1, _MOST_POINTS)
        with self._search(name) as optimizer:
            if isinstance(optimizer.client, _AgentClient) and n > 1:
                raise LLMOptError("n: of a search that the agent answers, ask for one at a time")
            return self._ask(optimizer, n, fixed)

    def answer(
        self, name: str, text: str, fixed: dict[str, Any] | None = None, id: str = ""
    ) -> dict[str, Any]:
        """Answer the request of a search whose model you are, and get the point that you named.

        If the answer cannot be used, you get another request that says why.

        Args:
            name: The search.
            text: The answer.
            fixed: As given to ask().
            id: That of the request: if another one waits by now, your answer is refused.
        """
        if not isinstance(text, str) or not text.strip():
            raise LLMOptError("text is empty: expected your answer to the request of ask()")
        if len(text) > _MOST_TEXT:
            raise LLMOptError(f"text: expected an answer of at most {_MOST_TEXT} characters")
        wanted, _, count = str(id).partition("-")
        with self._search(name, _AgentClient(text, wanted)) as optimizer:
            if not isinstance(optimizer.client, _AgentClient):
                raise LLMOptError(f"search {name!r} has its own model: call ask")
            if not optimizer.unanswered:
                raise LLMOptError(
                    "your answer was not used: no request waits for one, perhaps because another "
                    "agent has answered it. ask() returns the next point or request"
                )
            found = self._ask(optimizer, 1, fixed)
            if optimizer.client.answer is not None and "request" in found:
                unused = f"your answer was not used: it is to request {short(id)}, and "
                if count and count != str(len(optimizer.trials)):
                    raise LLMOptError(f"{unused}a result was recorded since. {_SHOWS}")
                raise LLMOptError(
                    f"{unused}{found['id']} waits: another agent asked, `fixed` differs, or a "
                    f"result was changed. {_SHOWS}"
                )
            if optimizer.client.answer is not None:  # a point was queued, say
                found["next"] = f"your answer was not used: no request was due. {found['next']}"
            return found

    def _ask(
        self, optimizer: LLMOptimizer[Any], n: int, fixed: dict[str, Any] | None
    ) -> dict[str, Any]:
        try:
            notices = optimizer.notices(n)
            proposals, warned = optimizer.ask_proposals(n, fixed)
        except _Unanswered as waiting:
            messages = [{"role": m.role, "content": m.content} for m in waiting.request.messages]
            said = "answer these messages, with the id: answer()"
            return {
                "points": [],
                "request": messages,
                "id": f"{_id_of(waiting.request)}-{len(optimizer.trials)}",
                "next": said,
            }
        except ClientError as error:
            if not isinstance(optimizer.client, _AgentClient) or not error.complaint:
                raise
            raise LLMOptError(f"your answer cannot be used: {error.complaint}. {_SHOWS}") from error
        except SearchStopped as end:
            return {"points": [], "next": f"nothing: {end}"}
        assert optimizer.storage is not None
        described = optimizer.storage.with_suffix(".json")
        warned += breaking(optimizer, described, proposals, links=False)
        if optimizer.stopped and len(proposals) < n:
            warned.append(f"{len(proposals)} of {n} points: {optimizer.stopped}")
        found: dict[str, Any] = {"points": [of_proposal(optimizer, p) for p in proposals]}
        found["next"] = "evaluate them, and tell() what each scored"
        return found | ({"warning": " ".join([*notices, *warned])} if notices or warned else {})

    def tell(
        self,
        name: str,
        params: dict[str, Any] | str,
        reward: float | list[float] | dict[str, float] | None = None,
        failed: str = "",  # the SDK reads JSON in a text that may be `None`, too
        feedback: str = "",
        stderr: float | list[float | None] | dict[str, float | None] | None = None,
        constraint_violation: float | None = None,
        data: str = "",
        parts: dict[str, float | None] | None = None,
        instead_of: dict[str, Any] | str | None = None,
        replaces: int | str | None = None,
    ) -> dict[str, Any]:
        """Record a point's result, or why it failed. Points that `ask` did not return are accepted.

        Args:
            name: The search.
            params: The point: its parameters, or its name: "p4" of ask(), or "#4" of prompts.
            reward: Its score; one number for each objective, in order or by its name.
            failed: Why it could not be evaluated, in place of a reward.
            feedback: What was seen, in words, for the model.
            stderr: Standard error of the reward; of several objectives, in order or by name.
            constraint_violation: By how much measured limits were broken.
            data: Name of an .npz or .csv file in the folder of the searches: arrays of this
                evaluation, for the Python of a model that computes.
            parts: Named numbers that the reward is made of: {"yield": 78.8, "waste": 1.0}. With
                `replaces`, null removes one.
            instead_of: The pending point that `params` was measured in place of; `params` may omit
                what is equal, and may then have a number beyond its range.
            replaces: Number, from 1, of a trial whose result was wrong: it gets this one. Or its
                point: "#16" as prompts show it, or "p12" as ask() named it. If `params` is pending,
                the trial's own point is pending again.
        """
        told: dict[str, Any] = {"params": params, "reward": reward, "stderr": stderr}
        told |= {"failed": failed, "feedback": feedback}
        told |= {"constraint_violation": constraint_violation, "parts": parts}
        told |= {"instead_of": instead_of, "replaces": replaces}
        if data:
            if not re.fullmatch(r"[\w-]+\.(npz|csv)", data, re.ASCII):
                raise LLMOptError(
                    f"data={short(data)}: expected the name of an .npz or .csv file in the folder, "
                    "of letters, digits, '-' and '_'"
                )
            told["data"] = _read_data(self._folder / data)
        for key in ("feedback", "failed"):
            if len(str(told[key])) > _MOST_TEXT:
                raise LLMOptError(f"{key}: expected at most {_MOST_TEXT} characters")
        with self._search(name, asks=False) as optimizer:
            (trial,) = tell(optimizer, [{k: v for k, v in told.items() if v not in (None, "")}])
            return {"trial": trial, **leaders(optimizer)}

    def enqueue(self, name: str, params: dict[str, Any] | str, words: str = "") -> dict[str, Any]:
        """Queue your own point for the next ask, with words that say what it is.

        Of a point with some parameters only, the model chooses the others.
        """
        with self._search(name, asks=False) as optimizer:
            return enqueue(optimizer, [params], str(words)[:1000])[0]

    def withdraw(
        self,
        name: str,
        params: dict[str, Any] | str | None = None,
        trial: int | str | None = None,
        feedback: str = "",
    ) -> dict[str, Any]:
        """Drop a pending or queued point that you will not evaluate, or a trial told by mistake.

        Args:
            name: The search.
            params: The point; of a queued point with some parameters, these.
            trial: Number, from 1, of a trial that never happened, or that failed and is to be run
                again. Or its point: "#16" as prompts show it, or "p12" as ask() named it.
            feedback: Why it is withdrawn, in words, for the model.
        """
        with self._search(name, asks=False) as optimizer:
            points = [] if params is None else [params]
            return withdraw(optimizer, points, trial, str(feedback)[:_MOST_TEXT])[0]

    def status(self, name: str) -> dict[str, Any]:
        """Get the best trial, the pending and queued points, and the usage."""
        with self._search(name, reads=True) as optimizer:
            return status(optimizer)

    def trials(self, name: str, last: int = 20) -> list[dict[str, Any]]:
        """Get the latest trials, oldest first."""
        last = whole_number("last", last, 1, 1000)
        with self._search(name, reads=True) as optimizer:
            return numbered(optimizer, optimizer.trials[-last:])


def _read(path: Path) -> dict[str, Any]:
    """Read a description; other processes may write to the folder."""
    return read_mapping(path, most=MOST_DESCRIPTION, links=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read_data(path: Path) -> dict[str, Any]:
    try:
        return read_data_file(path, links=False)
    except DataError as error:
        raise LLMOptError(str(error)) from error
