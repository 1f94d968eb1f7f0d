"""The pattern prompt: integers, their frame, the grammar, and reading them back."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from string import ascii_lowercase

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmopt.client.facts import ModelFacts
from llmopt.errors import ParseError, PromptTooLongError
from llmopt.history import History, Trial
from llmopt.prompt import Complaint, Situation, estimate_tokens, get_prompt
from llmopt.prompt.notation import integer_range
from llmopt.prompt.pattern import LevelsPrompt, PatternPrompt
from llmopt.space import Categorical, Float, Int, Space

BOX = Space.of(gym.spaces.Box(-6, 6, (3,)))
MIXED = Space(
    {
        "lr": Float(1e-5, 0.1, log=True),
        "momentum": Float(0, 1, step=0.25),
        "layers": Int(1, 8),
        "width": Int(1, 4096, log=True),
        "optimizer": Categorical(["adam", "sgd", None]),
        "fixed": Float(2, 2),
    }
)


def history(space, n=12, seed=0, **changes):
    rng = np.random.default_rng(seed)
    points = [space.sample(rng) for _ in range(n)]
    return History(
        tuple(Trial(i, None, v, (float(i * 7919 % 101),)) for i, v in enumerate(points)),
        **changes,
    )


def situation(space=BOX, n=12, **changes):
    return Situation(
        **{"space": space, "history": history(space, n), "iteration": n + 1, **changes}
    )


def rows(query):
    return [
        [int(k) for k in line.split(",")] for line in query.request.messages[-1].content.split()
    ]


def grammar_regex(grammar):
    """Translate the GBNF subset that is used here to a regular expression."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())

    def expand(body):
        parts = []
        for token in re.findall(r'"(?:\\.|[^"])*"|\[[^\]]*\]|\||\w+', body):
            if token.startswith('"'):
                parts.append(re.escape(json.loads(token)))
            elif token[0] == "[" or token == "|":
                parts.append(token)
            else:
                parts.append(f"(?:{expand(rules[token])})")
        return "".join(parts)

    return re.compile(expand(rules["root"]))


def test_golden(check_golden):
    request = PatternPrompt().prepare(situation(samples=4)).request
    check_golden("pattern_box", f"{request.text}<-- open line\n\n{request.grammar}\n")
    request = PatternPrompt(best=5, style="chat").prepare(situation(MIXED)).request
    check_golden(
        "pattern_chat", "".join(f"--- {m.role} ---\n{m.content}\n" for m in request.messages)
    )


def test_request_is_a_completion():
    request = PatternPrompt().prepare(situation(samples=4, seed=5)).request
    assert (request.style, request.n, request.stop, request.seed) == ("completion", 4, ("\n",), 5)
    assert request.temperature == 1.0
    assert [m.role for m in request.messages] == ["user"]
    assert re.fullmatch(r"(?:\d\d,\d\d,\d\d\n){10}", request.text)
    assert request.max_tokens >= len("99,99,99\n")
    eighteen = Space.of(gym.spaces.Box(-1, 1, (18,)))
    wide = PatternPrompt().prepare(situation(eighteen)).request
    assert re.fullmatch(r"(?:(?:\d\d,){17}\d\d\n){10}", wide.text)
    assert 18 * 3 <= wide.max_tokens < 120


def test_worst_first_and_only_complete_trials():
    base = situation(n=12)
    made = list(base.history.trials)
    made[3] = replace(made[3], rewards=None, state="failed")
    made[4] = replace(made[4], state="pruned", rewards=(1000.0,))
    past = History(tuple(made))
    query = PatternPrompt(best=4, frame="space").prepare(replace(base, history=past))
    expected = [
        [min(99, int(np.floor(u * 99 + 0.5))) for u in BOX.encode(t.values)]
        for t in past.ranked[3::-1]
    ]
    assert rows(query) == expected
    lowest = History(past.trials, directions=("minimize",))
    query = PatternPrompt(best=4, frame="space").prepare(replace(base, history=lowest))
    assert rows(query)[-1] != expected[-1]


def test_shuffled_order_is_an_ablation_by_seed():
    ascending = rows(PatternPrompt().prepare(situation()))
    one = rows(PatternPrompt(order="shuffled").prepare(situation(seed=1)))
    two = rows(PatternPrompt(order="shuffled").prepare(situation(seed=2)))
    assert sorted(one) == sorted(two) == sorted(ascending)
    assert len({str(one), str(two), str(ascending)}) == 3
    assert one == rows(PatternPrompt(order="shuffled").prepare(situation(seed=1)))


