import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from llmopt import ScriptedClient
from llmopt.benchmarks.code.tasks import CodeTask, classic, find_task
from llmopt.code.candidate import Candidate
from llmopt.code.checks import Function, Output
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.failure import CandidateError
from llmopt.code.language import PHRASES, LanguageFeedback, Verdict
from llmopt.code.policy import (
    Episode,
    PolicyScore,
    evaluate_policy,
    improve,
    improve_within_episode,
    policy_function,
    run_episode,
)
from llmopt.code.sandbox.confine import support
from llmopt.code.sandbox.sandbox import Sandbox
from llmopt.errors import LLMOptError

needs_confinement = pytest.mark.skipif(
    bool(support().problems), reason="; ".join(support().problems) or "-"
)
CAR = "MountainCarContinuous-v0"
PUMP = "def controller(obs):\n    return [11.5 * obs[1]]\n"
IDLE = "def controller(obs):\n    return [0.0]\n"
PUSH = "def controller(obs):\n    return [1.0]\n"


@pytest.fixture
def car():
    env = classic.make_env(CAR)
    yield env
    env.close()


def candidate_of(source, env, worker_env=None):
    return Candidate(source, [policy_function(env)], lambda: Sandbox(env=worker_env))


FOLD = np.array([1.0, -1.0])
STIFF = "def controller(obs):\n    return [1.0, -1.0]\n"
FOLDING = """
t = 0
def controller(obs):
    global t
    t += 1
    return [math.sin(0.15 * t), -math.sin(0.15 * t)]
"""
WAVE = """
def controller(obs):
    first, second = obs[1], obs[2]
    return [-4 * second, 4 * first]
"""


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

    def test_the_wording_has_its_own_seed(self):
        def words(seed, start=0):
            env = classic.make_env(CAR, paraphrase_seed=seed)
            env.reset(seed=start)
            return [env.step([1.0])[4]["language"]["feedback"] for _ in range(12)]

        assert words(1) == words(1)
        assert words(1) != words(2)
        openings = {w.split("0.")[0] for w in words(1)}
        assert len(openings) > 1
        assert all(w.startswith("The reward of this step") for w in words(None))

    @pytest.mark.filterwarnings("ignore")
    def test_text_observations_pass_gymnasiums_own_check(self):
        env = LanguageFeedback(gym.make(CAR), classic.MountainCarTeacher(), observation="text")
        observation, info = env.reset(seed=1)
        assert observation in env.observation_space
        assert set(observation) == {"instruction", "observation", "feedback"}
        assert info["observation"].shape == (2,)
        check_env(classic.make_env(CAR), skip_render_check=True)

    def test_kinds_of_feedback(self):
        def words(kinds, force):
            env = classic.make_env(CAR, feedback=kinds, paraphrase_seed=None)
            env.reset(seed=1)
            for _ in range(5):
                out = env.step([1.0])
            return env.step([force])[4]["language"]["feedback"], out

        assert words((), 1.0)[0] == ""
        assert words(("hp",), 1.0)[0] == PHRASES["good"][0]
        bad = words(("hn",), -1.0)[0]
        assert bad.startswith(PHRASES["bad"][0])
        assert "energy" in bad
        with pytest.raises(ValueError, match="fp"):
            classic.make_env(CAR, feedback=("x",))

    def test_a_verdict_of_numpy_is_said(self, car):
        """``np.False_ is False`` is false."""

        class Strict(classic.MountainCarTeacher):
            def judge(self, before, action, after):
                return Verdict(np.float64(action[0]) > 0)

        env = LanguageFeedback(gym.make(CAR), Strict(), paraphrase_seed=None)
        for force, key in ((1.0, "good"), (-1.0, "bad")):
            env.reset(seed=1)
            info = env.step([force])[4]
            assert PHRASES[key][0] in info["language"]["feedback"]
        assert Verdict(np.True_).good is True
        assert Verdict().good is None

    def test_the_wording_begins_anew(self, car):
        def words(*key):
            car.reset(seed=1)
            car.reword(*key)
            return [car.step([1.0])[4]["language"]["feedback"] for _ in range(12)]

        assert words(3, 1) == words(3, 1)
        assert words(3, 1) != words(4, 1)

    def test_a_remark_is_told_though_the_move_was_good(self):
        class Picky(classic.MountainCarTeacher):
            def judge(self, before, action, after):
                return Verdict(True, ("Mind the paint.",) if len(env._seen) == 30 else ())

        env = LanguageFeedback(gym.make(CAR), Picky())
        told = run_episode(lambda obs: [0.1], env, 1, cap=60).feedback
        assert told.count("Step ") == 8  # the start, the middle, the end, and this one
        assert "Step 30:" in told
        assert "Mind the paint" in told

    def test_summaries_say_what_happened(self, car):
        lazy = run_episode(lambda obs: [0.0], car, 1, cap=100)
        assert "NOT reach" in lazy.feedback
        assert "almost no speed" in lazy.feedback
        good = run_episode(lambda obs: [11.5 * obs[1]], car, 1)
        assert "reached the flag" in good.feedback
        assert "better than" not in good.feedback  # one episode is not compared with others
        assert good.total > 90

    def test_swimmer(self):
        pytest.importorskip("mujoco")
        env = classic.make_env("Swimmer-v5")
        still = run_episode(lambda obs: np.zeros(2), env, 0, cap=60)
        assert "hardly moved" in still.feedback
        phase = iter(np.arange(0, 60, 0.1))

        def wave(obs):
            t = 2 * next(phase)
            return np.array([math.sin(t), math.sin(t + 1.5)])

        assert run_episode(wave, env, 0, cap=150).length == 150

        def told(controller):
            return run_episode(lambda obs: np.clip(controller(obs), -1, 1), env, 1).feedback

        assert "LEFT" in told(lambda obs: [4 * obs[2], -4 * obs[1]])
        right = told(lambda obs: [-4 * obs[2], 4 * obs[1]])
        assert "LEFT" not in right
        assert "in a wave" not in right
        phase = iter(0.15 * np.arange(1000))
        assert "against one another: in a wave" in told(lambda obs: math.sin(next(phase)) * FOLD)
        env.close()


