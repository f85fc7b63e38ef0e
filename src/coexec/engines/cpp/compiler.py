"""The machine's compiler of C++, and its runs: processes with a time limit, several at once.

A user names a compiler by the environment variable CXX. Else it is the first that works of c++,
g++, clang++ and the Clang in the package ziglang.
"""

import contextlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from coexec.engines import detect
from coexec.errors import DeviceError
from coexec.extras import install
from coexec.keys import digest
from coexec.processes import ending

PORTABLE_FLAGS = (
    *("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fsigned-char", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-w"),
    "-fno-gcse",
)
"""Options of the compiler for any processor: fused multiply-adds are allowed, but nothing that
could turn a number into another one. OpenCL's char has a sign, that of C++ has none on ARM.

GCC's global elimination of common subexpressions moves constants of activations out of all loops,
into registers that the sums of the innermost one need: with 16 registers, MobileNet v1 takes 1.4
times as long with it."""


def flags_of(machine: str) -> tuple[str, ...]:
    """The options of the compiler for the processor of this machine.

    Args:
        machine: the name of its architecture, as `platform.machine` reports it.
    """
    if machine in ("x86_64", "AMD64"):
        # Clang would take vectors of 256 bits for loops where 512 are faster.
        return ("-march=native", "-mprefer-vector-width=512", *PORTABLE_FLAGS)
    return ("-mcpu=native", *PORTABLE_FLAGS)


FLAGS = flags_of(platform.machine())
_PROBE_LIMIT_S = 20.0
_LIMIT_S = 120.0
"""Seconds that one kernel, or the linker, may take. The largest ones take 2 s."""


class CompilerError(Exception):
    """The compiler has failed. The text is the end of a sentence about it."""


@dataclass(frozen=True, slots=True)
class CppCompiler:
    """A compiler that works."""

    command: tuple[str, ...]
    title: str
    """Its name with the version, for users."""
    identity: str
    """Digits that are equal for equal versions that compile for equal instruction sets."""
    flags: tuple[str, ...]
    """Options for the compilation of a text."""

    def objects(self, sources: Mapping[str, str], folder: Path) -> Iterator[tuple[str, bytes]]:
        """The machine code of each text, with its name, as soon as it is compiled.

        Raises:
            CompilerError: a text does not compile; its first argument is the name.
            OSError: the folder cannot be written.
        """
        waiting = sorted(sources, key=lambda name: len(sources[name]), reverse=True)
        most = len(detect.usable_cores())
        running: list[tuple[str, _CompilerRun]] = []
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    name = waiting.pop(0)
                    (folder / f"{name}.cpp").write_text(sources[name])
                    words = [*self.flags, "-c", f"{name}.cpp", "-o", f"{name}.o"]
                    running.append((name, _CompilerRun(self.command, words, folder, f"{name}.o")))
                name, run = running[0]
                try:
                    code = run.result()
                except CompilerError as error:
                    raise CompilerError(name, str(error)) from None
                running.pop(0)
                yield name, code
        finally:
            for _, run in running:
                run.kill()

    def library(self, objects: Mapping[str, bytes], folder: Path) -> bytes:
        """The shared library of compiled texts, by name.

        Raises:
            CompilerError: the linker has failed.
            OSError: the folder cannot be written.
        """
        for name, code in objects.items():
            (folder / f"{name}.o").write_bytes(code)
        # Without the library of C++, which the kernels do not use and Zig would first compile.
        files = (f"{name}.o" for name in objects)
        words = ["-shared", "-nostdlib", *files, "-lm", "-lc", "-o", "kernels.so"]
        return _CompilerRun(self.command, words, folder, "kernels.so").result()


class _CompilerRun:
    """A run of the compiler."""

    def __init__(
        self, command: Sequence[str], words: Sequence[str], folder: Path, made: str
    ) -> None:
        """Start it in ``folder``, where it makes the file ``made``."""
        self._made, self._log = folder / made, folder / f"{made}.log"
        with open(self._log, "wb") as log:
            self._process = _started([*command, *words], log, folder)

    def result(self) -> bytes:
        """What it has made. The process has ended, also if this is interrupted."""
        try:
            code = self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise CompilerError(f"it did not end within {_LIMIT_S:g} s") from None
        finally:
            self.kill()
        if code != 0:
            raise CompilerError(_complaint(self._log.read_text(errors="replace"), code))
        try:
            return self._made.read_bytes()
        except FileNotFoundError:
            raise CompilerError("it has written no file") from None

    def kill(self) -> None:
        """End the process and all that it has started."""
        _kill(self._process)


def _started(
    command: Sequence[str], output: IO[bytes], folder: Path | None = None
) -> "subprocess.Popen[bytes]":
    """A process in a group of its own; its temporary files are in ``folder``."""
    environment = os.environ | {"LC_ALL": "C"} | ({"TMPDIR": str(folder)} if folder else {})
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            process_group=0,
        )
    except OSError as error:
        raise CompilerError(f"it cannot be started ({error.strerror})") from None


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # The number is this group's as long as the exit code has not been fetched.
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _complaint(log: str, code: int) -> str:
    """The first error in the compiler's messages, else how it has ended."""
    lines = [line.strip()[:300] for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), f"it {ending(code)}")


