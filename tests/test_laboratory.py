"""The laboratory: blocks of Python in a confined worker, its jobs, data and snapshots."""

import functools
import importlib
import importlib.util
import json
import pickle
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from stubs import needs_confinement

from llmopt.data import TrialData
from llmopt.lab import laboratory as lab
from llmopt.lab import pickles
from llmopt.lab.laboratory import Laboratory
from llmopt.prompt.kept_variables import MOST_VALUES
from llmopt.prompt.python_block import MOST_OUTPUT, Computed
from llmopt.sandbox.failure import SandboxError

pytestmark = needs_confinement


class Bench:
    """A laboratory, and the blocks that it has run."""

    def __init__(self, laboratory):
        self.laboratory, self.before, self.data = laboratory, [], {}

    def run(self, code, seconds=600.0):
        seen = {"X": np.ones((2, 2)), "f": np.array([1.0, 2.0]), "names": ["x", "y"]}
        seen["data"] = self.data
        self.before.append(self.laboratory.run(code, self.before, lambda: seen, seconds))
        return self.before[-1]

    def says(self, code):
        return self.run(code).output.strip()


@pytest.fixture
def bench():
    with closing(Laboratory(seconds=60, workers=2)) as laboratory:
        yield Bench(laboratory)


@pytest.fixture(scope="module")
def shared():
    with closing(Laboratory(seconds=60, workers=2)) as laboratory:
        yield Bench(laboratory)


# -- blocks -------------------------------------------------------------------------------------


def test_variables_stay_and_tracebacks_show_lines_of_blocks(bench):
    first = bench.run("import numpy as np\nw = np.ones((2, 3))\ndef g(x):\n    return 1 / x")
    assert first.variables == ("w (array 2×3)", "g (function)")
    assert (first.output, first.trials, first.lost, first.failed) == ("", 2, False, False)
    failed = bench.run("print('so far')\ng(0)")
    assert failed.failed
    assert failed.output.splitlines() == [
        "so far",
        "Traceback:",
        "  line 2, in <module>: g(0)",
        "  line 4, in g: return 1 / x",
        "ZeroDivisionError: division by zero",
    ]
    assert "there are no files here" in bench.says("open('x.txt', 'w')")
    assert "MemoryError" in bench.says("[0] * 10**9")
    assert "SyntaxError" in bench.says("1 +")
    assert bench.says("float(w.sum() + f[1])") == "8.0"
    odd = bench.run(
        "del w, g\nbig = 10**400\nclass Odd(list):\n    def __len__(self):\n        return -1\n"
        "odd = Odd()\nclass E(Exception):\n    def __str__(self): raise ValueError\nraise E"
    )
    assert odd.output.splitlines()[-1] == "E: (its message cannot be shown)"
    assert odd.variables == ("big (int)", "Odd (type)", "odd (Odd)", "E (type)")
    long = bench.says("print('a' * 19000)\n1 / 0")
    assert len(long) <= MOST_OUTPUT
    assert "characters are not shown" in long
    assert long.endswith("ZeroDivisionError: division by zero")
    warned = bench.says("import warnings\nwarnings.warn('ill')\nnp.array([1.0]) / 0")
    assert warned.startswith("UserWarning: ill\nRuntimeWarning: divide")  # no path
    assert bench.says("if __name__ == '__main__':\n    print(X.sum())") == "4.0"


def test_a_block_that_is_ended_costs_no_variable_and_shows_what_it_printed(bench):
    bench.run("kept = 5")
    slow = bench.run("print('first')\nprint('x' * 9000)\nprint('last')\nwhile True: pass", 1.0)
    assert (slow.failed, slow.lost, slow.variables) == (True, False, ("kept (5)",))
    assert "xx\nlast\n\nThe block was ended: it took more than 1 s. Variables" in slow.output
    assert len(slow.output) <= MOST_OUTPUT
    died = bench.run("print('before')\nkept = 6\nimport os\nos._exit(3)")
    assert died.output.startswith("before\n\nThe block was ended: its process died")
    assert bench.says("print(kept)") == "5"
    with closing(Laboratory(workers=0)) as other:
        first = Bench(other).run("import os\nos._exit(3)")
    assert (first.lost, first.variables) == (True, ())


