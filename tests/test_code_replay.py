"""Recorded searches of a strong model, played again without any key: the first requests of each."""

import pytest
from recorded_code import play, recorded

from llmopt.code.sandbox.confine import support

TASKS = {"code-swimmer": "swimmer", "reward-mountaincar": "mountaincar"}


@pytest.mark.skipif(bool(support().problems), reason="; ".join(support().problems) or "-")
@pytest.mark.parametrize("name", recorded(*TASKS))
def test_a_recorded_search_is_played_again(name, tmp_path):
    pytest.importorskip("mujoco")
    now, before = play(name, TASKS[name], tmp_path / "run", requests=2)
    assert now == pytest.approx(before, rel=1e-4)
    assert len(now) == 2