def compiler() -> CppCompiler:
    """The compiler of this machine. The first call of a process takes a hundredth of a second.

    Raises:
        DeviceError: there is none, or the one that CXX names does not work.
    """
    found = _searched(os.environ.get("CXX", ""), os.environ.get("PATH", ""))
    if isinstance(found, str):
        raise DeviceError(found)
    return found


def has_compiler() -> bool:
    """Whether `compiler` finds one."""
    try:
        compiler()
    except DeviceError:
        return False
    return True


@cache
def instruction_sets() -> str:
    """Digits that are equal for machines that run the machine code of each other.

    `detect.features` has the sets for vectors alone, and compilers use others, such as BMI2, too.
    """
    names = [name for name in detect.reported_features() if _IN_CODE.match(name)]
    return digest(detect.processor_features(), names)


_IN_CODE = re.compile(
    "abm|adx|apx|avx|bmi|f16c|fma|gfni|movbe|popcnt|sha_|sse|tbm|xop"
    "|asimd|atomics|bf16|crc32|fcma|fp|i8mm|lrcpc|sme|sve"
)
"""Beginnings of names of the instruction sets of x86 and ARM that compilers use. Other names in
/proc/cpuinfo depend on the kernel's version."""


@cache
def _searched(named: str, path: str) -> CppCompiler | str:
    """The first compiler that works, or why there is none.

    Args:
        named: the command that the variable CXX has; "": none.
        path: the variable PATH, on which the answer depends.
    """
    candidates = [named] if named else ["c++", "g++", "clang++"]
    if not named and find_spec("ziglang") is not None:
        candidates.append(shlex.join([sys.executable, "-m", "ziglang", "c++"]))
    reasons = []
    for words in candidates:
        try:
            return _tried(words, path)
        except CompilerError as error:
            reasons.append(f"{words}: {error}")
    return (
        f"kernels in C++ need a compiler, and none works ({'; '.join(reasons)}): install g++ or "
        f"clang, or {install('cpp')}; the variable CXX names another one"
    )


def _tried(words: str, path: str) -> CppCompiler:
    """A compiler with its version, from the macros that it defines for this processor."""
    try:
        program, *more = shlex.split(words)
    except ValueError as error:
        raise CompilerError(f"it is no command ({error})") from None
    place = shutil.which(program, path=path)
    if place is None:
        raise CompilerError("it is not installed")
    command = (os.path.abspath(place), *more)
    probe = [*command, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull]
    with tempfile.TemporaryFile() as output:
        process = _started(probe, output)
        try:
            code = process.wait(_PROBE_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise CompilerError(f"it did not end within {_PROBE_LIMIT_S:g} s") from None
        finally:
            _kill(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code != 0:
        raise CompilerError(_complaint(text, code))
    version = re.search(r'^#define __VERSION__ "(.*)"$', text, re.MULTILINE)
    if version is None:
        raise CompilerError("it does not name its version")
    kind = "" if "__clang__" in text else "GCC "
    title = f"{kind}{version[1].strip()} ({shlex.join(command)})"
    macros = sorted(set(text.splitlines()))
    identity = digest(macros, detect.processor_features(), FLAGS, command)
    return CppCompiler(command, title, identity, FLAGS)
