"""Sets of cores that a plan can use: as one device, or as several devices that compute at once."""

from collections.abc import Sequence

__all__ = ["MOST_DEVICES", "CoreSet", "core_sets"]

CoreSet = tuple[tuple[int, ...], ...]
"""The cores of each device, ascending."""

MOST_DEVICES = 16
"""Largest number of devices: no network has more branches, and strips of so few rows consist mostly
of rows that are computed twice."""
_NUMBERS = (2, 4, 8, MOST_DEVICES)


def core_sets(
    kinds: Sequence[Sequence[int]], partitions: Sequence[Sequence[Sequence[int]]] = ()
) -> list[CoreSet]:
    """Sets of cores worth considering, each once. Their number grows with the logarithm of the
    number of cores.

    All cores as one device. Several devices: the kinds of cores; 2, 4, 8 and 16 clusters of equal
    size, of all cores and of each kind, if no core is left over (of two clusters, the first may
    have one core more); the cores that share a memory; single cores. One device of fewer cores,
    because threads inside of operators stop scaling: half of the cores, a quarter and so on down to
    two; the cores of one kind; the cores that share a memory with the first core.

    The cores of a cluster are near each other, and faster kinds come first.

    Args:
        kinds: cores by kind, the fastest first (`detect.clusters`).
        partitions: groups of cores that share a memory (`detect.partitions`).
    """
    near = [sorted(kind, key=lambda core: _position(core, partitions)) for kind in kinds]
    cores = [core for kind in near for core in kind]
    sets: list[Sequence[Sequence[int]]] = [[cores], near]
    sets += [near[:number] for number in range(2, len(near))]
    for number in _NUMBERS:
        sets.append(_cut(cores, number))
        sets.append([part for kind in near for part in _cut(kind, number) or [kind]])
    sets += partitions
    sets.append([[core] for core in cores])
    fewer = len(cores)
    while (fewer := (fewer + 1) // 2) > 1:
        sets.append([cores[:fewer]])
    parts = [*near, *(group for groups in partitions for group in groups if cores[0] in group)]
    sets += [[part] for part in parts if len(part) > 1]
    found: dict[frozenset[tuple[int, ...]], CoreSet] = {}
    for devices in sets:
        each = tuple(tuple(sorted(device)) for device in devices)
        if 0 < len(each) <= MOST_DEVICES:
            found.setdefault(frozenset(each), each)
    return list(found.values())


def _position(core: int, partitions: Sequence[Sequence[Sequence[int]]]) -> tuple[int, ...]:
    """Sorts cores so that those which share a memory are neighbours."""
    groups = (
        next((number for number, group in enumerate(groups) if core in group), 0)
        for groups in partitions
    )
    return (*groups, core)


def _cut(cores: Sequence[int], number: int) -> list[Sequence[int]]:
    """``cores`` in equal parts; none if cores are left over. The first of two parts may have one
    core more."""
    if len(cores) < number or (len(cores) % number and number > 2):
        return []
    size = -(-len(cores) // number)
    return [cores[start : start + size] for start in range(0, len(cores), size)]
