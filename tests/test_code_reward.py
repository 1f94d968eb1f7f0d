import gymnasium as gym
import numpy as np
import pytest

from llmopt import ScriptedClient
from llmopt.code.candidate import Candidate
from llmopt.code.confine import support
from llmopt.code.failure import CandidateError
from llmopt.code.gencode import GenCode
from llmopt.code.judge import Judgement, judge
from llmopt.code.optimizer import CodeOptimizer
from llmopt.code.reward import (
    Training,
    improve_reward,
    reflect,
    reward_function,
    train_linear,
    visible,
)
from llmopt.code.sandbox import Sandbox
from llmopt.errors import LLMOptError

needs_confinement = pytest.mark.skipif(
    bool(support().problems), reason="; ".join(support().problems) or "-"
)
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

    def test_it_does_not_depend_on_this_process(self, monkeypatch, car):
        monkeypatch.setattr(
            type(car.unwrapped), "step", lambda *_: (np.ones(2), 1e9, True, False, {})
        )
        assert judge(CAR, [0.0, 0.0, 0.0], [1]).mean_return == 0.0

    def test_errors_are_told(self):
        with pytest.raises(LLMOptError, match="NoSuchEnv"):
            judge("NoSuchEnv-v0", [0.0], [1])


class TestReflection:
    def test_components_over_training(self):
        training = Training(
            (0.0,), {"total": (1.0, 2.0), "speed": (1.0, 2.0), "goal": (0.0, 0.0)},
            (-5.0, 90.0), (999.0, 100.0), 40,
        )  # fmt: skip
        words = reflect(training, Judgement((90.0, 80.0), (True, False)))
        assert "mean return of 85.000 and success in 50% of 2 episodes" in words
        assert "speed: [1, 2], max 2.\n" in words
        assert "goal: [0, 0], max 0. It did not change" in words
        assert "own return: [-5, 90]" in words

    def test_the_environments_reward_is_hidden(self):
        info = {
            "reward_forward": 1.0,
            "success": 1,
            "x_position": 0.5,
            "obj": object(),
            "TimeLimit.truncated": True,
        }
        assert visible(info) == {"x_position": 0.5}


@needs_confinement
class TestSearch:
    def test_a_reward_that_trains_a_policy_which_reaches_the_goal(self):
        client = ScriptedClient([f"```python\n{s}```" for s in (SPARSE, SHAPED)])
        steps = []
        with gym.make(CAR) as env:
            function = reward_function(env, doc="obs: position, velocity.")
        with CodeOptimizer(function, client=client, seed=0) as optimizer:
            improve_reward(
                optimizer, CAR, 4, seeds=[2, 4, 6, 8], episodes=20, measure="success", cap=300,
                on_step=lambda *step: steps.append(step), done=lambda j: j.success_rate == 1.0,
            )  # fmt: skip
            assert [t.reward for t in optimizer.trials] == [0.0, 1.0]
        held_out = judge(CAR, steps[1][1].policy, range(1, 41, 2))
        assert held_out.success_rate >= 0.9
        shown = client.requests[1].text
        assert "total: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0], max 0. It did not change" in shown
        assert "success in 0% of 4 episodes" in shown

    def test_a_reward_that_praises_itself_gains_nothing(self):
        """The score is the environment's, whatever the reward says."""
        steps = []
        boast = "def reward(obs, action, next_obs, info):\n    return 1e12\n"
        client = ScriptedClient([f"```python\n{boast}```"])
        with gym.make(CAR) as env:
            function = reward_function(env)
        with CodeOptimizer(function, client=client, seed=0) as optimizer:
            improve_reward(
                optimizer, CAR, 1, seeds=[2, 4], episodes=3, cap=50,
                on_step=lambda *step: steps.append(step),
            )  # fmt: skip
            assert steps[0][1].components["total"][0] == 1e12
            assert optimizer.best.reward == judge(CAR, steps[0][1].policy, [2, 4]).mean_return
            assert optimizer.best.reward <= 100.0

    def test_a_reward_that_fails_in_training_is_told(self):
        late = (
            "def reward(obs, action, next_obs, info):\n"
            "    return 1.0 / max(0.0, 0.0 if obs[1] < -0.012 else 1.0)\n"
        )
        client = ScriptedClient([f"```python\n{late}```", f"```python\n{SHAPED}```"])
        with gym.make(CAR) as env:
            function = reward_function(env)
        with CodeOptimizer(function, client=client, seed=0) as optimizer:
            improve_reward(optimizer, CAR, 2, seeds=[2], episodes=4, cap=300)
        assert optimizer.trials[0].reward is None
        assert "ZeroDivisionError" in client.requests[1].text

    def test_training_is_reproducible(self, car):
        def train():
            with Candidate(SHAPED, [reward_function(car)], Sandbox) as candidate:
                return train_linear(candidate, car, episodes=8, cap=60, seed=5)

        first = train()
        assert first == train()
        assert set(first.components) == {"total", "gain", "goal"}
        assert first.episodes == 8 + 4 * 3


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

    def test_the_single_steps(self):
        generator = GenCode(CAR)
        generator.response = GOOD
        generator.get_clean_response()
        assert generator.response.startswith("import numpy")
        function = generator.compile_reward_function()
        generator.test_reward_function(function, np.zeros(2), True, False)
        with pytest.raises(CandidateError):
            generator.test_reward_function(function, np.zeros(1), True, False)
        function.close()
        generator.response = "no code at all"
        with pytest.raises(ValueError, match="no code"):
            generator.get_clean_response()

    def test_another_name_is_found(self):
        state = GenCode(CAR).get(GOOD.replace("reward_func(", "my_reward("))
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

    def test_repairs_are_bounded(self):
        chat = ViralChat(*["nothing"] * 10)
        with pytest.raises(CandidateError):
            GenCode(CAR, chat, repairs=2).get("nothing")
        assert len(chat.messages) == 2

    def test_environment_objects_of_viral(self):
        class Environment:
            def __str__(self):
                return CAR

            def success_func(self, env, info):
                asked.append(info)
                return True, False

        asked = []
        state = GenCode(Environment()).get(GOOD)
        state.reward_func.close()
        assert len(asked) == 1

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
def test_training_by_stable_baselines3(tmp_path, car):
    pytest.importorskip("stable_baselines3")
    from llmopt.code.sb3 import train_sb3

    with Candidate(SHAPED, [reward_function(car)], Sandbox) as candidate:
        training = train_sb3(
            candidate, car, episodes=3, cap=100, folder=tmp_path, n_steps=50, batch_size=50
        )
    assert set(training.components) == {"total", "gain", "goal"}
    assert training.lengths == (100.0,) * 3
    result = judge(CAR, training.policy, [1, 3])
    assert len(result.returns) == 2


def test_an_unknown_algorithm(car):
    from llmopt.code.sb3 import train_sb3

    with Candidate(SHAPED, [], Sandbox) as candidate, pytest.raises(LLMOptError, match="PPO"):
        train_sb3(candidate, car, algorithm="ppo")
