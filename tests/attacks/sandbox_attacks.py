"""Attacks on the sandbox for code, and a count of those that it withstood.

By hand, for longer than in the tests::

    python tests/attacks/sandbox_attacks.py --rounds 200

Every attack is real: it runs in a worker, against targets of this process. One is withstood
if it has no effect outside, and if the parent gets an answer or a `CandidateError`.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.candidate import Candidate
from llmopt.code.checks import Function, Output
from llmopt.code.policy import evaluate_policy
from llmopt.code.secret_seeds import Starts
from llmopt.sandbox import confine, encoding
from llmopt.sandbox.failure import CandidateError
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits

IMPORTS = (
    "math", "numpy", "socket", "subprocess", "threading", "ctypes", "multiprocessing", "mmap",
    "fcntl", "resource", "signal", "tempfile", "pathlib", "glob", "shutil", "pty", "select",
)  # fmt: skip

# Each succeeds if it ends without an error and does not return False.
ESCAPES = (
    # files
    "open(SECRET).read()", "os.open(SECRET, 0)", "os.open(SECRET, 0o10000000)",
    "np.fromfile(SECRET)", "np.memmap(SECRET)", "np.loadtxt(SECRET)", "pathlib.Path(SECRET).stat()",
    "pathlib.Path(SECRET).read_text()", "os.access(SECRET, 0)", "os.stat(SECRET)", "os.lstat('/')",
    "bool(glob.glob('/*'))", "os.listdir('/')", "os.scandir('/proc')", "bool(list(os.walk('/')))",
    "open('/proc/self/environ')", "open('/proc/self/mem', 'r+b')", "open('/proc/self/fd/0')",
    "open(f'/proc/{PARENT}/environ')", "open(f'/proc/{PARENT}/mem', 'r+b')", "open('/dev/tty')",
    "open('/dev/null', 'w')", "open('/dev/kmsg')", "open('/proc/sysrq-trigger', 'w')",
    "open('/sys/kernel/mm/transparent_hugepage/enabled')", "open(SECRET, 'a').write('x')",
    "open(NEW, 'w')", "np.save(NEW, np.ones(2))", "np.ones(2).tofile(NEW)", "os.mkdir(NEW)",
    "os.mkfifo(NEW)", "os.mknod(NEW)", "os.symlink('/', NEW)", "os.link(SECRET, NEW)",
    "os.rename(SECRET, NEW)", "os.remove(SECRET)", "os.rmdir('/tmp')", "os.chmod(SECRET, 0)",
    "os.chown(SECRET, 1, 1)", "os.truncate(SECRET, 0)", "os.utime(SECRET, (1, 1))",
    "os.setxattr(SECRET, 'user.a', b'b')", "os.statvfs('/')", "os.chdir('/tmp')",
    "os.chroot('/')", "os.readlink('/proc/self/exe')", "os.fsync(1)", "shutil.copy(SECRET, NEW)",
    "tempfile.TemporaryFile()", "tempfile.mkdtemp()", "os.memfd_create('m')", "os.pipe()",
    "os.dup(0)", "os.dup2(1, 5)", "pty.openpty()", "os.eventfd(0)", "select.epoll()",
    "fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)", "fcntl.fcntl(0, fcntl.F_SETOWN, PARENT)",
    "fcntl.ioctl(0, 0x5412, b'x')", "fcntl.flock(0, fcntl.LOCK_EX)", "os.sendfile(1, 0, 0, 9)",
    "mmap.mmap(0, 4096)", "os.pread(0, 1, 0)", "os.ftruncate(1, 0)", "os.fchmod(1, 0)",
    # the network
    "socket.socket()", "socket.socket(socket.AF_UNIX)", "socket.socket(socket.AF_INET6)",
    "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "socket.socket(socket.AF_ALG, 5)",
    "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "socket.socket(40, 1)",
    "socket.socketpair()", "socket.create_connection(('127.0.0.1', PORT), 1)",
    "socket.getaddrinfo('localhost', 80)", "socket.fromfd(0, socket.AF_UNIX, 1)",
    # processes and threads
    "os.fork()", "os.forkpty()", "os.system('true') == 0", "os.popen('true')",
    "os.execv('/bin/true', ['true'])", "os.posix_spawn('/bin/true', ['true'], {})",
    "subprocess.run(['/bin/true'])", "multiprocessing.Process(target=print).start()",
    "threading.Thread(target=print).start()",
    "__import__('_thread').start_new_thread(print, ())", "C.fork() > 0", "C.vfork() > 0",
    "C.system(b'true') == 0", "C.clone(0, 0, 17, 0) > 0", "C.setsid() > 0",
    # signals, limits, credentials, and taking back what holds it
    "os.kill(PARENT, 0)", "os.kill(PARENT, 9)", "os.kill(PARENT, 15)", "os.killpg(GROUP, 9)",
    "os.kill(-1, 0)", "os.kill(os.getpid(), 0)",
    "os.killpg(0, 0)", "os.pidfd_open(PARENT)", "signal.pthread_kill(threading.get_ident(), 0)",
    "signal.signal(signal.SIGALRM, signal.SIG_IGN)",
    "signal.setitimer(signal.ITIMER_REAL, 0)", "signal.pthread_sigmask(0, [signal.SIGALRM])",
    "resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))", "os.nice(-5)", "os.setuid(0)",
    "resource.prlimit(PARENT, resource.RLIMIT_CPU, (1, 1))", "os.setgroups([0])",
    "os.setpriority(0, PARENT, 19)", "os.sched_setaffinity(0, [0])", "os.setpgid(0, PARENT)",
    "C.prctl(1, 0, 0, 0, 0) == 0", "C.prctl(4, 1, 0, 0, 0) == 0", "C.prctl(22, 0, 0, 0, 0) == 0",
    "C.prctl(35, 1, 0, 0, 0) == 0", "C.capset(bytes(8), bytes(24)) == 0",
    "C.unshare(0x10000000) == 0",
    "C.ptrace(16, PARENT, 0, 0) == 0", "C.ptrace(0, 0, 0, 0) == 0", "C.mlockall(1) == 0",
    "C.process_vm_readv(PARENT, 0, 0, 0, 0, 0) == 0", "C.mount(0, b'/', 0, 0, 0) == 0",
    "C.setns(0, 0) == 0", "C.personality(0) == 0", "C.sethostname(b'x', 1) == 0", "C.iopl(3) == 0",
    "C.shmget(0, 4096, 0o1600) >= 0", "C.msgget(0, 0o1600) >= 0", "C.semget(0, 1, 0o1600) >= 0",
)  # fmt: skip

FLOODS = (
    "bytearray(1 << 40)", "[0] * (1 << 33)", "np.ones(1 << 34)", "10 ** 10 ** 8",
    "'%0999999999d' % 1",
    "exec('x = [1]\\nwhile True: x = x * 2')", "list(iter(int, 1))", "exec('while True: pass')",
    "(lambda f: f(f))(lambda f: f(f))",
    "print('x' * (1 << 27)) or [print(k) for k in range(10**6)]",
    "exec('raise ValueError(\"x\" * (1 << 27))')", "exec('class X(Exception):\\n"
    " def __str__(s): return \"x\" * (1 << 27)\\nraise X')", "type('x' * (1 << 24), (), {})()",
    "exec('x = []\\nfor k in range(1000): x = [x]\\nraise SystemExit(x)')", "'x' * (1 << 26)",
    "exec('x = []\\nx.append(x)\\nresult[0] = x') or result[0]", "np.ones((1,) * 12)", "object()",
    "{k: k for k in range(9)}", "float('nan')", "['y'] * 10**6", "[[]] * 10**6",
    "{str(k): 1.0 for k in range(10**5)}", "(1.0, {str(k): 1.0 for k in range(10**5)})",
    "os._exit(7)", "os.close(0)", "os.close(1)", "[os.close(fd) for fd in range(3)]",
    "os.write(1, bytes(1 << 20))", "os.read(0, 1)", "sys.modules.clear()", "sys.exit(3)",
    "sys.setrecursionlimit(10**9) or exec('def g(): return g()\\ng()', {})",
    "vars(__builtins__).clear() if hasattr(__builtins__, '__dict__') else __builtins__.clear()",
    "sys.settrace(lambda *a: exec('raise SystemExit'))", "ctypes.string_at(0)", "C.abort()",
    "getattr(C, 'raise')(9)", "sys.stdout.close()", "setattr(sys, 'stdout', None)",
    "np.linalg.svd(1 << 63)",
    "exec('class N:\\n def __del__(s): os._exit(3)\\nN()')", "(yield_ for yield_ in ())",
    "np.full(3, 1e400, dtype=np.longdouble)", "np.array(['a'])", "np.array([object()])", "1 << 63",
)  # fmt: skip


def _load(box: Sandbox, body: str, known: dict[str, object]) -> None:
    modules = ", ".join(n for n in box.imports if n != "numpy")
    names = "".join(f"{name} = {value!r}\n" for name, value in known.items())
    box.load(
        f"import os, sys, {modules}\nresult = [None]\n"
        f"{names}C = ctypes.CDLL(None)\ndef f(*_):\n    return {body}\n"
    )


ONE_OF_EACH = (
    # a file: read by Python, by NumPy, as metadata, in /proc, written, made, linked, changed
    "open(SECRET).read()", "np.memmap(SECRET)", "os.stat(SECRET)",
    "open(f'/proc/{PARENT}/mem', 'r+b')", "open(SECRET, 'a').write('x')", "os.mkdir(NEW)",
    "os.link(SECRET, NEW)", "os.truncate(SECRET, 0)", "os.dup2(1, 5)",
    "fcntl.fcntl(0, fcntl.F_SETOWN, PARENT)",
    # the network, a process, a thread
    "socket.create_connection(('127.0.0.1', PORT), 1)", "socket.socket(40, 1)",
    "subprocess.run(['/bin/true'])", "C.vfork() > 0", "threading.Thread(target=print).start()",
    # a signal, a limit, a credential, another process, shared memory
    "os.kill(PARENT, 9)", "signal.setitimer(signal.ITIMER_REAL, 0)",
    "resource.prlimit(PARENT, resource.RLIMIT_CPU, (1, 1))", "os.setuid(0)",
    "C.ptrace(16, PARENT, 0, 0) == 0", "C.shmget(0, 4096, 0o1600) >= 0",
)  # fmt: skip
"""An escape for each technique, for the gate; `ESCAPES` run before a release."""
assert set(ONE_OF_EACH) <= set(ESCAPES)


def one_of_each(rounds: int, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Try one escape for each technique."""
    return escapes(rounds, rng, ONE_OF_EACH)


