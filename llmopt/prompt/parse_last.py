"""Reading answers that reason first and give the point last, and the hypothesis in them.

`parse_parameters` takes the first point of an answer. Where the prompt asks for a critique
before the values, that may be a point which the critique quotes; `parse_last` takes the
last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from llmopt.errors import ParseError
from llmopt.prompt.parse import (
    MAX_EXPLANATION,
    OutOfRange,
    Reading,
    parse_parameters,
    strip_thinking,
)
from llmopt.space import Space
from llmopt.text import cut

_MAX_HYPOTHESIS = 240  # characters shown again for each hypothesis
_MAX_BLOCKS = 20  # the point stands in one of the last; more would only cost time
MARKER = re.compile(
    r"(?<=[.!?][ ])proposal:[ ]?"
    r"|^[ \t>#*_`\-]{0,12}(?:\d{1,2}[.)][ \t]{0,3})?[*_]{0,3}"
    r"(?:(?:new|next|final|my|the|proposed|updated|revised|chosen)[ ]){0,3}"
    r"(?:proposal|proposed point|parameters?|params|answer|point|policy)"
    r"(?:[ ]\(?(?:\w{1,12}(?:[ ]|(?!\w))){0,4}\)?)?[ \t*_`]{0,6}(?::|$)[ \t*_`]{0,6}",
    re.IGNORECASE | re.MULTILINE,
)
_HYPOTHESIS = re.compile(
    r"(?:^[ \t>#*_`\-]{0,12}(?:\d{1,2}[.)][ \t]{0,3})?[*_]{0,3}|(?<=[.!?][ ]))"
    r"(?:(?:new|my|the|working|current|next)[ ]){0,2}"
    r"hypothes[ei]s(?:[ ]\w{1,12}){0,3}[ \t*_`]{0,6}(?::|[–—-](?=[ ])|$)[ \t*_`]{0,6}",
    re.IGNORECASE | re.MULTILINE,
)
_HEADING = re.compile(
    r"^[ \t>#*_`\-]{0,12}(?:critique|analysis|proposal|parameters?|params|answer|plan|rationale|"
    r"start(?:ing)? from|lesson|expected|next steps?)[ \t*_`]{0,6}:"
    r"|^[ \t]{0,3}(?:#{1,6}[ ]|```)|\n[ \t]*\n",
    re.IGNORECASE | re.MULTILINE,
)
_BLOCK_END = re.compile(r"\n[ \t]*\n|^[ \t]{0,8}```[^\n`]*$", re.MULTILINE)
_SCORED = re.compile(r"(?<!\w)f[ ]?=")  # a line of the history, quoted
_STYLED = re.compile(
    r"\\(?:text(?:tt|bf|it|rm)?|math(?:rm|bf|it|tt|sf)|operatorname|boxed)\s{0,4}\{([^{}]*)\}"
)
_SPACING = re.compile(r"\\(?:left|right|q?quad|[,;:!]|(?:begin|end)\{\w{1,20}\*?\})|[$&]")
_INDEX = re.compile(r"(?<=\w)_(?:(\d{1,6})(?!\w)|\{(\d{1,6})\})")
_RULE = re.compile(r"^[ \t]{0,8}\|?[ \t:|-]{0,200}-[ \t:|-]{0,200}$\n?", re.MULTILINE)
_ROW = re.compile(r"^[ \t]{0,8}\|(.*)\|[ \t]{0,8}$", re.MULTILINE)
_OPEN_FENCE = re.compile(r"```\w{0,20}[ \t]*$")
_QUOTES = str.maketrans({'"': "'", "“": "'", "”": "'"})


def parse_last(
    text: str,
    space: Space,
    *,
    labels: Sequence[str] | None = None,
    out_of_range: OutOfRange = "clip",
) -> Reading:
    """Read the last point of an answer, with the reasons around it.

    The point is looked for behind the last heading such as ``Proposal:``, then in the last
    paragraphs or code blocks that name the parameters. Without such a heading it may also
    be a paragraph of nothing but numbers, or stand anywhere, as in `parse_parameters`.
    LaTeX and Markdown tables are understood.

    Args:
        text: The answer.
        space: The search space.
        labels: As for `parse_parameters`.
        out_of_range: As for `parse_parameters`.

    Returns:
        The point; its ``explanation`` is the text before it, then the text after it.

    Raises:
        ParseError: There is no point in the text, or it is refused for its range.
    """
    try:
        return _parse_last(text, space, labels, out_of_range)
    except ParseError as error:
        reason = error.reason.replace("the first line must", "the line after `Proposal:` must")
        raise ParseError(reason, text) from error


def _parse_last(
    text: str, space: Space, labels: Sequence[str] | None, out_of_range: OutOfRange
) -> Reading:
    answer = strip_thinking(text)
    names = tuple(labels) if labels is not None else space.names
    marks = list(MARKER.finditer(answer))
    trouble: ParseError | None = None
    for start, block in _candidates(answer, names, marks):
        try:
            reading = parse_parameters(block, space, labels=labels)
        except ParseError as error:
            trouble = trouble or error
            continue
        if reading.clipped:  # refused here if at all: an earlier point was not meant
            parse_parameters(block, space, labels=labels, out_of_range=out_of_range)
        before = _OPEN_FENCE.sub("", answer[:start].rstrip()).strip()
        reasons = f"{before}\n\n{reading.explanation}".strip()
        return Reading(reading.values, reasons[:MAX_EXPLANATION], reading.clipped)
    if marks and trouble is not None:  # points elsewhere belong to the critique
        raise trouble
    return parse_parameters(text, space, labels=labels, out_of_range=out_of_range)


def _candidates(
    text: str, names: tuple[str, ...], marks: Sequence[re.Match[str]]
) -> Iterator[tuple[int, str]]:
    """Yield where the point may stand, the likeliest first: position and text."""
    for mark in reversed(marks[-4:]):
        yield mark.start(), text[mark.end() :]
        yield mark.start(), _plain(text[mark.end() :], names)
    starts = [0, *(m.end() for m in _BLOCK_END.finditer(text))]
    ends = [*(m.start() for m in _BLOCK_END.finditer(text)), len(text)]
    for start, end in list(zip(starts, ends, strict=True))[: -_MAX_BLOCKS - 1 : -1]:
        block = text[start:end]
        if _SCORED.search(block):
            continue
        bare = re.sub(r"[\s\\]", "", block)
        named = all(re.sub(r"[\s\\]", "", name) in bare for name in (names[0], names[-1]))
        if named or (not marks and bare and sum(map(str.isalpha, bare)) <= 12):
            yield start, block


def _plain(text: str, names: tuple[str, ...]) -> str:
    """Return LaTeX and Markdown tables as plain text."""
    for _ in range(3):  # nested
        text = _STYLED.sub(r"\1", text)
    text = _SPACING.sub(" ", text.replace("\\\\", ", "))
    if names[0].endswith("]"):
        text = _INDEX.sub(r"[\1\2]", text)
    return _ROW.sub(_row, _RULE.sub("", text)).replace("\\", "")


def _row(row: re.Match[str]) -> str:
    cells = [cell.strip() for cell in row[1].split("|")]
    pair = len(cells) == 2 and any(map(str.isalpha, cells[0]))
    return (": " if pair else ", ").join(cells)


def hypothesis_of(explanation: str) -> str:
    """Return the hypothesis in a model's explanation, in one short line.

    Args:
        explanation: The model's words about a point.

    Returns:
        The text of its last ``Hypothesis:``; without one, how the explanation begins.
        At most 240 characters without line breaks or double quotes.
    """
    marks = list(_HYPOTHESIS.finditer(explanation))
    text = explanation[marks[-1].end() :].lstrip() if marks else explanation.strip()
    end = _HEADING.search(text)
    if end is not None and end.start() > 0:
        text = text[: end.start()]
    # Marks of chat templates must not come back as such through a server that reads them.
    text = text.replace("\x00", " ").replace("<|", "< |").replace("**", "").translate(_QUOTES)
    return cut(" ".join(text.split()), _MAX_HYPOTHESIS)
