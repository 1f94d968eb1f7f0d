"""Kernel confinement of the calling process: rlimits and seccomp, and Landlock where there is one.

Needs no privilege, no package and no compiler. Seccomp alone keeps every promise; Landlock is a
second layer under it. It is one way: a confined process cannot undo it.

After `confine` the process can compute, allocate memory up to a limit, and use the file
descriptors that are already open. It cannot open a file, make a socket, a process or a thread,
signal anything, or change a limit.

Only the standard library is imported, so that a worker can load this file without llmopt.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # the same on every architecture
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38

_CAPABILITY_VERSION = 0x20080522  # linux/capability.h, version 3

# linux/landlock.h. Rights that an older kernel does not know are masked off by its version.
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # 16 from version 5 on
_NET_ALL = 0b11  # BIND_TCP, CONNECT_TCP, from version 4 on
# ABSTRACT_UNIX_SOCKET, from version 6 on. Not SIGNAL: the kernel would then deliver no death of a
# parent to a worker in a domain of its own, and seccomp lets no signal be sent anyway.
_SCOPE = 0b01

# linux/seccomp.h, linux/audit.h, linux/bpf_common.h
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_EPERM, _ENOSYS = 1, 38
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SET_MODE_FILTER, _GET_ACTION_AVAIL, _TSYNC = 1, 2, 1


@dataclass(frozen=True)
class _Machine:
    audit: int
    seccomp: int
    clone3: int
    socket: int
    numbers: dict[str, int]


# The numbers are an allow list: all other calls fail with EPERM, now and in any later
# kernel. Without rt_sigreturn no signal can be handled: a made-up return from one would set the
# mask of blocked signals, and so stop the alarm clock.
_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000003E,
        seccomp=317,
        clone3=435,
        socket=41,
        numbers={
            "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10,
            "munmap": 11, "brk": 12, "readv": 19, "writev": 20, "sched_yield": 24, "mremap": 25,
            "madvise": 28, "getpid": 39, "exit": 60, "uname": 63, "gettimeofday": 96,
            "getrusage": 98, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
            "getegid": 108, "getppid": 110, "gettid": 186, "time": 201, "futex": 202,
            "sched_getaffinity": 204, "restart_syscall": 219, "clock_gettime": 228,
            "clock_getres": 229, "exit_group": 231, "getcpu": 309, "getrandom": 318,
            "membarrier": 324,
        },
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        seccomp=277,
        clone3=435,
        socket=198,
        numbers={
            "close": 57, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66,
            "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98, "clock_gettime": 113,
            "clock_getres": 114, "sched_getaffinity": 123, "sched_yield": 124,
            "restart_syscall": 128, "times": 153, "uname": 160, "getrusage": 165, "getcpu": 168,
            "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175,
            "getgid": 176, "getegid": 177, "gettid": 178, "brk": 214, "munmap": 215,
            "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278,
            "membarrier": 283,
        },
    ),
}  # fmt: skip


WAITING = {
    "x86_64": {"poll": 7, "clock_nanosleep": 230},
    "aarch64": {"ppoll": 73, "clock_nanosleep": 115},
}
"""System calls that wait for open files or for time, which a laboratory has beside the others."""


class ConfinementError(RuntimeError):
    """The process could not be confined; nothing untrusted may run in it."""


@dataclass(frozen=True)
class Support:
    """What this machine offers.

    `landlock` is the kernel's version of it, 0 for none. `problems` say why confinement is not to
    be had; that Landlock is missing is none.
    """

    landlock: int
    seccomp: bool
    problems: tuple[str, ...]


def support() -> Support:
    """Ask the kernel what confinement it offers; changes nothing."""
    if not sys.platform.startswith("linux"):
        return Support(0, False, (f"seccomp needs Linux, this is {sys.platform}",))
    libc, machine = _libc(), _MACHINES.get(platform.machine())
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    problems = []
    filters = False
    if machine is None or struct.calcsize("P") != 8:
        known = ", ".join(_MACHINES)
        problems.append(f"no system call table for {platform.machine()} (known: {known})")
    else:
        action = ctypes.c_uint32(_ERRNO)
        filters = libc.syscall(machine.seccomp, _GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0
        if not filters:
            problems.append("the kernel has no seccomp filters")
    return Support(max(int(version), 0), filters, tuple(problems))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux only).

    Nothing that a confined process can call undoes it. Without that `parent` this process ends.
    """
    if sys.platform.startswith("linux"):
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(0)