# Frames


def test_elites_frame_is_the_weighted_mean_and_deviations():
    state = situation(n=30)
    query = PatternPrompt(best=8, dither=False).prepare(state)
    units = np.array([BOX.encode(t.values) for t in state.history.ranked[:8]])
    weights = np.log(8.5) - np.log(np.arange(1, 9))
    weights /= weights.sum()
    mean = (weights[:, None] * units).sum(axis=0)
    deviation = np.sqrt((weights[:, None] * (units - mean) ** 2).sum(axis=0))
    for integer, share in ((10, 0.5 / 90), (54, 44.5 / 90), (99, 89.5 / 90)):
        point = mean + (2 * share - 1) * 2.5 * deviation
        read = BOX.encode(query.read(f"{integer},{integer},{integer}").values)
        np.testing.assert_allclose(read, np.clip(point, 0, 1), atol=1e-6)
    for row, unit in zip(rows(query), units[::-1], strict=True):
        expected = 10 + np.floor((unit - mean + 2.5 * deviation) / (5 * deviation) * 90)
        np.testing.assert_array_equal(row, np.clip(expected, 10, 99))


def test_elites_frame_never_collapses():
    point = (1.0, -2.0, 3.0)
    same = History(tuple(Trial(i, None, point, (0.0,)) for i in range(10)))
    query = PatternPrompt(min_deviation=0.01).prepare(replace(situation(), history=same))
    low, high = query.read("10,10,10").values, query.read("99,99,99").values
    for a, b, centre in zip(low, high, point, strict=True):
        assert 0.27 < centre - a <= 0.3001  # 2.5 deviations of a hundredth of the range of 12
        assert 0.27 < b - centre <= 0.3001


def test_frame_beyond_the_bounds_is_clipped_to_the_space():
    corner = History(tuple(Trial(i, None, (6.0, 6.0, -6.0), (0.0,)) for i in range(10)))
    query = PatternPrompt().prepare(replace(situation(), history=corner))
    reading = query.read("99,99,10")
    assert reading.values == (6.0, 6.0, -6.0)
    assert not reading.clipped


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_trials_fall_back_to_the_whole_range(n):
    query = PatternPrompt(dither=False).prepare(situation(n=n))
    assert len(rows(query)) == 1
    assert query.read("0,99,0").values == (-6.0, 6.0, -6.0)
    assert grammar_regex(query.request.grammar).fullmatch("0,99,7\n")


def test_values_are_not_rounded_to_the_decimals_of_prompts():
    space = Space({"x": Float(-6, 6), "y": Float(-6, 6)}, decimals=1)
    values = PatternPrompt().prepare(situation(space)).read("45,46").values
    assert any(abs(v - round(v, 1)) > 1e-9 for v in values)


def test_few_values_are_shown_by_their_index():
    state = situation(MIXED, 30)
    for frame in ("elites", "space"):
        query = PatternPrompt(frame=frame).prepare(state)
        for row, trial in zip(rows(query), state.history.ranked[9::-1], strict=True):
            momentum, layers, optimizer = trial.values[1], trial.values[2], trial.values[4]
            assert row[1] == round(momentum / 0.25)
            assert row[2] == layers - 1
            assert row[4] == ["adam", "sgd", None].index(optimizer)
            assert row[5] == 0
            read = query.read(",".join(map(str, row))).values
            assert MIXED.key(read)[1:3] == MIXED.key(trial.values)[1:3]
            assert read[4] == optimizer
            assert read[5] == 2.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["elites", "space"]), st.sampled_from([BOX, MIXED]))
def test_a_line_is_read_back_near_its_trial(seed, frame, space):
    state = Situation(space, history(space, 20, seed), 21, seed=seed)
    query = PatternPrompt(frame=frame, best=20, spread=50.0).prepare(state)
    pattern = grammar_regex(query.request.grammar)
    table = rows(query)
    units = np.array([space.encode(t.values) for t in state.history.ranked[::-1]])
    for row, unit in zip(table, units, strict=True):
        line = ",".join(map(str, row))
        assert pattern.fullmatch(line + "\n")
        reading = query.read(line)
        assert space.check(reading.values) == reading.values
        assert not reading.clipped
        # One cell: at most 2 * 50 deviations (at most 0.5) over 90, or 1 / 99.
        np.testing.assert_allclose(space.encode(reading.values), unit, atol=0.6)
        if frame == "space":
            whole = [i for i, name in enumerate(space.names) if name != "width"]  # rounds
            off = space.encode(reading.values) - unit
            np.testing.assert_allclose(off[whole], 0, atol=0.0103)


