"""``llmopt withdraw FILE``: drop pending or queued points that will not be evaluated."""

from __future__ import annotations

import argparse
import contextlib
import json

from llmopt.service.enqueue import add_points as add_arguments
from llmopt.service.enqueue import points_of
from llmopt.service.search_file import open_file, status

__all__ = ["add_arguments", "main"]


def main(args: argparse.Namespace) -> int:
    """Drop the points, and print where the search stands."""
    points = points_of(args)
    with contextlib.closing(open_file(args.file, wait=args.wait, asks=False)) as optimizer:
        for point in points:
            optimizer.withdraw(point)
        print(json.dumps(status(optimizer), indent=2))
    return 0
