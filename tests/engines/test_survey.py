"""The processors of this machine, beside engines that crash or hang."""

import time
from pathlib import Path

import pytest

from coexec import processes
from coexec.engines import registry
from coexec.engines.survey import survey
from coexec.errors import ExecutionError
from tests.helpers.distributions import write_distribution

ENGINE = """
from coexec.engines.base import Engine, OpenEngine

class Bad(Engine):
    name = "bad"
    installed = "bad 1"
    def open(self, device, info, options, folder):
        raise NotImplementedError
"""
CRASH = "    import os; os.abort()\n"
FAULTS = {
    "when it is imported": ("import os; os.abort()\n" + ENGINE, "crashed its process (Abort"),
    "when it lists processors": (
        f"{ENGINE}    def processors(self, kind):\n    {CRASH}",
        "crashed its process (Abort",
    ),
    "before others load": (f"{ENGINE}    def preload(self):\n    {CRASH}", "crashed its process"),
    "with an exit code": (
        "import os; os._exit(7)\n" + ENGINE,
        "with exit code 7",
    ),
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process finds the package as other processes do, and imports it never."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(tmp_path)
    registry._entries.cache_clear()


@pytest.mark.long
@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("fault", FAULTS)
def test_an_engine_that_ends_its_process_leaves_the_others(fault: str, tmp_path: Path) -> None:
    code, reason = FAULTS[fault]
    write_distribution(tmp_path, f"bad_{tmp_path.name}", "1.0", code, "coexec.engines", "bad:Bad")
    found = survey()
    assert list(found.broken) == ["bad"] and reason in found.broken["bad"]
    (cpu,) = [driven for driven in found.processors if driven.name == "cpu"]
    assert "onnxruntime" in cpu.usable and "bad" not in cpu.by


@pytest.mark.long
@pytest.mark.usefixtures("names")
def test_an_engine_that_hangs_is_left_out_after_the_limit(tmp_path: Path) -> None:
    code = "import time; time.sleep(600)"
    write_distribution(tmp_path, f"bad_{tmp_path.name}", "1.0", code, "coexec.engines", "bad:Bad")
    found = survey(limit_s=5)
    assert "did not answer within 5 s" in found.broken["bad"]


def test_without_processes_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "can_start", lambda: False)
    found = survey()
    assert not found.processors and "no process can be started" in found.broken["onnxruntime"]
    with pytest.raises(ExecutionError):
        processes.Child("x", "y")


@pytest.mark.long
@pytest.mark.usefixtures("names")
def test_each_step_has_the_limit_and_a_trial_that_exceeds_it_is_ended(tmp_path: Path) -> None:
    """The two steps before the trial take more than the limit together, and the trial hangs."""
    signs = tmp_path / "signs"  # of life, ten a second
    code = (
        f"import os, time\n{ENGINE}"
        "    def preload(self):\n        time.sleep(8)\n"
        "    def describe(self, device, options):\n"
        "        while True:\n"
        f"            open({str(signs)!r}, 'a').write('.')\n"
        "            time.sleep(0.1)\n"
        "    def processors(self, kind):\n"
        "        from coexec.engines.base import Processor\n"
        "        time.sleep(8)\n"
        "        return [Processor('cpu', 'false')]\n"
    )
    write_distribution(tmp_path, f"bad_{tmp_path.name}", "1.0", code, "coexec.engines", "bad:Bad")
    found = survey(limit_s=15)
    assert "did not answer within 15 s, and its process was ended" in found.broken["bad"]
    size = signs.stat().st_size
    time.sleep(2)
    assert 0 < size == signs.stat().st_size
