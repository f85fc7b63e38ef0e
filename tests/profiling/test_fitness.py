"""Whether machines are fit to measure on, by folders like the root of a Linux system."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from coexec.engines.detect import allowed_threads
from coexec.profiling.facts import MachineFiles
from coexec.profiling.fitness import CHECKS, Disturbances, Finding, findings, observed
from coexec.profiling.processors import Load, ProcessorTime
from coexec.rules import BUSY, STOLEN
from tests.helpers.fake_machines import CORES, written

CPU = "sys/devices/system/cpu"
GOOD = {
    "proc/loadavg": "0.05 0.04 0.01 1/300 4000",
    "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\nSwapTotal: 10 kB\nSwapFree: 10 kB",
    "proc/self/cgroup": "0::/",
    f"{CPU}/online": "0-15",
    f"{CPU}/intel_pstate/no_turbo": "1",
    "sys/class/thermal/thermal_zone0/temp": "41000",
    "sys/class/power_supply/BAT0/type": "Battery",
    "sys/class/power_supply/BAT0/status": "Charging",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
}
QUIET = Disturbances(
    load=Load(0.0, 16.0, ProcessorTime(0.1, 0.0)),
    clock_step_s=3e-8,
    clock_read_s=4e-8,
    counters={"throttled": 48},
)


def found(
    root: Path, files: Mapping[str, str], seen: Disturbances = QUIET
) -> Mapping[str, Finding]:
    machine = MachineFiles(written(root, CORES, GOOD, files), tuple(range(16)))
    return {finding.what: finding for finding in findings(machine, seen)}


def test_a_quiet_machine_is_fit(tmp_path: Path) -> None:
    assert {f.what: f for f in found(tmp_path, {}).values() if f.verdict != "ok"} == {}


BAD: dict[str, tuple[Mapping[str, str], str]] = {
    "frequency governor": (
        {f"{CPU}/cpu{thread}/cpufreq/scaling_governor": "powersave" for thread in range(8)},
        "powersave for 0-7, performance for 8-15",
    ),
    "frequency limits": (
        {f"{CPU}/cpu3/cpufreq/scaling_max_freq": "2000000"},
        "0.80 to 4.00 GHz, the processor's most is 4.00; lowered for 3",
    ),
    "turbo": ({f"{CPU}/intel_pstate/no_turbo": "0"}, "switched on"),
    "battery": ({"sys/class/power_supply/BAT0/status": "Discharging"}, "discharging"),
    "processor quota": (
        {"sys/fs/cgroup/cpu.max": "250000 100000"},
        "the time of 2.5 processors, 16 may be used",
    ),
    "swap": (
        {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 20 kB"},
        "2% of memory is available",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_disturbs_is_found_in_the_files(what: str, tmp_path: Path) -> None:
    files, text = BAD[what]
    finding = found(tmp_path, files)[what]
    assert finding.verdict == "look" and text in finding.found and finding.remedy


DISTURBED = {
    "time of other programs": replace(QUIET, load=Load(16.0 * 2 * BUSY, 16.0)),
    "time taken by the host": replace(
        QUIET, load=Load(0.0, 16.0, ProcessorTime(1 - 2 * STOLEN, 2 * STOLEN))
    ),
    "throttling by heat": replace(QUIET, throttled=1),
    "threads can be bound": replace(QUIET, binding="0: Operation not permitted"),
    "timer": replace(QUIET, clock_read_s=2e-6),
    "swap": replace(QUIET, swapped_pages=5),
}


@pytest.mark.parametrize("what", DISTURBED)
def test_what_disturbs_is_found_in_the_sample(what: str, tmp_path: Path) -> None:
    finding = found(tmp_path, {}, DISTURBED[what])[what]
    assert finding.verdict == "look" and finding.remedy


def test_every_check_has_a_bad_case() -> None:
    assert CHECKS.keys() - BAD.keys() - DISTURBED.keys() == {"usable processors"}


ZONE = "sys/class/thermal/thermal_zone{}/temp"


def test_a_sensor_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    files = {ZONE.format(1): "no number", ZONE.format(2): "52000"}
    finding = found(tmp_path, files, replace(QUIET, throttled=1))["throttling by heat"]
    assert finding.verdict == "look"
    assert "1 times" in finding.found and "52 °C" in finding.found


def test_without_a_readable_sensor_throttling_is_unknown(tmp_path: Path) -> None:
    files = {ZONE.format(0): "no number", ZONE.format(1): ""}
    finding = found(tmp_path, files, replace(QUIET, counters={}))["throttling by heat"]
    assert finding.verdict == "unknown" and "none of its 2" in finding.found


def test_a_counter_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    bad = {f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "no number"}
    machine = MachineFiles(written(tmp_path, CORES, bad), tuple(range(16)))
    assert observed(machine, lambda _: None).counters["throttled"] == 15 * 3


def test_the_other_kind_of_switch_for_turbo(tmp_path: Path) -> None:
    (tmp_path / f"{CPU}/cpufreq").mkdir(parents=True)
    (tmp_path / f"{CPU}/cpufreq/boost").write_text("1\n")
    (turbo,) = [f for f in findings(MachineFiles(tmp_path, (0,)), QUIET) if f.what == "turbo"]
    assert f"echo 0 > /{CPU}/cpufreq/boost" in turbo.remedy


def test_a_container_without_proc_and_sys_gets_reasons(tmp_path: Path) -> None:
    rows = findings(
        MachineFiles(tmp_path, (0,)), Disturbances(clock_step_s=1e-8, clock_read_s=1e-8)
    )
    unknown = {row.what for row in rows if row.verdict == "unknown"}
    assert {"time of other programs", "frequency governor", "turbo", "swap"} <= unknown
    assert all(row.found for row in rows) and not [row for row in rows if row.verdict == "look"]


def test_files_of_another_form_are_no_errors(tmp_path: Path) -> None:
    odd = "neither a number\nnor what proc(5) says"
    files = {path: odd for path in (*CORES, *GOOD, "proc/stat", "proc/vmstat")}
    machine = MachineFiles(written(tmp_path, files), (0, 1))
    assert len(findings(machine, observed(machine, sleep=lambda _: None))) == len(CHECKS)


def test_a_sample_has_the_load_between_two_readings(tmp_path: Path) -> None:
    machine = MachineFiles(written(tmp_path, {"proc/stat": "cpu 100 0 0 900 0 0 0 0 0 0"}), ())

    def later(_: float) -> None:
        written(tmp_path, {"proc/stat": "cpu 1000 0 0 900 0 0 0 100 0 0"})

    load = observed(machine, later).load
    assert load is not None
    assert load.processors == ProcessorTime(pytest.approx(9.0), pytest.approx(1.0))


def test_this_thread_stays_where_it_was() -> None:
    before = allowed_threads()
    observed(MachineFiles.here(), sleep=lambda _: None)
    assert allowed_threads() == before