def set_limits(memory_bytes: int, cpu_seconds: int, wall_seconds: int) -> None:
    """Set resource limits that the process cannot raise again, and a last alarm clock.

    `memory_bytes` are on top of the memory in use. Lower limits stay. Off Linux, limits that the
    system refuses are skipped.
    """
    import resource

    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)  # not `open`: a laboratory has its own
        memory_bytes += int(os.read(file, 100).split()[0]) * resource.getpagesize()
        os.close(file)
    except OSError:  # not Linux: the cap is for everything
        pass
    for name, wanted in (
        ("RLIMIT_AS", memory_bytes),
        ("RLIMIT_CPU", cpu_seconds),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_MEMLOCK", 0),
        ("RLIMIT_MSGQUEUE", 0),
    ):
        number = getattr(resource, name, None)  # not every system has every limit
        if number is not None:
            _, most = resource.getrlimit(number)
            value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
            try:
                resource.setrlimit(number, (value, value))
            except (OSError, ValueError) as error:
                if sys.platform.startswith("linux"):  # macOS takes no RLIMIT_AS
                    raise ConfinementError(f"cannot set {name} to {value}: {error}") from error
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent may have blocked the alarm
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def confine(partly: bool = False, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """Confine the calling process permanently, and check that it holds.

    With `partly` the available parts are applied, and the missing ones returned; else a missing
    part raises `ConfinementError`. `allowed` names system calls of `WAITING` to allow, too.
    """
    found = support()
    parts: list[Callable[[], None]] = [partial(_check_kernel, found), _check_threads]
    last: Callable[[], None] | None = None
    if sys.platform.startswith("linux"):
        libc = _libc()
        parts += [
            partial(_drop_privileges, libc),
            partial(_add_landlock, libc, found.landlock),
            partial(_drop_capabilities, libc),
        ]
        if found.seccomp:
            parts.append(partial(_seccomp, libc, allowed))
        last = partial(_check, libc)
    problems = [why for part in parts if (why := _apply(part, partly))]
    if last is not None and not problems:
        problems = list(filter(None, [_apply(last, partly)]))
    return tuple(problems)


def _apply(part: Callable[[], None], partly: bool) -> str:
    """Return why a part of the confinement is not to be had; empty if it is. See `confine`."""
    try:
        part()
    except (ConfinementError, OSError) as error:
        if not partly:
            raise
        return str(error)
    return ""


def _check_kernel(found: Support) -> None:
    if found.problems:
        raise ConfinementError("; ".join(found.problems))


def _check_threads() -> None:
    folder = "/proc/self/task"
    running = len(os.listdir(folder)) if os.path.isdir(folder) else 1
    if running > 1:
        # Landlock and the dropped capabilities bind one thread only.
        raise ConfinementError(f"{running} threads run already; an import started them")


def _drop_privileges(libc: ctypes.CDLL) -> None:
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise ConfinementError(f"prctl({option}) failed: {_reason()}")


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    # Root's: with them a permitted call can do more, such as madvise with broken memory.
    if libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)) != 0:
        raise ConfinementError(f"capset failed: {_reason()}")


def _add_landlock(libc: ctypes.CDLL, version: int) -> None:
    if version:
        with contextlib.suppress(ConfinementError):  # seccomp alone holds
            _landlock(libc, version)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _reason() -> str:
    return os.strerror(ctypes.get_errno())


def _landlock(libc: ctypes.CDLL, version: int) -> None:
    """Give up every right that this version knows of."""
    handled = (1 << _FS_BITS.get(version, 16)) - 1
    attributes = struct.pack(
        "=QQQ", handled, _NET_ALL if version >= 4 else 0, _SCOPE if version >= 6 else 0
    )[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = libc.syscall(
        _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        raise ConfinementError(f"landlock_create_ruleset failed: {_reason()}")
    try:
        if libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) != 0:
            raise ConfinementError(f"landlock_restrict_self failed: {_reason()}")
    finally:
        os.close(ruleset)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def build_filter(machine: str, allowed: Sequence[str] = ()) -> bytes:
    """Return the seccomp program (classic BPF) for a machine."""
    table = _MACHINES[machine]
    waiting = [number for name, number in WAITING[machine].items() if name in allowed]

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    # struct seccomp_data: the number at offset 0, the architecture at offset 4. Calls of
    # another architecture (32-bit ones by int 0x80) would have other numbers: they kill.
    program = [
        step(_LOAD, 4),
        step(_JUMP_EQUAL, table.audit, 1, 0),
        step(_RETURN, _KILL_PROCESS),
        step(_LOAD, 0),
        # glibc falls back to clone, and so to EPERM, only where clone3 does not exist.
        step(_JUMP_EQUAL, table.clone3, 0, 1),
        step(_RETURN, _ERRNO | _ENOSYS),
    ]
    for number in sorted([*table.numbers.values(), *waiting]):
        program += [step(_JUMP_EQUAL, number, 0, 1), step(_RETURN, _ALLOW)]
    program.append(step(_RETURN, _ERRNO | _EPERM))
    return b"".join(program)


def _seccomp(libc: ctypes.CDLL, allowed: Sequence[str]) -> None:
    machine = _MACHINES[platform.machine()]
    code = build_filter(platform.machine(), allowed)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if libc.syscall(machine.seccomp, _SET_MODE_FILTER, _TSYNC, ctypes.byref(program)) != 0:
        raise ConfinementError(f"seccomp failed: {_reason()}")


def _check(libc: ctypes.CDLL) -> None:
    """Try what must fail, so that a kernel that only pretends is found out."""
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError:
        pass
    else:
        raise ConfinementError("confinement does not hold: the root folder could be opened")
    if libc.syscall(_MACHINES[platform.machine()].socket, 1, 1, 0) >= 0:
        raise ConfinementError("confinement does not hold: a socket could be made")
