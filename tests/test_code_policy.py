import math
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stubs import needs_confinement

from llmopt import ScriptedClient
from llmopt.benchmarks.code.tasks import CodeTask, classic, find_task
from llmopt.benchmarks.code.write_policy import told_of
from llmopt.code.candidate import Candidate
from llmopt.code.checks import Function, Output
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.language import PHRASES
from llmopt.code.policy import (
    CodeEpisode,
    PolicyScore,
    evaluate_policy,
    improve,
    policy_function,
    reward_parts,
    run_episode,
)
from llmopt.code.secret_seeds import Starts
from llmopt.errors import BrokenTaskError, StorageError
from llmopt.sandbox.failure import CandidateError
from llmopt.sandbox.sandbox import Sandbox

CAR = "MountainCarContinuous-v0"
PUMP = "def controller(obs):\n    return [40 * obs[1]]\n"
IDLE = "def controller(obs):\n    return [0.0]\n"
PUSH = "def controller(obs):\n    return [1.0]\n"


@pytest.fixture
def car():
    env = classic.make_env(CAR)
    yield env
    env.close()


def candidate_of(source, env):
    return Candidate(source, [policy_function(env)], Sandbox)


def reached(total, info):
    return total > 90


class TestLanguage:
    def test_the_wrapper_changes_neither_rewards_nor_observations(self, car):
        plain = gym.make(CAR)
        actions = np.random.default_rng(0).uniform(-1, 1, (50, 1)).astype(np.float32)
        a, _ = plain.reset(seed=3)
        b, info = car.reset(seed=3)
        assert np.array_equal(a, b)
        assert "valley" in info["language"]["instruction"]
        for action in actions:
            one, two = plain.step(action), car.step(action)
            assert np.array_equal(one[0], two[0])
            assert one[1:4] == two[1:4]
            assert f"{one[1]:.3g}" in two[4]["language"]["feedback"]

    @pytest.mark.filterwarnings("ignore")
    def test_it_passes_gymnasiums_own_check(self):
        check_env(classic.make_env(CAR), skip_render_check=True)

    def test_feedback_says_whether_a_move_was_good(self):
        env = classic.make_env(CAR)
        env.reset(seed=1)
        for _ in range(5):
            env.step([1.0])
        good, bad = (env.step([force])[4]["language"]["feedback"] for force in (1.0, -1.0))
        assert good.endswith(PHRASES["good"])
        assert PHRASES["bad"] in bad
        assert "energy" in bad


@needs_confinement
class TestEvaluation:
    def test_a_failing_policy_says_where(self, car):
        source = "def controller(obs):\n    return [1 / (obs[1] - obs[1])]\n"
        with candidate_of(source, car) as candidate, np.errstate(all="ignore"):
            score = evaluate_policy(candidate, car, [1, 2])
        assert len(score.episodes) == 1
        assert "At start 1, in step 1, at obs=[-0.498  0.   ]" in score.failure
        assert "line 2" in score.failure or "inf" in score.failure

    def test_actions_are_clipped_and_checked(self, car):
        with candidate_of("def controller(obs):\n    return 7.0\n", car) as candidate:
            assert np.array_equal(candidate(np.zeros(2)), [1.0])
        with candidate_of("def controller(obs):\n    return [1.0, 2.0]\n", car) as candidate:
            with pytest.raises(CandidateError, match="shape"):
                candidate(np.zeros(2))


class Coins(gym.Env):
    """Each step guesses the next draw of the environment's generator; the first one is shown."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 40
        return self.np_random.random(1), {}

    def step(self, action):
        self.left -= 1
        coin = self.np_random.random() < 0.5
        return np.zeros(1), float(bool(action) == coin), self.left == 0, False, {}


@needs_confinement
class TestStarts:
    def test_no_prompt_holds_a_seed(self):
        seeds = Starts.draw().selection(2)
        failing = "```python\ndef controller(obs):\n    return 1 // int(obs[0] * 0)\n```"
        heads = "```python\ndef controller(obs):\n    return 1\n```"
        client = ScriptedClient([failing, heads, "no"])
        function = Function("controller(obs)", output=Output("int", low=0, high=1))
        with CodeOptimizer(function, client=client, seed=0, attempts=1) as optimizer:
            improve(optimizer, Coins(), seeds, 3)
        texts = "".join(request.text for request in client.requests)
        assert "At start 1, in step 1" in texts
        assert "- start 2: return" in texts
        assert not any(str(seed)[:12] in texts for seed in seeds)


TABLES = """
tables = None
def controller(obs):
    global tables
    if tables is None:
        tables = [np.ones(1 << 20) for _ in range(12)]
        kept = list(range(1 << 20))
        np.kept = getattr(np, "kept", []) + [tables, kept]  # where a reload does not free it
    return [40 * obs[1]]
