"""The thoughts of a model that stand in its answer: they are cut before points or code are read."""

from __future__ import annotations

import re

_TAGS = "think|thinking|thought|thoughts|thought_process|reasoning|reflection|scratchpad|seed:think"
_PAIRS = (  # opening and closing marks of each family; both take no further text
    *((rf"<{tag}>", rf"</{tag}>") for tag in _TAGS.split("|")),
    (r"\[THINK\]", r"\[/THINK\]"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"<\|(?:think|thinking)\|>", r"<\|/(?:think|thinking)\|>"),
    ("◁think▷", "◁/think▷"),
    (r"<unused94>", r"<unused95>"),
    (r"<\|channel>thought\b", r"<channel\|>"),
    (r'<details type="reasoning"[^<>\n]{0,80}>', r"</details>"),
)
_MARK = re.compile(
    "|".join(f"(?P<o{i}>{a})|(?P<c{i}>{b})" for i, (a, b) in enumerate(_PAIRS)), re.IGNORECASE
)
_CHANNEL = re.compile(r"<\|channel\|>\s{0,4}(\w{1,20})[^<]{0,80}<\|message\|>")
_TURN = re.compile(r"<\|(?:end|return|call|start)\|>")
_BARE_CHANNELS = re.compile(r"\Aanalysis.*assistantfinal", re.DOTALL)  # by servers that drop marks
_SOLUTION = re.compile(r"<\|(?:begin|end)_of_solution\|>|<\|(?:START|END)_RESPONSE\|>")
_QUOTES = "\"'`"


def cut_thoughts(text: str) -> str:
    """Return an answer without the thoughts that it holds.

    An opening mark without its end hides all that follows; an end without its opening mark (chat
    templates may open it in the prompt) hides all that precedes it. A mark in quotes is text.
    """
    text = _final_channel(text)
    shown: list[str] = []
    start, depth, family = 0, 0, ""
    for mark in _MARK.finditer(text):
        kind, number = str(mark.lastgroup)[0], str(mark.lastgroup)[1:]
        before, after = text[mark.start() - 1 : mark.start()], text[mark.end() : mark.end() + 1]
        if depth:
            if number != family:
                continue
            depth += 1 if kind == "o" else -1
        elif kind == "o":
            if before and before in _QUOTES:
                continue
            shown.append(text[start : mark.start()])
            depth, family = 1, number
        elif (before and before in _QUOTES) or (after and after in _QUOTES):
            continue
        else:
            shown.clear()
        start = mark.end()
    if not depth:
        shown.append(text[start:])
    return _SOLUTION.sub("", "".join(shown))


def _final_channel(text: str) -> str:
    """Return the final channel of an answer in the Harmony format; any other answer whole."""
    channels = list(_CHANNEL.finditer(text))
    if not channels:
        bare = _BARE_CHANNELS.match(text)
        return text[bare.end() :] if bare else text
    if channels[-1][1] != "final":
        return ""
    return _TURN.split(text[channels[-1].end() :], maxsplit=1)[0]