def escapes(
    rounds: int, rng: random.Random, bodies: tuple[str, ...] = ESCAPES
) -> Iterator[tuple[str, bool]]:
    """Do what a confined process must not; as often as there are rounds, in a new order."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        Sandbox(imports=IMPORTS) as box,
    ):
        os.chmod(folder, 0o777)
        secret = Path(folder) / "secret"
        secret.write_text("s3cret")
        secret.chmod(0o666)
        known = {
            "SECRET": str(secret), "NEW": f"{folder}/new", "PARENT": os.getpid(),
            "GROUP": os.getpgid(0),
            "PORT": server.getsockname()[1],
        }  # fmt: skip
        for _ in range(rounds):
            for body in rng.sample(bodies, len(bodies)):
                try:
                    _load(box, f"({body}) is not False", known)
                    held = box.call("f") is False
                except CandidateError as error:
                    held = error.kind == "exception"
                untouched = os.listdir(folder) == ["secret"] and secret.read_text() == "s3cret"
                yield body, held and untouched


def system_calls(rounds: int, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Make system calls that are not allowed, with arguments drawn at random."""
    allowed = {*confine._MACHINES[platform.machine()].numbers.values(), 335, 336, 435}
    values = (-1, 0, 1, 2, 3, 9, 17, 4096, os.getpid(), 1 << 31, 1 << 47, (1 << 63) - 1)
    body = "[[C.syscall(*(ctypes.c_long(v) for v in call)), ctypes.get_errno()] for call in _[0]]"
    with Sandbox(imports=IMPORTS, limits=WorkerLimits(call_seconds=60)) as box:
        box.load(
            "import ctypes\nC = ctypes.CDLL(None, use_errno=True)\n"
            "C.syscall.restype = ctypes.c_long\n"
            f"def f(*_):\n    return {body}\n"
        )
        for _ in range(rounds):
            calls = [
                [n, *(rng.choice(values) for _ in range(6))]
                for n in (
                    rng.choice((rng.randrange(470), rng.randrange(1 << 31))) for _ in range(500)
                )
                if n not in allowed
            ]
            for call, (result, error) in zip(calls, box.call("f", calls), strict=True):
                yield str(call), (result, error) == (-1, 1)


