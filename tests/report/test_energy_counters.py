"""Energy counters, in folders as Linux shows them."""

import re
from pathlib import Path

import pytest

from coexec.errors import DeviceError
from coexec.report.energy import EnergyCounter, energy_counters, measured_energy

RANGE_UJ = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy_uj: int, range_uj: int = RANGE_UJ) -> Path:
    """A zone of powercap; its counter."""
    path = root / folder
    path.mkdir(parents=True)
    for file, value in (("name", name), ("max_energy_range_uj", range_uj)):
        (path / file).write_text(f"{value}\n")
    counter = path / "energy_uj"
    counter.write_text(f"{energy_uj}\n")
    return counter


def test_packages_and_their_memory_count_once(tmp_path: Path) -> None:
    """A laptop: not the parts of a package, its double, nor the whole machine."""
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "uncore",
        "intel-rapl:0:2": "dram",
        "intel-rapl:1": "psys",
        "intel-rapl:2": "package-1",
        "intel-rapl-mmio:0": "package-0",
    }
    paths = {folder: zone(tmp_path, folder, name, 1000) for folder, name in zones.items()}
    (tmp_path / "intel-rapl").mkdir()
    counted = ["intel-rapl:0", "intel-rapl:0:2", "intel-rapl:2"]
    assert [c.path for c in energy_counters(tmp_path)] == [paths[name] for name in counted]


def test_a_counter_starts_again_behind_its_range(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 500_000)
    counter = EnergyCounter(path, RANGE_UJ)
    assert counter.since_uj(100_000) == 400_000
    assert counter.since_uj(RANGE_UJ - 1_000_000) == 1_500_000


def test_counters_for_root_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The permission is simulated: tests may run as root, who can read everything."""
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)

    def denied(self: Path) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", denied)
    remedy = f"may be read by root only; allow it with: sudo chmod a+r {counter}"
    with pytest.raises(DeviceError, match=re.escape(remedy)):
        EnergyCounter(counter, RANGE_UJ).read_uj()


def test_a_counter_that_is_no_number_or_gone(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    counter.write_text("much")
    with pytest.raises(DeviceError, match="cannot be read: invalid literal"):
        EnergyCounter(counter, RANGE_UJ).read_uj()
    counter.unlink()
    with pytest.raises(DeviceError, match=r"cannot be read: .*No such file"):
        EnergyCounter(counter, RANGE_UJ).read_uj()


@pytest.mark.parametrize(("run_s", "runs"), [(0.1, 5), (2.0, 3)])
def test_joules_of_one_run_are_those_of_many(tmp_path: Path, run_s: float, runs: int) -> None:
    """As many as half a second takes, at least three; each draws 4 J here."""
    counter = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 5_000_000)
    now_s, done = [0.0], []

    def run() -> None:
        done.append(None)
        now_s[0] = run_s * len(done)
        counter.write_text(str((RANGE_UJ - 5_000_000 + 4_000_000 * len(done)) % RANGE_UJ))

    found = measured_energy(run, tmp_path, clock=lambda: now_s[0])
    assert (found.energy_j, len(done)) == (pytest.approx(4), runs)


def test_nothing_runs_where_there_are_no_counters(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "psys", 0)
    ran: list[int] = []
    found = measured_energy(lambda: ran.append(1), tmp_path)
    assert found.energy_j is None and not ran
    assert found.energy_unknown is not None and "no energy counters" in found.energy_unknown
