import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from stubs import needs_confinement

from llmopt.code.answer import MAX_SOURCE, read_answer
from llmopt.code.checks import MAX_COMPONENTS, Function, Output, check
from llmopt.errors import ParseError
from llmopt.sandbox.analysis import analyse
from llmopt.sandbox.failure import CandidateError
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits

F = "def f(x):\n    return 1.0\n"


class TestReadAnswer:
    @pytest.mark.parametrize(
        "text",
        [
            f"```python\n{F}```",
            f"Sure!\n```python\n{F}```\nThis function returns one.",
            f"~~~\n{F}~~~",
            f"```py\n{F}",  # no end
            f"```\npython\n{F}```",
            f"<think>\n```python\ndef f(x):\n    return 2.0\n```\n</think>\n```python\n{F}```",
            f"```python\ndef f(x):\n    return 2.0\n```\nNo, better:\n```python\n{F}```",
            f"```python\n{F}```\nUse it like this:\n```python\nprint(f(1))\n```",
            f"```python\n{F}```".replace("\n", "\r\n"),
            f"```python\n\ufeff{F}```".replace("\n", "\r"),
        ],
    )
    def test_the_same_code_in_many_forms(self, text):
        assert read_answer(text).source.strip() == F.strip()

    @pytest.mark.parametrize(
        "inside",
        [
            'TABLE = {"code": "idle", "n": 0}',
            'HINT = "<think>"',
            'HINT = "</think>"',
            'TABLE = \'{"code": "def f(x): return 2"}\'',
        ],
    )
    def test_what_a_program_holds_is_a_part_of_it(self, inside):
        source = f"{inside}\n{F}"
        assert read_answer(f"```python\n{source}\n```").source.strip() == source.strip()

    def test_the_words_around_the_code_explain_it(self):
        assert read_answer(f"Why.\n```python\n{F}```\nNow.").explanation == "Why.\nNow."

    @pytest.mark.defect(26)
    def test_the_end_of_a_search_is_read_where_it_is_offered(self):
        text = "The gait is at its limit.\nProposal: stop"
        assert read_answer(text, may_stop=True).stop
        with pytest.raises(ParseError, match="no code"):
            read_answer(text)
        assert not read_answer(f"Proposal: stop\n```python\n{F}```", may_stop=True).stop

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "I cannot do that.",
            f"Here it is:\n\n{F}\nI hope this helps.",  # in no block
            "```python\n```",
            '{"code": "def f(x): return 1"}',
            "{" * 500,
        ],
    )
    def test_no_code(self, text):
        with pytest.raises(ParseError, match="no code"):
            read_answer(text)

    @examples(50)
    @given(
        st.lists(
            st.sampled_from(("```", "```python\n", "~~~\n", "def f(x):\n", "    return 1\n", "}",
                             "\n", '{"code": "', '"}', "{", "<think>", "</think>", "import a",
                             "prose ", "@x\n")),
            max_size=30,
        )
    )  # fmt: skip
    def test_any_text_gives_code_or_a_parse_error(self, parts):
        try:
            answer = read_answer("".join(parts))
        except ParseError:
            return
        assert answer.source.strip()

    def test_too_much_code(self):
        with pytest.raises(ParseError, match="characters"):
            read_answer(f"```python\n{F}{'# x' * MAX_SOURCE}\n```")


class TestAnalyse:
    def test_fingerprint_ignores_looks_only(self):
        a = "def f(x):\n    y = x * 2\n    return y\n"
        b = '# comment\ndef f(obs: float) -> float:\n    "doc"\n    z   = (obs * 2)\n    return z\n'
        c = "def f(x):\n    y = x * 3\n    return y\n"
        d = "def g(x):\n    y = x * 2\n    return y\n"
        prints = [analyse(s)["fingerprint"] for s in (a, b, c, d)]
        assert prints[0] == prints[1]
        assert len(set(prints)) == 3

    @pytest.mark.parametrize(
        "source",
        ["def f(:", "return 1", "x = 'a", "\0", "(" * 5000, "  x=1", "x=" + "-" * 50_000 + "1"],
    )
    def test_what_cannot_be_parsed(self, source):
        assert analyse(source)["error"]["message"].partition(":")[0]


BOX = Output.from_space(gym.spaces.Box(-1, 1, (2,)))
ONE = Output.from_space(gym.spaces.Box(-1, 1, (1,)))
DISCRETE = Output.from_space(gym.spaces.Discrete(3))
REWARD = Output("reward")


