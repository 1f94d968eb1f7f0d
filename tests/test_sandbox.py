"""What untrusted code can and cannot do. Every attack runs for real, against a live target."""

import functools
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from stubs import in_threads, needs_confinement

from llmopt.code.candidate import Candidate
from llmopt.code.checks import Function, Output, check
from llmopt.sandbox import confine, encoding, sandbox, worker, worker_process
from llmopt.sandbox.failure import (
    CandidateError,
    SandboxError,
    SandboxUnavailableError,
)
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits

EVIL = ("math", "numpy", "socket", "subprocess", "threading", "ctypes", "multiprocessing")
BROKEN = encoding.encode({"type": "ConfinementError", "message": "no Landlock", "trace": []})
WITHOUT_CALLS = """
import ctypes, platform, struct, sys
from llmopt.sandbox import confine, sandbox
machine = confine._MACHINES[platform.machine()]
libc = confine._libc()
assert libc.prctl(38, 1, 0, 0, 0) == 0
for name in sys.argv[1].split():
    call = machine.seccomp if name == 'seccomp' else int(name)
    steps = ((0x20, 0, 0, 0), (0x15, 0, 1, call), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000))
    program = b''.join(struct.pack('=HBBI', *step) for step in steps)  # ENOSYS
    buffer = ctypes.create_string_buffer(program, len(program))
    program = confine._Program(len(steps), ctypes.cast(buffer, ctypes.c_void_p))
    assert libc.syscall(machine.seccomp, 1, 0, ctypes.byref(program)) == 0
"""


@pytest.fixture(scope="module")
def honest():
    with Sandbox(limits=WorkerLimits(call_seconds=60)) as box:
        yield box


@pytest.fixture(scope="module")
def attacker():
    """One worker for the attacks that it survives; every attack finds it as it was."""
    with Sandbox(WorkerLimits(call_seconds=60), imports=EVIL) as box:
        yield box