@pytest.mark.defect(20)
def test_variables_outlive_a_worker_that_runs_out_of_memory(bench):
    bench.run("kept = 5")
    full = bench.run(
        "held = []\ntry:\n    while True: held.append(bytearray(1 << 20))\n"
        "except MemoryError:\n    print('full')"
    )
    assert full.output == "full\n"
    bench.run("import os\nos._exit(3)")
    assert bench.says("print(kept)") == "5"
    unsaved = bench.run(  # its snapshot cannot be made
        "import sys\nmore = 6\nsys.modules['llmopt.lab.block_runner'].snapshot = lambda most: [][0]"
    )
    assert "do not survive an interruption" in unsaved.notes[0]
    assert bench.says("print(kept, more)") == "5 6"
    died = bench.run("import os\nos._exit(3)")
    assert (died.lost, "kept (5)" in died.variables) == (False, True)
    assert "Variables are those after block 4 of 6: those of later blocks" in died.output
    assert bench.says("print(kept)") == "5"


def test_another_laboratory_restores_variables_functions_classes_and_jobs(bench, tmp_path):
    bench.laboratory.folder = tmp_path / "d"
    bench.run(
        "import time\nclass P:\n    def __init__(self, x):\n        self.x = x\n"
        "def make(n):\n    def add(m):\n        return n + m + base\n    return add\n"
        "base, p, add3 = 10, P(5), make(3)\ngone = (i for i in [])\n"
        "def outer(): return inner()\ndef inner(): return 1\n"
        "cached = functools.lru_cache(maxsize=None)(inner)\n"
        "J = collections.namedtuple('J', 'u v', defaults=[7])\nj = J(1)\n"
        "random.seed(5); drawn = random.random()\n"
        "def wait(s):\n    time.sleep(s)\n    return s\n"
        "done, runs = submit(wait, 0.01), submit(wait, 0.2)\ndone.wait(5)"
    )
    assert [f.name for f in (tmp_path / "d").iterdir()] == ["laboratory-000001.bin"]
    bench.laboratory.close()
    with closing(Laboratory(workers=2, folder=tmp_path / "d")) as again:
        bench.laboratory = again
        block = bench.run(
            "def inner(): return 2\n"
            "print(p.x, type(p) is P, add3(1), done.result, runs.result, j.v, outer(), cached())\n"
            "print(pmap(add3, [1, 2]))\nadd3('')"
        )
    assert block.notes == ("These variables are gone: gone.",)
    assert block.output.splitlines()[:2] == ["5 True 14 0.01 0.2 7 2 1", "[14, 15]"]
    assert "  line 7, in add: return n + m + base" in block.output
    with closing(Laboratory(workers=0)) as without:
        bench.laboratory = without
        assert bench.run("p").notes == ("The variables of earlier blocks are gone.",)


def test_what_a_snapshot_cannot_hold_is_named(bench):
    bench.run("small, middle = 1, np.random.default_rng(1).random(10**6)")
    block = bench.run("large = np.random.default_rng(0).random(5 * 10**6)\nprint('done')")
    assert block.output == "done\n"
    (note,) = block.notes
    assert "large (array 5000000)" in note
    assert "32 MiB" in note
    bench.laboratory.close()  # as if it was interrupted
    after = bench.run("print(small, middle.size)")
    assert after.output == "1 1000000\n"
    assert after.notes == ("These variables are gone: large.",)
    bomb = bench.run(
        "import os\nclass Bomb:\n    def __reduce__(self):\n        os._exit(3)\nmore = Bomb()"
    )
    assert [name.split()[0] for name in bomb.variables] == ["small", "middle"]
    assert "Variables are those before it" in bomb.notes[0]
    slow = bench.run(  # seconds that it computes there count
        "import time\nclass Slow:\n    def __reduce__(self):\n        time.sleep(1)\n"
        "        return Slow, ()\nslow = Slow()"
    )
    assert slow.seconds >= 1


def test_data_are_sent_once_and_found_in_workers_too(bench, monkeypatch):
    sent = []
    give = Laboratory._give
    monkeypatch.setattr(
        Laboratory,
        "_give",
        lambda self, given: [sent.append(dict(self._sent)), give(self, given)][1],
    )
    bench.data = {1: TrialData.of({"a": np.arange(5.0), "runs": [np.ones(2), np.ones(3)]})}
    said = bench.says(
        "print(data, data[1]['a'].sum(), [r.shape for r in data[1]['runs']])\n"
        "print(pmap(lambda k: float(data[1]['a'][k]), [1, 2]))"
    )
    assert said == "data of #1 10.0 [(2,), (3,)]\n[1.0, 2.0]"
    bench.data = {**bench.data, 2: TrialData.of({"a": np.zeros(1)})}
    assert "no data of #7; there are data of: 1, 2" in bench.says("data[7]")
    assert bench.says("print(pmap(lambda k: len(data), [1, 2]))") == "[2, 2]"
    assert [len(known) for known in sent] == [0, 1, 2]