def _value(rng: random.Random, depth: int = 0) -> object:
    """Return anything that the wire can hold, most of it nearly right."""
    kind = rng.randrange(14 if depth < 4 else 8)
    if kind >= 11:
        names = ("type", "message", "trace", "printed", "error", "functions", "x" * 300, "")
        return {rng.choice(names): _value(rng, depth + 1) for _ in range(rng.randrange(6))}
    if kind >= 8:
        items = [_value(rng, depth + 1) for _ in range(rng.randrange(5))]
        return items if kind == 8 else tuple(items)
    return (
        None, rng.random() < 0.5, rng.choice((0, 1, -(2**63), 2**63 - 1)),
        "ConfinementError: \x1b[2J",
        rng.choice((0.0, float("nan"), float("inf"), 1e308)), "y" * rng.randrange(5000),
        np.zeros(rng.choice(((), (0,), (2,), (3, 0, 2)))), np.array([True, False]),
    )[kind]  # fmt: skip


OUTPUTS = (
    *(Output(kind, shape) for kind in ("float", "int", "bool", "any") for shape in ((), (2,))),
    Output("reward"), Output("float", (2,), -1.0, 1.0, clip=True), Output("int", (), 0, 3),
)  # fmt: skip


class _Forger:
    """Stands in for the channel to a worker, with answers that were made up."""

    mine, alive, pid = True, True, 0

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def close(self) -> None:
        pass

    def exchange(
        self,
        kind: int,
        value: object,
        seconds: float,
        given: bytes = b"",
        most: int | None = None,
        pause: float | None = None,
    ) -> tuple[int, object]:
        code = self._rng.choice((0, 1, 2, 3, self._rng.randrange(256)))
        return code, encoding.decode(encoding.encode(_value(self._rng)))