class TestOutput:
    @pytest.mark.parametrize(
        ("output", "value", "read"),
        [
            (BOX, [5, -0.5], [1.0, -0.5]), (ONE, 0.25, [0.25]), (Output(), np.array([0.5]), 0.5),
            (DISCRETE, 2.0, 2), (DISCRETE, np.float64(2), 2), (Output("int"), 2**53 + 1, 2**53 + 1),
            (Output("int"), np.float16(3), 3), (REWARD, 1, (1.0, {})),
            (REWARD, (1.0, {"a": np.float32(0.5)}), (1.0, {"a": 0.5})),
        ],
    )  # fmt: skip
    def test_what_is_taken(self, output, value, read):
        found = output.read(value)
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == read
        assert isinstance(found, type(read) if not isinstance(read, list) else np.ndarray)

    @pytest.mark.parametrize(
        ("output", "wrong"),
        [
            *((BOX, value) for value in (
                [1.0], [[1.0, 2.0]], [np.nan, 0], ["a", "b"], None, [1.0, [2.0]], 1.0)),
            *((DISCRETE, value) for value in (3, -1, 0.5, True, [1, 2], "1")),
            *((Output("int"), value) for value in (
                1e300, -1e19, np.array(2**64 - 1, dtype=np.uint64))),
            *((REWARD, value) for value in (
                (1.0, {"a": np.nan}), (np.inf, {}), {"a": 1.0}, (1.0, 2.0),
                1e308, -1e308, (0.0, {"a": 1e308}), np.inf, 10**200)),
        ],
    )  # fmt: skip
    def test_what_is_refused(self, output, wrong):
        with pytest.raises(CandidateError, match="expected"):
            output.read(wrong)

    def test_a_complaint_does_not_write_out_what_it_complains_of(self):
        shown = []

        class Loud:
            def __repr__(self):
                shown.append(1)
                return "loud"

        with pytest.raises(CandidateError, match="loud, loud"):
            Output().read([Loud()] * 1000)
        assert len(shown) < 100
        assert len(str(CandidateError("x" * 10**6, "check"))) < 10_000

    def test_components_of_a_reward_are_few_and_have_short_names(self):
        output = Output("reward")
        many = {f"part {k}": 1.0 for k in range(MAX_COMPONENTS)}
        assert len(output.read((1.0, many))[1]) == MAX_COMPONENTS
        for wrong in ({**many, "one more": 1.0}, {"x" * 10**6: 1.0}):
            with pytest.raises(CandidateError, match="components") as caught:
                output.read((1.0, wrong))
            assert len(str(caught.value)) < 300


@pytest.fixture(scope="module")
def box():
    with Sandbox(limits=WorkerLimits(call_seconds=20)) as box:
        yield box


@needs_confinement
class TestCheck:
    FUNCTION = Function("f(x)", output=Output(shape=(2,)), samples=((np.ones(3),), (np.zeros(3),)))

    def test_sound_code_passes(self, box):
        source = (
            "import numpy as np\nfrom typing import Any\nSCALE: float = 2\n"
            "def helper(a, *rest):\n    return a * SCALE\n"
            "def f(x: 'np.ndarray', input=None) -> Any:\n    input = helper(x[:2])\n"
            "    return input\n"
        )
        assert len(check(box, source, [self.FUNCTION])) == 64
        assert np.array_equal(box.call("f", np.ones(3)), [2, 2])

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("def f(x)\n    return x", "SyntaxError.*line 1"),
            ("def g(x):\n    return x[:2]", "f is missing; functions found: g"),
            (
                "def f():\n    return 1",
                "f: too many positional arguments; expected `def f\\(x\\):`",
            ),
            ("def f(x, y):\n    return x[:2]", "f: missing a required argument: 'y'"),
            ("def f(x, *, k):\n    return x[:2]", "f: missing a required.*argument: 'k'"),
            ("async def f(x):\n    return x[:2]", "f must be a plain function"),
            ("def f(x):\n    yield x", "f must be a plain function"),
            ("import os\ndef f(x):\n    return x[:2]", "line 1 imports 'os'"),
            ("def f(x):\n    import subprocess\n    return x[:2]", "line 2 imports 'subprocess'"),
            ("def f(x):\n    return eval('x')", "uses eval"),
            ("def f(x):\n    return open('x')", "files cannot be opened"),
            ("y = 1 / 0\ndef f(x):\n    return x[:2]", "ZeroDivisionError.*line 1"),
            ("def f(x):\n    return x[0]", "sample input 1.*a single number; expected an array"),
            ("def f(x):\n    return x[:2] / x.sum()", "sample input 2.*nan"),
            ("def f(x):\n    return np.random.rand(2)", "not deterministic"),
            ("def f(x):\n    pass", "every path"),
            ("def f(x):\n    return f(x)", "RecursionError"),
            ("def f(x):\n    return x.foo", "AttributeError.*foo"),
        ],
    )
    @pytest.mark.filterwarnings("ignore")
    def test_what_is_wrong_is_said(self, box, body, message):
        with pytest.raises(CandidateError, match=message):
            check(box, body, [self.FUNCTION])

    @pytest.mark.parametrize("sample", [{1: 2}, object(), b"x", [{"a": (1, {None: 2})}]])
    def test_a_sample_that_cannot_be_sent_is_named_before_a_model_is_asked(self, sample):
        with pytest.raises(ValueError, match=r"sample input 2 of f: .*expected"):
            Function("f(x)", samples=((1,), (sample,)))

    def test_a_bad_signature_is_the_callers_fault(self):
        with pytest.raises(ValueError, match="controller"):
            Function("not a signature")