def test_functions_of_the_caller_are_found_by_blocks_and_workers(bench):
    bench.laboratory.equip(
        "def policy(w, o):\n    return np.tanh(GAIN @ o + w)", {"GAIN": np.eye(2) * 2.0}
    )
    code = (
        "print(policy(1.0, [0.0, 0.0]).round(3).tolist())\n"
        "print(pmap(lambda w: float(policy(w, [0, 0])[0]), [0.0, 0.0]))"
    )
    assert bench.says(code) == "[0.762, 0.762]\n[0.0, 0.0]"


# -- pmap and jobs ------------------------------------------------------------------------------


def test_pmap_computes_in_other_processes_with_the_functions_and_variables_of_blocks(shared):
    code = (
        "import os, dataclasses, functools\nscale = 3\n"
        "@dataclasses.dataclass\nclass P:\n    x: float\n"
        "    def y(self):\n        return scale * self.x\n"
        "def inner(n):\n    return n if n < 2 else inner(n - 1) + inner(n - 2)\n"
        "cached = functools.lru_cache(maxsize=None)(inner)\n"
        "def work(n):\n    return P(cached(n)), os.getpid()\n"
        "found = pmap(work, range(12))\nprint([int(p.y()) for p, _ in found])\n"
        "print(os.getpid() in {i for _, i in found}, {type(p) for p, _ in found} == {P})\n"
        "print([float(v) for v in pmap(lambda x: x.sum() + f[1], [np.ones(2), np.ones(3)])])\n"
        "def local(n):\n    class N:\n        v = n\n    return N()\n"
        "print(pmap(work, []), pmap(lambda p: p.y(), [P(1), P(2)]), pmap(local, [1, 2])[1].v)"
    )
    assert shared.says(code).splitlines() == [
        "[0, 3, 3, 6, 9, 15, 24, 39, 63, 102, 165, 267]",
        "False True",
        "[4.0, 5.0]",
        "[] [3, 6] 2",
    ]


@pytest.mark.defect(20)
def test_pmap_returns_what_finished_and_says_which_items_failed_and_why(shared):
    shared.run("def bad(n):\n    return 1 / (n - 3)")
    block = shared.run("print(pmap(bad, [1, 2, 3, 4]))")
    assert not block.failed
    assert block.output.splitlines() == [
        "pmap: 1 of 4 items failed, with None in their places:",
        "item 2: ZeroDivisionError: division by zero",
        f"  <block {len(shared.before) - 1}>, line 2, in bad",
        "[-0.5, -1.0, None, 1.0]",
    ]
    assert "WorkerError: 2 of 2 items failed" in shared.says("pmap(bad, [3, 3])")
    odd = shared.says("print(pmap(lambda x: 5, [0, (i for i in [])]))")
    assert "item 1: this cannot be sent to another process: " in odd
    assert odd.endswith("[5, None]")
    assert shared.says("print(pmap(abs, [-3, -4]))") == "[3, 4]"


@pytest.mark.defect(20)
def test_pmap_returns_what_a_worker_finished_before_it_died(bench):
    said = bench.says(
        "import os, time\ndef one(n):\n    time.sleep(0.01)\n"
        "    return os._exit(1) if n == 3 else n\nprint(pmap(one, range(40)))"
    )
    assert said.splitlines()[1:] == [
        "item 3: its worker died: too much memory or time?",
        str([None if n == 3 else n for n in range(40)]),
    ]
    assert bench.says("print(pmap(abs, [-3, -4]))") == "[3, 4]"
    all_die = bench.says("pmap(lambda n: os._exit(1), range(9))")
    assert "WorkerError: 9 of 9 items failed" in all_die
    assert bench.says("print(pmap(abs, [-3, -4]))") == "[3, 4]"


