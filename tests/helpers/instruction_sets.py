"""Runs of generated kernels with an instruction set that is not this machine's best, or not its
own.

Python is not part of these runs. A network is a program of its own: its kernels, and a function
that calls them in order. Its memory is a file, which the program reads, changes and writes.
"""

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from coexec.arrays import address_of
from coexec.engines import detect
from coexec.engines.cpp.compiler import PORTABLE_FLAGS, CppCompiler, compiler
from coexec.engines.cpp.device import architecture
from coexec.engines.cpp.dialect import in_cpp, symbol
from coexec.engines.cpp.options import CppOptions
from coexec.engines.cpp.program import CppProgram
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.building import build
from coexec.lowering.module import Module
from tests.helpers.core_programs import Array, cpp_name
from tests.helpers.patience import ENOUGH_S

SETS = {"neon": "ASIMD", "bfdot": "ASIMD", "avx2": "AVX2", "sse": "SSE42"}
"""Instruction sets, and their names in `detect.features`, which does not have all of those of ARM.
BFDOT is NEON with products of pairs of bfloat16."""

_LEVELS = {"bfdot": "-march=armv8.6-a", "avx2": "-march=x86-64-v3", "sse": "-march=x86-64-v2"}
_QEMU, _GCC = "qemu-aarch64", "aarch64-linux-gnu-g++"
_ALIGNMENT = 64
_SHIFT = 8
"""Bytes from an aligned address to the caller's tensors: kernels read vectors at any address."""

_MAIN = """\
#include <cstdint>
#include <cstdio>
using Word = intptr_t;
{declared}
alignas({alignment}) static char memory[{size}];
alignas({alignment}) static char thread_memory[{thread_bytes} + 1];
int main(int, char** words) {{
  FILE* file = fopen(words[1], "rb");
  if (!file || fread(memory, 1, sizeof memory, file) != sizeof memory) return 2;
  fclose(file);
  const Word start = (Word)memory;
{calls}
  file = fopen(words[1], "wb");
  return !file || fwrite(memory, 1, sizeof memory, file) != sizeof memory || fclose(file) ? 3 : 0;
}}
"""


class Target(NamedTuple):
    """A processor with one instruction set, where programs run."""

    arch: Architecture
    compiler: CppCompiler
    linked: tuple[str, ...] = ()
    """Options of the linker."""
    emulator: tuple[str, ...] = ()
    """The words before the name of a program that start it."""


def target_of(name: str) -> Target:
    """The processor with one of `SETS`. Skips the test where this machine cannot be it."""
    options = CppOptions("bf16" if name == "bfdot" else "float32")
    arch = architecture(1, options, (SETS[name],))
    flags = (*((_LEVELS[name],) if name in _LEVELS else ()), *PORTABLE_FLAGS)
    if SETS[name] in detect.features() and (not arch.half or "bf16" in detect.reported_features()):
        cpp_name()  # skips without a compiler
        return Target(arch, replace(compiler(), flags=flags))
    if SETS[name] != "ASIMD":
        pytest.skip(f"this processor ({platform.machine()}) has no {name.upper()}")
    command = _cross_compiler()
    if command is None or shutil.which(_QEMU) is None:
        pytest.skip(
            f"kernels for ARM need {_QEMU} and {_GCC}: apt-get install qemu-user "
            f"g++-aarch64-linux-gnu"
        )
    made = CppCompiler(command, command[0], "", flags)
    return Target(arch, made, ("-static",), (_QEMU,))


def _cross_compiler() -> tuple[str, ...] | None:
    """The command of a compiler for ARM: GCC, else Clang in Zig."""
    if shutil.which(_GCC):
        return (_GCC,)
    if find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl")
    return None


