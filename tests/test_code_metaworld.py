"""Needs the extra `metaworld`, in an environment of its own: it pins an old MuJoCo."""

import json

import numpy as np
import pytest
from stubs import needs_confinement

pytest.importorskip("metaworld")

from recorded_code import play, recorded

from llmopt import ScriptedClient
from llmopt.benchmarks.code import common, metaworld
from llmopt.benchmarks.code.tasks import find_task
from llmopt.cli import main as cli
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.policy import evaluate_policy, improve, policy_function

pytestmark = pytest.mark.filterwarnings("ignore")

TO_THE_GOAL = """
def controller(obs):
    return [*obs[-3:], 1.0]
"""
TO_THE_PUCK = """
def controller(obs):
    hand, puck, goal = obs[:3], obs[4:7], obs[-3:]
    if np.linalg.norm(hand - puck) > 0.03:
        return [*puck, -1.0]
    return [*goal, 1.0]
"""
PICK_AND_PLACE = """
def controller(obs):
    hand, opened, puck, goal = obs[:3], obs[3], obs[4:7], obs[-3:]
    if np.linalg.norm(hand[:2] - puck[:2]) > 0.02:
        return [puck[0], puck[1], puck[2] + 0.1, -1.0]
    if abs(hand[2] - puck[2]) > 0.05 and puck[2] < 0.04:
        return [puck[0], puck[1], puck[2] + 0.03, -1.0]
    if opened > 0.73:
        return [*hand, 1.0]
    return [*goal, 1.0]
"""


def test_every_task_tells_its_experts_pose():
    names = metaworld.task_names()
    assert len(names) == 50
    observation = np.linspace(0.0, 0.5, 39)
    for name in names:
        expert = metaworld.Expert(name)
        pose, gain = expert.target(observation)
        assert pose.shape == (4,)
        for part, where in expert.parse(np.arange(39.0)).items():
            # What the documentation of an observation calls obs[a:b].
            at = np.atleast_1d(where)
            assert np.array_equal(at, np.arange(at[0], at[0] + len(at))), (name, part)
        assert np.isfinite(pose).all(), name
        assert gain > 0


@pytest.mark.parametrize("name", ["reach-v3", "push-v3", "pick-place-v3", "drawer-open-v3"])
def test_the_experts_poses_solve_the_task(name):
    env = metaworld.make_env(name)
    observation, info = env.reset(seed=1)
    assert name.removesuffix("-v3") in info["language"]["instruction"]
    assert "hand_pos is [" in info["language"]["observation"]
    good = []
    for _ in range(24):
        target, _ = env.env.expert.target(observation)
        assert env.action_space.contains(env.env.wanted(observation))
        observation, _, terminated, _, info = env.step(target)
        good.append(info["verdict"].good is True and not info["verdict"].remarks)
        if terminated:
            break
    assert info["success"]
    assert all(good)
    env.close()


def test_a_pose_out_of_reach_is_suggested_as_far_as_it_goes():
    """The expert of handle-pull-side pulls to a point one metre above."""
    env = metaworld.make_env("handle-pull-side-v3")
    observation, _ = env.reset(seed=0)
    highest = env.action_space.high[2]
    for _ in range(24):
        pose, _ = env.env.expert.target(observation)
        wanted = env.env.wanted(observation)
        if pose[2] > highest:
            break
        observation, _, _, _, info = env.step(wanted)
    assert pose[2] > highest
    assert wanted[2] == highest
    assert f"{highest:.3f}] and" in info["language"]["feedback"]
    stuck = 0
    for _ in range(14):  # the handle resists: the hand does not get there, and yet it is right
        before, wanted = observation[:3], env.env.wanted(observation)
        observation, _, _, _, info = env.step(wanted)
        was, now = (np.linalg.norm(wanted[:3] - hand) for hand in (before, observation[:3]))
        stuck += now > max(was, 0.02)
        assert info["verdict"].good is True
    assert stuck
    env.close()