def test_a_job_runs_on_between_blocks_shows_its_best_and_can_be_cancelled(bench):
    bench.run(
        "import time\nclass P:\n    def __init__(self, a): self.a = a\n"
        "def long(n):\n    for k in range(n):\n        report((P(k), float(-k)))\n"
        "        time.sleep(0.01)\n    return P('ended')\n"
        "job = submit(long, 10**6)\nshort = submit(long, 3)\nlate = submit(long, 3)"
    )
    time.sleep(0.3)  # the objective is being evaluated
    first = bench.says(
        "time.sleep(0.2)\nb = job.best[0]\nprint(job.done, b.a > 3, short.result.a, type(b) is P)"
    )
    assert first == "False True ended True"
    assert "job (job, running, best -" in " ".join(bench.before[-1].variables)
    said = bench.says(
        "print(pmap(abs, [-1, -2]), job.wait(0.1), late.result.a)\njob.cancel()\njob.cancel()\n"
        "print(job, submit(lambda: report(3) or 4).result)\n"
        "print(pmap(lambda n: report(n) or n, [1, 2]))\njob.result"
    )
    assert said.startswith("[1, 2] False ended\nJob(long: cancelled) 4\n[1, 2]\n")
    assert said.endswith("WorkerError: it was cancelled")


def test_several_jobs_are_waited_for_at_once(shared):
    code = (
        "import time\njobs = [submit(time.sleep, s) for s in (0, 0.1, 3)]\n"
        "print(len(wait(jobs[:2])), len(wait(jobs, 0.2)))"
    )
    assert shared.says(code) == "2 2"


def test_a_report_that_cannot_be_read_is_an_error_with_its_reason(bench):
    look = "job = submit(work)\nwhile True:\n    time.sleep(0.02)\n    job.best"
    large = bench.run(
        f"import time\ndef work():\n    report(np.zeros(200_000))\n    time.sleep(60)\n{look}"
    )
    assert "WorkerError: what the job reported cannot be read: it has 1600" in large.output
    broken = bench.run(
        "class P:\n    def __setstate__(self, state): raise ValueError('odd')\n"
        "def work():\n    p = P()\n    p.a = 1\n    report(p)\n    time.sleep(60)\n" + look
    )
    assert "what the job reported cannot be read: ValueError: odd" in broken.output


def test_the_clock_of_a_block_stops_while_it_waits_for_a_job(bench):
    bench.laboratory.seconds = 1.0
    job = "import time\njob = submit(lambda: time.sleep(1.2) or 5)\n"
    block = bench.run(f"{job}print(job.wait(60), job.result)")
    assert (block.output, block.failed) == ("True 5\n", False)
    assert block.seconds >= 1.2  # it still counts towards the seconds of all blocks
    assert "took more than 1 s" in bench.run(f"{job}job.result\nwhile True: pass").output
    began = time.monotonic()
    waits = bench.run("job = submit(lambda: time.sleep(60))\njob.wait()", 2.0)
    assert "The block was ended" in waits.output
    assert 2.0 <= time.monotonic() - began < 30


# -- libraries ----------------------------------------------------------------------------------


