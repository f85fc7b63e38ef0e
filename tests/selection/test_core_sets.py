"""Sets of cores for any number of cores, and the cores that share a memory."""

import math
from pathlib import Path

import pytest

from coexec.engines import detect
from coexec.engines.names import cpu_name
from coexec.selection.configurations import MOST_DEVICES, CoreSet, core_sets


def named(sets: list[CoreSet]) -> list[str]:
    """Each set in a line: "0-1 2-3"."""
    return [" ".join(cpu_name(cores).partition(":")[2] for cores in each) for each in sets]


def clusters(count: int, size: int) -> str:
    """The name of ``count`` clusters of ``size`` cores, from core 0 on."""
    each = [range(start, start + size) for start in range(0, count * size, size)]
    return named([tuple(map(tuple, each))])[0]


@pytest.mark.parametrize(
    ("count", "together", "fewer"),
    [
        (1, [], []),
        (2, [clusters(2, 1)], []),
        (3, ["0-1 2", clusters(3, 1)], [2]),
        (4, [clusters(2, 2), clusters(4, 1)], [2]),
        (6, [clusters(2, 3), clusters(6, 1)], [3, 2]),
        (8, [clusters(2, 4), clusters(4, 2), clusters(8, 1)], [4, 2]),
        (12, [clusters(2, 6), clusters(4, 3), clusters(12, 1)], [6, 3, 2]),
        (16, [clusters(k, 16 // k) for k in (2, 4, 8, 16)], [8, 4, 2]),
        (64, [clusters(k, 64 // k) for k in (2, 4, 8, 16)], [32, 16, 8, 4, 2]),
    ],
)
def test_sets_of_equal_cores(count: int, together: list[str], fewer: list[int]) -> None:
    expected = [clusters(1, count), *together, *(clusters(1, size) for size in fewer)]
    assert named(core_sets([range(count)])) == expected


@pytest.mark.parametrize("kinds", [[(0, 1)], [(1,), (0,)], [(4, 7)]])
@pytest.mark.parametrize("partitions", [(), (((0,), (1,)),)])
def test_two_cores_are_one_device_or_two(
    kinds: list[tuple[int, ...]], partitions: tuple[CoreSet, ...]
) -> None:
    cores = [core for kind in kinds for core in kind]
    assert core_sets(kinds, partitions if cores[0] < 2 else ()) == [
        (tuple(sorted(cores)),),
        tuple((core,) for core in cores),
    ]


def test_four_fast_and_four_slow_cores() -> None:
    assert named(core_sets([(4, 5, 6, 7), (0, 1, 2, 3)])) == [
        "0-7",
        "4-7 0-3",
        "4-5 6-7 0-1 2-3",
        "4 5 6 7 0 1 2 3",
        "4-7",
        "4-5",
        "0-3",
    ]


def test_three_kinds_of_cores() -> None:
    sets = named(core_sets([(7,), (4, 5, 6), (0, 1, 2, 3)]))
    assert sets[:3] == ["0-7", "7 4-6 0-3", "7 4-6"]
    assert {"4-7 0-3", "7 4-5 6 0-1 2-3", "7 4 5 6 0 1 2 3", "4-7", "4-6", "0-3"} <= set(sets)
    assert "7" not in sets  # one core is a device only where there is no other


@pytest.mark.parametrize("count", range(1, 130))
def test_the_number_of_sets_is_bounded(count: int) -> None:
    """Four numbers of clusters, single cores, and one device for each halving."""
    sets = core_sets([range(count)])
    assert len(sets) <= 6 + math.ceil(math.log2(count))
    for devices in sets:
        cores = [core for device in devices for core in device]
        assert len(devices) <= MOST_DEVICES
        assert len(set(cores)) == len(cores) and set(cores) <= set(range(count))
        assert all(device == tuple(sorted(device)) for device in devices)
    assert len({frozenset(devices) for devices in sets}) == len(sets)


def test_clusters_follow_the_caches() -> None:
    """Three caches of four cores are clusters, although twelve cores in two halves cut one."""
    caches = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    sets = named(core_sets([range(12)], [caches]))
    assert "0-3 4-7 8-11" in sets and "0-3" in sets
    # Nodes whose cores have numbers in turn: each half is one node.
    nodes = ((0, 2, 4, 6), (1, 3, 5, 7))
    sets = named(core_sets([range(8)], [nodes]))
    assert sets[1] == "0,2,4,6 1,3,5,7" and sets[2] == "0,2 4,6 1,3 5,7"
    assert sets[-1] == "0,2" and "0-3 4-7" not in sets


def test_cores_that_are_left_of_unequal_caches_are_unlike_clusters() -> None:
    sets = named(core_sets([(2, 3, 5, 8, 9)], [((2, 3), (5,), (8, 9))]))
    assert sets[0] == "2-3,5,8-9" and "2-3 5 8-9" in sets


def machine(root: Path, caches: dict[int, dict[str, str]], nodes: dict[int, int]) -> Path:
    """A folder like /sys/devices/system/cpu: the cores that share each level, by core and level."""
    for core, levels in caches.items():
        for number, (level, shared) in enumerate(levels.items()):
            folder = root / f"cpu{core}/cache/index{number}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("type", "Unified"), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    for core, node in nodes.items():
        (root / f"cpu{core}/node{node}").mkdir(parents=True)
    return root


def test_partitions_of_a_machine(tmp_path: Path) -> None:
    pairs = {core: f"{core // 2 * 2}-{core // 2 * 2 + 1}" for core in range(8)}
    levels = {c: {"1": str(c), "2": pairs[c], "3": "0-3" if c < 4 else "4-7"} for c in range(8)}
    root = machine(tmp_path, levels, {core: core // 4 for core in range(8)})
    halves, quarters = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 1), (2, 3), (4, 5), (6, 7))
    assert detect.partitions(root, range(8)) == (halves, quarters)
    assert detect.partitions(root, [1, 2, 3, 6, 7]) == (
        ((1, 2, 3), (6, 7)),
        ((1,), (2, 3), (6, 7)),
    )
    assert detect.partitions(root, [0, 4]) == ()  # each core has caches of its own
    assert detect.partitions(tmp_path / "absent", range(8)) == ()


def test_partitions_keep_to_the_cores_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(tmp_path, {c: {"3": "0-3" if c < 4 else "4-7"} for c in range(8)}, {})
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 6, 7}, raising=False)
    assert detect.usable_cores(root) == (0, 1, 2, 6, 7)
    assert detect.partitions(root) == (((0, 1, 2), (6, 7)),)
    kinds = [members for members, _ in detect.clusters(root)]
    assert "0-2 6-7" in named(core_sets(kinds, detect.partitions(root)))


def test_cores_of_equal_frequency_and_unequal_capacity_are_unlike(tmp_path: Path) -> None:
    for core, capacity in enumerate((1024, 1024, 512)):
        (tmp_path / f"cpu{core}").mkdir()
        (tmp_path / f"cpu{core}/cpu_capacity").write_text(f"{capacity}\n")
    assert detect.clusters(tmp_path, range(3)) == (((0, 1), None), ((2,), None))
    assert detect.capacity([0, 1], tmp_path) == 1.0
    assert detect.capacity([1, 2], tmp_path) == 0.5
    assert detect.capacity([5], tmp_path) == 1.0  # no kernel reports it