def run_on_target(
    target: Target, module: Module, feeds: Mapping[str, Array], folder: Path
) -> dict[str, Array]:
    """The outputs of a module by name. Fails if kernels write to constants or inputs.

    Args:
        folder: for the texts, the program and its memory.
    """
    built = build(module, target.arch, on_arrays=True)
    ends = {tensor.name for tensor in (*module.inputs, *module.outputs)}
    program = CppProgram(built, range(len(built.launches)), ends, threads=1)
    memory = _Memory(module, program, feeds)
    texts = {symbol(x.name, x.source): in_cpp(x.name, x.source) for x in built.launches}
    entries = [symbol(launch.name, launch.source) for launch in built.launches]
    objects = {f"{name}.o": code for name, code in target.compiler.objects(texts, folder)}
    for file, code in objects.items():
        (folder / file).write_bytes(code)
    (folder / "main.cpp").write_text(memory.text(program, entries))
    subprocess.run(
        [*target.compiler.command, *target.linked, "main.cpp", *objects, "-lm", "-o", "network"],
        cwd=folder,
        check=True,
    )
    (folder / "memory").write_bytes(memory.content)
    words = [*target.emulator, "./network", "memory"]
    subprocess.run(words, cwd=folder, check=True, timeout=ENOUGH_S)
    return memory.outputs((folder / "memory").read_bytes())


class _Memory:
    """All that a program reads and writes, one behind the other: constants, inputs, what lies
    between kernels, outputs."""

    def __init__(self, module: Module, program: CppProgram, feeds: Mapping[str, Array]) -> None:
        self._module = module
        self.content = bytearray()
        self._places: list[tuple[int, int, int]] = []
        """Addresses in this process, from and up to, and the offset for the first."""
        for _, constant in program._constants.values():
            self._place(constant)
        self._offsets = {t.name: self._add(feeds[t.name].tobytes(), _SHIFT) for t in module.inputs}
        self._constant_bytes = len(self.content)
        program._arena[...] = 0xFF  # NaN, as no kernel may read what none has written
        self._place(program._arena)
        self._offsets |= {t.name: self._add(bytes(t.size_bytes), _SHIFT) for t in module.outputs}

    def _place(self, array: Array) -> None:
        begin = address_of(array)
        self._places.append((begin, begin + array.nbytes, self._add(array.tobytes(), 0)))

    def _add(self, content: bytes, shift: int) -> int:
        self.content += bytes(-len(self.content) % _ALIGNMENT + shift)
        self.content += content
        return len(self.content) - len(content)

    def text(self, program: CppProgram, entries: list[str]) -> str:
        """The main function, which calls functions with the names ``entries``."""
        kind = ", ".join(["const Word*", "void*", *["int64_t"] * 6])
        calls = []
        names = {slot: name for name, slot in program.slots.items()}
        for launch in program.launches:
            words = ", ".join(self._word(names.get(s, ""), n) for s, n in launch.arguments)
            entry = entries[launch.kernel]
            for tile in launch.tiles:
                box = ", ".join(str(side) for axis in tile.box for side in axis)
                calls.append(
                    f"  {{ const Word a[] = {{{words}}}; {entry}(a, thread_memory, {box}); }}"
                )
        return _MAIN.format(
            declared="\n".join(f'extern "C" void {name}({kind});' for name in sorted(set(entries))),
            alignment=_ALIGNMENT,
            size=len(self.content),
            thread_bytes=max(launch.memory_bytes for launch in program.launches),
            calls="\n".join(calls),
        )

    def _word(self, name: str, number: int) -> str:
        """An argument of a kernel in C++, of which ``name`` is the tensor that enters or leaves."""
        if name:
            return f"start + {self._offsets[name] + number}"
        for begin, end, offset in self._places:
            if begin <= number < end:
                return f"start + {offset + number - begin}"
        return str(number)

    def outputs(self, content: bytes) -> dict[str, Array]:
        """The outputs by name in the memory of a program that has ended."""
        assert content[: self._constant_bytes] == self.content[: self._constant_bytes]
        made = {}
        for tensor in self._module.outputs:
            begin = self._offsets[tensor.name]
            flat = np.frombuffer(content[begin : begin + tensor.size_bytes], tensor.dtype)
            made[tensor.name] = flat.reshape(tensor.shape)
        return made
