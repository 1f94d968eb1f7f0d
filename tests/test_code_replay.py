"""Recorded searches of a strong model, played again without any key."""

import pytest
from recorded_code import play, recorded

from llmopt.code.sandbox.confine import support

TASKS = {"code-swimmer": "swimmer", "reward-mountaincar": "mountaincar"}


@pytest.mark.skipif(bool(support().problems), reason="; ".join(support().problems) or "-")
@pytest.mark.parametrize("name", recorded(*TASKS))
def test_a_recorded_search_is_played_again(name, tmp_path):
    pytest.importorskip("mujoco")
    held_out, before = play(name, TASKS[name], tmp_path / "run")
    assert held_out["mean return"] == pytest.approx(before["held_out"]["mean return"], rel=1e-3)
    assert len(list((tmp_path / "run" / "candidates").glob("*.py"))) == len(before["candidates"])