def test_a_trusted_package_is_imported_before_the_confinement(tmp_path, monkeypatch):
    with pytest.raises(ImportError, match="compute_packages: 'casadi9' is not installed"):
        Laboratory(packages=["casadi9"])
    (tmp_path / "trusted.py").write_text("held = open(__file__).read()\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with closing(Laboratory(workers=1, packages=["trusted"])) as laboratory:
        assert laboratory.libraries == ("trusted",)
        assert "held" in Bench(laboratory).says("import trusted\nprint(trusted.held)")
    (tmp_path / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\n"
    )
    for package, why in (("broken", "ZeroDivisionError"), ("threads", "2 threads run already")):
        with closing(Laboratory(workers=1, packages=[package])) as laboratory:
            for _ in range(2):
                with pytest.raises(SandboxError, match=f"packages {package} in .*{why}.*leave out"):
                    laboratory.check()


def test_blocks_call_an_objective_by_its_pickle_which_nothing_else_loads(tmp_path, monkeypatch):
    (tmp_path / "plant.py").write_text(
        "import numpy as np\ndef gap(x): return float(np.square(x - 0.25))\n"
        "def loss(point): return gap(point['x'])\n"
        "def lost(point): return open('/etc/passwd').read()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plant = importlib.import_module("plant")
    objective = pickles.dumps_by_value(plant.loss)
    with closing(Laboratory(workers=1, objective=objective)) as laboratory:
        laboratory.check()
        bench = Bench(laboratory)
        code = (
            "def at(x): return objective({'x': x})\n"
            "print(pmap(at, [0, 1]), submit(at, 0.25).result)"
        )
        assert bench.says(code) == "[0.0625, 0.5625] 0.0"
        laboratory.close()
        assert bench.says("print(at(0))") == "0.0625"
    with closing(Laboratory(workers=0, objective=pickles.dumps_by_value(plant.lost))) as laboratory:
        assert "there are no files here" in Bench(laboratory).says("objective({})")
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"compute_objective=<function .* no connection"):
        pickles.dumps_by_value(lambda point: lock.locked())
    monkeypatch.setitem(plant.__dict__, "gap", functools.partial(Plant.gap, 1))
    with (
        closing(Laboratory(workers=0, objective=pickles.dumps_by_value(plant.loss))) as laboratory,
        pytest.raises(SandboxError, match=r"compute_objective .* in compute_packages"),
    ):
        laboratory.check()


class Plant:
    def gap(self, x):
        return x


def test_cma_and_fit(monkeypatch):
    pytest.importorskip("cma")
    pytest.importorskip("scipy")
    monkeypatch.setattr(lab, "LIBRARIES", {"SciPy": ("scipy.optimize",), "cma": ()})
    code = (
        "x, v = cma(lambda x: ((x - [1, -2, 3]) ** 2).sum(), np.zeros(3), 1.0, 5.0, target=1e-12)\n"
        "print(np.round(x, 4).tolist(), v < 1e-9)\n"
        "x, v = cma(lambda x: ((x - [1, -2]) ** 2).sum(axis=1), [0, 0], [1, 2], target=1e-9, "
        "batch=True)\nprint(np.round(x, 3).tolist())\n"
        "t = np.linspace(0, 1, 30)\n"
        "p, e, rms = fit(lambda t, p: p[0] * np.exp(-p[1] * t), (t, 2 * np.exp(-3 * t)), [1, 1])\n"
        "print(np.round(p, 5).tolist(), rms < 1e-6, e.shape)\n"
        "x, v = cma(lambda x: x.sum(), [0.5, 0.5], 0.3, 0.5, low=0.1, high=1)\n"
        "print(np.round(x, 6).tolist())\n"
        "job = submit(cma, lambda x: abs(x).sum(), [3.0, 1.0], 1.0, 1.0)\njob.wait()\n"
        "print(job.best[1] < 0.1, job.result[1] == job.best[1])"
    )
    with closing(Laboratory(workers=1)) as laboratory:
        assert Bench(laboratory).says(code).splitlines() == [
            "[1.0, -2.0, 3.0] True",
            "[1.0, -2.0]",
            "[2.0, 3.0] True (2,)",
            "[0.1, 0.1]",
            "True True",
        ]


@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="needs numba")
def test_numba_compiles_in_blocks_workers_and_jobs_and_gains_nothing(monkeypatch):
    """One worker for all of it: to load numba before the confinement takes seconds."""
    monkeypatch.setattr(lab, "LIBRARIES", {"numba": ()})
    with closing(Laboratory(workers=1)) as laboratory:
        bench = Bench(laboratory)
        bench.run("kept = 5")
        assert "numba" in laboratory.libraries
        code = (
            "from numba import njit, prange\n"
            "@njit(cache=True, parallel=True)\ndef loop(n):\n    s = 0.0\n"
            "    for i in prange(n): s += np.sin(i)\n    return s\n"
            "@njit\ndef solve(a, b):\n    x = np.linalg.solve(a, b)\n"
            "    return np.linalg.norm(x) + np.dot(x, b) + np.random.normal(0.0, 0.0)\n"
            "def use(n): return round(loop(n), 4)\n"
            "print(kept, round(loop(3), 4), solve(2 * np.eye(3), np.ones(3)))\n"
            "print(pmap(use, [3, 3]), submit(use, 3).result)"
        )
        assert bench.says(code).splitlines()[0].startswith("5 1.7508 2.3660254")
        assert bench.before[-1].output.splitlines()[1] == "[1.7508, 1.7508] 1.7508"
        assert attempts(bench) == {}
        laboratory.close()
        assert bench.says("print(round(loop(3), 4), use(3))") == "1.7508 1.7508"


# -- values of variables ------------------------------------------------------------------------