def python(code, *args):
    """Run code in a process of its own."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def attack(box, body):
    """Run `body` as a function inside; return what it returns, or the error it dies of."""
    indented = "\n".join("    " + line for line in body.splitlines())
    try:
        box.load(f"import os, sys\ndef attack():\n{indented}\n")
        return box.call("attack")
    except CandidateError as error:
        return error


def denied(outcome):
    return isinstance(outcome, CandidateError) and outcome.kind == "exception"


@needs_confinement
class TestAttacks:
    def test_every_call_that_is_not_allowed(self, attacker):
        """The whole table, run for real: with -1 for arguments none of it does harm."""
        allowed = set(confine._MACHINES[platform.machine()].numbers.values())
        # Kernels from 6.13 on do not filter uretprobe and uprobe; they end in SIGILL.
        allowed |= {335, 336} if platform.machine() == "x86_64" else set()
        x32 = range(0x40000000, 0x40000000 + 600) if platform.machine() == "x86_64" else ()
        tried = [n for n in (*range(600), *x32) if n not in allowed]
        body = (
            "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nodd = []\n"
            "minus = [ctypes.c_long(-1)] * 6\n"
            f"for n in {tried!r}:\n"
            "    if libc.syscall(ctypes.c_long(n), *minus) != -1 or ctypes.get_errno() != 1:\n"
            "        odd.append([n, ctypes.get_errno()])\n"
            "return odd"
        )
        assert attack(attacker, body) == [[435, 38]]  # clone3, which glibc wants to be absent

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 only")
    def test_a_32_bit_call(self):
        """Getpid by int 0x80: no call, however harmless, is taken from another table."""
        body = (
            "import ctypes, mmap\npage = mmap.mmap(-1, 4096, prot=7)\n"
            "page.write(bytes.fromhex('b814000000cd80c3'))\n"
            "start = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
            "return ctypes.CFUNCTYPE(ctypes.c_long)(start)()"
        )
        with Sandbox(imports=(*EVIL, "mmap")) as box:
            outcome = attack(box, body)
        # SIGSYS; SIGSEGV on a kernel that takes no such calls from anyone
        assert isinstance(outcome, CandidateError)
        assert outcome.kind == "crash"

    def test_root_has_nothing_of_root(self, attacker):
        """Also in a container, tests run as root: then this says something."""
        attacker.start()
        with open(f"/proc/{attacker.pid}/status") as file:
            status = dict(line.split(":\t", 1) for line in file)
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            assert int(status[name], 16) == 0, name

    def test_a_memory_bomb_and_an_exit(self, attacker):
        outcome = attack(attacker, "return len(bytearray(4 << 30))")
        assert denied(outcome)
        assert "MemoryError" in str(outcome)
        outcome = attack(attacker, "x = ['x']\nwhile True:\n    x = x * 2")
        assert "MemoryError" in str(outcome)
        outcome = attack(attacker, "sys.exit(0)")
        assert denied(outcome)
        assert "SystemExit" in str(outcome)
        assert attack(attacker, "return 1") == 1

    @pytest.mark.defect(4)
    def test_what_a_source_left_is_freed_before_the_next_one(self):
        """An episode loads the program anew: tables of its first call must not add up."""
        tables = (
            "tables = []\ndef f():\n    if not tables:\n"
            "        tables.append([float(i) for i in range(1_500_000)])\n"
            "    return len(tables[0])\n"
        )
        with Sandbox(WorkerLimits(call_seconds=60, memory_bytes=128 << 20)) as box:
            for _ in range(6):
                box.load(tables)
                assert box.call("f") == 1_500_000

    def test_a_key_in_the_environment(self, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
        with Sandbox() as box:
            box.load("import os\ndef env():\n    return dict(os.environ)\n")
            environment = box.call("env")
        assert "sk-very-secret" not in str(environment)
        assert not set(environment) & (
            set(os.environ)
            - {"LD_LIBRARY_PATH", "LANG", "LC_ALL"}
            - {n for n in os.environ if n.endswith("_NUM_THREADS")}
            - {"PYTHONHASHSEED", "PYTHONUTF8"}
        )

    def test_nothing_is_open_but_the_pipes(self, tmp_path):
        with open(tmp_path / "open", "w+") as file:
            os.set_inheritable(file.fileno(), True)
            with Sandbox() as box:
                box.load(
                    "import os\ndef f():\n    fds = []\n    for fd in range(1000):\n"
                    "        try:\n            os.lseek(fd, 0, 1)\n            fds.append(fd)\n"
                    "        except OSError as error:\n"
                    "            fds += [fd] * (error.errno != 9)\n    return fds\n"
                )
                assert box.call("f") == [0, 1, 2]


@needs_confinement
class TestDeath:
    """Attacks that cost the worker its life, and the parent nothing."""

    @pytest.mark.parametrize(
        ("source", "limits", "said"),
        [
            ("while True:\n    try:\n        while True: pass\n    except BaseException: pass",
             {"call_seconds": 1.5}, "wall-clock"),
            ("while True: pass", {"call_seconds": 120, "cpu_seconds": 2}, "processor time"),
            # Sleeping is not possible, and the alarm that the worker set cannot be turned off.
            ("import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()",
             {"call_seconds": 60, "total_seconds": 2}, "SIGALRM"),
            ("import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()",
             {"call_seconds": 60, "total_seconds": 0.5}, "SIGALRM"),
            ("import ctypes\nctypes.string_at(0)", {"call_seconds": 1e9}, "SIGSEGV"),
            ("import os\nos._exit(0)", {}, "exit status 0"),
        ],
    )  # fmt: skip
    def test_what_a_worker_dies_of(self, source, limits, said):
        with Sandbox(WorkerLimits(**limits), imports=("ctypes",)) as box:
            with pytest.raises(CandidateError, match=said) as caught:
                box.load(source)
            assert caught.value.kind == ("timeout" if said == "wall-clock" else "crash")
            with pytest.raises(CandidateError, match="load it again"):
                box.call("f")
            if "total_seconds" not in limits:
                box.load("def f():\n    return 1\n")  # a fresh worker
                assert box.call("f") == 1

    def test_the_calls_of_a_candidate_have_one_limit_over_all_of_its_workers(self):
        spin = "def f():\n    while True: pass\n"
        limits = WorkerLimits(call_seconds=0.3, total_seconds=0.5)
        with Candidate(spin, [Function("f()")], lambda: Sandbox(limits)) as candidate:
            said = []
            for _ in range(12):
                with pytest.raises(CandidateError) as caught:
                    candidate()
                assert caught.value.kind in ("timeout", "crash")
                said.append("together" in str(caught.value))
            assert said.index(True) >= 1
            assert all(said[said.index(True) :])
            candidate.close()
            with pytest.raises(CandidateError, match="together"):
                candidate()

    def test_an_old_worker_is_replaced_before_its_clock_ends_it(self, monkeypatch):
        with Sandbox(limits=WorkerLimits(total_seconds=100)) as box:
            box.load("x = 1")
            first = box.pid
            box.load("x = 1")
            assert box.pid == first
            now = time.monotonic()
            monkeypatch.setattr(sandbox.time, "monotonic", lambda: now + 51)
            box.load("x = 1")
            assert box.pid != first

    def test_a_parent_that_blocks_signals(self):
        """A blocked signal stays blocked in a new process: the alarm would never ring."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        try:
            with Sandbox() as box:
                box.start()
                with open(f"/proc/{box.pid}/status") as file:
                    blocked = next(line for line in file if line.startswith("SigBlk"))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert int(blocked.split()[1], 16) == 0

    def test_a_worker_that_stops_reading_or_answers_in_drops(self):
        header = encoding.HEADER.pack(9, 3, 0)
        with Sandbox(limits=WorkerLimits(call_seconds=1.5)) as box:
            box.load(
                "import os\ndef deaf():\n    while True:\n        pass\n"
                f"def slow(x):\n    os.write(1, {header!r} + b'd')\n    while True:\n"
                "        for _ in range(10**6):\n            pass\n        os.write(1, b'')\n"
            )
            with pytest.raises(CandidateError) as caught:
                box.call("slow", 1.0)
            assert caught.value.kind == "timeout"
            # An answer in advance, then nobody at the pipe: what does not fit into it waits.
            forged = encoding.HEADER.pack(1, 3, 0) + b"1"
            box.load(
                f"import os\ndef f():\n    os.write(1, {forged!r})\n    while True:\n        pass\n"
            )
            assert box.call("f") == 1
            with pytest.raises(CandidateError) as caught:
                box.call("f", np.zeros(1 << 18))
            assert caught.value.kind == "timeout"
            assert not box.running

    def test_a_closed_pipe_does_not_kill_the_parent(self):
        """Programs that end quietly in `| head` have SIGPIPE set so that it would."""
        code = (
            "import os, signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
            "from llmopt.sandbox.sandbox import Sandbox\nbox = Sandbox()\n"
            "box.load('import os\\ndef f():\\n    os.close(0)\\n')\n"
            "box.call('f')\n"
            "os.waitid(os.P_PID, box.pid, os.WEXITED | os.WNOWAIT)\n"
            "try:\n    box.call('f')\nexcept Exception as error:\n    print(error)\n"
            "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.sigpending())\n"
        )
        done = python(code)
        assert done.returncode == 0, done.returncode
        assert "its process died" in done.stdout
        assert "set() set()" in done.stdout

    @pytest.mark.parametrize(
        ("forged", "expected"),
        [
            # An answer with a foreign number, one beyond the limit, a surplus one, and garbage.
            (encoding.HEADER.pack(3, 77, 0) + b"1e9", "as answer 77"),
            (encoding.HEADER.pack(1 << 30, 3, 0), "announced 1073741824 bytes"),
            (2 * (encoding.HEADER.pack(3, 3, 0) + b"1e9"), "bytes follow its answer"),
            (encoding.HEADER.pack(4, 3, 0) + b"cos\n", "cannot be read"),
            (encoding.HEADER.pack(1, 3, 9) + b"1", "unknown kind 9"),
            (encoding.HEADER.pack(1, 3, 2) + b"1", "error report is no dict"),
            # That the sandbox is missing: only a worker that is being set up can say so.
            (encoding.HEADER.pack(len(BROKEN), 3, 3) + BROKEN, "unknown kind 3"),
        ],
    )
    def test_a_forged_message_is_refused(self, forged, expected):
        with Sandbox() as box:
            box.load(
                f"import os\ndef f(x):\n    os.write(1, {forged!r})\n"
                "    while True:\n        pass\n"
            )
            with pytest.raises(CandidateError, match=expected) as caught:
                box.call("f", 1.0)
            assert caught.value.kind == "protocol"
            assert not box.running

    def test_an_error_report_that_is_costly_to_write_out(self):
        """Two million arrays took the parent three minutes; an array has no truth value."""
        arrays = [np.zeros(1)] * 1000
        report = {
            "type": arrays, "message": arrays, "printed": np.zeros(2),
            "trace": [(1, arrays, arrays)] * 10,
        }  # fmt: skip
        forged = encoding.encode(report)
        header = encoding.HEADER.pack(len(forged), 3, 2)
        with Sandbox() as box:
            box.load(
                "import os\ndef f(data):\n    data = data.tobytes()\n    while data:\n"
                "        data = data[os.write(1, data):]\n    while True:\n        pass\n"
            )
            with pytest.raises(CandidateError) as caught:
                box.call("f", np.frombuffer(header + forged, dtype=np.uint8))
        assert str(caught.value) == "an exception (line 1)"
        assert caught.value.trace == ((1, "", ""),) * 8
        assert caught.value.printed == ""

    def test_a_well_forged_message_is_an_answer_and_no_more(self):
        """It can say what it could have returned; the next call finds it out of step."""
        forged = encoding.HEADER.pack(3, 3, 0) + b"1e9"
        with Sandbox(limits=WorkerLimits(call_seconds=600)) as box:
            # The true answer comes once the next request is there.
            box.load(
                f"import os\ndef f(x):\n    os.write(1, {forged!r})\n"
                "    os.read(0, 1)\n    return 0.0\n"
            )
            assert box.call("f", 1.0) == 1e9
            with pytest.raises(CandidateError) as caught:
                box.call("f", 1.0)
            assert caught.value.kind == "protocol"


