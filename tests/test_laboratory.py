"""What blocks of Python find beside their variables: workers, jobs, files, data, snapshots."""

import os
import pickle
import socket
import time
import tracemalloc
import zlib
from contextlib import closing, suppress

import numpy as np
import pytest
from stubs import needs_confinement

from llmopt import (
    Evaluation,
    Float,
    LLMOptimizer,
    RecordClient,
    ReplayClient,
    ScriptedClient,
    minimize,
)
from llmopt.data import TrialData
from llmopt.lab import blocks
from llmopt.lab.blocks import Calculator
from llmopt.prompt.python_block import MOST_OUTPUT
from llmopt.sandbox import encoding, worker, worker_process
from llmopt.sandbox.encoding import EncodingError, decode

SPACE = {"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}
pytestmark = needs_confinement


class Bench:
    """A calculator, and the blocks that it has run."""

    def __init__(self, calculator):
        self.calculator, self.before, self.data = calculator, [], {}

    def run(self, code, seconds=None):
        seen = {"X": np.ones((2, 2)), "f": np.array([1.0, 2.0]), "data": self.data}
        self.before.append(self.calculator.run(code, self.before, lambda _: seen, seconds))
        return self.before[-1]

    def says(self, code):
        return self.run(code).output.strip()


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(blocks, "_SCIPY", ())
    monkeypatch.setattr(blocks, "_SKLEARN", ())


@pytest.fixture
def bench():
    with closing(Calculator(seconds=60, workers=2)) as calculator:
        yield Bench(calculator)


@pytest.fixture(scope="module")
def shared():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_SCIPY", ())
        patch.setattr(blocks, "_SKLEARN", ())
        with closing(Calculator(seconds=60, workers=2)) as calculator:
            bench = Bench(calculator)
            bench.run("pass")
            yield bench


# -- pmap, jobs and functions -----------------------------------------------------------------


def test_pmap_computes_in_other_processes_with_the_functions_and_variables_of_blocks(shared):
    code = (
        "import os, dataclasses, functools\nscale = 3\n"
        "@dataclasses.dataclass\nclass P:\n    x: float\n"
        "    def y(self):\n        return scale * self.x\n"
        "def inner(n):\n    return n if n < 2 else inner(n - 1) + inner(n - 2)\n"
        "cached = functools.lru_cache(maxsize=None)(inner)\n"
        "def work(n):\n    return P(cached(n)).y(), os.getpid()\n"
        "found = pmap(work, range(12))\nprint([int(v) for v, _ in found])\n"
        "print(os.getpid() in {p for _, p in found}, len({p for _, p in found}) <= 2)\n"
        "print(pmap(lambda x: x.sum() + f[1], [np.ones(2), np.ones(3)]))\n"
        "print(pmap(work, []), pmap(lambda p: p.y(), [P(1), P(2)]))"
    )
    assert shared.says(code).splitlines() == [
        "[0, 3, 3, 6, 9, 15, 24, 39, 63, 102, 165, 267]",
        "False True",
        "[np.float64(4.0), np.float64(5.0)]" if np.__version__ >= "2" else "[4.0, 5.0]",
        "[] [3, 6]",
    ]


def test_what_fails_in_a_worker_is_shown_with_its_line(shared):
    shared.run("def bad(n):\n    return 1 / (n - 3)")
    said = shared.run("pmap(bad, range(6))")
    assert said.failed
    assert "WorkerError: item 3: ZeroDivisionError" in said.output
    assert "ZeroDivisionError" in said.output
    assert "line 2, in bad" in said.output
    assert shared.says("print(pmap(abs, [-1, -2]))") == "[1, 2]"
    assert "cannot be sent" in shared.says("pmap(lambda x: x, [0, (i for i in [])])")
    assert shared.says("print(pmap(abs, [-3, -4]))") == "[3, 4]"


def test_a_job_runs_on_between_blocks_and_shows_its_best(bench):
    bench.run(
        "import time\ndef long(n):\n    for k in range(n):\n        report((k, float(-k)))\n"
        "        time.sleep(0.01)\n    return 'ended'\n"
        "job = submit(long, 10**6)\nshort = submit(long, 3)"
    )
    time.sleep(0.3)  # the objective is being evaluated
    first = bench.says(
        "time.sleep(0.2)\nprint(job.done, job.best[0] > 3, short.result, short.done)"
    )
    assert first == "False True ended True"
    assert "job (job, running, best -" in " ".join(bench.before[-1].variables)
    assert bench.says("print(pmap(abs, [-1, -2]), job.wait(0.1))") == "[1, 2] False"


def test_a_job_is_cancelled_at_its_next_report_and_one_that_waits_never_begins(bench):
    bench.calculator.workers = 1
    said = bench.says(
        "import time\ndef long(n):\n    while True:\n        report(n)\n        time.sleep(0.01)\n"
        "job, late = submit(long, 1), submit(long, 2)\nlate.cancel()\n"
        "while job.best is None:\n    time.sleep(0.01)\njob.cancel()\njob.cancel()\n"
        "print(job, late, job.best, late.best, job.done)\n"
        "job = submit(cma, lambda x: 1.0, [0.0], 1.0, 1000)\njob.cancel()\n"
        "after = submit(lambda: report(3) or 4)\nprint(after.result, after.best)\n"
        "print(pmap(lambda n: report(n) or n, [1, 2]))\njob.result"
    )
    assert said.splitlines()[:3] == [
        "Job(long: cancelled) Job(long: cancelled) 1 None True", "4 3", "[1, 2]"
    ]  # fmt: skip
    assert said.endswith("WorkerError: it was cancelled")
    bench.calculator.close()
    assert "cancelled" in bench.says("print(late)")


def test_cma_and_fit(shared):
    found = shared.says(
        "x, v = cma(lambda x: ((x - [1, -2, 3]) ** 2).sum(), np.zeros(3), 1.0, 5.0, target=1e-12)\n"
        "print(np.round(x, 4).tolist(), v < 1e-9)\n"
        "t = np.linspace(0, 1, 30)\n"
        "p, e, rms = fit(lambda t, p: p[0] * np.exp(-p[1] * t), (t, 2 * np.exp(-3 * t)), [1, 1])\n"
        "print(np.round(p, 5).tolist(), rms < 1e-6, e.shape)\n"
        "x, v = cma(lambda x: x.sum(), [0.5, 0.5], 0.3, 0.3, low=0.1, high=1)\nprint(x.tolist())"
    )
    assert found.splitlines() == [
        "[1.0, -2.0, 3.0] True", "[2.0, 3.0] True (2,)", "[0.1, 0.1]"
    ]  # fmt: skip


def test_functions_of_the_caller_are_found_by_blocks_and_workers(bench):
    bench.calculator.equip(
        "def policy(w, o):\n    return np.tanh(GAIN @ o + w)", {"GAIN": np.eye(2) * 2.0}
    )
    code = (
        "print(policy(1.0, [0.0, 0.0]).round(3).tolist())\n"
        "print(pmap(lambda w: float(policy(w, [0, 0])[0]), [0.0, 0.0]))"
    )
    assert bench.says(code) == "[0.762, 0.762]\n[0.0, 0.0]"


def test_data_are_sent_once_and_found_in_workers_too(bench, monkeypatch):
    sent = []
    give = blocks.Calculator._give
    monkeypatch.setattr(
        blocks.Calculator,
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


# -- snapshots ----------------------------------------------------------------------------------


def test_a_new_worker_has_variables_functions_classes_files_and_jobs(bench, tmp_path):
    bench.calculator.folder = tmp_path / "d"
    bench.run(
        "import time\nclass P:\n    def __init__(self, x):\n        self.x = x\n"
        "def make(n):\n    def add(m):\n        return n + m + base\n    return add\n"
        "base, p, add3 = 10, P(5), make(3)\nshared = [1]\nopen('n.txt', 'w').write('kept')\n"
        "gone = (i for i in [])\nrandom.seed(5); drawn = random.random()\n"
        "def wait(s):\n    time.sleep(s)\n    return s\n"
        "done, runs = submit(wait, 0.01), submit(wait, 0.2)\ndone.wait(5)"
    )
    assert [f.name for f in (tmp_path / "d").iterdir()] == ["laboratory-000001.bin"]
    with closing(Calculator(workers=2)) as again:
        again.folder = tmp_path / "d"
        bench.calculator.close()
        bench.calculator = again
        again_run = bench.run(
            "print(p.x, type(p) is P, add3(1), open('n.txt').read(), done.result, runs.result)\n"
            "print(pmap(add3, [1, 2]))"
        )
    assert again_run.notes == ("These variables are gone: gone.",)
    assert again_run.output.splitlines() == ["5 True 14 kept 0.01 0.2", "[14, 15]"]


@pytest.mark.parametrize("stored", [False, True])
def test_a_block_that_takes_too_long_costs_no_variable(bench, tmp_path, stored):
    bench.calculator.folder = tmp_path / "d" if stored else None
    bench.run("kept = 5")
    for _ in range(2):
        assert "took more than 1 s" in bench.run("while True: pass", 1.0).output
    assert bench.says("print(kept)").splitlines() == ["5"]


def test_what_a_block_printed_before_it_was_ended_is_shown(bench):
    bench.run("kept = 5")
    slow = bench.run("print('first')\nprint('x' * 9000)\nprint('last')\nwhile True: pass", 1.0)
    assert slow.output.startswith("first\nxxx")
    assert "characters are not shown]" in slow.output
    assert "xx\nlast\n\nThe block was ended: it took more than 1 s. " in slow.output
    assert len(slow.output) <= MOST_OUTPUT
    many = bench.run("for i in range(10**9): print(i)", 1.0)  # more lines than can be sent
    assert many.output.startswith("0\n1\n2\n")
    died = bench.run("print('before')\nimport os\nos._exit(3)")
    assert died.output.startswith("before\n\nThe block was ended: its process died")
    assert bench.says("print(kept)").splitlines() == ["5"]


def test_a_job_reports_and_returns_objects_of_a_class_of_the_block(bench):
    found = bench.says(
        "import time\nclass P:\n    def __init__(self, a): self.a = a\n"
        "def f(a):\n    report(P(a))\n    time.sleep(0.5)\n    return [P(a + 1)]\n"
        "job = submit(f, 3)\n"
        "for _ in range(100):\n    if job.best is None: time.sleep(0.02)\n"
        "print(getattr(job.best, 'a', None), job.result[0].a, type(job.result[0]) is P)"
    )
    assert found == "3 4 True"


@pytest.mark.parametrize(
    ("defined", "value"),
    [
        (
            "class A:\n    v = 7\nclass B:\n    def __init__(self, a): self.a = a\nb = B(A())",
            "b.a.v",
        ),
        ("class C:\n    v = 7\ndef g(c=C()): return c.v", "g()"),
        ("if True:\n    class D:\n        v = 7", "D().v"),
        ("try:\n    import nowhere\nexcept ImportError:\n    class E:\n        v = 7", "E().v"),
        ("class F:\n    class G:\n        v = 7\ng = F.G()", "g.v"),
        ("class H:\n    v = 7\nI = H", "I().v"),
        ('if True:\n  class T:\n    s = """\n a"""\n    v = 9 - len(s) + 1', "T().v"),
        ("J = collections.namedtuple('J', 'u v', defaults=[7])\nj = J(1)", "j.v"),
    ],
    ids=["attribute", "default", "if", "try", "nested", "alias", "text", "namedtuple"],
)
def test_jobs_and_snapshots_have_the_classes_of_blocks(shared, defined, value):
    """Also those that no global of their functions names."""
    said = shared.says(
        f"{defined}\ndef use(k): return {value}\nprint(pmap(use, [1, 2]), submit(use, 1).result)"
    )
    assert said == "[7, 7] 7"
    again = shared.calculator
    again.close()
    assert shared.says(f"print({value})") == "7"


def test_a_result_is_of_the_class_that_the_block_has(shared):
    said = shared.says(
        "class K:\n    class L: pass\nM = collections.namedtuple('M', 'u')\n"
        "def make(k): return K(), K.L(), M(k)\n"
        "print([[type(o) is t for o, t in zip(r, (K, K.L, M))] for r in pmap(make, [1, 2])])\n"
        "job = submit(make, 1)\ndel K\nprint(type(job.result[0]).__name__)"
    )
    assert said == "[[True, True, True], [True, True, True]]\nK"


def test_a_class_that_cannot_be_sent_is_named_with_the_remedy(shared):
    remedy = "define it at the top level of a block"
    made = "def make(k=0):\n    class N:\n        v = k\n    return N()\n"
    assert f"the class N is made inside a function, or without a class statement: {remedy}" in (
        shared.says(f"{made}submit(make).result")
    )
    assert "NameError: name 'n' is not defined, since it cannot be sent to another process: " in (
        found := shared.says("n = make()\ndef use(k): return n.v\npmap(use, [1, 2])")
    )
    assert remedy in found
    assert remedy in shared.says("submit(use, n)")


def test_a_report_that_cannot_be_read_is_an_error_with_its_reason(bench):
    look = "job = submit(work)\nwhile True:\n    time.sleep(0.02)\n    job.best"
    large = bench.run(
        f"import time\ndef work():\n    report(np.zeros(200_000))\n    time.sleep(60)\n{look}"
    )
    assert "WorkerError: what the job reported cannot be read: it has 1600139 bytes" in large.output
    assert large.notes == ()  # it is in the snapshot all the same
    broken = bench.run(
        "class P:\n    def __setstate__(self, state): raise ValueError('odd')\n"
        "def work():\n    p = P()\n    p.a = 1\n    report(p)\n    time.sleep(60)\n" + look
    )
    assert "what the job reported cannot be read: ValueError: odd" in broken.output


def test_a_warning_names_no_path_of_this_machine(bench):
    code = "import warnings\nwarnings.warn('ill')\nnp.array([1.0]) / 0"
    assert bench.says(code).splitlines()[:2] == [
        "UserWarning: ill", "RuntimeWarning: divide by zero encountered in divide"
    ]  # fmt: skip


def test_the_clock_of_a_block_stops_while_it_waits_for_a_job(bench):
    bench.calculator.seconds = 1.0
    job = "import time\njob = submit(lambda: time.sleep(1.7) or 5)\n"
    found = bench.run(f"{job}print(job.wait(60), job.result)")
    assert (found.output, found.failed) == ("True 5\n", False)
    assert found.seconds >= 1.7  # it still counts towards the seconds of all blocks
    assert "took more than 1 s" in bench.run(f"{job}job.result\nwhile True: pass").output


@pytest.mark.parametrize("wait", ["job.wait()", "[job.wait(0.2) for _ in range(99)]"])
def test_a_wait_ends_with_the_seconds_of_all_blocks(bench, wait):
    bench.calculator.seconds = 0.5
    began = time.monotonic()
    found = bench.run(f"import time\njob = submit(lambda: time.sleep(60))\n{wait}", 2.0)
    assert "The block was ended" in found.output
    assert 2.0 <= time.monotonic() - began < 30


def test_a_block_that_forges_pauses_gains_no_more_than_the_seconds_of_all_blocks(bench):
    """It can name itself waiting; what it cannot do is wait for longer than it could compute."""
    bench.calculator.seconds = 0.5
    forge = (
        "import sys\nworker = next(f for f in iter(lambda f=[sys._getframe()]: "
        "f.append(f[-1].f_back) or f[-1], None) if 'self' in f.f_locals "
        "and hasattr(f.f_locals['self'], 'paused')).f_locals['self']\n"
        "for n in range(10_000):\n    worker._send(5)\n    worker._send(6)\n"
        "worker._send(5)\nwhile True: pass"
    )
    began = time.monotonic()
    found = bench.run(forge, 2.0)
    assert found.failed
    assert time.monotonic() - began < 30
    assert bench.says("print(1)") == "1"


def test_a_candidate_without_jobs_cannot_stop_its_clock():
    line = worker_process.Channel.__new__(worker_process.Channel)
    mine, its = socket.socketpair()
    line._socket, line._number = mine, 3
    its.sendall(encoding.HEADER.pack(0, 3, worker.PAUSE))
    deadline = time.monotonic() + 60
    assert line._header(deadline, None) == (0, 3, worker.PAUSE, deadline)
    mine.close()
    its.close()


def test_a_snapshot_runs_in_the_worker_alone_and_one_that_kills_it_is_dropped(bench):
    bench.run(
        "import os\nclass Bomb:\n    def __reduce__(self):\n        return os._exit, (3,)\n"
        "b = Bomb()"
    )
    bench.calculator.close()  # where this process loaded the snapshot, it would end
    after = bench.run("print(1)")
    assert (after.notes, after.output) == (("The variables of earlier blocks are gone.",), "1\n")


def test_a_variable_that_raises_anything_costs_itself_alone(bench):
    bench.run(
        "class Exits:\n    def __reduce__(self):\n        raise SystemExit(3)\n"
        "kept, bad = 5, Exits()"
    )
    bench.calculator.close()  # as if it was interrupted
    after = bench.run("print(kept)")
    assert (after.notes, after.output) == (("These variables are gone: bad.",), "5\n")


def test_an_object_that_claims_to_be_a_class_costs_itself_alone(bench):
    said = bench.run(
        "class Claims:\n    @property\n    def __class__(self): return type\n"
        "class Hides:\n    def __getattribute__(self, name): raise SystemExit\n"
        "kept, claims, hides = 5, Claims(), Hides()"
    )
    assert (said.failed, said.output, said.notes) == (False, "", ())
    bench.calculator.close()  # as if it was interrupted
    assert bench.run("print(kept)").output == "5\n"


def test_what_is_too_large_for_a_snapshot_is_named_and_stays_in_its_worker(bench):
    said = bench.run("a = np.random.default_rng(0).random(10**7)")
    assert "Gone if the worker ends: a (array 10000000)" in said.notes[0]
    assert bench.says("print(a.size)").endswith("10000000")


def test_only_the_largest_variable_is_left_out_of_a_snapshot(bench):
    bench.run("small, middle = 1, np.random.default_rng(1).random(10**6)")
    said = bench.run("large = np.random.default_rng(0).random(5 * 10**6)\nprint('done')")
    assert said.output == "done\n"  # what it printed, and nothing else
    (note,) = said.notes
    assert "large (array 5000000)" in note
    assert "32 MiB" in note
    assert "middle" not in note
    assert f"It printed:\n> done\n{note}" in said.shown()
    assert [name.split()[0] for name in said.variables] == ["small", "middle", "large"]
    bench.calculator.close()  # as if it was interrupted
    after = bench.run("print(small, middle.size)")
    assert after.output == "1 1000000\n"
    assert after.notes == ("These variables are gone: large.",)
    assert [name.split()[0] for name in after.variables] == ["small", "middle"]


def test_variables_that_are_gone_are_not_listed(bench):
    bench.run("kept = 5")
    said = bench.run(  # ends the worker when it is to be stored
        "import os\nclass Bomb:\n    def __reduce__(self):\n        os._exit(3)\n"
        "more = Bomb()\nprint('done')"
    )
    assert said.output == "done\n"
    assert [name.split()[0] for name in said.variables] == ["kept"]
    assert "Variables are those before it" in said.notes[0]
    assert bench.says("print(kept)") == "5"


def test_a_snapshot_that_unfolds_to_more_than_it_may_hold_is_dropped(bench):
    bench.run("pass")
    bench.calculator.close()
    bench.calculator._snapshots[1] = zlib.compress(bytes(600 << 20), 9)
    assert bench.run("print(1)").notes == ("The variables of earlier blocks are gone.",)


# -- attacks ------------------------------------------------------------------------------------

ESCAPES = {
    "read": "os.open('/etc/passwd', 0)",
    "read by io": "io.FileIO('/etc/passwd')",
    "read by open": "open('/etc/passwd')",
    "leave the folder": "open('../x', 'w')",
    "fork": "os.fork()",
    "signal": "os.kill(os.getppid(), 9)",
    "own group": "os.setsid()",
    "link": "os.symlink('/etc/passwd', 'x')",
    "hard link": "os.link('/etc/passwd', 'x')",
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


@pytest.mark.parametrize("where", ["main", "pmap", "job"])
def test_nothing_is_let_out_of_any_worker(shared, where):
    call = {
        "main": "attempt(a)",
        "pmap": "pmap(attempt, [a, a])[0]",
        "job": "submit(attempt, a).result",
    }
    code = (
        "def attempt(code):\n    try:\n        exec('import os, io; ' + code)\n"
        "    except BaseException as e:\n        return type(e).__name__\n    return 'OUT'\n"
        f"for a in {list(ESCAPES.values())}:\n    print({call[where]})"
    )
    found = dict(zip(ESCAPES, shared.says(code).splitlines(), strict=True))
    refused = {"PermissionError", "ImportError", "ModuleNotFoundError", "OSError", "ValueError"}
    assert {name: said for name, said in found.items() if said not in refused} == {}


def test_a_worker_of_the_pool_has_no_socket_but_its_own(shared):
    code = (
        "import os\ndef sockets(_):\n    found = []\n    for fd in range(3, 200):\n        try:\n"
        "            os.write(fd, b'')\n            found.append(fd)\n        except OSError:\n"
        "            pass\n    return found\nprint(pmap(sockets, [0, 1]))"
    )
    assert shared.says(code) == "[[], []]"


@pytest.mark.parametrize(
    "attack",
    [
        "pmap(lambda n: os._exit(1), [1, 2, 3, 4])",
        "pmap(lambda n: os.write(1, b'x' * 100), [1, 2])",
        "pmap(lambda n: len(bytearray(n)), [10**10, 10**10])",
        "submit(lambda: os.write(1, (5).to_bytes(8, 'little') + b'xxxxx')).result",
        "submit(lambda: bytearray(10**11)).result",
    ],
)
def test_a_worker_that_dies_or_lies_is_an_error_of_the_block(bench, attack):
    assert bench.run(f"import os\nkept = 1\n{attack}", seconds=6).failed
    assert bench.says("print(2)").endswith("2")


@pytest.mark.parametrize("size", [1 << 16, 64 << 20])
def test_a_block_that_forges_its_answer_costs_little(bench, size):
    bench.run("pass")
    code = (
        "import os, struct\nbody = b'[' + b'[],' * (SIZE // 3) + b'[]]'\nfor n in range(1, 50):\n"
        "    head = struct.pack('<IIB', len(body), n, 0)\n"
        "    try:\n        os.write(1, head + body)\n"
        "    except OSError:\n        break\nos._exit(0)"
    ).replace("SIZE", str(size))
    tracemalloc.start()
    began = time.monotonic()
    said = bench.run(code, seconds=20)
    took, peak = time.monotonic() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said.failed
    assert peak < 100e6
    assert took < 60  # nothing was waited for beyond the deadlines


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * 2_700_000 + b"[]]",
        b"[" + b"{}," * 2_700_000 + b"{}]",
        b"[" + b"1," * 4_000_000 + b"1]",
        b'"\xf0\x9f\x98\x80' + b"a" * (8 << 20) + b'"',
        b'"\\ud83d\\ude00' + b"a" * (8 << 20) + b'"',
        b'{"\\u0000array":["<f8",[1000000000000,0],""]}',
        b'{"\\u0000array":["<f8",[-1,0],""]}',
        b'{"\\u0000array":["<f8",5,""]}',
    ],
)
def test_a_message_inside_the_limit_takes_less_than_100_mb(data):
    tracemalloc.start()
    with suppress(EncodingError):
        decode(data)
        assert data[:1] == b'"'
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert decode(encoding.encode(np.zeros((0, 5)))).shape == (0, 5)


def poisoned(target):
    class Poison:
        def __reduce__(self):
            return eval, (f"__import__('os').system('touch {target}') or open({target!r}, 'w')",)

    return zlib.compress(pickle.dumps(Poison()))


@pytest.mark.parametrize("kind", ["poisoned", "altered", "link", "linked folder"])
def test_a_snapshot_that_somebody_changed_does_nothing_outside(bench, tmp_path, kind):
    secret, made = tmp_path / "secret", tmp_path / "made"
    folder = bench.calculator.folder = tmp_path / "d"
    bench.run("kept = 5")
    (file,) = folder.iterdir()
    content = file.read_bytes()
    secret.write_bytes(content)
    bench.calculator.close()
    if kind == "poisoned":
        file.write_bytes(poisoned(str(made)))
    elif kind == "altered":
        file.write_bytes(content[:-20] + bytes(20))
    elif kind == "link":
        file.unlink()
        file.symlink_to(secret)
    else:
        folder.rename(tmp_path / "other")
        folder.symlink_to(tmp_path / "other")
    said = bench.run("print(globals().get('kept'))").output.splitlines()
    assert said[-1] == ("5" if kind == "linked folder" else "None")
    assert not made.exists()
    assert secret.read_bytes() == content
    assert {f.name for f in tmp_path.iterdir()} <= {"d", "secret", "other"}
    if kind == "linked folder":  # nothing is written through the link
        assert [f.name for f in (tmp_path / "other").iterdir()] == [file.name]


def test_all_workers_together_have_a_bound_of_memory(monkeypatch):
    monkeypatch.setattr(blocks, "WORKERS_MEMORY", 512 << 20)
    with closing(Calculator(seconds=60, workers=2)) as calculator:
        said = Bench(calculator).says(
            "import mmap, time\nheld = []\ndef take(_):\n"
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

    def objective(_, seeds=mark):
        return seeds

    code = (
        "import gc, os, sys\nmark = '-'.join(['held', 'out', '4711'])\n"
        "def search(_):\n    found = [k for k, v in os.environ.items() if mark in v]\n"
        "    for thing in gc.get_objects():\n"
        "        if isinstance(thing, dict):\n"
        "            found += [k for k, v in list(thing.items())\n"
        "                      if isinstance(v, str) and mark in v and k != 'mark']\n"
        "    return found + [n for n in sys.modules if 'test_' in n or n == 'llmopt.loop']\n"
        "print(search(0), pmap(search, [0, 1]), submit(search, 0).result)"
    )
    assert objective(0) == mark
    assert bench.says(code) == "[] [[], []] []"


def wait_for_the_end_of(group):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a worker is left")


# -- searches -------------------------------------------------------------------------------------


def python(code):
    return f"Analysis: let me see.\n\n```python\n{code}\n```"


def point(x):
    return f"Hypothesis: h.\nStart from: new\nProposal:\nx: {x}, y: 0.5"


def objective(p):
    return Evaluation((p["x"] - 0.7) ** 2, "seen", {"path": np.full(4, p["x"]), "n": 3})


SCRIPT = [
    point(0.2),
    python("k = data[1]['path'].mean()\njob = submit(abs, -2)\nprint(round(k, 3))"),
    point(0.4),
    python("print(round(k + data[2]['path'].sum(), 3), job.result)"),
    point(0.7),
]
OPTIONS = {"prompt": "words", "seed": 1, "description": "A spring", "progress": False}


def test_a_search_on_data_is_recorded_and_replayed_without_a_worker(tmp_path, monkeypatch):
    client = ScriptedClient(SCRIPT)
    result = minimize(objective, SPACE, 3, RecordClient(client, tmp_path / "r.jsonl"), **OPTIONS)
    assert "It printed:\n> 0.2" in client.requests[2].text
    assert "It printed:\n> 1.8 2" in client.requests[4].text
    assert "data[1]: path: 4; n: a number" in client.requests[1].text
    assert result.trials[1].data["path"].tolist() == [0.4] * 4
    assert result.usage.blocks == 2
    monkeypatch.setattr(Calculator, "_start", lambda self: pytest.fail("a worker was started"))
    monkeypatch.setattr(blocks, "_cores", lambda: 47)  # another machine
    again = minimize(objective, SPACE, 3, ReplayClient(tmp_path / "r.jsonl"), **OPTIONS)
    assert [t.values for t in again.trials] == [t.values for t in result.trials]
    assert again.usage.blocks == 2
    assert again.usage.compute_seconds == result.usage.compute_seconds


def test_a_kill_after_any_line_loses_no_answer_no_data_and_no_variable(tmp_path):
    import shutil

    file = tmp_path / "s.jsonl"
    wanted = minimize(objective, SPACE, 3, ScriptedClient(SCRIPT), storage=file, **OPTIONS)
    lines = file.read_bytes().splitlines(keepends=True)
    computed = [i for i, line in enumerate(lines) if b'"event":"compute"' in line]
    for count in (computed[0], computed[0] + 1, computed[1], len(lines) - 2):
        part = tmp_path / f"{count}.jsonl"
        part.write_bytes(b"".join(lines[:count]))
        shutil.copytree(f"{file}.data", f"{part}.data")
        if count <= computed[0] + 1:  # a kill leaves the snapshots of then
            for late in part.parent.glob(f"{part.name}.data/laboratory-000002.bin"):
                late.unlink()
        replies = sum(b'"event":"reply"' in line for line in lines[:count])
        client = ScriptedClient(SCRIPT[replies:])
        again = minimize(objective, SPACE, 3, client, storage=part, **OPTIONS)
        assert [t.values for t in again.trials] == [t.values for t in wanted.trials]
        assert [t.data["n"] for t in again.trials] == [3, 3, 3]
        assert again.optimizer.meter.computed[-1].output.strip() == "1.8 2"


def test_auto_is_on_for_chat_models_under_words_alone(caplog):
    def made(client, prompt, **options):
        return LLMOptimizer(SPACE, client, prompt, description="d", **options)._model.calculator

    assert made(ScriptedClient([]), "words") is not None
    assert made(ScriptedClient([]), "words", compute=False) is None
    caplog.set_level("INFO")
    blocks._said.clear()
    assert made(ScriptedClient([]), "props") is None
    assert made(ScriptedClient([]), "props") is None
    assert [r.message for r in caplog.records if "compute='auto'" in r.message] == [
        "compute='auto': the model does not compute in Python, since the prompt 'props' takes "
        "no Python"
    ]


def test_seconds_that_a_block_computes_in_its_snapshot_count(bench):
    """Else a block could compute for a minute beyond the seconds of all blocks."""
    found = bench.run(
        "import time\nclass Slow:\n    def __reduce__(self):\n        time.sleep(1)\n"
        "        return Slow, ()\nslow = Slow()"
    )
    assert found.seconds >= 1


def test_limits_hold_where_a_block_changes_the_clock_and_ignores_signals(bench):
    """The seconds of a block are the parent's, and those of a job the kernel's."""
    calculator = bench.calculator
    calculator.workers, calculator.total = 1, -58  # a worker has 60 processor seconds more
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
    assert job.seconds > 1
    pid = calculator._sandbox.pid
    slow = bench.run(f"{cheat}deaf()", 1.5)
    assert slow.failed
    assert "it took more than 1.5 s" in slow.output
    assert slow.seconds >= 1.5
    wait_for_the_end_of(pid)
