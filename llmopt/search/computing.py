"""The blocks of Python in one ask, whatever the model is asked for: points or code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llmopt.client.base import Reply
from llmopt.prompt.python_block import Computed, blocks_left
from llmopt.search.meter import Meter
from llmopt.search.options import AskOptions

_NOTHING = Computed("", "")  # the latest block before the first


class Blocks:
    """Runs the blocks that a model gives before it answers with what it was asked for.

    Args:
        meter: Stores the output of blocks, and knows the blocks of earlier asks.
        options: Their limits.
        calculator: Runs them (`llmopt.lab.blocks.Calculator`); ``None`` if there may be none.

    Attributes:
        done: The blocks of this ask.
    """

    def __init__(self, meter: Meter, options: AskOptions, calculator: Any) -> None:
        self._meter, self._options, self._calculator = meter, options, calculator
        self.done: tuple[Computed, ...] = ()

    @property
    def seconds_left(self) -> float:
        """Seconds that the model may still compute in this search."""
        return self._options.compute_total - sum(block.seconds for block in self._meter.blocks)

    @property
    def left(self) -> int:
        """How many blocks may follow."""
        if self._calculator is None or self.seconds_left <= 0:
            return 0
        return blocks_left(self.done, self._options.compute_blocks)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that the next block finds."""
        return self._latest.variables

    @property
    def values(self) -> Mapping[str, Any]:
        """The values of the variables that can be a point; see `llmopt.prompt.kept`."""
        return self._latest.values

    @property
    def _latest(self) -> Computed:
        before = self.done or self._meter.blocks
        return before[-1] if before else _NOTHING

    @property
    def workers(self) -> int:
        """Processes for the parallel work of blocks."""
        return getattr(self._calculator, "workers", 0)

    def run(
        self, code: str, data: Callable[[int | None], Mapping[str, Any]], reply: Reply
    ) -> Computed:
        """Run a block of `reply`; see `llmopt.lab.blocks.Data` for `data`.

        A block of an interrupted ask is not run again.
        """
        run = partial(self._calculator.run, code, data=data, seconds=self.seconds_left)
        tokens = (reply.prompt_tokens or 0) + (reply.completion_tokens or 0)
        found = self._meter.compute(code, run, tokens)
        self.done += (found,)
        return found