@needs_confinement
class TestOrphans:
    """A worker whose parent is gone must not go on, whatever its code does about it."""

    def test_it_outlives_the_thread_that_started_it(self):
        box = Sandbox()
        thread = threading.Thread(target=box.load, args=("def f():\n    return 1\n",))
        thread.start()
        thread.join()
        with box:
            for _ in range(3):
                time.sleep(0.05)
                assert box.call("f") == 1

    def test_a_parent_that_ended_before_the_kernel_was_told(self):
        """As after a kill in the moment of starting: the worker sees another parent."""
        command = [sys.executable, worker_process.WORKER, "[]", str(os.getpid() + 1)]
        done = subprocess.run(command, input=b"", capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b"")


@needs_confinement
class TestForksAndThreads:
    SOURCE = "def f(x):\n    for _ in range(200):\n        pass\n    return x\n"

    def test_a_fork_cannot_call_the_worker_of_its_parent(self):
        with Sandbox() as box:
            box.load(self.SOURCE)
            pid = box.pid
            child = os.fork()
            if not child:
                code = 1
                try:
                    with pytest.raises(SandboxError, match="forked"):
                        box.call("f", 1)
                    assert not box.running
                    box.load(self.SOURCE)
                    code = 0 if box.call("f", 2) == 2 and box.pid != pid else 1
                    box.close()
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            assert box.call("f", 3) == 3

    def test_threads_that_are_all_first(self):
        """No code may reach a worker before it has confined itself."""
        with Candidate(self.SOURCE, [Function("f(x)")]) as candidate:
            start = threading.Barrier(4)

            def work(number):
                start.wait()
                assert candidate(number) == number

            in_threads(work, range(4))
            assert candidate._sandbox.confined is True

    @pytest.mark.parametrize("kind", [worker.ANALYSE, worker.LOAD, worker.CALL, worker.COLUMNS])
    def test_a_worker_runs_nothing_before_it_has_confined_itself(self, kind):
        line = worker_process.Channel(1 << 20)
        code, answer = line.exchange(kind, ("x = 1", {}, {}), 60)
        line.close()
        assert code == worker.FAILED
        assert "before the worker has confined itself" in answer["message"]


