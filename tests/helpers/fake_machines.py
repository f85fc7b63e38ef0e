"""Folders like the root of a Linux system, with the files of proc and sys that a test writes."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["CORES", "written"]

CORES = {
    f"sys/devices/system/cpu/cpu{thread}/{name}": text
    for thread in range(16)
    for name, text in {
        "topology/thread_siblings_list": f"{thread % 8},{thread % 8 + 8}",
        "cpufreq/cpuinfo_max_freq": "4000000",
        "cpufreq/scaling_max_freq": "4000000",
        "cpufreq/scaling_min_freq": "800000",
        "cpufreq/scaling_governor": "performance",
        "thermal_throttle/core_throttle_count": "3",
        "cache/index0/level": "1",
        "cache/index0/type": "Data",
        "cache/index0/size": "32K",
        "cache/index0/shared_cpu_list": f"{thread % 8},{thread % 8 + 8}",
        "cache/index3/level": "3",
        "cache/index3/type": "Unified",
        "cache/index3/size": "32768K",
        "cache/index3/shared_cpu_list": "0-15",
    }.items()
}
"""Eight cores of two hardware threads each."""


def written(root: Path, *files: Mapping[str, str]) -> Path:
    """``root``, with these files by path below it."""
    for group in files:
        for path, text in group.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"{text}\n")
    return root
