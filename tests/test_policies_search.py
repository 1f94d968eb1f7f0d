"""A whole search with a scripted client, its storage, and what it refuses."""

from __future__ import annotations

import copy
import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

from llmopt import ClientError, LLMOptError, ScriptedClient, SpaceError, StorageError
from llmopt.policies import (
    Evaluation,
    PolicySearch,
    load_policy,
)
from llmopt.space import Categorical

SWING = {"car_directional_force<-car_vel": 20.0}


class Answers:
    """Answers by the names of the parameters: given values, or 0, or the first choice."""

    def __init__(self, *points):
        self.points = list(points)
        self.search = None
        self.client = ScriptedClient(self.reply, default_prompt="props")

    def reply(self, request):
        point = self.points.pop(0)
        space = self.search.optimizer.space
        values = [
            point.get(n, d.choices[0] if isinstance(d, Categorical) else 0.0)
            for n, d in zip(space.names, space.dimensions, strict=True)
        ]
        return ", ".join(f"{n}: {v}" for n, v in zip(space.names, values, strict=True))

    @property
    def prompt(self):
        return self.client.requests[-1].text


def searching(env, *points, **options):
    answers = Answers(*points)
    answers.search = PolicySearch(env, answers.client, **{"starts": 3, "warmup": 1, **options})
    return answers.search, answers


def test_a_search_in_five_lines_saves_loads_and_draws(tmp_path):
    search, _ = searching("MountainCarContinuous-v0", SWING, {})
    best = search.run(3)
    assert best.reward > 90
    assert best.params["car_directional_force<-car_vel"] == 20
    outcome = search.evaluate(20)
    assert outcome.mean > 90
    assert len(outcome.returns) == 20
    search.save(tmp_path / "policy.json")
    policy = load_policy(tmp_path / "policy.json")
    assert policy.act(np.float32([0, 0.05])) == search.best_policy.act(np.float32([0, 0.05]))
    assert policy.inputs == ("car_x_position", "car_vel")
    search.gif(tmp_path / "policy.gif")
    assert (tmp_path / "policy.gif").read_bytes()[:6] in (b"GIF87a", b"GIF89a")


def test_a_table_is_one_choice_for_each_state():
    good = "left up up up left left left left up down left left left right down left".split()
    search, answers = searching("FrozenLake-v1", {f"s{i}": a for i, a in enumerate(good)}, starts=5)
    assert len(search.optimizer.space) == 16
    assert search.run(2).reward == 1.0
    assert search.evaluate(50).mean > 0.6
    assert "SFFF\nFHFH" in answers.prompt
    assert search.best_policy.act(14) == 1


class Bare(gym.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        if action[0] >= 1:
            raise RuntimeError("it broke")
        return np.zeros(2, np.float32), -(float(action[0]) ** 2), False, False, {}


def test_an_own_environment_without_a_docstring(tmp_path):
    search, answers = searching(
        Bare, {"a0<-bias": 6}, {}, {}, description="Keep it at rest.", max_steps=7
    )
    search.run(2)
    failed = search.optimizer.trials[1]
    assert failed.state == "failed"
    assert "it broke" in failed.feedback
    search.run(3)
    assert "Keep it at rest." in answers.prompt
    assert "cut off after 7 steps" in answers.prompt
    with pytest.raises(LLMOptError, match="renders no picture"):
        search.gif(tmp_path / "p.gif")


class Unseeded(Bare):
    def reset(self, *, seed=None, options=None):
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32), {}


def test_a_reset_that_ignores_its_seed_is_warned_of():
    with pytest.warns(UserWarning, match=r"Unseeded: two resets .* self\.np_random") as seen:
        PolicySearch(Unseeded, "network", max_steps=5)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PolicySearch(Bare, "network", max_steps=5)


def test_an_environment_without_a_limit_of_steps_is_cut_off_with_a_notice(caplog):
    text = PolicySearch(Bare, "network").words.text
    assert "An episode that does not end by itself is cut off after 1000 steps." in text
    assert "Bare states no limit of steps: an episode ends after 1000 at most" in caplog.text
    assert "after 15 steps." in PolicySearch(Bare, "network", max_steps=15).words.text