@needs_confinement
class TestHonestCode:
    """What honest code needs is there before the worker closes itself off."""

    BODIES = (
        "größe = 2.0\n    return größe",
        "return float(len('\\N{GREEK SMALL LETTER ALPHA}') + 1)",
        "return float('２')",
        "return np.longdouble(2)",
        "return float(np.char.str_len(np.array(['ab']))[0])",
        "import numpy.typing as npt\n    return float(2)",
        "from numpy.lib import recfunctions\n    return np.rec.array([(2.0,)], names='a').a[0]",
        "from numpy.lib.stride_tricks import sliding_window_view\n    return 2.0",
        "return float(f'{np.float64(2)!s:>9}')",
        "return 2.0 if np.array2string(np.eye(2)) and print('é', np.eye(2)) is None else 0.0",
        "return 2.0 if '\\d' else 0.0",
        "return (np.float64(1) / np.float64(0) > 0) * 2.0",
        "return float(np.roots([1, -2])[0])",
        "return float(np.polynomial.Polynomial([0, 2])(1))",
        "return float(np.linalg.svd(np.eye(2) * 2)[1][0])",
        "return float(np.ma.masked_array([2.0, 9.0], [0, 1]).mean())",
        "return float(np.fft.fft(np.ones(2))[0].real)",
        "return float(np.random.default_rng(0).normal() * 0 + 2)",
        "return float(np.einsum('ij,jk', np.eye(2) * 2, np.eye(2), optimize=True)[0, 0])",
        "return float('2'.encode('latin-1').decode('utf-16-le' if 0 else 'ascii'))",
    )

    @pytest.mark.filterwarnings("ignore")
    def test_it_runs(self, honest):
        numbered = list(enumerate(self.BODIES))
        source = "\n".join(f"def f{i}(x):\n    {body}\n" for i, body in numbered)
        functions = [Function(f"f{i}(x)", output=Output(), samples=((1.0,),)) for i, _ in numbered]
        check(honest, source, functions)
        for i, body in numbered:
            assert Output().read(honest.call(f"f{i}", 1.0)) == 2.0, body
        assert honest.confined is True
        honest.load("def f(x, k=1):\n    return {'y': np.linalg.norm(x) * k, 'n': None}\n")
        assert honest.call("f", np.array([3.0, 4.0]), k=2) == {"y": 10.0, "n": None}


