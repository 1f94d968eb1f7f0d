"""Needs the extra `metaworld`, in an environment of its own: it pins an old MuJoCo."""

import numpy as np
import pytest

pytest.importorskip("metaworld")

from llmopt import ScriptedClient
from llmopt.code import metaworld
from llmopt.code.confine import support
from llmopt.code.optimizer import CodeOptimizer
from llmopt.code.policy import evaluate_policy, improve, policy_function
from llmopt.code.tasks import find_task
from llmopt.errors import LLMOptError

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
        pose, gain = metaworld.Expert(name).target(observation)
        assert pose.shape == (4,)
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
        observation, _, terminated, _, info = env.step(target)
        good.append(info["verdict"].good)
        if terminated:
            break
    assert info["success"]
    assert sum(good) >= len(good) - 1
    env.close()


def test_a_move_is_judged_against_the_experts():
    env = metaworld.make_env("pick-place-v3", paraphrase_seed=None)
    observation, _ = env.reset(seed=0)
    away = np.append(observation[:3] + np.array([0.0, 0.0, 0.2]), 1.0)
    info = env.step(away)[4]
    assert info["verdict"].good is False
    words = info["language"]["feedback"]
    for part in ("The reward of this step", "bad move", "open the gripper", "Next, move the hand"):
        assert part in words
    env.close()


def test_held_out_goals_are_other_goals():
    train, held_out = (metaworld.TargetPose("reach-v3", held_out=h) for h in (False, True))
    goals = [
        {tuple(env.reset(seed=k)[0][-3:].round(6)) for k in range(env.goals)}
        for env in (train, held_out)
    ]
    assert len(goals[0]) == len(goals[1]) == 50
    assert not goals[0] & goals[1]
    again = metaworld.TargetPose("reach-v3")
    assert np.array_equal(again.reset(seed=7)[0], train.reset(seed=7)[0])


def test_unknown_task():
    with pytest.raises(LLMOptError, match="did you mean 'pick-place-v3'"):
        metaworld.make_env("pick-place")


def test_the_command_lines_task_says_where_things_are_in_an_observation():
    task = find_task("metaworld:pick-place-v3")
    assert "puck_pos = obs[4:7]" in task.doc
    assert "goal_pos = obs[36:39]" in task.doc
    assert "pick-place" in task.objective


@pytest.mark.skipif(bool(support().problems), reason="; ".join(support().problems) or "-")
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