class Crane(Bare):
    """A crane.

    Observations:
        - 0: swing rate: angular velocity of the rope (rad/s)
        - 1: rope gap: wanted minus actual length of the rope (m)
    """

    dt = 0.05
    steps = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, False, self.steps % 5 == 0, {}

    def render(self):
        return np.full((8, 8, 3), 7 * self.steps, np.uint8)  # equal frames would be merged


def test_an_environment_that_truncates_itself_is_not_called_cut_off():
    words = PolicySearch(Crane, "network").words
    assert "cut off" not in words.text
    assert [q.name for q in words.observations] == ["swing_rate", "rope_gap"]


def test_a_gif_plays_at_the_rate_of_the_environment(tmp_path):
    image = pytest.importorskip("PIL.Image")
    search, _ = searching(Crane, {}, max_steps=20)
    search.run(1)
    search.gif(tmp_path / "p.gif")
    with image.open(tmp_path / "p.gif") as picture:
        assert picture.info["duration"] == 50  # milliseconds


class Unseen(Bare):
    def __init__(self, render_mode=None):
        pass


def test_an_environment_without_pictures_says_so_in_one_line(tmp_path, recwarn):
    gym.register("Unseen-v0", Unseen, max_episode_steps=5)
    search, _ = searching("Unseen-v0", {})
    search.run(1)
    with pytest.raises(LLMOptError, match="Unseen-v0 renders no picture"):
        search.gif(tmp_path / "q.gif")
    assert not recwarn.list


def test_observations_that_are_no_numbers_are_refused_with_the_remedy():
    class Both(Bare):
        observation_space = spaces.Dict(a=spaces.Box(-1, 1, (1,)))

    with pytest.raises(SpaceError, match="FlattenObservation"):
        PolicySearch(Both, ScriptedClient([]))
    with pytest.raises(SpaceError, match="Box and Discrete"):
        PolicySearch("Blackjack-v1", ScriptedClient([]))

    class Solved(Both):
        def reset(self, *, seed=None, options=None):
            return {"a": np.zeros(1, np.float32)}, {}

        def step(self, action):
            return {"a": np.zeros(1, np.float32)}, 1.0, True, False, {}

    search, _ = searching(lambda: FlattenObservation(Solved()))
    assert search.run(1).reward == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"starts": 0}, "starts=0: expected a whole number from 1 to 1,000,000"),
        ({"starts": 10**30}, "expected a whole number from 1 to 1,000,000"),
        ({"max_steps": 0}, "max_steps=0: expected a whole number of at least 1"),
        ({"max_steps": 2.5}, "max_steps=2.5: expected a whole number"),
        ({"seed": -1}, "seed=-1: expected a whole number"),
        ({"ceiling": "500"}, "ceiling='500': expected a finite number"),
        ({"box": (1, 1)}, "the lower first"),
        ({"box": "6"}, "box='6': expected a positive number"),
        ({"box": None}, "box=None: expected a positive number"),
    ],
)
def test_wrong_options_are_clear_errors(options, message):
    with pytest.raises(ValueError, match=message):
        PolicySearch("CartPole-v1", ScriptedClient([]), **options)


def test_wrong_arguments_of_calls_are_clear_errors():
    with pytest.raises(TypeError, match="did you mean 'starts'"):
        PolicySearch("CartPole-v1", ScriptedClient([]), strats=3)
    with PolicySearch("CartPole-v1", ScriptedClient([]), starts=1, warmup=1) as search:
        for call in (
            lambda: search.run(-1),
            lambda: search.evaluate(0),
            lambda: search.evaluate(10**30),
            lambda: search.choose(finalists=0),
            lambda: search.choose(starts=0),
        ):
            search.run(1)
            with pytest.raises(ValueError, match="expected a whole number"):
                call()


