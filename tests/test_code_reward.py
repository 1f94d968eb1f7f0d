import re
import sys
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from stubs import needs_confinement

from llmopt import ScriptedClient
from llmopt.code.candidate import Candidate
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.policy import CodeEpisode, PolicyScore
from llmopt.code.reward import reward as reward_module
from llmopt.code.reward.gencode import GenCode
from llmopt.code.reward.reward import (
    Training,
    improve_reward,
    judge,
    reflect,
    reward_function,
    start_seed,
    train_linear,
    visible,
)
from llmopt.errors import BrokenTaskError, BudgetExceededError
from llmopt.sandbox.failure import CandidateError
from llmopt.sandbox.sandbox import Sandbox

CAR = "MountainCarContinuous-v0"
SPARSE = "def reward(obs, action, next_obs, info):\n    return 0.0\n"
SHAPED = """
def energy(obs):
    return float(obs[1]) ** 2 / 2 + 0.0025 / 3 * math.sin(3 * float(obs[0]))

def reward(obs, action, next_obs, info):
    gain = 1e4 * (energy(next_obs) - energy(obs))
    goal = 1000.0 if next_obs[0] >= 0.45 else 0.0
    return gain + goal, {"gain": gain, "goal": goal}
"""


def score_of(*episodes):
    made = [CodeEpisode(0, total, steps, "", success=won) for total, won, steps in episodes]
    return PolicyScore(tuple(made))


@pytest.fixture
def car():
    env = gym.make(CAR)
    yield env
    env.close()


class TestJudge:
    def test_the_known_policy_of_the_car(self):
        good = judge(CAR, [0.0, 11.5, 0.0], [1, 3, 5])
        assert good.success_rate == 1.0
        assert good.mean_return > 95
        idle = judge(CAR, [0.0, 0.0, 0.0], [1, 3])
        assert (idle.success_rate, idle.mean_return) == (0.0, 0.0)


class TestReflection:
    def test_components_over_training(self):
        training = Training(
            (0.0,), {"total": (1.0, 2.0), "speed": (1.0, 2.0), "goal": (0.0, 0.0)},
            (-5.0, 90.0), (999.0, 100.0), 40,
        )  # fmt: skip
        words = reflect([training], [score_of((90.0, True, 100), (80.0, False, 999))])
        assert "mean return 85, success in 50% of the episodes" in words
        assert "- speed: [1, 2]\n- goal: [0, 0]\n" in words
        assert "own return [-5, 90]; length of an episode [999, 100]." in words
        assert "90 in 100 steps; 80 in 999 steps (no success)." in words

    def test_the_environments_reward_is_hidden(self):
        info = {
            "reward_forward": 1.0,
            "success": 1,
            "x_position": 0.5,
            "obj": object(),
            "TimeLimit.truncated": True,
            "forward_reward": 1.0,
            "Success_Rate": 1.0,
        }
        assert visible(info) == {"x_position": 0.5}


class TestTraining:
    class Search:
        """Hands out numbered points, and keeps what it is told."""

        told: ClassVar[list] = []

        def __init__(self, *_):
            self.told.clear()

        def ask(self):
            return np.array([float(len(self.told)), 0.0, 0.0])

        def tell(self, params, total):
            self.told.append((params[0], total))

    def test_what_the_search_is_told_and_what_is_chosen(self, monkeypatch, car):
        """It is told each reward as it is; one lucky start is not enough to be chosen."""

        def episode(candidate, env, policy, seed, cap, known):
            params = policy.parameters
            lucky = (seed - start_seed(0)) % 3 == 0
            total = params[0] if params[0] else (100.0 if lucky else -100.0)
            return total, {"total": total}, 0.0, 1

        monkeypatch.setattr(reward_module, "CMA", self.Search)
        monkeypatch.setattr(reward_module, "_rescaling", lambda *_: lambda params: params)
        monkeypatch.setattr(reward_module, "_episode", episode)
        training = train_linear(None, car, episodes=8)
        assert self.Search.told == [(0.0, 100.0), *((float(k), float(k)) for k in range(1, 8))]
        assert training.policy == (7.0, 0.0, 0.0)
        assert training.episodes == 8 + 4 * 3

    @needs_confinement
    def test_an_episodes_reward_is_the_sum_over_its_steps(self, car):
        source = (
            "def reward(obs, action, next_obs, info):\n"
            "    return 2.0, {'moved': float(next_obs[0] - obs[0]), 'push': float(action[0])}\n"
        )
        with Candidate(source, [reward_function(car)], Sandbox) as candidate:
            total, parts, own, length = reward_module._episode(
                candidate, car, lambda obs: np.array([0.5]), 3, 7, set()
            )
        start = car.reset(seed=3)[0][0]
        for _ in range(7):
            end, *_ = car.step(np.array([0.5]))
        assert (total, length) == (14.0, 7)
        assert own == pytest.approx(-0.1 * 0.25 * 7)
        assert parts == pytest.approx(
            {"total": 2.0, "moved": (end[0] - start) / 7, "push": 0.5}, rel=1e-4
        )