class TestFailClosed:
    @needs_confinement
    def test_a_worker_that_ran_code_does_not_judge_code(self):
        """Code that changed the analysis of its worker would pass, or upset the parent."""
        evil = (
            "frame = __builtins__.__import__('sys')._getframe()\nwhile frame:\n"
            "    owner = frame.f_locals.get('self')\n    if hasattr(owner, '_analysis'):\n"
            "        owner._analysis.analyse = lambda source: {'error': None}\n"
            "    frame = frame.f_back\ndef f(x):\n    return x\n"
        )
        with Sandbox() as box:
            for _ in range(2):
                check(box, evil, [Function("f(x)", samples=((1.0,),))])
            with pytest.raises(CandidateError, match="f is missing"):
                check(box, "g = 1", [Function("f(x)")])

    @needs_confinement
    @pytest.mark.parametrize("fooled", [False, True])  # the parent takes it for granted
    def test_a_kernel_without_what_is_needed(self, fooled):
        """A filter takes the system call away, as from an older kernel: nothing may run."""
        code = WITHOUT_CALLS + (
            "if sys.argv[2] == 'True':\n"
            "    sandbox.support = lambda: confine.Support(7, True, ())\n"
            "box = sandbox.Sandbox()\n"
            "try:\n    box.load('x = 1')\n"
            "except Exception as error:\n    print(type(error).__name__, error)\n"
            "else:\n    print('it ran')\n"
            "finally:\n    box.close()\n"
        )
        done = python(code, "seccomp", str(fooled))
        assert done.stdout.startswith("SandboxUnavailableError"), done.stdout + done.stderr
        assert "no seccomp" in done.stdout

    @needs_confinement
    @pytest.mark.parametrize(
        ("calls", "waived", "reached", "missing"),
        [("444", False, [False, False], ""), ("446", False, [False, False], ""),
         ("seccomp", True, [False, True], "no seccomp"),
         ("444 seccomp", True, [True, True], "no seccomp")],
    )  # fmt: skip
    def test_what_there_is_of_the_layers_holds(self, monkeypatch, calls, waived, reached, missing):
        """Seccomp alone is enough; with a waiver, loudly, Landlock alone and nothing at all."""
        monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
        source = (
            "import os, socket\ndef can(what, *args):\n    try:\n        what(*args)\n"
            "    except PermissionError:\n        return False\n    return True\n"
            "def f():\n    keys = 'sk-very-secret' in str(dict(os.environ))\n"
            "    return [can(os.listdir, '/'), can(socket.socket), keys]\n"
        )
        code = WITHOUT_CALLS + (
            "import warnings\n"
            f"box = sandbox.Sandbox(imports=('math', 'socket'), allow_unsandboxed={waived})\n"
            "with box, warnings.catch_warnings(record=True) as seen:\n"
            f"    box.load({source!r})\n"
            "    said = [(w.category.__name__, str(w.message)) for w in seen]\n"
            "    print(box.call('f'), box.confined, said)\n"
        )
        done = python(code, calls, "False")
        assert done.stdout.startswith(f"{[*reached, False]} {not waived} ["), done
        assert missing in done.stdout
        assert ("UnsandboxedWarning" in done.stdout) is waived
        assert waived or done.stdout.strip().endswith("[]")

    @needs_confinement
    def test_limits_that_are_lower_already_stay(self):
        code = (
            "import resource\nfrom llmopt.sandbox.sandbox import Sandbox\n"
            "resource.setrlimit(resource.RLIMIT_CPU, (300, 300))\n"
            "with Sandbox() as box:\n    box.start()\n"
            "    print(resource.prlimit(box.pid, resource.RLIMIT_CPU))\n"
        )
        done = python(code)
        assert done.stdout.strip() == "(300, 300)", done.stderr

    def test_a_limit_that_is_not_to_be_had(self, monkeypatch):
        """MacOS refuses RLIMIT_AS; on Linux a refusal is no small thing."""
        kept = {}

        def setrlimit(number, value):
            if number == resource.RLIMIT_AS:
                raise ValueError("current limit exceeds maximum limit")
            kept[number] = value

        monkeypatch.setattr(resource, "setrlimit", setrlimit)
        for name in ("signal", "pthread_sigmask", "setitimer"):
            monkeypatch.setattr(signal, name, lambda *_: None)
        monkeypatch.setattr(sys, "platform", "linux")
        with pytest.raises(confine.ConfinementError, match="RLIMIT_AS"):
            confine.set_limits(1 << 30, 5, 5)
        monkeypatch.setattr(sys, "platform", "darwin")
        confine.set_limits(1 << 30, 5, 5)
        assert kept[resource.RLIMIT_FSIZE] == (0, 0)

    @needs_confinement
    def test_a_worker_that_cannot_confine_itself_does_not_run_code(self, monkeypatch, tmp_path):
        """A module that leaves a thread running would stay free: the worker refuses."""
        (tmp_path / "threaded.py").write_text(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        with Sandbox(imports=("threaded",)) as box:
            with pytest.raises(SandboxUnavailableError, match="2 threads"):
                box.start()
        assert not box.running

    def test_a_missing_module_is_not_the_candidates_fault(self):
        with Sandbox(imports=("no_such_module_anywhere",)) as box:
            with pytest.raises(SandboxError, match="no_such_module_anywhere"):
                box.start()


class TestFilter:
    """The seccomp program, run by an interpreter of the few instructions it uses."""

    @staticmethod
    def run(program, number, audit):
        data = struct.pack("<iI", number, audit)
        steps = [struct.unpack_from("<HBBI", program, i) for i in range(0, len(program), 8)]
        at, value = 0, 0
        while True:
            code, if_true, if_false, operand = steps[at]
            at += 1
            if code == 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            elif code == 0x15:
                at += if_true if value == operand else if_false
            else:
                assert code == 0x06
                return operand

    @pytest.mark.parametrize(
        ("machine", "audit", "read", "openat", "execve", "kill", "sigreturn", "x32"),
        [
            ("x86_64", 0xC000003E, 0, 257, 59, 62, 15, 0x40000000),
            ("aarch64", 0xC00000B7, 63, 56, 221, 129, 139, 0x40000000),
        ],
    )
    def test_both_architectures(self, machine, audit, read, openat, execve, kill, sigreturn, x32):
        program = confine.build_filter(machine)
        allow, eperm, enosys = 0x7FFF0000, 0x00050001, 0x00050000 | 38
        assert self.run(program, read, audit) == allow
        for number in (openat, execve, kill, sigreturn, read + x32, 9999):
            assert self.run(program, number, audit) == eperm
        assert self.run(program, 435, audit) == enosys  # clone3
        assert self.run(program, read, 0x40000003) == 0x80000000  # 32-bit x86: killed


class TestHandling:
    @needs_confinement
    def test_errors_name_line_and_function(self):
        with Sandbox() as box:
            with pytest.raises(CandidateError) as caught:
                box.load("x = 1\ndef f(:\n")
            assert (caught.value.kind, caught.value.line) == ("syntax", 2)
            box.load(
                "def g(x):\n    print('seen', x)\n    return 1 / x\n\ndef f(x):\n    return g(x)\n"
            )
            with pytest.raises(CandidateError) as caught:
                box.call("f", 0)
        error = caught.value
        assert error.kind == "exception"
        assert error.line == 3
        assert error.trace == ((6, "f", "return g(x)"), (3, "g", "return 1 / x"))
        assert "ZeroDivisionError" in error.feedback()
        assert "seen 0" in error.feedback()

    @needs_confinement
    def test_results_that_cannot_be_sent(self):
        with Sandbox(limits=WorkerLimits(message_bytes=100_000)) as box:
            box.load("def f(x):\n    return [lambda: 0, object, 1j, np.ones(20_000)][x]\n")
            for i, word in enumerate(("function", "type", "complex", "160000 bytes")):
                with pytest.raises(CandidateError, match=word):
                    box.call("f", i)
            with pytest.raises(SandboxError, match="message_bytes"):
                box.call("f", np.ones(20_000))

    @needs_confinement
    def test_a_dropped_sandbox_leaves_no_process(self):
        box = Sandbox()
        box.start()
        pid = box.pid
        del box
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_worker_that_cannot_be_started(self, monkeypatch):
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with Sandbox(allow_unsandboxed=True) as box:
            with pytest.raises(SandboxError, match=r"cannot start a worker.*/nowhere/python"):
                box.start()


class TestEncoding:
    VALUES = (
        None, True, False, 0, -(2**63), 1.5, float("inf"), "ä\n", [], [1, [2.0, None]], {"a": [{}]},
    )  # fmt: skip

    @pytest.mark.parametrize("value", VALUES)
    def test_round_trip(self, value):
        back = encoding.decode(encoding.encode(value))
        assert back == value
        assert type(back) is type(value)

    @pytest.mark.parametrize("dtype", ["f8", ">f8", "f4", "i8", "u1", "?", "f2", "i2"])
    def test_arrays(self, dtype):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        back = encoding.decode(encoding.encode(array.T))
        assert np.array_equal(back, array.T)
        assert (back.shape, back.dtype) == ((3, 2), array.dtype.newbyteorder("<"))
        back[0, 0] = 1

    DEEP = functools.reduce(lambda inner, _: [inner], range(10_000), 1)
    NOT_SENT = (
        object(), {1, 2}, 1j, {(1, 2): 3}, np.array(["a"]), b"x", {1: "a", "1": "b"}, {None: 1},
        {"\0array": 1}, [{"a": {True: 1}}], DEEP,
    )  # fmt: skip

    @pytest.mark.parametrize("value", NOT_SENT, ids=range(len(NOT_SENT)))
    def test_what_is_not_sent(self, value):
        with pytest.raises(encoding.EncodingError):
            encoding.encode(value)

    def test_every_value_that_is_sent_can_be_read(self):
        value = 1
        for _ in range(encoding.MAX_DEPTH):
            value = [value]
        assert encoding.decode(encoding.encode(value)) == value
        with pytest.raises(encoding.EncodingError, match="nested more than 16"):
            encoding.encode([value])

    def test_too_many_items_or_bytes_are_refused_before_any_is_looked_at(self):
        class Unread(list):
            def __iter__(self):
                raise AssertionError("it was walked")

        many = Unread([0] * (encoding.MOST_ITEMS + 1))
        for value in (many, [many], {"a": (many,)}, [[1] * (encoding.MOST_ITEMS - 3), [1] * 3]):
            with pytest.raises(encoding.TooLargeError, match="items"):
                encoding.encode(value)
        for value in ("x" * 1001, np.zeros(126), [np.zeros(63), np.zeros(63)]):
            with pytest.raises(encoding.TooLargeError, match="bytes"):
                encoding.encode(value, 1000)
        encoding.encode([[1] * (encoding.MOST_ITEMS - 4), [1] * 2])
        encoding.encode([np.zeros(100), "x" * 200], 1000)

    def test_every_broken_message_is_refused(self):
        """No text, cut or changed, makes anything but a value or an EncodingError."""
        rng = np.random.default_rng(0)
        good = encoding.encode({"a": [1.0, np.ones((2, 2))], "b": ("x", None)})
        for end in range(len(good)):
            with pytest.raises(encoding.EncodingError):
                encoding.decode(good[:end])
        for _ in range(3000):
            data = bytearray(good)
            for _ in range(rng.integers(1, 4)):
                data[rng.integers(len(data))] = rng.integers(256)
            try:
                encoding.decode(bytes(data))
            except encoding.EncodingError:
                pass
        arrays = (
            '["<f8",[2],"AA=="]', '["<f8",[2],7]', '["|b1",[1],"Bw=="]', '["O",[1],"AA=="]', "[]",
            '["|u1",[1e9],"AA=="]', '["|u1",[9999999999999999999999],"AA=="]', "null",
            '[["|u1"],[1],"AA=="]', f'["|u1",{[1] * 99},"AA=="]', '["|u1",[1],"AA=="],"b":1',
            '["|u1",[1],"A"]', '["|u1",[1],"AA"]', '["|u1",[1],"AA==?"]', '["|u1",[1],"\u00e4"]',
        )  # fmt: skip
        texts = ("", "c", "1 1", "[" * 99 + "]" * 99, "[" * 10**6, "9" * 5000, "\ufeff1")
        for text in (*texts, *(f'{{"\\u0000array":{a}}}' for a in arrays)):
            with pytest.raises(encoding.EncodingError):
                encoding.decode(text.encode())