def test_an_evaluation_is_printed_in_a_line():
    with PolicySearch("CartPole-v1", ScriptedClient([]), starts=1, warmup=1) as search:
        search.run(1)
        outcome = search.evaluate(20)
        assert re.fullmatch(
            r"mean return \S+ ± \S+ \(standard error\), from \d+ to \d+, n = 20", str(outcome)
        )
        assert repr(outcome) == f"<Evaluation: {outcome}>"
        assert str(search.evaluate(1)).endswith(" (one episode)")
    assert str(Evaluation((1.0,), (5,), "episode 1: it broke")) == (
        "no return after 1 episodes: episode 1: it broke"
    )


def test_it_is_said_which_range_is_searched(capsys):
    with PolicySearch("MountainCarContinuous-v0", ScriptedClient([]), starts=1, warmup=1) as search:
        search.run(1, progress=True)
    said = (
        "MountainCarContinuous-v0: 3 weights of numbers in the environment's own units, in ranges "
        "from [-10, 10] to ["
    )
    out = capsys.readouterr().err
    assert out.startswith(f"llmopt: {said}")
    assert "(10 × size of the action / size of the observed number)" in out
    assert said in repr(search)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5"])
def test_random_points_are_policies_that_do_not_always_push_to_the_stop(env_id):
    with PolicySearch(env_id, ScriptedClient([]), starts=1, warmup=5) as search:
        search.run(5)
        stopped = []
        for trial in search.optimizer.trials:
            shares = re.findall(r"\((\d+)% low, (\d+)% high", trial.feedback)
            stopped.append(sum(int(low) + int(high) for low, high in shares))
            stopped[-1] /= search.policy.n_outputs
    assert np.mean(stopped) < 50


def bounds_of(env, **options):
    with PolicySearch(env, ScriptedClient([]), starts=2, warmup=1, **options) as search:
        space = search.optimizer.space
        pairs = zip(space.names, space.dimensions, strict=True)
        return {n: (d.low, d.high) for n, d in pairs}, search


