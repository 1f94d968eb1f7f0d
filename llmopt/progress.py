"""Progress of a search: a bar on a terminal or in a notebook, and lines in a log."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from llmopt.history import Trial, Usage
from llmopt.util.text import clean, cut
from llmopt.util.threads import WAIT_SHOWN

if TYPE_CHECKING:
    from llmopt.results import Results

LINE_SECONDS = 10.0
"""Between two lines of progress in a log."""

WAIT_SECONDS = 10.0
"""Between two signs of life while a model is asked."""


def in_notebook() -> bool:
    """Whether output is shown in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def _has_width() -> bool:
    """Whether the terminal has columns: in some containers its size is 0 x 0."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError, AttributeError):  # no file, or no terminal
        return True


@contextlib.contextmanager
def waiting(
    show: Callable[[str], object] | None = None, what: str = "waiting for the model"
) -> Iterator[None]:
    """Show every ten seconds for how long the model has been asked.

    Args:
        show: Shows a text, in a separate thread; ``None`` shows it in the last line of a terminal.
        what: What is waited for, in words.
    """
    if show is None and not (sys.stderr and sys.stderr.isatty()):
        yield
        return
    began, over = time.monotonic(), threading.Event()

    def tick() -> None:
        ticks = 0
        while not over.wait(WAIT_SECONDS):
            text = f"{what}, {time.monotonic() - began:.0f} s"
            ticks += 1
            if show is None:
                print(f"llmopt: {text}", end="\r", file=sys.stderr, flush=True)
            else:
                show(text)
        if show is None and ticks:
            print("\x1b[K", end="", file=sys.stderr, flush=True)  # clears the line

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    token = WAIT_SHOWN.set(True)
    try:
        yield
    finally:
        WAIT_SHOWN.reset(token)
        over.set()
        thread.join()


class Progress:
    """The progress of a search, and its remaining time.

    Args:
        total: Evaluations in all.
        done: Those made before; not counted for the speed.
        shown: Whether to show it; ``None`` on a terminal and in a notebook only. Elsewhere,
            ``True`` prints a line every ten seconds.
        what: What is done now, in words.
        unit: What is counted.
    """

    def __init__(
        self, total: int, done: int = 0, shown: bool | None = None, what: str = "", unit: str = ""
    ) -> None:
        self.total, self._done, self._begun = max(total, done), done, done
        self._what, self.unit, self._text = what, unit or "trials", ""
        self._started = time.monotonic()
        self._next: dict[str, float] = {}
        self._bar: Any = None
        seen = shown is not False and (sys.stderr.isatty() or in_notebook())
        live = seen and (_has_width() or in_notebook())
        self._lines = not live and (seen or bool(shown))
        if live:
            with warnings.catch_warnings():  # a notebook without ipywidgets shows the text
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
            self._bar = tqdm(
                desc=what or None,
                total=self.total,
                initial=done,
                mininterval=0.2,
                unit=self.unit.split()[0],
            )

    def begin_at(self, done: int, text: str) -> None:
        """Count evaluations of earlier runs."""
        self._done = self._begun = done
        self._text = text
        if self._bar is not None:
            self._bar.initial = self._bar.n = done
            self._bar.set_postfix_str(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if kind is None and self._done > self._begun:
            self.line(now=True)

    @property
    def shown(self) -> bool:
        """Whether progress is shown."""
        return self._lines or self._bar is not None

    def step(self, text: str = "", count: int = 1) -> None:
        """Count evaluations, and show `text`."""
        self._done, self._text = self._done + count, text
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(count)
        self.line()

    def say(self, what: str) -> None:
        """Show the current step; the next line in a log includes it."""
        self._what = what
        if self._bar is not None:
            self._bar.set_description(what)

    @contextlib.contextmanager
    def waiting(self, what: str = "waiting for the model") -> Iterator[None]:
        """Show for how long the model has been asked; in a log after 10, 20, 40, ... seconds."""
        if not self.shown:
            yield
            return
        before, ticks = self._what, itertools.count(1)

        def show(text: str) -> None:
            self.say(text)
            tick = next(ticks)
            if not tick & (tick - 1):
                self.line(now=True)

        try:
            with waiting(show, what):
                yield
        finally:
            if self._what != before:
                self.say(before)

    def tell(self, text: str) -> None:
        """Print a message."""
        text = f"llmopt: {clean(text)}"
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        elif self._lines:
            print(text, file=sys.stderr, flush=True)

    def end(self, reason: str) -> None:
        """Print why the search ended before its last evaluation; nothing if it did not."""
        if reason and self._done < self.total:
            self.tell(f"ended after {self._done} of {self.total} {self.unit}: {reason}")

    def drop(self, count: int) -> None:
        """Skip evaluations that will not take place."""
        self.total -= count
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.refresh()

    def line(self, kind: str = "", *, now: bool = False) -> None:
        """Print a line into a log, if it is time for one of its kind."""
        if not self._lines or (not now and time.monotonic() < self._next.get(kind, 0.0)):
            return
        self._next[kind] = time.monotonic() + LINE_SECONDS
        parts = [f"{self._done}/{self.total} {self.unit}", self._what, self._text, self._left()]
        print(f"llmopt: {', '.join(filter(None, parts))}", file=sys.stderr, flush=True)

    def _left(self) -> str:
        """Return the remaining time at the present speed, in words."""
        made, left = self._done - self._begun, self.total - self._done
        if 10 * made < self.total or left < 1:
            return ""
        seconds = (time.monotonic() - self._started) / made * left
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return (f"{hours}:{minutes:02d}" if hours else f"{minutes}") + f":{seconds:02d} left"


def text_of_search(
    trial: Trial[Any],
    best: Trial[Any] | None,
    usage: Usage,
    front: int = 0,
    metrics: Sequence[str] = (),
) -> str:
    """Return a line with a trial's source, the best reward and the usage.

    `front` is the number of best trials if there are several objectives, and `metrics` are the
    names of the objectives, if they have any.
    """
    parts = [f"{trial.source} {'failed' if trial.reward is None else _number(trial, metrics)}"]
    if front:
        parts.append(f"{front} on the Pareto front")
    elif best is not None:
        parts.append(f"best {_number(best)}")
    if usage.blocks:
        spent = f"{usage.compute_seconds:.0f} s, {usage.block_tokens:,} tokens"
        parts.append(f"{usage.blocks} block{'s' * (usage.blocks > 1)} of Python ({spent})")
    if usage.requests and usage.cost != 0:
        asked = f"{usage.requests} request{'s' * (usage.requests > 1)}"
        parts.append(f"{asked}, cost not known" if usage.cost is None else f"${usage.cost:.4f}")
    return ", ".join(parts)


def _number(trial: Trial[Any], metrics: Sequence[str] = ()) -> str:
    texts = [f"{reward:.6g}" for reward in trial.rewards or ()]
    if len(metrics) == len(texts):
        texts = [f"{cut(name, 20)} {text}" for name, text in zip(metrics, texts, strict=True)]
    return " ".join(texts)


def say_resumed(optimizer: Results[Any], total: int) -> None:
    """Print the progress of a stored search of `total` evaluations that resumes."""
    done, best = optimizer.evaluations, optimizer.history.best
    if optimizer.storage is not None and done:
        found = "no result yet" if best is None else f"best {best.reward}"
        if best is not None and len(optimizer.directions) > 1:
            found = f"{len(optimizer.history.pareto_front)} on the Pareto front"
        print(
            f"llmopt: {optimizer.storage} holds {done} of {max(total, done)} trials, {found}: "
            + ("resuming" if done < total else f"{total} includes these; ask for more to resume"),
            file=sys.stderr,
        )


def say_kept(optimizer: Results[Any]) -> None:
    """Print, after Ctrl-C, where a search is stored and how to resume it."""
    if optimizer.storage is not None:
        print(
            f"llmopt: stopped; everything so far is kept in {optimizer.storage}: run the script "
            "again to resume",
            file=sys.stderr,
        )
