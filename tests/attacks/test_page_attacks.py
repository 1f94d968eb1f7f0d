"""Pictures of names that somebody else wrote."""

from __future__ import annotations

import pytest

pytest.importorskip("gymnasium")

from llmopt.benchmarks.report.figures import learning_curve

MARKUP = '"><script>alert(1)</script><img src=http://evil.org/x onerror=a()>'


@pytest.mark.parametrize("name", ["$\\frac{$", "$x^$", "\ud800", "a\x00b", "x" * 5000, MARKUP])
def test_a_picture_takes_any_name(name):
    picture = learning_curve({name: [1.0, 2.0]}, warmup=1, title=name, episodes=1)
    assert picture.startswith(b"\x89PNG")
