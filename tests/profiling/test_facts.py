"""Facts about machines, read from folders like the root of a Linux system."""

from pathlib import Path

from coexec.profiling.facts import MACHINE, Fact, MachineFiles, determined
from tests.helpers.fake_machines import CORES, written

PROC = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast Processor\nflags\t\t: sse hypervisor",
    "proc/meminfo": "MemTotal:   16 kB\nMemAvailable:   8 kB",
    "sys/devices/system/cpu/online": "0-15",
}


def facts(machine: MachineFiles) -> dict[str, Fact]:
    return {
        name: determined(name, lambda read=read: read(machine)) for name, read in MACHINE.items()
    }


def test_a_machine_of_many_cores_of_which_some_may_be_used(tmp_path: Path) -> None:
    found = facts(MachineFiles(written(tmp_path, CORES, PROC), (0, 1, 2, 8)))
    assert found["processor"].value == "Fast Processor"
    assert found["virtual_machine"].value is True
    assert found["hardware_threads"].value == "4 of 16 (0-2,8)"
    assert found["cores"].value == "3; hardware threads of one core: 0,8"
    assert found["clusters"].value == "0-2 at most 4.00 GHz"
    assert found["caches"].value == "3 L1 data of 32 KiB, 1 L3 of 32768 KiB"
    assert (found["memory_bytes"].value, found["available_memory_bytes"].value) == (16384, 8192)


def test_one_core_in_a_container_without_sys(tmp_path: Path) -> None:
    machine = MachineFiles(written(tmp_path, {"proc/meminfo": "MemTotal: 16 kB"}), (0,))
    found = facts(machine)
    assert found["cores"].value == "1"
    assert found["clusters"].value == "0 at most an unknown frequency"
    for name in ("caches", "gpus_and_npus", "virtual_machine", "available_memory_bytes"):
        assert found[name].value is None and found[name].why_not, name
    assert str(tmp_path / "proc/cpuinfo") in found["virtual_machine"].why_not


def test_gpus_on_the_bus_with_and_without_a_driver(tmp_path: Path) -> None:
    bus = "sys/bus/pci/devices"
    devices = {"0": ("0x030000", "0x10de"), "1": ("0x020000", "0x8086"), "2": ("0x120000", "0x1")}
    for number, (kind, maker) in devices.items():
        folder = f"{bus}/{number}"
        files = {"class": kind, "vendor": maker, "device": "0x2330"}
        written(tmp_path, {f"{folder}/{name}": text for name, text in files.items()})
    (tmp_path / "drivers/nvidia").mkdir(parents=True)
    (tmp_path / bus / "0/driver").symlink_to(tmp_path / "drivers/nvidia")
    found = facts(MachineFiles(tmp_path, (0,)))["gpus_and_npus"].value
    assert found == "NVIDIA 0x2330 (driver nvidia), 0x1 0x2330 (driver none)"


def test_an_error_is_the_reason_and_no_error() -> None:
    def fails() -> str:
        raise RuntimeError("one line\nand another")

    assert determined("x", fails) == Fact("x", None, "one line")