"""


@needs_confinement
@pytest.mark.defect(4)
def test_what_an_episode_left_does_not_end_a_later_one():
    with gym.make("MountainCarContinuous-v0") as env:
        function = policy_function(env)
        with Candidate(TABLES, [function]) as candidate:
            score = evaluate_policy(candidate, env, range(8), cap=3)
    assert not score.failed
    assert "The first call of an episode took" in score.feedback()
    assert "MB of memory." in score.feedback()


def test_starts_come_from_a_secret_and_a_seed():
    starts = Starts.draw(seed=3)
    again = Starts.from_dict(starts.to_dict())
    assert again == starts
    assert starts.held_out(3) == again.held_out(5)[:3]
    other = Starts.draw(seed=3), Starts(starts.secret, 4), Starts(starts.secret, 3, 1)
    for one in (starts, *other):
        seeds = [*one.selection(50), *one.held_out(50)]
        assert len(set(seeds)) == 100
    assert len({one.selection(1)[0] for one in (starts, *other)}) == 4
    assert max(Starts(7, 0, 1).selection(50)) < 2**31 < min(Starts(7).selection(50))
    assert Starts(None).held_out(3) == [1, 3, 5]
    assert hex(starts.secret)[2:] not in repr(starts)

    class Old(Coins):
        def reset(self, *, seed=None, options=None):
            np.random.RandomState(seed)
            return super().reset(seed=seed)

    assert starts.fit(Coins()) is starts
    assert starts.fit(Old()).words == 1
    for data in ({}, {"secret": "x", "seed": 0, "words": 4}, {"secret": 5, "seed": 0, "words": 4}):
        with pytest.raises(StorageError, match="seeds are malformed"):
            Starts.from_dict(data)


class Faulty(Coins):
    """Goes wrong in its second step in the way it is told."""

    how = ""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.left == 38 and self.how == "raise":
            raise RuntimeError("\x1b[2J the motor burnt\nout")
        reward = {"nan": math.nan, "inf": -math.inf}.get(self.how, reward)
        info = {"verdict": "guilty", "language": "C", "success": np.zeros(2)}
        return observation, reward, *rest[:2], info if self.how == "info" else None


@needs_confinement
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "in step 2.*the environment raised RuntimeError"),
        ("nan", "the reward of step 1 is nan"),
        ("inf", "the reward of step 1 is -inf"),
        ("info", ""),
        ("", ""),
    ],
)
def test_what_an_environment_does_wrong_ends_no_search(how, reason, tmp_path):
    env = Faulty()
    env.how = how
    answers = [f"```python\ndef controller(obs):\n    return {k}\n```" for k in (0, 1)]
    function = Function("controller(obs)", output=Output("int", low=0, high=1))
    for k in (1, 2):  # the second time it goes on from the file
        client = ScriptedClient(answers[k - 1 :])
        with CodeOptimizer(function, client=client, seed=0, storage=tmp_path / "s") as optimizer:
            improve(optimizer, env, [5, 6], k)
            assert len(optimizer.trials) == k
            trial = optimizer.trials[-1]
            assert (trial.reward is None) == bool(reason)
            assert not reason or re.search(reason, trial.feedback)


@needs_confinement
class TestImprove:
    def test_mountaincar_over_episodes(self, car):
        client = ScriptedClient([f"```python\n{s}```" for s in (IDLE, PUSH, PUMP)], name="scripted")
        function = policy_function(car, doc="obs: position, velocity.")
        with CodeOptimizer(function, client=client, seed=0) as optimizer:
            improve(
                optimizer, car, [2, 4], 5,
                success=reached, done=lambda score: score.success_rate == 1.0,
            )  # fmt: skip
            assert len(optimizer.trials) == 3  # it stops when it is done
            best = optimizer.candidate(optimizer.best)
            with best:
                held_out = evaluate_policy(best, gym.make(CAR), range(101, 107, 2), success=reached)
        assert held_out.success_rate == 1.0
        assert held_out.mean_return > 90
        assert "almost no speed" in client.requests[1].text
        assert "NOT reach" in client.requests[2].text
        assert "You now write try 3; 2 are left after it." in client.requests[2].text


def made(number, total, length, success, reward=0.0, failure=""):
    return CodeEpisode(
        number, total, length, "", failure, number=number, success=success, reward=reward
    )


def test_a_failed_episode_is_no_success_and_leaves_no_mean():
    broken = made(1, None, 0, None, failure="x")
    score = PolicyScore((made(0, 1.0, 1, True), broken))
    assert score.success_rate == 0.5
    assert score.mean_return is score.held_return is None
    assert "failed at 1 of 2 starts, so it has no score" in score.summary()
    assert PolicyScore((made(0, 1.0, 1, None), broken)).success_rate is None
    told = told_of(score)
    assert (told["mean return"], told["standard error"]) == (None, None)
    assert (told["failed starts"], told["failure"]) == (1, "x")
    with pytest.raises(ValueError, match="no score: x"):
        find_task("mountaincar").score(score)


def test_ties_of_success_are_broken_by_the_return_then_by_steps():
    task = CodeTask("t", "t", "", "", lambda held_out: None, 24, "success", highest=1.0)

    def score(*episodes):
        return task.score(PolicyScore(tuple(episodes), cap=24))

    lost = made(2, 24.0, 24, False)
    soon = score(made(0, 20.0, 5, True, reward=10.0), lost)
    late = score(made(0, 40.0, 20, True, reward=10.0), lost)
    assert soon[0] == late[0] == 0.5
    assert soon > late  # though its plain return is smaller
    assert late > score(made(0, 2400.0, 24, False), lost)
    assert score(made(0, 9.0, 9, True)) > score(made(0, 9.0, 10, True))
    assert task.solved(score(made(0, 9.0, 9, True))[0])
    assert not task.solved(soon[0])
    assert "highest possible score is 1" in task.scoring(5)


def test_an_account_names_the_parts_the_steps_the_end_and_the_distances():
    env = TargetDistance(gym.make("Swimmer-v5"))
    episode = run_episode(lambda obs: np.ones(2), env, 4, cap=30, number=3)
    account = episode.account()
    assert account.startswith("- start 3: return ")
    assert "reward_forward" in account
    assert "30 steps, step limit" in account
    assert "distance to success: 1 (step 1)" in account
    assert "0.0333 (step 30)" in account
    assert math.isclose(sum(episode.parts.values()), episode.total, abs_tol=1e-9)
    assert "Step 16: obs=[" in episode.feedback
    env.close()


class TargetDistance(gym.Wrapper):
    distance = "far"

    def reset(self, **options):
        self.steps = 0
        return self.env.reset(**options)

    def step(self, action):
        self.steps += 1
        *rest, info = self.env.step(action)
        return *rest, {**info, "far": 1 / self.steps}


@needs_confinement
def test_an_environment_that_does_nothing_but_fail_ends_the_search_after_five():
    def client():
        answers = [f"```python\ndef controller(obs):\n    return {k} % 2\n```" for k in range(9)]
        return ScriptedClient(answers)

    env = Faulty()
    env.how = "raise"
    function = Function("controller(obs)", output=Output("int", low=0, high=1))
    with CodeOptimizer(function, client=client(), seed=0) as optimizer:
        with pytest.raises(BrokenTaskError, match=r"none of 5 evaluations.*motor burnt"):
            improve(optimizer, env, [5], 9)
        assert len(optimizer.trials) == 5
    # What the code itself does wrong is for the model to mend.
    env.how = ""
    failing = [f"```python\ndef controller(obs):\n    return [].pop() + {k}\n```" for k in range(7)]
    with CodeOptimizer(function, client=ScriptedClient(failing), seed=0) as optimizer:
        improve(optimizer, env, [5], 7)
        assert [t.reward for t in optimizer.trials] == [None] * 7


def test_the_parts_of_a_reward_are_finite_numbers_of_one_step():
    info = {"reward_up": np.float32(2), "reward_huge": 10**400, "reward_none": None, 3: 1.0}
    info |= {"reward_total": 9.0, "reward_nan": math.nan, "x": 1.0}
    assert reward_parts(info) == {"reward_up": 2.0}