@needs_confinement
class TestEvaluation:
    def test_step_by_step_and_replay_give_the_same_score(self, car):
        seeds = [1, 2]
        with candidate_of(PUMP, car) as candidate:
            stepped = evaluate_policy(candidate, car, seeds, success=reached)
        plain = gym.make(CAR)
        with candidate_of(PUMP, car, worker_env=("gymnasium:make", {"id": CAR})) as candidate:
            replayed = evaluate_policy(candidate, plain, seeds, replay=True, success=reached)
        assert [e.total for e in stepped.episodes] == [e.total for e in replayed.episodes]
        assert stepped.success_rate == 1.0
        assert stepped.mean_return > 90

    def test_a_worker_that_cheats_its_own_environment_gains_nothing(self):
        """It walks frames to the environment in its worker and puts the car at the flag."""
        cheat = """
import sys
def controller(obs):
    frame = sys._getframe()
    while frame:
        env = frame.f_locals.get('env')
        if env is not None:
            env.unwrapped.state = np.array([0.45, 0.07])
            env.unwrapped.steps = 0
        frame = frame.f_back
    return [1.0]
"""
        env = gym.make(CAR)
        with candidate_of(cheat, env, worker_env=("gymnasium:make", {"id": CAR})) as candidate:
            claimed = candidate.rollout("controller", 1, 1000)
            score = evaluate_policy(candidate, env, [1], replay=True, success=reached)
        assert len(claimed) < 5  # in its own world it is at the flag at once
        assert score.failure
        assert not score.success_rate

    def test_the_future_of_a_stochastic_environment_cannot_be_seen(self):
        """The policy copies the generator of its worker's environment and plans with it.

        The ice is slippery; 0.82 is what can be had there without foresight.
        """
        planner = """
import sys
def controller(obs):
    frame = sys._getframe()
    while 'env' not in frame.f_locals:
        frame = frame.f_back
    env = frame.f_locals['env'].unwrapped
    state = env.np_random.bit_generator.state
    rng = np.random.default_rng()
    rng.bit_generator.state = state
    draws = [rng.random() for _ in range(100)]
    # Breadth first over (place, step): where would the same draws lead?
    reached, front = {int(obs): None}, [(int(obs), [])]
    for k in range(100):
        following = []
        for place, moves in front:
            for move in range(4):
                chances = env.P[place][move]
                at = int(np.argmax(np.cumsum([c[0] for c in chances]) > draws[k]))
                _, after, reward, over = chances[at]
                if reward > 0:
                    return (moves + [move])[0]
                if not over:
                    following.append((after, moves + [move]))
        front = list({place: (place, moves) for place, moves in following}.values())
    return 0
"""
        lake = {"id": "FrozenLake-v1", "is_slippery": True}
        env = gym.make(**lake)
        function = Function("controller(obs)", output=Output("int", low=0, high=3))
        worker = Sandbox(env=("gymnasium:make", lake), imports=("math", "numpy"))
        with Candidate(planner, [function], lambda: worker) as candidate:
            with pytest.raises(LLMOptError, match=r"drew random numbers.*replay=False"):
                evaluate_policy(candidate, env, [1], replay=True)

    def test_a_generator_that_cannot_be_looked_at(self, car):
        with candidate_of(PUMP, car, worker_env=("gymnasium:make", {"id": CAR})) as candidate:
            env = gym.make(CAR)
            env.reset(seed=1)
            env.reset = lambda **_: (np.zeros(2), {})
            env.unwrapped.np_random = np.random.RandomState(0)
            with pytest.raises(LLMOptError, match=r"RandomState.*replay=False"):
                evaluate_policy(candidate, env, [1], replay=True)

    def test_state_does_not_pass_from_one_episode_to_the_next(self):
        env = gym.make("CartPole-v1")
        source = (
            "n = 0\ndef controller(obs):\n    global n\n    n += 1\n    return 1 if n == 1 else 0\n"
        )
        with candidate_of(source, env) as candidate:
            score = evaluate_policy(candidate, env, [5, 5])
        assert score.episodes[0].total == score.episodes[1].total

    def test_a_failing_policy_says_where(self, car):
        source = "def controller(obs):\n    return [1 / (obs[1] - obs[1])]\n"
        with candidate_of(source, car) as candidate, np.errstate(all="ignore"):
            score = evaluate_policy(candidate, car, [1, 2])
        assert len(score.episodes) == 1
        assert "At start 1, in step 1, at obs=[-0.498  0.   ]" in score.failure
        assert "line 2" in score.failure or "inf" in score.failure

    def test_a_report_goes_on_after_a_failure(self, car):
        source = """
def controller(obs):
    if -0.6 <= obs[0] < -0.5 and obs[1] == 0:
        raise ValueError("too far left")
    return [11.5 * obs[1]]
"""
        seeds = range(1, 9)
        left = [car.reset(seed=k)[0][0] < -0.5 for k in seeds]
        assert 0 < sum(left[1:-1]) < len(left) - 2
        with candidate_of(source, car) as candidate:
            first = evaluate_policy(candidate, car, seeds, success=reached)
            score = evaluate_policy(candidate, car, seeds, success=reached, every=True)
        assert len(first.episodes) == left.index(True) + 1
        assert [bool(e.failure) for e in score.episodes] == left
        assert score.success_rate == 1 - sum(left) / len(left)
        assert "too far left" in score.failure

    def test_the_words_do_not_depend_on_what_was_said_before(self, car):
        with candidate_of(PUSH, car) as candidate:
            told = [evaluate_policy(candidate, car, [1], cap=30).feedback() for _ in range(2)]
        steps = [[line for line in t.splitlines() if line.startswith("Step")] for t in told]
        assert len(steps[0]) > 1
        assert steps[0] == steps[1]

    def test_actions_are_clipped_and_checked(self, car):
        with candidate_of("def controller(obs):\n    return 7.0\n", car) as candidate:
            assert np.array_equal(candidate(np.zeros(2)), [1.0])
        with candidate_of("def controller(obs):\n    return [1.0, 2.0]\n", car) as candidate:
            with pytest.raises(CandidateError, match="shape"):
                candidate(np.zeros(2))


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
        assert "almost no speed" in client.requests[1].text
        assert "NOT reach" in client.requests[2].text
        assert "This is try 3 of 5; 2 are left after it." in client.requests[2].text

    def test_swimmer_learns_to_undulate(self):
        pytest.importorskip("mujoco")
        client = ScriptedClient([f"```python\n{s}```" for s in (STIFF, FOLDING, WAVE)])
        task = find_task("swimmer")
        env, held_out = task.make(False), task.make(True)
        function = policy_function(env, doc=task.doc)
        with CodeOptimizer(function, client=client, objective=task.objective, seed=0) as optimizer:
            improve(optimizer, env, [0, 2], 3, measure=task.score)
            rewards = [t.reward for t in optimizer.trials]
            fresh = []
            for trial in (optimizer.trials[0], optimizer.best):
                with optimizer.candidate(trial) as candidate:
                    fresh.append(evaluate_policy(candidate, held_out, [1, 3, 5]).mean_return)
        assert rewards[0] < rewards[1] < rewards[2]
        assert optimizer.best.number == 2
        assert fresh[0] < 0
        assert fresh[1] > 150
        assert "Swim to the right" in client.requests[0].text
        assert "did not undulate" in client.requests[1].text
        assert "against one another: in a wave one follows the other" in client.requests[2].text
        env.close()
        held_out.close()

    def test_within_one_episode(self, car):
        client = ScriptedClient([f"```python\n{s}```" for s in (IDLE, PUSH, PUMP)])
        with CodeOptimizer(policy_function(car), client=client, seed=0) as optimizer:
            episode = improve_within_episode(optimizer, car, 3, steps=4, cap=12)
            assert episode.length == 12
            assert len(optimizer.trials) == 3
            assert [t.reward for t in optimizer.trials[:2]] == [0.0, pytest.approx(-0.1)]
        assert "You did [0.]" in client.requests[1].text