def answers(rounds: int, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Answer every kind of request with made-up values, readable but wrong."""
    calls: tuple[Callable[[Candidate], object], ...] = (
        lambda c: c(1.0), lambda c: c.reset(),
        lambda c: c.call_columns("f", [np.zeros(2)]),
    )  # fmt: skip
    for number in range(2000 * rounds):
        box = Sandbox()
        box._channel = _Forger(rng)  # type: ignore[assignment]
        candidate = Candidate("", [Function("f(x)", output=rng.choice(OUTPUTS))], lambda b=box: b)
        candidate._sandbox, candidate._loaded = box, True
        try:
            rng.choice(calls)(candidate)
        except CandidateError:
            pass
        except Exception as error:
            yield f"answer {number}: {type(error).__name__}: {error}", False
            continue
        yield "", True


def messages(rounds: int, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Write made-up bytes to the pipe, from a worker of its own each time."""
    for _ in range(8 * rounds):
        payload = bytearray(encoding.encode(_value(rng)))
        for _ in range(rng.choice((0, 0, 1, 3))):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        length = rng.choice((len(payload),) * 4 + (0, 1, 1 << 31))
        header = encoding.HEADER.pack(
            length, rng.choice((2, 2, 2, 1, 77)), rng.choice((0, 1, 2, 3, 9))
        )
        message = (header + bytes(payload)) * rng.choice((1, 1, 1, 2))
        with Sandbox(limits=WorkerLimits(call_seconds=2)) as box:
            try:
                box.load(
                    f"import os\nos.write(1, {message!r})\nfor _ in range(10**6): pass\nos._exit(0)"
                )
                held = True
            except CandidateError:
                held = True
            except Exception:
                held = False
        yield repr(message), held


def floods(rounds: int, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Use up memory, time, stack, pipes and the parent's patience."""
    limits = WorkerLimits(call_seconds=0.4, memory_bytes=256 << 20)
    function = Function("f(x)", output=Output("reward"))
    with Sandbox(imports=("numpy", "ctypes"), limits=limits) as box:
        for _ in range(rounds):
            for body in rng.sample(FLOODS, len(FLOODS)):
                try:
                    _load(box, body, {})
                    function.output.read(box.call("f", 1.0))
                    held = True
                except CandidateError as error:
                    held = len(error.feedback()) < 20_000
                except Exception:
                    held = False
                if any(word in body for word in ("sys.", "vars(", "os.", "print")):
                    box.close()  # the next one finds a worker that is as it should be
                yield body, held


_ORPHAN = """
import sys, threading, time
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits
box = Sandbox(limits=WorkerLimits(call_seconds=600, total_seconds=120))
def start():
    box.load("import os\\ndef f():\\n    for fd in range(3, 64):\\n        try: os.close(fd)\\n"
             "        except OSError: pass\\n    while True:\\n        try:\\n"
             "            while True: pass\\n        except BaseException: pass\\n")
if sys.argv[1] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
threading.Thread(target=lambda: box.call("f"), daemon=True).start()
print(box.pid, flush=True)
time.sleep(600)
"""


def orphans(rounds: int, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Kill the parent of a spinning worker, which the kernel then has to kill."""
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: see what orphans die of
    try:
        for _ in range(rounds):
            for number, where in itertools.product(
                (signal.SIGTERM, signal.SIGKILL), ("main", "thread")
            ):
                command = [sys.executable, "-c", _ORPHAN, where]
                with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
                    assert parent.stdout is not None
                    pid = int(parent.stdout.readline())
                    os.kill(pid, 0)
                    parent.send_signal(number)
                # 0: it saw the end of its pipe first. SIGALRM is its clock, two minutes late.
                status = os.waitpid(pid, 0)[1]
                yield f"{number.name}: status {status}", status in (0, signal.SIGKILL)
    finally:
        libc.prctl(36, 0, 0, 0, 0)


def forks(rounds: int, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Call one candidate from three forks at once; one value of another's is a failure."""
    for _ in range(rounds):
        with Candidate("def f(x):\n    return x\n", [Function("f(x)")]) as candidate:
            candidate(0)
            children = []
            for number in range(1, 4):
                child = os.fork()
                if not child:
                    wrong = 255
                    try:
                        wrong = sum(candidate(1000 * number + k) != 1000 * number + k
                                    for k in range(100))  # fmt: skip
                    finally:
                        os._exit(min(wrong, 255))
                children.append(child)
            mine = sum(candidate(k) != k for k in range(100))
            wrongs = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        for wrong in (mine, *wrongs):
            yield f"{wrong} values of another's", wrong == 0


class Coins(gym.Env[Any, Any]):
    """Each step guesses the next draw of the environment's generator; the first one is shown."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 40
        return self.np_random.random(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        coin = self.np_random.random() < 0.5
        return np.zeros(1), float(bool(action) == coin), self.left == 0, False, {}


_PROPHET = """
rng = None
def controller(obs):
    global rng
    if rng is None:
        for seed in [*range(2000), *(2**k for k in range(128)), *(2**k - 1 for k in range(128))]:
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
            if abs(rng.random() - obs[0]) < 1e-9:
                break
    return int(rng.random() < 0.5)
"""


def foresight(rounds: int, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Rebuild the generator of an environment from a guess of its seed, and foresee its draws."""
    function = Function("controller(obs)", output=Output("int", low=0, high=1))
    with Candidate(_PROPHET, [function], Sandbox) as candidate:
        numbered = Starts(None).selection(1)  # as they were once: it can foresee
        yield "the attack is none", evaluate_policy(candidate, Coins(), numbered).mean_return == 40
        for _ in range(rounds):
            starts = Starts.draw(rng.randrange(10))
            for seeds in (starts.selection(1), starts.held_out(1)):
                foreseen = evaluate_policy(candidate, Coins(), seeds).mean_return == 40
                yield "a start was foreseen", not foreseen


ATTACKS: dict[str, Callable[[int, random.Random], Iterator[tuple[str, bool]]]] = {
    "an escape for each technique": one_of_each,
    "escapes by Python and C calls": escapes,
    "system calls with random arguments": system_calls,
    "made-up answers": answers,
    "made-up bytes from a worker": messages,
    "floods, crashes and odd results": floods,
    "parents killed": orphans,
    "forks on one candidate": forks,
    "plans on a rebuilt generator": foresight,
}


def run(name: str, rounds: int, seed: int) -> tuple[int, list[str]]:
    """Run one kind of attack; return how many were tried, and those that went through."""
    results = list(ATTACKS[name](rounds, random.Random(seed)))
    return len(results), [what for what, held in results if not held]


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack the sandbox and print a table.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(f"{confine.support()}, uid {os.getuid()}, Linux {platform.release()}")
    print("| attack | tried | held |\n| --- | ---: | ---: |")
    failed = []
    for name in ATTACKS:
        tried, through = run(name, args.rounds, args.seed)
        failed += through
        print(f"| {name} | {tried:,} | {tried - len(through):,} |", flush=True)
    for what in failed[:50]:
        print(f"went through: {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