# Reading


def test_dither_is_reproducible_and_keeps_repeats_apart():
    state = situation(seed=3)
    query = PatternPrompt().prepare(state)
    line = "45,50,60"
    first, again = query.read(line).values, query.read(line, 1, [line]).values
    assert first != again
    fresh = PatternPrompt().prepare(state)
    assert [fresh.read(line, i, [line] * i).values for i in range(2)] == [first, again]
    assert fresh.read(line, 2, ["45,50,61", "no line", f"{line}\n"]).values == again
    other = PatternPrompt().prepare(replace(state, seed=4))
    assert other.read("45,50,60").values != first
    plain = PatternPrompt(dither=False).prepare(state)
    assert plain.read("45,50,60") == plain.read("45,50,60")
    cell = (BOX.encode(plain.read("46,50,60").values) - BOX.encode(plain.read("45,50,60").values))[
        0
    ]
    for values in (first, again):
        offset = BOX.encode(values) - BOX.encode(plain.read("45,50,60").values)
        assert abs(offset[0]) <= cell / 2 * 1.001


@pytest.mark.parametrize(
    "text",
    [
        "45,50,60",
        " 45, 50, 60\n",
        "Here is the next line:\n\n45,50,60\n\nIt is better than line 7.",
        "<think>1,2,3</think>```\n[45, 50, 60]\n```",
        "45.2 49.8 60",
        "45,50,60,70,80",
        "45\n50\n60\n",
        "12,13\n45,50,60\n",
    ],
)
def test_answers_without_a_grammar(text):
    query = PatternPrompt(dither=False).prepare(situation())
    assert query.read(text) == query.read("45,50,60")


def test_integers_outside_the_frame_are_clipped():
    query = PatternPrompt(dither=False).prepare(situation())
    reading = query.read("5,50,120")
    assert reading.clipped
    assert reading.values == query.read("10,50,99").values


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.text("0123456789,.-\n eE<think/>[]")))
def test_any_text_gives_a_valid_point_or_a_parse_error(text):
    query = PatternPrompt().prepare(situation())
    try:
        reading = query.read(text)
    except ParseError as error:
        assert "expected one line of 3" in error.reason  # noqa: PT017
        return
    assert BOX.check(reading.values) == reading.values


# Grammar


@pytest.mark.parametrize(
    "bounds", [(0, 0), (0, 9), (0, 99), (10, 99), (0, 123), (7, 1050), (0, 20)]
)
def test_grammar_of_a_range_is_exact(bounds):
    pattern = grammar_regex(f"root ::= {integer_range(*bounds)}")
    for k in range(1200):
        assert bool(pattern.fullmatch(str(k))) == (bounds[0] <= k <= bounds[1])
    assert not pattern.fullmatch("00")
    assert not pattern.fullmatch("")


def test_grammar_of_a_line():
    pattern = grammar_regex(PatternPrompt().prepare(situation(MIXED)).request.grammar)
    assert pattern.fullmatch("10,4,7,99,2,0\n")
    for line in ("10,4,7,99,2,0", "10,5,7,99,2,0\n", "9,4,7,99,2,0\n", "10,4,7,99,2\n"):
        assert not pattern.fullmatch(line)


# Budget and options


@pytest.mark.parametrize("exact", [True, False])
def test_budget_drops_the_worst(exact):
    state = situation(n=60, model=ModelFacts("m", count_tokens=len if exact else None))
    whole = rows(PatternPrompt(best=60, frame="space").prepare(state))
    for limit in (20, 90, 200, 400):
        query = PatternPrompt(best=60, frame="space", max_prompt_tokens=limit).prepare(state)
        count = len if exact else estimate_tokens
        assert count(query.request.text) + 1 <= limit
        kept = rows(query)
        assert kept == whole[-len(kept) :]
        assert count(query.request.text) + 1 + 2 * 9 > limit
    assert (
        len(
            rows(
                PatternPrompt(best=60).prepare(
                    replace(state, model=ModelFacts("m", context_tokens=200))
                )
            )
        )
        < 60
    )
    with pytest.raises(PromptTooLongError, match="max_prompt_tokens=3"):
        PatternPrompt(max_prompt_tokens=3).prepare(state)


def test_chat_style_explains_itself_and_complains():
    complaint = Complaint("dunno", "found 0 integers")
    request = PatternPrompt(style="chat").prepare(situation(complaint=complaint)).request
    assert [m.role for m in request.messages] == ["system", "user", "assistant", "user"]
    assert request.grammar is None
    assert request.stop == ()
    assert request.max_tokens > 1000
    raw = PatternPrompt().prepare(situation(complaint=complaint)).request
    assert raw == PatternPrompt().prepare(situation()).request


