"""Recorded searches of a strong model, played again without any key: the first requests of each."""

import pytest
from recorded_code import play, recorded
from stubs import needs_confinement

# The task, and how many requests are played. Swimmer's second program read the clock, and was sent
# back with what it returned, which differs each time.
TASKS = {"code-swimmer": ("swimmer", 1), "reward-mountaincar": ("mountaincar", 1)}


@needs_confinement
@pytest.mark.parametrize("name", recorded(*TASKS))
def test_a_recorded_search_is_played_again(name, tmp_path):
    pytest.importorskip("mujoco")
    task, requests = TASKS[name]
    now, before = play(name, task, tmp_path / "run", requests=requests)
    assert now == pytest.approx(before, rel=1e-4)
    assert len(now) == requests
