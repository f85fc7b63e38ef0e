"""PoCL told its CPU: which one, and only where the structure is the expected one."""

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from coexec.engines import detect
from coexec.engines.opencl import pocl_cpu
from coexec.engines.opencl.pocl_cpu import known_cpu, override_cpu_name

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/mem", os.W_OK), reason="this system has no writable /proc/self/mem"
)
TEXTS = {
    text: ctypes.create_string_buffer(text.encode())
    for text in ("generic", "generic64", "znver3", "alderlake", "skylake", "icelake-server")
}


class Structure:
    """Memory that looks like PoCL's structure of a device."""

    def __init__(self, name_address: int) -> None:
        self.memory = (ctypes.c_uint64 * 100)()
        self.memory[pocl_cpu._OFFSET // 8] = name_address
        self.before = bytes(self.memory)

    def handle(self, platform: str = pocl_cpu._PLATFORM) -> SimpleNamespace:
        return SimpleNamespace(
            platform=SimpleNamespace(version=platform), int_ptr=ctypes.addressof(self.memory)
        )

    @property
    def name(self) -> bytes:
        address = self.memory[pocl_cpu._OFFSET // 8]
        return ctypes.string_at(address)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build in question is loaded, on a CPU with AVX-512."""
    monkeypatch.setattr(pocl_cpu, "_is_loaded", lambda library: True)
    monkeypatch.setattr(detect, "features", lambda: ("X86_V2", "X86_V3", "X86_V4"))


@pytest.mark.parametrize(
    ("features", "name"),
    [
        (("AVX2", "FMA3", "X86_V2", "X86_V3", "X86_V4"), "skylake-avx512"),
        (("AVX2", "FMA3", "X86_V2", "X86_V3"), "haswell"),
        (("AVX", "X86_V2"), None),
        (("NEON", "ASIMD"), None),
    ],
)
def test_the_cpu_has_all_instructions_of_the_one_that_is_named(
    features: tuple[str, ...], name: str | None
) -> None:
    assert known_cpu(features) == name


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("found", ["generic", "znver3", "alderlake"])
def test_a_cpu_with_a_wrong_name_is_named_once(found: str) -> None:
    structure = Structure(ctypes.addressof(TEXTS[found]))
    assert override_cpu_name(structure.handle()) == "skylake-avx512"
    assert structure.name == b"skylake-avx512"
    told = bytes(structure.memory)
    assert override_cpu_name(structure.handle()) == "skylake-avx512"
    assert bytes(structure.memory) == told
    place = slice(pocl_cpu._OFFSET, pocl_cpu._OFFSET + 8)
    assert told[: place.start] + told[place.stop :] == (
        structure.before[: place.start] + structure.before[place.stop :]
    )


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("found", "told"), [("generic", "haswell"), ("znver3", None)])
def test_a_cpu_without_avx512_keeps_a_name_that_it_bears_rightly(
    monkeypatch: pytest.MonkeyPatch, found: str, told: str | None
) -> None:
    monkeypatch.setattr(detect, "features", lambda: ("X86_V2", "X86_V3"))
    structure = Structure(ctypes.addressof(TEXTS[found]))
    assert override_cpu_name(structure.handle()) == told
    assert structure.name == (told or found).encode()


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    "address",
    [
        0,
        8,
        2**63,
        2**64 - 8,
        *(ctypes.addressof(TEXTS[text]) for text in ("generic64", "skylake", "icelake-server")),
    ],
    ids=["null", "unmapped", "beyond", "last", "another name", "an older CPU", "one with AVX-512"],
)
def test_another_structure_is_left_alone(address: int) -> None:
    structure = Structure(address)
    assert override_cpu_name(structure.handle()) is None
    assert bytes(structure.memory) == structure.before


@pytest.mark.usefixtures("loaded")
def test_a_device_that_lies_nowhere_is_left_alone() -> None:
    handle = Structure(0).handle()
    for address in (0, 2**62, 2**64 - 8, -pocl_cpu._OFFSET):
        handle.int_ptr = address
        assert override_cpu_name(handle) is None


@pytest.mark.usefixtures("loaded")
def test_other_versions_are_left_alone() -> None:
    structure = Structure(ctypes.addressof(TEXTS["generic"]))
    assert (
        override_cpu_name(structure.handle("OpenCL 3.0 PoCL 3.0  Linux, Release, LLVM 14.0.6"))
        is None
    )
    assert structure.name == b"generic"


def test_other_builds_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is the same, the library is not the wheel's."""
    monkeypatch.setattr(pocl_cpu, "_LIBRARY", "libpocl-of-a-distribution.so")
    monkeypatch.setattr(detect, "features", lambda: ("X86_V4",))
    structure = Structure(ctypes.addressof(TEXTS["generic"]))
    assert override_cpu_name(structure.handle()) is None
    assert structure.name == b"generic"


def test_a_loaded_library_is_found_by_its_whole_name() -> None:
    libraries = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    name = next(Path(path).name for path in libraries if path.startswith("/") and ".so" in path)
    assert pocl_cpu._is_loaded(name)
    assert not pocl_cpu._is_loaded(name[1:])
