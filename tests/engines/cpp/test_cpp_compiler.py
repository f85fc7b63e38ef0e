"""Compilers that fail: each time one sentence, and no process that stays."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coexec.engines.cpp import compiler as module
from coexec.engines.cpp.compiler import compiler, flags_of
from coexec.engines.cpp.engine import Cpp
from coexec.engines.cpp.libraries import Libraries
from coexec.engines.kernels.base import KernelLaunch
from coexec.errors import DegradedWarning, DeviceError
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.session import InferenceSession
from tests.helpers.core_programs import cpp_name
from tests.helpers.patience import ENOUGH_S
from tests.helpers.small_models import branches

cpp_name()  # skips without a compiler
_REAL = compiler().command

Made = Callable[[str, str], None]


def launches(number: int = 3) -> list[KernelLaunch]:
    sources = [
        f"__kernel void k(__global int* y)\n{{\n  y[0] = {value};\n}}\n" for value in range(number)
    ]
    return [KernelLaunch("k", source, (), frozenset(), (1, 1, 1), None) for source in sources]


def compile_all(folder: Path | None = None) -> list[int]:
    return Libraries("cpu:0", compiler(), folder).functions(launches(), ["a", "b", "c"])


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Name a compiler by CXX that works, except that it runs a script where the words of a call
    contain a word."""

    def make(word: str, script: str) -> None:
        path = tmp_path / "fake"
        real = " ".join(_REAL)
        path.write_text(
            "#!/bin/sh\nfor last; do :; done\n"
            f'case " $* " in *" {word} "*) {script} ;; *) exec {real} "$@" ;; esac\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return make


@pytest.mark.parametrize(
    ("word", "script", "why"),
    [
        (
            "-c",
            "echo k.cpp:3:1: error: no; exit 1",
            "the kernel k of 'a' .*: k.cpp:3:1: error: no;",
        ),
        ("-c", "kill -9 $$", r"the kernel k of 'a' .*: it crashed its process \(Killed\);"),
        ("-c", "exit 3", "the kernel k of 'a' .*: it ended its process with exit code 3;"),
        ("-c", ":", "the kernel k of 'a' .*: it has written no file;"),
        ("-c", 'echo garbage > "$last"', "the library of kernels .*;"),
        ("-shared", "exit 1", "the library of kernels .*: it ended its process with exit code 1;"),
        ("-shared", 'echo garbage > "$last"', "the library of kernels .*: .* cannot be loaded .*;"),
        (
            "-shared",
            f'{" ".join(_REAL)} -shared -x c++ /dev/null -o "$last"',
            "the library of kernels .*: the library cannot be loaded .*undefined symbol.*;",
        ),
    ],
)
def test_a_failure_is_one_sentence(word: str, script: str, why: str, fake: Made) -> None:
    fake(word, script)
    with pytest.raises(DeviceError) as raised:
        compile_all()
    message = str(raised.value)
    assert raised.match(f"cpu:0 cannot compile {why} name another compiler by the variable CXX")
    assert "\n" not in message


def _ended(pids: Path) -> bool:
    """Whether all processes end in a moment that wrote their numbers into the file."""
    end_s = time.monotonic() + ENOUGH_S
    while not (ended := _are_gone(pids)) and time.monotonic() < end_s:
        time.sleep(0.01)
    return ended


def _are_gone(pids: Path) -> bool:
    for pid in pids.read_text().split():
        status = Path(f"/proc/{pid}/stat")
        # The parent of a zombie is the first process, which may never fetch its exit code.
        if status.exists() and status.read_text().rpartition(") ")[2][0] != "Z":
            return False
    return True


def test_a_compiler_that_hangs_is_ended(
    fake: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    fake("-c", f"echo $$ >> {pids}; sleep 1000 & echo $! >> {pids}; wait")
    monkeypatch.setattr(module, "_LIMIT_S", 0.3)
    with pytest.raises(DeviceError, match=r"the kernel k of 'a' .*: it did not end within 0\.3 s;"):
        compile_all()
    assert _ended(pids)


def test_an_interruption_ends_the_compilers(
    fake: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt is as the first one."""
    pids = tmp_path / "pids"
    fake("-c", f"echo $$ >> {pids}; sleep 1000 & echo $! >> {pids}; wait")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    begun_s = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_all()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun_s < ENOUGH_S
    assert _ended(pids)
    monkeypatch.delenv("CXX")
    assert len(set(compile_all())) == 3


def test_what_was_compiled_before_a_failure_is_kept(
    fake: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("-shared", "exit 1")
    with pytest.raises(DeviceError):
        compile_all(tmp_path / "cache")
    fake("-shared", f'exec {" ".join(_REAL)} "$@"')  # the same path, version and flags
    library = Libraries("cpu:0", compiler(), tmp_path / "cache")
    library.functions(launches(), ["a", "b", "c"])
    assert library.compiled == 0


_OF_A_CONVOLUTION = '-c conv"*"'
"""A word of calls that compile convolutions; the trial of the engine has none."""


@pytest.mark.parametrize(
    ("word", "script", "why"),
    [
        (_OF_A_CONVOLUTION, "echo error: no; exit 1", "error: no"),
        (_OF_A_CONVOLUTION, "sleep 1000", r"it did not end within 2 s"),
        (_OF_A_CONVOLUTION, "kill -9 $$", r"it crashed its process \(Killed\)"),
        (_OF_A_CONVOLUTION, 'echo garbage > "$last"', "cannot compile the library of kernels"),
    ],
)
def test_a_session_answers_where_the_compiler_fails(
    word: str, script: str, why: str, fake: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LIMIT_S", 2.0)
    fake(word, script)
    proto = branches(channels=18)
    feeds = random_inputs(load(proto).graph)
    expected = plain_session(proto).run(None, feeds)
    with (
        pytest.warns(DegradedWarning, match=why) as caught,
        InferenceSession(
            proto, devices=[cpp_name()], planner="single", cache=tmp_path / "cache"
        ) as session,
    ):
        assert session.devices == () and len(caught) == 1
        for found, each in zip(session.run(None, feeds), expected, strict=True):
            assert worst_difference(found, each) < 1e-5


def test_code_that_this_processor_cannot_run_is_found_by_the_trial(fake: Made) -> None:
    """In a process of its own: SIGILL does not reach this one."""
    illegal = """sed -i 's/  for (int z/  __builtin_trap();&/' "${last%.o}.cpp" """
    fake("-c", f'{illegal}; exec {" ".join(_REAL)} "$@"')
    words = "import sys; from coexec.engines.registry import describe; describe(sys.argv[1])"
    ended = subprocess.run(
        [sys.executable, "-c", words, cpp_name()], capture_output=True, text=True, timeout=ENOUGH_S
    )
    assert ended.returncode == 1
    assert "a small model crashed its process" in ended.stderr


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 1", "it ended its process with exit code 1"),
        ("echo hello", "it does not name its version"),
        ("echo error: an unknown option; exit 1", "error: an unknown option"),
        ("sleep 1000", r"it did not end within 0\.3 s"),
    ],
)
def test_a_compiler_that_does_not_work_is_the_reason(
    script: str, why: str, fake: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROBE_LIMIT_S", 0.3)
    module._searched.cache_clear()
    fake("-dM", script)
    (processor,) = Cpp().processors("cpu")
    assert processor.unusable is not None
    start, rest = processor.unusable.split(" (", 1)
    assert start == "kernels in C++ need a compiler, and none works"
    with pytest.raises(DeviceError, match=why):
        compiler()
    assert rest.endswith("pip install ziglang; the variable CXX names another one")
    module._searched.cache_clear()


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"none works \(c\+\+: it is not installed; g\+\+: "):
        compiler()
    assert Cpp().installed.endswith(", no compiler")


def test_a_variable_names_the_compiler_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"env A='1 2' {' '.join(_REAL)}")
    assert compiler().command[1:] == ("A=1 2", *_REAL)
    assert len(set(compile_all())) == 3


@pytest.mark.parametrize(
    ("named", "why"),
    [("no-such-compiler -v", "it is not installed"), ("g++ '", r"it is no command \(No closing")],
)
def test_a_variable_that_names_no_compiler_is_the_reason(
    named: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", named)
    with pytest.raises(DeviceError, match=f"none works .{re.escape(named)}: {why}"):
        compiler()


def test_a_variable_may_name_a_file_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers are started in other folders."""
    (tmp_path / "mine").write_text(f'#!/bin/sh\nexec {" ".join(_REAL)} "$@"\n')
    (tmp_path / "mine").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "./mine")
    assert len(set(compile_all())) == 3


def test_a_compiler_for_arm_gets_options_that_it_has(
    fake: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCC for ARM has neither -march=native nor -mprefer-vector-width."""
    refuse = 'case " $* " in *" -m"[ap]r*) echo error: unrecognized option; exit 1;; esac'
    fake("-mcpu=native", f'{refuse}; shift; exec {" ".join(_REAL)} "$@"')
    monkeypatch.setattr(module, "FLAGS", flags_of("aarch64"))
    assert compiler().flags[0] == "-mcpu=native"
    assert len(set(compile_all())) == 3