def test_a_move_is_judged_against_the_experts():
    env = metaworld.make_env("pick-place-v3")
    observation, _ = env.reset(seed=0)
    away = np.append(observation[:3] + np.array([0.0, 0.0, 0.2]), 1.0)
    info = env.step(away)[4]
    assert info["verdict"].good is False
    words = info["language"]["feedback"]
    for part in ("The reward of this step", "bad move", "open the gripper", "Next, move the hand"):
        assert part in words
    env.close()


@needs_confinement
def test_the_command_solves_it_and_asks_no_more(monkeypatch, tmp_path, capsys):
    def give(*sources):
        client = ScriptedClient([f"```python\n{s}```" for s in sources])
        monkeypatch.setattr(common, "get_client", lambda name: client)
        return client

    give(TO_THE_GOAL, PICK_AND_PLACE)
    folder = tmp_path / "run"
    task = "metaworld:pick-place-v3"
    out = ["--no-gif", "--out", str(folder)]
    assert cli(["code", task, "--model", "m", "--steps", "5", "--held-out", "3", *out]) == 0
    assert (
        "solved: try 2 has the highest possible score, 1; 3 tries are left over"
        in capsys.readouterr().out
    )  # solved: steps are left over
    assert json.loads((folder / "held_out.json").read_text())["success rate"] == 1.0
    client = give()
    assert cli(["code", task, "--resume", *out, "--held-out", "2"]) == 0
    assert not client.requests
    assert json.loads((folder / "held_out.json").read_text())["starts"] == 2


def test_a_task_that_does_not_exist(tmp_path, capsys):
    assert cli(["code", "metaworld:pick-plce-v3", "--out", str(tmp_path / "run")]) == 2
    assert "did you mean 'pick-place-v3'" in capsys.readouterr().err


@needs_confinement
def test_pick_place_is_solved_on_held_out_goals_after_three_steps_of_feedback():
    client = ScriptedClient(
        [f"```python\n{s}```" for s in (TO_THE_GOAL, TO_THE_PUCK, PICK_AND_PLACE)]
    )
    env = metaworld.make_env("pick-place-v3")
    held_out = metaworld.make_env("pick-place-v3", held_out=True)
    with CodeOptimizer(policy_function(env), client=client, seed=0) as optimizer:
        improve(
            optimizer, env, range(3), 10,
            measure=lambda s: s.success_rate + s.mean_return / 1e4,
            done=lambda s: s.success_rate == 1.0,
        )  # fmt: skip
        assert len(optimizer.trials) == 3
        with optimizer.candidate(optimizer.best) as best:
            score = evaluate_policy(best, held_out, range(20))
        with optimizer.candidate(optimizer.trials[0]) as first:
            assert evaluate_policy(first, held_out, range(3)).success_rate == 0.0
    assert score.success_rate >= 0.9
    shown = client.requests[1].text
    for part in ("NOT done", "hand_pos is [", "gripper"):
        assert part in shown


def test_code_is_told_what_success_is_and_what_a_call_can_do():
    for name in ("pick-place", "door-open", "button-press"):
        task = find_task(f"metaworld:{name}-v3")
        assert task.cap == 30
        assert task.highest == 1.0
        assert " m of the goal" in task.notes.splitlines()[0]
        assert "up to 20 steps of simulation" in task.notes
        assert "0.045 m below hand_pos" in task.doc
        env = task.make(False)
        observation, _ = env.reset(seed=0)
        info = env.step(env.env.wanted(observation))[4]
        assert info["distance"] > 0.02
        env.close()


@needs_confinement
@pytest.mark.parametrize(
    "name", recorded(*(f"code-{task}" for task in ("pick-place", "push", "door-open")))
)
def test_a_recorded_search_is_played_again(name, tmp_path):
    task = f"metaworld:{name.removeprefix('code-')}-v3"
    now, before = play(name, task, tmp_path / "run", requests=3)
    assert now
    assert now == before
