"""Limits of control groups, in both versions and as containers show them."""

from pathlib import Path

import pytest

from coexec.control_groups import cpu_limit, memory_limit_bytes
from tests.helpers.fake_machines import written

GROUP = "sys/fs/cgroup"
CASES = {
    "no control groups": ({}, None, None),
    "version 2, no limits": (
        {
            "proc/self/cgroup": "0::/",
            f"{GROUP}/cpu.max": "max 100000",
            f"{GROUP}/memory.max": "max",
        },
        None,
        None,
    ),
    "version 2, limits of a group above": (
        {
            "proc/self/cgroup": "0::/a/b",
            f"{GROUP}/a/b/cpu.max": "400000 100000",
            f"{GROUP}/a/cpu.max": "150000 100000",
            f"{GROUP}/a/b/memory.max": "1000",
            f"{GROUP}/a/memory.max": "2000",
        },
        1.5,
        1000,
    ),
    "version 2, a container without a file of its groups": (
        {f"{GROUP}/cpu.max": "50000 100000", f"{GROUP}/memory.max": "4096"},
        0.5,
        4096,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/b\n0::/",
            f"{GROUP}/cpu/a/cpu.cfs_quota_us": "300000",
            f"{GROUP}/cpu/a/cpu.cfs_period_us": "100000",
            f"{GROUP}/memory/b/memory.limit_in_bytes": "5000",
            f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712",
        },
        3.0,
        5000,
    ),
    "version 1, no limits": (
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/",
            f"{GROUP}/cpu/cpu.cfs_quota_us": "-1",
            f"{GROUP}/cpu/cpu.cfs_period_us": "100000",
            f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712",
        },
        None,
        None,
    ),
    "version 1, a container that shows the paths of its host": (
        {
            "proc/self/cgroup": "4:memory:/docker/0123",
            f"{GROUP}/memory/memory.limit_in_bytes": "7000",
        },
        None,
        7000,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_limit_counts(case: str, tmp_path: Path) -> None:
    files, processors, size_bytes = CASES[case]
    root = written(tmp_path, files)
    assert (cpu_limit(root), memory_limit_bytes(root)) == (processors, size_bytes)