def test_what_can_be_a_point_is_kept_at_full_precision(bench):
    block = bench.run(
        "a = np.array([1 / 3, 2 ** 0.5])\nb = (1, True)\nc = [np.float32(0.1), np.int8(3)]\n"
        "d = {'y': 1 / 7, 'more': 'text'}\ne = np.array(['u', 'v'])\ng = [float('-inf'), None]\n"
        "matrix = np.eye(2)\nlong = [1, 2, 3]\nother = {'z': 1}\n"
        "h = np.array(['u', 3], dtype=object)\n_hidden = [1, 2]\nscalar = 2.0"
    )
    assert block.values == {
        "a": [1 / 3, 2**0.5],
        "b": [1, True],
        "c": [float(np.float32(0.1)), 3],
        "d": {"y": 1 / 7, "more": "text"},
        "e": ["u", "v"],
        "g": ["-inf", None],
        "h": ["u", 3],
        "matrix[0]": [1.0, 0.0],
        "matrix[1]": [0.0, 1.0],
    }
    assert Computed.read(json.loads(json.dumps(block.line(), allow_nan=False))) == block
    assert bench.run("a *= 2\n1 / 0").values["a"] == [2 / 3, 2 * 2**0.5]  # also if it fails
    ended = bench.run("a *= 2\nwhile True: pass", 1.0)
    assert ended.values["a"] == [2 / 3, 2 * 2**0.5]
    assert bench.run("del a").values.keys() >= {"b", "c", "d", "e", "g", "h"}


@pytest.mark.parametrize(
    "made",
    [
        "class F(float):\n    def __float__(self): raise SystemExit\nw = [F(1), F(2)]",
        "class A(np.ndarray):\n    def tolist(self): return [1, 2]\n"
        "    def __iter__(self):\n        while True: pass\nw = np.ones(2).view(A)",
        "class D(dict):\n    def items(self): raise SystemExit\nw = D(x=1)",
        "class K(str):\n    def __hash__(self): return hash('x')\n"
        "    def __eq__(self, other):\n        if armed:\n            while True: pass\n"
        "        return True\narmed = False\nw = {K('x'): 1, 'y': 2}\narmed = True",
        "w = np.array([object(), 1])",
        "w = [10 ** 400, 1]",
        "w = ['n' * 1000, 1]",
        "w = [1j, 2]",
    ],
)
def test_no_code_of_a_block_runs_where_values_are_read(shared, made):
    block = shared.run(f"{made}\nv = [1, 2]")
    assert block.failed is False
    assert "w" not in block.values
    assert block.values["v"] == [1, 2]


def test_values_have_a_bound_and_those_that_the_block_names_come_first(bench):
    many = bench.run("for i in range(20_000): globals()[f'w{i}'] = [i, i]\nw3[0] = 7")
    assert sum(map(len, many.values.values())) == MOST_VALUES
    assert many.values["w3"] == [7, 3]
    assert "w5" not in many.values
    long = bench.run(
        "for i in range(20_000): globals()[f'w{i}'] = ['\\U0001f600' * 19, 1]\nprint(1)"
    )
    assert (long.output, long.failed) == ("1\n", False)
    assert 0 < len(long.values) < 5000


@pytest.mark.parametrize("forged", ["{'w': [float('nan'), 1]}", "{'w': [1] * 20_000}", "5"])
def test_a_worker_that_forges_values_ends_its_block(bench, forged):
    module = "import sys\nlab = sys.modules['llmopt.lab.block_runner']\n"
    block = bench.run(f"{module}lab._points = lambda *_: {forged}")
    assert "The block was ended" in block.output
    assert block.values == {}


# -- attacks, one per technique -------------------------------------------------------------------

ESCAPES = {
    "read": "os.open('/etc/passwd', 0)",
    "read by io": "io.FileIO('/etc/passwd')",
    "write": "os.open('/tmp/x', os.O_CREAT | os.O_WRONLY)",
    "fork": "os.fork()",
    "signal": "os.kill(os.getppid(), 9)",
    "own group": "os.setsid()",
    "link": "os.symlink('/etc/passwd', 'x')",
    "execute": "os.execv('/bin/sh', ['sh'])",
    "socket": "__import__('socket').socket()",
    "limit": "__import__('resource').setrlimit(0, (-1, -1))",
    "folder": "os.mkdir('/tmp/x')",
    "thread": "import _thread\ntry:\n    _thread.start_new_thread(print, ())\n"
    "except RuntimeError as error:\n    raise OSError from error",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "memory of others": "os.open(f'/proc/{os.getppid()}/mem', 0)",
    "shared memory": "os.memfd_create('m')",
}
CALLS = {
    "main": "attempt(a)",
    "pmap": "pmap(attempt, [a, a])[0]",
    "job": "submit(attempt, a).result",
}