def searched(*sources, steps=None, **options):
    """Return a search over rewards after it, its client, and what was said of each step."""
    client, said = ScriptedClient([f"```python\n{s}```" for s in sources]), []
    with gym.make(CAR) as env:
        function = reward_function(env, doc="obs: position, velocity.")
    with CodeOptimizer(function, client=client, seed=0) as optimizer:
        improve_reward(
            optimizer, CAR, steps or len(sources), on_step=lambda *step: said.append(step),
            **{"cap": 300, **options},
        )  # fmt: skip
    return optimizer, client, said


@needs_confinement
class TestSearch:
    def test_the_reward_makes_the_difference(self):
        """The same training under no reward, or the reverse of a good one, misses the goal."""
        reverse = SHAPED.replace("return gain + goal", "return -gain - goal")
        optimizer, client, said = searched(
            reverse, SPARSE, SHAPED, steps=5, seeds=[2, 4, 6, 8], episodes=20,
            done=lambda mean: mean > 50.0,
        )  # fmt: skip
        assert [t.ties for t in optimizer.trials] == [(0.0,), (0.0,), (1.0,)]
        assert [t.reward > 50.0 for t in optimizer.trials] == [False, False, True]
        assert judge(CAR, said[2][1][0].policy, range(1, 41, 2)).success_rate >= 0.9
        shown = client.requests[2].text
        assert "total: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\n" in shown
        assert "success in 0% of the episodes" in shown

    def test_a_reward_that_fails_in_training_is_told(self):
        """A sum of rewards that are out of all bounds would overflow."""
        head = "def reward(obs, action, next_obs, info):\n    return "
        late = head + "1.0 / max(0.0, 0.0 if obs[1] < -0.012 else 1.0)\n"
        huge = head + "1e308 if obs[1] < -0.012 else 1.0\n"
        optimizer, client, _ = searched(late, huge, seeds=[2], episodes=4)
        assert [t.reward for t in optimizer.trials] == [None, None]
        assert "ZeroDivisionError" in client.requests[1].text
        assert "1e+308" in optimizer.trials[1].feedback

    def test_training_uses_no_start_that_a_policy_is_judged_on(self, car):
        class Watch(gym.Wrapper):
            def reset(self, *, seed=None, options=None):
                seeds.append(seed)
                return self.env.reset(seed=seed, options=options)

        seeds, made = [], []
        for seed in (0, 1, 1):
            with Candidate(SHAPED, [reward_function(car)], Sandbox) as candidate:
                made.append(train_linear(candidate, Watch(car), episodes=6, cap=20, seed=seed))
        assert made[1] == made[2] != made[0]
        assert set(made[0].components) == {"total", "gain", "goal"}
        assert made[0].episodes == 6 + 4 * 3
        assert len(seeds) > 18
        assert min(s for s in seeds if s is not None) >= 1_000_000

    @pytest.mark.parametrize(
        ("where", "how", "reason"),
        [
            ("True", "raise OSError('the motor burnt')", "environment raised OSError: the motor"),
            ("True", "reward = float('nan')", "training broke down: the reward of step 3 is nan"),
            ("seed < 9", "raise OSError('burnt')", "a policy trained under it failed.*burnt"),
            ("seed == 2", "reward = float('inf')", "a policy trained under it failed.*is inf"),
        ],
    )
    def test_what_an_environment_does_wrong_ends_no_search(
        self, monkeypatch, tmp_path, where, how, reason
    ):
        (tmp_path / "faulty_car.py").write_text(
            "import gymnasium as gym\n"
            "class Faulty(gym.Wrapper):\n"
            "    def reset(self, *, seed=None, options=None):\n"
            f"        self.bad, self.k = seed is not None and ({where}), 0\n"
            "        return self.env.reset(seed=seed, options=options)\n"
            "    def step(self, action):\n"
            "        observation, reward, *rest = self.env.step(action)\n"
            "        self.k += 1\n"
            "        if self.bad and self.k == 3:\n"
            f"            {how}\n"
            "        return observation, reward, *rest\n"
            "gym.registry.pop('Faulty-v0', None)\n"
            f"gym.register('Faulty-v0', lambda: Faulty(gym.make('{CAR}')), max_episode_steps=20)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("faulty_car", None)
        answers = [f"```python\n{SPARSE.replace('0.0', f'{k}.0')}```" for k in range(1, 9)]
        with gym.make(CAR) as env:
            function = reward_function(env)
        with CodeOptimizer(function, client=ScriptedClient(answers), seed=0) as optimizer:
            with pytest.raises(BrokenTaskError, match=r"none of 5 evaluations had a result"):
                improve_reward(
                    optimizer, "faulty_car:Faulty-v0", 9, seeds=[2, 4], episodes=2, cap=9, seed=1
                )
            assert [t.reward for t in optimizer.trials] == [None] * 5
            assert re.search(reason, optimizer.trials[0].feedback)


class ViralChat:
    """The part of VIRAL's chat object that GenCode calls."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.messages = []

    def add_message(self, text):
        self.messages.append(text)

    def generate_response(self, stream):
        yield from self.answers.pop(0)

    def print_Generator_and_return(self, generator):
        return "".join(generator)


GOOD = """Here you go!
```python
import numpy as np

def shaping(v):
    return abs(v) * 10

def reward_func(observations: np.ndarray, is_success: bool, is_failure: bool) -> float:
    \"\"\"A python reward.\"\"\"
    return shaping(observations[1]) + 100.0 * is_success
```"""


@needs_confinement
class TestGenCode:
    def test_get(self):
        generator = GenCode(CAR)
        state = generator.get(GOOD)
        assert state.idx == 1
        assert "A python reward" in state.reward_func_str
        reward = state.reward_func(
            observations=np.array([0.0, 0.5]), is_success=True, is_failure=False
        )
        assert reward == 105.0
        assert state.reward_func(np.array([0.0, 0.5]), False, False) == 5.0
        state.reward_func.close()
        state = generator.get(GOOD.replace("reward_func(", "my_reward("))  # another name is found
        assert state.reward_func(np.zeros(2), True, False) == 100.0
        state.reward_func.close()

    @pytest.mark.parametrize("viral", [True, False])
    def test_repairs(self, viral):
        broken = (
            "```python\ndef reward_func(observations, is_success, is_failure):\n    return x\n```"
        )
        chat = ViralChat(GOOD) if viral else ScriptedClient([GOOD])
        state = GenCode(CAR, chat).get(broken)
        said = chat.messages[0] if viral else chat.requests[0].text
        assert "NameError" in said
        assert "line 2" in said
        assert state.reward_func(np.zeros(2), True, False) == 100.0
        state.reward_func.close()

    @pytest.mark.parametrize("viral", [True, False])
    def test_repairs_count_and_have_caps(self, viral):
        chat = ViralChat("no", GOOD, "no") if viral else ScriptedClient(["no", GOOD, "no"])
        generator = GenCode(CAR, chat, max_requests=3)
        assert generator.usage.requests == 0
        generator.get("nothing").reward_func.close()
        assert generator.usage.requests == 2
        with pytest.raises(BudgetExceededError, match="max_requests=3"):
            generator.get("nothing")
        assert generator.usage.requests == 3
        bounded = GenCode(CAR, ViralChat(*["nothing"] * 10), repairs=2)
        with pytest.raises(CandidateError):
            bounded.get("nothing")
        assert bounded.usage.requests == 2

    def test_hostile_code_does_not_run_here(self, tmp_path):
        mark = tmp_path / "mark"
        hostile = (
            "```python\nimport numpy\n"
            f"numpy.ones(3).tofile({str(mark)!r})\n"
            "def reward_func(observations, is_success, is_failure):\n    return 1.0\n```"
        )
        with pytest.raises(CandidateError, match="PermissionError"):
            GenCode(CAR).get(hostile)
        assert not mark.exists()


@needs_confinement
def test_another_trainer_may_return_any_function_of_the_observation():
    assert judge(CAR, lambda obs: [11.5 * obs[1]], [1, 3]).success_rate == 1.0