def test_an_episode_for_which_code_did_not_load_is_no_success():
    broken = Episode(1, -math.inf, 0, None, "x", "x")
    assert PolicyScore((Episode(0, 1.0, 1, True), broken)).success_rate == 0.5
    assert PolicyScore((Episode(0, 1.0, 1, None), broken)).success_rate is None


def test_ties_of_success_are_broken_by_the_return_then_by_steps():
    task = CodeTask("t", "t", "", "", lambda held_out: None, 24, "success", highest=1.0)

    def score(*episodes):
        return task.score(PolicyScore(tuple(episodes), cap=24))

    lost = Episode(2, 24.0, 24, False)
    soon = score(Episode(0, 20.0, 5, True, last=10.0), lost)
    late = score(Episode(0, 40.0, 20, True, last=10.0), lost)
    assert soon[0] == late[0] == 0.5
    assert soon > late  # though its plain return is smaller
    assert late > score(Episode(0, 2400.0, 24, False), lost)
    assert score(Episode(0, 9.0, 9, True)) > score(Episode(0, 9.0, 10, True))
    assert task.solved(score(Episode(0, 9.0, 9, True))[0])
    assert not task.solved(soon[0])
    assert "highest possible score is 1" in task.scoring(5)


def test_an_account_names_the_parts_the_steps_the_end_and_the_distances():
    env = TargetDistance(gym.make("Swimmer-v5"))
    episode = run_episode(lambda obs: np.ones(2), env, 4, cap=30)
    account = episode.account()
    assert account.startswith("- start 4: return ")
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


def test_policy_function_needs_a_known_action_space():
    class Odd(gym.Env):
        action_space = gym.spaces.MultiBinary(2)
        observation_space = gym.spaces.Box(-1, 1, (1,))

        def reset(self, **_):
            return np.zeros(1), {}

        def step(self, action):
            return np.zeros(1), 0.0, False, False, {}

    with pytest.raises(TypeError, match="MultiBinary"):
        policy_function(Odd())
    assert Function("f(x)", output=Output("any")).name == "f"