def test_several_objectives_go_by_rank():
    base = history(BOX, 12)
    both = History(
        tuple(replace(t, rewards=(t.rewards[0], -float(t.number))) for t in base.trials),
        directions=("maximize", "maximize"),
    )
    query = PatternPrompt(best=3, frame="space").prepare(replace(situation(), history=both))
    best = BOX.encode(both.ranked[0].values)
    assert rows(query)[-1] == [int(np.floor(u * 99 + 0.5)) for u in best]


@pytest.mark.parametrize(
    "options",
    [{"frame": "wide"}, {"order": "random"}, {"spread": 0}, {"min_deviation": -1}, {"style": "x"}],
)
def test_bad_options(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        get_prompt("pattern", **options)


# Letters, and axes that follow the covariance


def letters(query):
    return [line.split(" ")[1:] for line in query.request.text.splitlines()]


def correlated(n=40, seed=0):
    """Return a situation whose points lie near the diagonal of the first two parameters."""
    rng = np.random.default_rng(seed)
    along = rng.normal(size=n)
    points = np.column_stack(
        [along + 0.05 * rng.normal(size=n), along + 0.05 * rng.normal(size=n), rng.normal(size=n)]
    )
    trials = tuple(
        Trial(i, None, tuple(p.tolist()), (-float(p @ p),))
        for i, p in enumerate(points.clip(-6, 6))
    )
    return Situation(BOX, History(trials), n + 1, seed=seed)


def test_golden_levels(check_golden):
    request = LevelsPrompt().prepare(situation(samples=4)).request
    check_golden("levels_box", f"{request.text}<-- open line\n\n{request.grammar}\n")
    request = LevelsPrompt(best=5, style="chat").prepare(situation(MIXED)).request
    check_golden(
        "levels_chat", "".join(f"--- {m.role} ---\n{m.content}\n" for m in request.messages)
    )


def test_levels_is_pattern_with_other_defaults():
    state = situation(seed=3)
    other = PatternPrompt(frame="covariance", notation="letters", min_deviation=1e-4)
    assert LevelsPrompt().prepare(state).request == other.prepare(state).request
    assert LevelsPrompt().to_dict() == {"name": "levels"}
    made = get_prompt(LevelsPrompt(best=7, frame="elites").to_dict())
    assert made == LevelsPrompt(best=7, frame="elites")


def test_every_letter_is_one_place_of_the_grammar():
    query = LevelsPrompt().prepare(situation(MIXED, n=30))
    pattern = grammar_regex(query.request.grammar)
    lines = query.request.text.splitlines(keepends=True)
    assert len(lines) == 10
    assert all(pattern.fullmatch(line) for line in lines)
    # momentum has 5 values, layers 8, the optimizer 3 choices; fixed is one value.
    assert not pattern.fullmatch(" a f a a a a\n")
    assert not pattern.fullmatch(" a a i a a a\n")
    assert not pattern.fullmatch(" a a a a d a\n")
    assert not pattern.fullmatch(" a a a a a b\n")
    assert pattern.fullmatch(" z e h z c a\n")


@pytest.mark.parametrize(
    "answer",
    [
        " c a z",
        "c a z",
        " C A Z\n",
        "c, a, z",
        "x\n c a z\n b b b",
        '["c", "a", "z"]',
        "c\na\nz",
        "Here is a better line: c a z",
        "I think **c, a, z**.",
        "<think>a b c</think>c a z",
    ],
)
def test_letters_are_read_tolerantly(answer):
    query = LevelsPrompt(dither=False, frame="space").prepare(situation())
    expected = BOX.decode(np.array([2, 0, 25]) / 25)
    assert query.read(answer).values == pytest.approx(expected)


def test_too_few_letters_are_said_so():
    query = LevelsPrompt().prepare(situation())
    with pytest.raises(ParseError, match=r"found 2 letters, expected one line of 3"):
        query.read(" a b")
    with pytest.raises(ParseError, match="found 0 letters"):
        query.read("about the 12 params")


@pytest.mark.parametrize(
    "answer", [" a b c d", "I am a model", "I'd say a good point is near b", "a b or c"]
)
def test_words_are_no_levels(answer):
    with pytest.raises(ParseError, match="expected one line of 3"):
        LevelsPrompt().prepare(situation()).read(answer)


@pytest.mark.parametrize(
    ("prompt", "answer", "message"),
    [
        (LevelsPrompt(), " a f a a a a", "place 2 is f, expected at most e"),
        (PatternPrompt(), "50,5,1,50,0,0", "place 2 is 5, expected at most 4"),
    ],
)
def test_levels_out_of_range_are_rejected_on_demand(prompt, answer, message):
    query = prompt.prepare(situation(MIXED, n=30))
    assert query.read(answer).clipped
    query = prompt.prepare(situation(MIXED, n=30, out_of_range="reject"))
    with pytest.raises(ParseError, match=message):
        query.read(answer)


def test_more_choices_than_letters_are_written_in_integers():
    many = Space({"a": Categorical([f"c{i}" for i in range(27)]), "x": Float(0, 1)})
    query = LevelsPrompt(dither=False).prepare(situation(many))
    assert re.fullmatch(r"(?:\d+,\d+\n){10}", query.request.text)
    assert query.read("26,50").values[0] == "c26"


@pytest.mark.parametrize("notation", ["integers", "letters"])
@pytest.mark.parametrize("frame", ["elites", "covariance", "space"])
def test_shown_rows_lie_in_the_cells_they_are_read_as(notation, frame):
    state = correlated()
    prompt = PatternPrompt(notation=notation, frame=frame, dither=False, spread=8.0)
    query = prompt.prepare(state)
    reader = query.read
    shown = query.request.text.splitlines()
    best = state.history.ranked[:10][::-1]
    for line, trial in zip(shown, best, strict=True):
        values = np.array(reader(line).values)
        # Half a cell: of 26 over 16 standard deviations (at most 1 here), or over 12.
        assert np.abs(values - trial.values).max() < 0.6


def test_covariance_axes_follow_the_elites():
    """Elites on a diagonal: rows are wider along it than off it; plain ones make a square."""
    state = correlated()
    gaps = {}
    for frame in ("elites", "covariance"):
        query = PatternPrompt(frame=frame, notation="letters", best=20).prepare(state)
        rng = np.random.default_rng(1)
        lines = [
            " " + " ".join(ascii_lowercase[k] for k in rng.integers(0, 26, 3)) for _ in range(300)
        ]
        points = np.array([query.read(line).values for line in lines])
        assert np.isfinite(points).all()
        gaps[frame] = np.std(points[:, 0] - points[:, 1]) / np.std(points[:, 0] + points[:, 1])
    assert gaps["elites"] == pytest.approx(1.0, abs=0.15)
    # Half of a correlation of about 1.
    assert gaps["covariance"] == pytest.approx(np.sqrt((1 - 0.5) / (1 + 0.5)), abs=0.1)


def test_uncorrelated_elites_have_the_plain_frame():
    """Four points of a square: the axes are the parameters', the rows those of `elites`."""
    corners = [(x, y, 0.0) for x in (-1.0, 1.0) for y in (-1.0, 1.0)]
    equal = History(tuple(Trial(i, None, p, (1.0,)) for i, p in enumerate(corners * 10)))
    state = replace(situation(), history=equal)
    plain = PatternPrompt(notation="letters", best=40).prepare(state).request.text
    other = PatternPrompt(notation="letters", best=40, frame="covariance").prepare(state)
    apart = [abs(ord(a) - ord(b)) for a, b in zip(plain, other.request.text, strict=True)]
    assert max(apart) <= 1


def test_covariance_axes_stay_next_to_the_parameters():
    """With no correlation, letter i is parameter i alone."""
    query = LevelsPrompt(dither=False, best=60).prepare(situation(n=60))
    middle = np.array(query.read(" m m m").values)
    moved = np.array(query.read(" m z m").values)
    away = np.abs(moved - middle)
    assert away[1] > 3 * max(away[0], away[2])


@pytest.mark.parametrize("n", [1, 2, 3, 12])
def test_covariance_frame_of_few_or_equal_elites(n):
    same = History(tuple(Trial(i, None, (1.0, 2.0, 3.0), (1.0,)) for i in range(n)))
    query = LevelsPrompt().prepare(replace(situation(), history=same))
    point = query.read(" a m z").values
    assert np.isfinite(point).all()
    if n > 1:
        assert np.abs(np.array(point) - [1.0, 2.0, 3.0]).max() < 0.1


def test_all_dimensions_exact_have_no_axes():
    space = Space({"a": Categorical(["x", "y"]), "k": Int(1, 5)})
    query = LevelsPrompt().prepare(situation(space))
    assert query.read(" b e").values == ("y", 5)