def attempts(bench):
    """Return what an escape did in the main worker, in `pmap` or in a job, if it worked."""
    code = (
        "def attempt(code):\n    try:\n        exec('import os, io; ' + code)\n"
        "    except BaseException as e:\n        return type(e).__name__\n    return 'OUT'\n"
        f"for a in {list(ESCAPES.values())}:\n"
        f"    print({', '.join(CALLS.values())})"
    )
    lines = bench.says(code).splitlines()
    refused = {"PermissionError", "ImportError", "ModuleNotFoundError", "OSError", "ValueError"}
    return {name: said for name, said in zip(ESCAPES, lines, strict=True)
            if not set(said.split()) <= refused}  # fmt: skip


def test_nothing_is_let_out_of_any_worker(shared):
    assert attempts(shared) == {}
    sockets = (
        "import os\ndef sockets(_):\n    found = []\n    for fd in range(3, 200):\n        try:\n"
        "            os.write(fd, b'')\n            found.append(fd)\n        except OSError:\n"
        "            pass\n    return found\nprint(pmap(sockets, [0, 1]))"
    )
    assert shared.says(sockets) == "[[], []]"


@pytest.mark.parametrize(
    "attack",
    [
        "pmap(lambda n: os.write(1, b'x' * 100), [1, 2])",
        "pmap(lambda n: len(bytearray(n)), [10**10, 10**10])",
        "submit(lambda: os.write(1, (5).to_bytes(8, 'little') + b'xxxxx')).result",
    ],
)
def test_a_worker_that_lies_is_an_error_of_the_block(shared, attack):
    assert shared.run(f"import os\nkept = 1\n{attack}", seconds=1).failed
    assert shared.says("print(2)").endswith("2")


