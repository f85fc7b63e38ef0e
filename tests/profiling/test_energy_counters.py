"""Energy counters, in folders as Linux shows them."""

import re
from pathlib import Path

import pytest

from coexec.errors import DeviceError
from coexec.profiling.energy import EnergyCounter, EnergyMeter
from coexec.report.energy import measured_energy

RANGE_UJ = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy_uj: int, range_uj: int = RANGE_UJ) -> Path:
    """A zone of powercap; its counter."""
    path = root / "powercap" / folder
    path.mkdir(parents=True)
    for file, value in (("name", name), ("max_energy_range_uj", range_uj)):
        (path / file).write_text(f"{value}\n")
    counter = path / "energy_uj"
    counter.write_text(f"{energy_uj}\n")
    return counter


def laptop(root: Path) -> dict[str, Path]:
    """By name, the counters of a package with its parts, of its double and of the whole laptop."""
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "uncore",
        "intel-rapl:0:2": "dram",
        "intel-rapl:1": "psys",
    }
    found = {name: zone(root, folder, name, 1000) for folder, name in zones.items()}
    zone(root, "intel-rapl-mmio:0", "package-0", 1000)
    (root / "powercap" / "intel-rapl").mkdir()
    return found


def test_packages_and_their_memory_count_once(tmp_path: Path) -> None:
    counters = laptop(tmp_path)
    meter = EnergyMeter.of_machine(tmp_path)
    assert [(c.name, c.path) for c in meter.counters] == [
        (name, counters[name]) for name in ("package-0", "dram")
    ]
    before_uj = meter.read_uj()
    for counter in counters.values():
        counter.write_text(str(1000 + 2_500_000))
    assert meter.since_j(before_uj) == pytest.approx(2 * 2.5)


def test_a_server_has_several_packages(tmp_path: Path) -> None:
    for number in range(2):
        zone(tmp_path, f"intel-rapl:{number}", f"package-{number}", 0)
    assert len(EnergyMeter.of_machine(tmp_path).counters) == 2


def test_a_counter_starts_again_behind_its_range(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    meter = EnergyMeter.of_machine(tmp_path)
    before_uj = meter.read_uj()
    counter.write_text("500000\n")
    assert meter.since_j(before_uj) == pytest.approx(1.5)


def test_a_counter_that_never_starts_again_does_not_go_back(tmp_path: Path) -> None:
    counter = EnergyCounter("x", tmp_path / "x")
    assert counter.since_uj(5, 7) == 2
    with pytest.raises(DeviceError, match="went back from 7 to 5"):
        counter.since_uj(7, 5)


def test_sockets_of_amd_energy(tmp_path: Path) -> None:
    for number, (name, labels) in enumerate(
        {"k10temp": [], "amd_energy": ["Ecore000", "Ecore001", "Esocket0"]}.items()
    ):
        chip = tmp_path / "hwmon" / f"hwmon{number}"
        chip.mkdir(parents=True)
        (chip / "name").write_text(name)
        for i, label in enumerate(labels):
            (chip / f"energy{i + 1}_label").write_text(label)
            (chip / f"energy{i + 1}_input").write_text("7000000")
    (counter,) = EnergyMeter.of_machine(tmp_path).counters
    assert (counter.name, counter.read_uj()) == ("Esocket0", 7_000_000)


def test_a_machine_without_counters(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="shows no energy counters"):
        EnergyMeter.of_machine(tmp_path)
    zone(tmp_path, "intel-rapl:0", "psys", 0)
    with pytest.raises(DeviceError, match="shows no energy counters"):
        EnergyMeter.of_machine(tmp_path)


def test_counters_for_root_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The permission is simulated: tests may run as root, who can read everything."""
    counter = laptop(tmp_path)["dram"]
    read_text = Path.read_text

    def denied(self: Path) -> str:
        if self == counter:
            raise PermissionError(13, "Permission denied", str(self))
        return read_text(self)

    monkeypatch.setattr(Path, "read_text", denied)
    remedy = f"may be read by root only; allow it with: sudo chmod a+r {counter}"
    with pytest.raises(DeviceError, match=re.escape(remedy)):
        EnergyMeter.of_machine(tmp_path)


def test_a_counter_that_is_no_number_or_gone(tmp_path: Path) -> None:
    counter = laptop(tmp_path)["package-0"]
    counter.write_text("much")
    with pytest.raises(DeviceError, match="cannot be read: invalid literal"):
        EnergyMeter.of_machine(tmp_path)
    counter.unlink()
    with pytest.raises(DeviceError, match=r"cannot be read: .*No such file"):
        EnergyMeter.of_machine(tmp_path)


@pytest.mark.parametrize(("run_s", "runs"), [(0.1, 5), (2.0, 3)])
def test_joules_of_one_run_are_those_of_many(tmp_path: Path, run_s: float, runs: int) -> None:
    """As many as half a second takes, at least three; each draws 4 J here."""
    counter = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 5_000_000)
    now_s, done = [0.0], []

    def run() -> None:
        done.append(None)
        now_s[0] = run_s * len(done)
        counter.write_text(str((RANGE_UJ - 5_000_000 + 4_000_000 * len(done)) % RANGE_UJ))

    joules = EnergyMeter.of_machine(tmp_path).joules_each(run, clock=lambda: now_s[0])
    assert (joules, len(done)) == (pytest.approx(4), runs)


def test_nothing_runs_where_there_are_no_counters(tmp_path: Path) -> None:
    ran: list[int] = []
    found = measured_energy(lambda: ran.append(1), tmp_path)
    assert found.energy_j is None and not ran
    assert found.energy_unknown is not None and "no energy counters" in found.energy_unknown
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    found = measured_energy(lambda: ran.append(1), tmp_path)
    assert (found.energy_j, found.energy_unknown) == (0, None) and len(ran) > 3
