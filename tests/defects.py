"""Run the tests that hold the fixes of the latest review, and list them by its points.

Usage: ``python tests/defects.py [POINT ...]``. Without points it runs all of them. A test names its
points with ``@pytest.mark.defect(4, 11)``. The exit status is that of pytest, or 1 if a point
that needs a test has none.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

POINTS = range(1, 45)
NEED_NO_TEST: set[int] = set()
"""Points about pages, which are read and not tested."""


class ByPoint:
    """Keeps the tests of the asked points, and counts their outcomes for each point."""

    def __init__(self, asked: set[int]) -> None:
        self.asked = asked
        self.points: dict[str, list[int]] = {}
        self.outcomes: dict[int, Counter[str]] = defaultdict(Counter)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept, left = [], []
        for item in items:
            points = [p for mark in item.iter_markers("defect") for p in mark.args]
            (kept if self.asked & set(points) else left).append(item)
            self.points[item.nodeid] = points
        config.hook.pytest_deselected(items=left)
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = "expected to fail" if hasattr(report, "wasxfail") else report.outcome
            for point in self.points[report.nodeid]:
                self.outcomes[point][outcome] += 1


def main() -> int:
    """Return the exit status."""
    asked = {int(word) for word in sys.argv[1:]} or set(POINTS)
    by_point = ByPoint(asked)
    here = Path(__file__).parent
    status = int(pytest.main(["-q", "-p", "no:xdist", str(here)], plugins=[by_point]))
    for point in sorted(asked):
        counts = by_point.outcomes[point]
        shown = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
        needs_test = point not in NEED_NO_TEST
        print(f"{point:3}  {shown or ('NO TEST' if needs_test else 'needs no test')}")
        if not counts and needs_test:
            status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())