def test_a_block_that_forges_its_answer_costs_little(bench):
    bench.run("pass")
    code = (
        "import os, struct\nbody = b'[' + b'[],' * (1 << 24) + b'[]]'\nfor n in range(1, 50):\n"
        "    head = struct.pack('<IIB', len(body), n, 0)\n"
        "    try:\n        os.write(1, head + body)\n"
        "    except OSError:\n        break\nos._exit(0)"
    )
    tracemalloc.start()
    said = bench.run(code, seconds=20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said.failed
    assert peak < 100e6


def test_a_block_that_forges_pauses_gains_no_more_than_the_seconds_of_all_blocks(bench):
    """It can name itself waiting; what it cannot do is wait for longer than it could compute."""
    bench.laboratory.seconds = 0.5
    forge = (
        "import sys\nworker = next(f for f in iter(lambda f=[sys._getframe()]: "
        "f.append(f[-1].f_back) or f[-1], None) if 'self' in f.f_locals "
        "and hasattr(f.f_locals['self'], 'paused')).f_locals['self']\n"
        "for n in range(10_000):\n    worker._send(5)\n    worker._send(6)\n"
        "worker._send(5)\nwhile True: pass"
    )
    began = time.monotonic()
    assert "The block was ended" in bench.run(forge, 2.0).output
    assert time.monotonic() - began < 30


def poisoned(target):
    class Poison:
        def __reduce__(self):
            return eval, (f"__import__('os').system('touch {target}') or open({target!r}, 'w')",)

    return zlib.compress(pickle.dumps(Poison()))


@pytest.mark.parametrize("kind", ["poisoned", "altered", "bomb", "link", "linked folder"])
def test_a_snapshot_that_somebody_changed_does_nothing_outside(bench, tmp_path, kind):
    secret, made = tmp_path / "secret", tmp_path / "made"
    folder = bench.laboratory.folder = tmp_path / "d"
    bench.run("kept = 5")
    (file,) = folder.iterdir()
    content = file.read_bytes()
    secret.write_bytes(content)
    bench.laboratory.close()
    if kind == "poisoned":
        file.write_bytes(poisoned(str(made)))
    elif kind == "altered":
        file.write_bytes(content[:-20] + bytes(20))
    elif kind == "bomb":  # it unfolds to more than it may hold
        file.write_bytes(zlib.compress(bytes(600 << 20), 1))
    elif kind == "link":
        file.unlink()
        file.symlink_to(secret)
    else:
        folder.rename(tmp_path / "other")
        folder.symlink_to(tmp_path / "other")
    said = bench.says("print(globals().get('kept'))")
    assert said == ("5" if kind == "linked folder" else "None")
    assert not made.exists()
    assert secret.read_bytes() == content
    if kind == "linked folder":  # nothing is written through the link
        assert [f.name for f in (tmp_path / "other").iterdir()] == [file.name]


def test_all_workers_together_have_a_bound_of_memory(monkeypatch):
    monkeypatch.setattr(lab, "WORKERS_MEMORY", 512 << 20)
    with closing(Laboratory(seconds=60, workers=2)) as laboratory:
        said = Bench(laboratory).says(
            "import mmap\nheld = []\ndef take(_):\n"
            "    ways = (bytearray, np.ones, lambda n: mmap.mmap(-1, n))\n    size = 0\n"
            "    for make in ways:\n        try:\n            while size < 1 << 30:\n"
            "                held.append(make((16 << 20) // (8 if make is np.ones else 1)))\n"
            "                size += 16 << 20\n"
            "        except (MemoryError, OSError):\n            pass\n"
            "    return size >> 20\nprint(pmap(take, [0, 1]))"
        )
    sizes = [int(n) for n in said.strip("[]").split(",")]
    assert all(100 <= size <= 256 for size in sizes), sizes


def test_a_worker_holds_nothing_of_the_search_but_what_it_is_given(bench, monkeypatch):
    mark = "-".join(["held", "out", "4711"])
    monkeypatch.setenv("SECRET_SEEDS", mark)
    code = (
        "import gc, os, sys\nmark = '-'.join(['held', 'out', '4711'])\n"
        "def search(_):\n    gc.unfreeze()\n"
        "    found = [k for k, v in os.environ.items() if mark in v]\n"
        "    for thing in gc.get_objects():\n"
        "        if isinstance(thing, dict):\n"
        "            found += [k for k, v in list(thing.items())\n"
        "                      if isinstance(v, str) and mark in v and k != 'mark']\n"
        "    return found + [n for n in sys.modules if 'test_' in n or n == 'llmopt.loop']\n"
        "print(search(0), pmap(search, [0, 1]), submit(search, 0).result)"
    )
    assert bench.says(code) == "[] [[], []] []"


def test_limits_hold_where_a_block_changes_the_clock_and_ignores_signals(bench):
    """The seconds of a block are the parent's, and those of a job the kernel's."""
    bench.laboratory.total = -58  # a worker has 60 processor seconds more
    cheat = (
        "import time, signal\n"
        "for name in ('time', 'monotonic', 'perf_counter', 'process_time'):\n"
        "    setattr(time, name, lambda: 0.0)\n"
        "time.sleep = lambda seconds: None\n"
        "def deaf(*_):\n"
        "    for number in range(1, 65):\n"
        "        try: signal.signal(number, signal.SIG_IGN)\n"
        "        except (OSError, ValueError): pass\n"
        "    try: signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    except OSError: pass\n"
        "    while True: pass\n"
    )
    job = bench.run(f"{cheat}job = submit(deaf)\njob.wait()\nprint(job.done)\njob.result", 60)
    assert "True" in job.output
    assert "WorkerError" in job.output  # its worker was killed
    slow = bench.run(f"{cheat}deaf()", 1.5)
    assert "it took more than 1.5 s" in slow.output
    assert slow.seconds >= 1.5


# -- the end of the process ---------------------------------------------------------------------

_SPINS = """
import os, signal, sys, time
from llmopt.lab.laboratory import Laboratory
import numpy as np
laboratory = Laboratory(seconds=60, workers=2)
seen = {"X": np.ones((1, 1)), "f": np.ones(1), "names": ["x"], "data": {}}
code = "def spin():\\n    while True: pass\\na, b = submit(spin), submit(spin)\\na.wait(0.5)"
laboratory.run(code, [], lambda: seen, 60.0)
print(*open(f"/proc/self/task/{os.getpid()}/children").read().split(), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is of Linux")
def test_busy_jobs_end_with_the_process_of_the_search():
    with subprocess.Popen([sys.executable, "-c", _SPINS], stdout=subprocess.PIPE) as search:
        worker = int(search.stdout.readline())
        children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        assert len(children) == 2
        search.kill()
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/stat").exists() for pid in children):
        states = [p.read_text().rpartition(")")[2].split()[0]
                  for pid in children if (p := Path(f"/proc/{pid}/stat")).exists()]  # fmt: skip
        if set(states) <= {"Z"}:  # nobody reaps orphans in a container without an init
            break
        assert time.monotonic() < until, "a job goes on without its search"
        time.sleep(0.1)