class Large(Bare):
    """What is observed has no bound, and lies in the thousands and the thousandths."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Box(0, 120, (1,))

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=seed)
        return seen * np.float32([3000, 0.003]), info

    def step(self, action):
        return self.np_random.normal(size=2) * [1000, 0.001], 0.0, False, False, {}


def test_a_range_is_of_the_size_of_the_action_over_that_of_what_is_observed():
    found, _ = bounds_of(Large, max_steps=200)
    assert found["a0<-bias"] == (-1200, 1200)
    assert found["a0<-o0"][1] == pytest.approx(1200 / 1000, rel=0.2)
    assert found["a0<-o1"][1] == pytest.approx(1200 / 0.001, rel=0.2)
    assert bounds_of(Large, max_steps=200)[0] == found  # measured by a seed
    # A declared bound counts where it is smaller, and at least by half.
    car, _ = bounds_of("MountainCarContinuous-v0")
    assert car["car_directional_force<-car_vel"] == (-290, 290)
    half, _ = bounds_of("MountainCarContinuous-v0", box=(-1, 5))
    assert half["car_directional_force<-car_vel"] == (-29, 140)


def test_ranges_that_are_given_are_taken():
    pairs = [(-1.0, 2.0), (0.0, 5.0), (-3.0, -1.0)]
    found, search = bounds_of("MountainCarContinuous-v0", box=pairs)
    assert list(found.values()) == pairs
    assert "size of the action" not in search.ranges
    for box in ([(0, 1)], [(0, 1), (0, 1), (1, 0)], "abc"):
        with pytest.raises(SpaceError, match="such a pair for each of the 3 parameters"):
            bounds_of("MountainCarContinuous-v0", box=box)


def test_random_points_keep_to_a_range_without_zero():
    with PolicySearch("CartPole-v1", ScriptedClient([]), warmup=5, box=(2, 3)) as search:
        search.run(5)
        for trial in search.optimizer.trials:
            search.optimizer.space.check(trial.values)


def test_a_search_goes_on_in_the_ranges_with_which_it_began(tmp_path, monkeypatch):
    path = tmp_path / "s.jsonl"
    with searching("Swimmer-v5", {}, storage=path, max_steps=60)[0] as search:
        search.run(2)
        began = search.optimizer.space
    monkeypatch.setattr("llmopt.policies.search.usual_sizes", lambda *_: 1 / 0)
    with searching("Swimmer-v5", {}, storage=path, max_steps=60)[0] as again:
        assert again.optimizer.space == began
    with pytest.raises(StorageError, match=r"task \(box: there 10.0, now 3.0\)"):
        searching("Swimmer-v5", {}, storage=path, max_steps=60, box=3)


def test_another_description_goes_on_and_another_task_does_not(tmp_path, caplog):
    storage = tmp_path / "s.jsonl"
    first, _ = searching("CartPole-v1", {}, storage=storage, description="Balance it")
    with first:
        first.optimizer.ask()
    searching("CartPole-v1", {}, storage=storage, description="Keep it up")[0].close()
    said = "another description (line 3, there 'Balance it', now 'Keep it up')"
    assert said in caplog.text
    for options, said in (
        ({"seed": 3}, "task (seed: there 0, now 3)"),
        ({"starts": 2}, "task (starts: there 3, now 2)"),
        ({"max_steps": 9}, "task (max_steps: there 500, now 9)"),
        ({"wrappers": [FlattenObservation]}, "wrappers: there "),
    ):
        with pytest.raises(StorageError) as caught:
            searching("CartPole-v1", {}, storage=storage, description="Keep it up", **options)
        assert said in str(caught.value)


def test_other_arguments_of_an_environment_are_another_task(tmp_path):
    class Windy(Bare):
        def __init__(self, constants=None, render_mode=None):
            pass

    gym.register("Windy-v0", Windy, max_episode_steps=5)

    def spec(gust):
        made = copy.deepcopy(gym.spec("Windy-v0"))
        made.kwargs = {"constants": {"gust": gust, "mass": np.arange(3)}}
        return made

    path = tmp_path / "s.jsonl"
    with searching(spec(0.15), {}, storage=path)[0] as search:
        search.run(2)
        made_with = "made with constants.gust=0.15, constants.mass=array([0, 1, 2])."
        assert made_with in search.words.text
    searching(spec(0.15), {}, storage=path)[0].close()
    with pytest.raises(StorageError, match=r"arguments: constants: gust: there 0.15, now 3.0\)"):
        searching(spec(3.0), {}, storage=path)

    def rescaled(bound):
        return gym.wrappers.RescaleAction(gym.make(spec(1)), np.float32(-bound), np.float32(bound))

    path = tmp_path / "t.jsonl"
    with searching(rescaled(1), {}, storage=path)[0] as search:
        search.run(1)
    with pytest.raises(StorageError, match=r"layers: 1: max_action: there 1.0, now 2.0"):
        searching(rescaled(2), {}, storage=path)


@pytest.mark.parametrize("stored", [True, False])
def test_ctrl_c_says_what_is_kept(stored, tmp_path, capsys):
    options = {"storage": tmp_path / "s.jsonl"} if stored else {}
    search, _ = searching("CartPole-v1", {}, **options)
    search.measure = raise_interrupt
    assert search.run(3) is None
    assert search.stopped == "interrupted by Ctrl-C"
    assert (str(tmp_path / "s.jsonl") in capsys.readouterr().err) is stored
    del search.measure
    assert search.run(1).reward > 0
    assert search.stopped == ""


def raise_interrupt(params):
    raise KeyboardInterrupt


def test_before_a_search_there_is_no_best_policy(tmp_path):
    search, _ = searching("CartPole-v1")
    for call in (
        lambda: search.best,
        search.evaluate,
        lambda: search.save(tmp_path / "p"),
        lambda: search.best_policy,
    ):
        with pytest.raises(LLMOptError, match="call run"):
            call()


def test_a_search_starts_at_sane_values_outside_the_list():
    """Raw actions of HalfCheetah are charged with millions."""
    with PolicySearch("HalfCheetah-v5", ScriptedClient([]), "words", warmup=3, starts=1) as search:
        search.run(3)
        assert min(t.reward for t in search.optimizer.trials) > -2000
        assert "clipped to its bounds" in search.description
        policy = search.policy_of(search.optimizer.trials[0].params)
        assert np.abs(policy(np.full(17, 100.0))).max() <= 1


@pytest.mark.parametrize(("prompt", "first"), [("words", 5), ("props", 10), ("opro", 10)])
def test_a_model_that_sees_numbers_only_begins_with_more_random_policies(prompt, first):
    with PolicySearch("MountainCarContinuous-v0", ScriptedClient([]), prompt, starts=1) as search:
        points = [search.optimizer.ask() for _ in range(first)]
        assert search.optimizer.usage.proposals == {"warmup": first}
        assert len(points) == first
        with pytest.raises(ClientError, match="script"):
            search.optimizer.ask()


@pytest.mark.parametrize(("evaluations", "random"), [(8, 4), (64, 30)])
def test_numeric_only_models_begin_with_random_policies_but_are_asked(evaluations, random):
    with PolicySearch("CartPole-v1", "network", starts=1, max_steps=20) as search:
        search.run(evaluations)
        sources = [t.source for t in search.optimizer.trials]
        drawn = max(0, 5 - random)  # the prompt needs five complete trials
        proposed = ["drawn"] * drawn + ["llm"] * (evaluations - random - drawn)
        assert sources == ["warmup"] * random + proposed
        search.run(evaluations + 2)  # a longer search begins no second warm-up
        assert [t.source for t in search.optimizer.trials][-2:] == ["llm"] * 2


def test_a_weight_may_leave_its_usual_range(tmp_path):
    """Up to ten times, for a model that reads words; random policies stay where they were."""
    answer = "Hypothesis: h\nStart from: new\nProposal: a0<-o0: 7.5, a0<-o1: -0.003"
    options = {"starts": 1, "max_steps": 9, "warmup": 2, "points": 1, "bias": False}
    low = []
    for box in (10, "auto"):
        client = ScriptedClient([answer if box == "auto" else answer.replace("7.5", "5.0")])
        env = lambda: gym.wrappers.TimeLimit(Tilt(), 9)  # noqa: E731
        storage = tmp_path / f"{box}.jsonl"
        with PolicySearch(env, client, "words", box=box, storage=storage, **options) as search:
            search.run(3)
            *random, found = search.optimizer.trials
            low.append([t.values for t in random])
            first = search.optimizer.space.dimensions[0]
            assert found.values == ((5.0 if box == 10 else 7.5), -0.003)
            assert (first.low, first.high) == ((-5.0, 5.0) if box == 10 else (-50.0, 50.0))
            assert ("within a tenth" in client.requests[0].text) is (box == "auto")
    assert low[0] == low[1]
    with PolicySearch(env, ScriptedClient([]), "words", storage=storage, **options) as resumed:
        assert resumed.optimizer.space.dimensions[0].high == 50.0
        assert resumed._parameters.space.draw(np.random.default_rng(0)) == (
            search._parameters.space.draw(np.random.default_rng(0))
        )
    with PolicySearch(env, "network", **options) as numeric:
        assert numeric.optimizer.space.dimensions[0].high == 5.0


class Tilt(gym.Env):
    """Two numbers, observed up to 2."""

    observation_space = spaces.Box(-2, 2, (2,))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(2, 2, np.float32), {}

    def step(self, action):
        return np.full(2, 2, np.float32), float(action[0]), False, False, {}


@pytest.mark.parametrize("runs", [(12, 40), (10, 20, 30)])
def test_a_longer_resumed_search_samples_no_more_random_policies(tmp_path, runs, caplog):
    for evaluations in runs:
        with PolicySearch(
            "CartPole-v1", "network", starts=1, max_steps=20, seed=0, storage=tmp_path / "s.jsonl"
        ) as search:
            search.run(evaluations)
            sources = [t.source for t in search.optimizer.trials]
    random = runs[0] // 2
    assert sources == ["warmup"] * random + ["llm"] * (runs[-1] - random)
    assert "never asked" not in caplog.text
