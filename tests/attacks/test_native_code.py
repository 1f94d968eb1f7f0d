"""What compiled code of a block tries: it has no more rights than Python."""

import os
import platform
from contextlib import closing

import pytest
from stubs import needs_confinement

from llmopt.lab import laboratory

pytestmark = needs_confinement

ATTACKS = {
    "open": "print(raw(257, -100, address(b'/etc/passwd'), 0))",
    "write outside": "print(raw(257, -100, address(NEW), 0o101))",
    "environment of the parent": "print(raw(257, -100, address(ENVIRON), 0))",
    "socket": "print(raw(41, 2, 1, 0))",
    "fork": "print(raw(56, 17, 0, 0))",
    "fork bomb": "print(max([raw(56, 17, 0, 0) for _ in range(1000)]))",
    "exec": "print(raw(59, address(b'/bin/true'), 0, 0))",
    "ptrace": "print(raw(101, 16, PARENT, 0))",
    "kill": "print(raw(62, PARENT, 9, 0))",
    "memory of the parent": "print(raw(310, PARENT, 0, 0))",
    "alarm clock": "print(raw(38, 0, 0, 0))",
    "huge memory": "@njit\ndef huge(n): return np.ones(n).sum()\ntry: print(huge(1 << 33))\n"
    "except MemoryError: print(-1)",
    "any address": "print(peek(8))",
    "machine code": "print(assembly(41, 2, 1, 0))",
    "cffi": "import cffi\nlib = cffi.FFI()\nlib.cdef('int socket(int, int, int);')\n"
    "print(lib.dlopen(None).socket(2, 1, 0))",
    "object mode": "print(objects())",
}
CRASHES = "any address", "machine code"
START = """
import ctypes, os
from llvmlite import ir
from numba import carray, njit, objmode, types
from numba.extending import intrinsic
syscall = ctypes.CDLL(None).syscall
syscall.restype, syscall.argtypes = ctypes.c_long, [ctypes.c_long] * 5
@njit
def raw(number, a, b, c): return syscall(number, a, b, c, 0)
def address(text):
    global text_held
    text_held = ctypes.create_string_buffer(text)
    return ctypes.addressof(text_held)
@intrinsic
def pointer(context, at):
    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))
    return types.CPointer(types.uint8)(types.intp), generate
@njit
def peek(at): return carray(pointer(at), 1)[0]
@intrinsic
def instruction(context, n, a, b, c):
    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * 4)
        registers = "={rax},{rax},{rdi},{rsi},{rdx},~{rcx},~{r11},~{memory}"
        return builder.call(ir.InlineAsm(kind, "syscall", registers, side_effect=True), args)
    return types.int64(*[types.int64] * 4), generate
@njit
def assembly(n, a, b, c): return instruction(n, a, b, c)
def opened():
    try: return os.open('/etc/passwd', 0)
    except OSError: return -1
@njit
def objects():
    with objmode(r='intp'):
        r = opened()
    return r
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """One laboratory for all: to load numba before the confinement takes seconds."""
    pytest.importorskip("numba")
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of system calls are those of x86-64")
    new, parent = tmp_path_factory.mktemp("native") / "new", os.getpid()
    names = f"PARENT, NEW, ENVIRON = {parent}, {os.fsencode(new)}, {b'/proc/%d/environ' % parent}\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laboratory, "LIBRARIES", {"numba": ()})
        with closing(laboratory.Laboratory(workers=0)) as lab:
            before = [lab.run(names + START, [], dict, 60.0)]
            assert before[0].output == ""
            before.append(lab.run("print(peek(id(None)) >= 0)", before, dict, 60.0))
            assert before[1].output == "True\n"  # what is the worker's own can be read
            yield lab, before, new


@pytest.mark.parametrize(
    "attack",
    [pytest.param(name, marks=pytest.mark.sweep if name in CRASHES else []) for name in ATTACKS],
)
def test_native_code_gains_nothing(native, attack):
    lab, before, new = native
    block = lab.run(ATTACKS[attack], before, dict, 60.0)
    before.append(block)
    crashed = "its process died (SIG" in block.output
    missing = "No module named 'cffi'" in block.output
    assert (
        block.output == "-1\n" or (crashed and attack in CRASHES) or (missing and attack == "cffi")
    )
    assert not new.exists()
