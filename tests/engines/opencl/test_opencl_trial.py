"""The trial of an OpenCL device: its kernel, its facts, and what is said of a failure."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.patience import ENOUGH_S

pytest.importorskip("pyopencl")

from coexec.engines import detect, trial
from coexec.engines.opencl import tried
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.platforms import _RUNTIMES, DeviceHandle
from coexec.engines.opencl.tried import unusable
from tests.helpers.needs_opencl import opencl_found, opencl_name, opencl_options

SCRIPT = """
print("started")
from coexec.engines.registry import describe
print(describe("{name}", {options!r}).place)
"""


def listed(
    name: str = "A GPU", overridden_cpu_name: str | None = None, platform: str = "GPUs"
) -> DeviceHandle:
    """A device as drivers describe it. Nothing can be run there."""
    vendor = SimpleNamespace(name=platform, version="OpenCL 3.0")
    handle = SimpleNamespace(platform=vendor, name=name, driver_version="1.2", version="CL 3")
    return DeviceHandle(handle, _RUNTIMES.get(platform), overridden_cpu_name)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verdicts are remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trial, "_verdicts", {})
    return tmp_path / "coexec" / "trials"


def test_a_device_that_another_process_does_not_find_is_unusable() -> None:
    assert re.match(
        r"No such GPU is unusable: a small test kernel was not run, as another process does not "
        r"find the device \[GPUs 1\.2, CL 3\]; update or reinstall the driver, after which coexec "
        r"devices --fresh tries",
        str(unusable(listed("No such GPU"))),
    )


def test_the_trial_passes_where_the_device_works(folder: Path) -> None:
    assert unusable(opencl_found()) is None
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("v.x, 2.0f", "v.x, 3.0f", r"gave wrong numbers \(1020, .* for 1028, 1030\)"),
        ("mad(", "no_such_function(", r"failed \(.*error:.*no_such_function"),
    ],
    ids=["numbers", "build"],
)
def test_numbers_and_builds_are_checked(
    old: str, new: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pocl = opencl_found()
    assert tried.attempt(pocl.name, pocl.driver) == ""
    monkeypatch.setattr(tried, "_SOURCE", tried._SOURCE.replace(old, new))
    assert re.match(reason, tried.attempt(pocl.name, pocl.driver))


def test_the_driver_and_the_processor_that_it_compiles_for_are_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "_tried", lambda *_: "failed")
    assert unusable(listed()) is not None
    monkeypatch.setattr(trial, "_tried", lambda *_: "")
    assert unusable(listed()) is not None
    assert unusable(listed(overridden_cpu_name="haswell")) is None


def test_a_plain_script_is_not_run_twice(tmp_path: Path) -> None:
    """Scripts that do not ask for ``__name__`` would be, by multiprocessing."""
    name = opencl_name()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(name=name, options=opencl_options()))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"started\n{name}\n", "")
    assert list((tmp_path / "coexec" / "trials").iterdir())


def test_binaries_of_another_cpu_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = "Portable Computing Language"

    def key(overridden_cpu_name: str | None) -> str:
        binaries = Binaries(listed("CPU", overridden_cpu_name, platform), None, tmp_path)
        return binaries._key("source", "options")

    keys = [key(None), key("haswell"), key("skylake-avx512")]
    monkeypatch.setattr(detect, "features", lambda: ("AVX",))
    keys.append(key("haswell"))
    assert len(set(keys)) == 4 and key("haswell") == keys[-1]
