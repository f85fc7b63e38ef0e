"""Memory for the intermediate tensors of one device that runs its tasks in order.

    from coexec.memory.strategies import smallest
    from coexec.memory.usage import records_of

    records = records_of(graph)
    name, assignment = smallest(list(records.values()), families=("objects",))

No strategy is the smallest on all networks, so all are computed and the smallest is kept.

To add one: a file with the strategy's name, with a function ``assign``, and one row here. The
registry is not in the package's ``__init__``, because the executor loads that at each start and
needs only `coexec.memory.reuse`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from coexec.memory import (
    by_breadth,
    by_size_improved,
    greedy_in_order,
    min_cost_flow,
    naive,
    offsets_by_size,
)
from coexec.memory.bounds import offsets_bound, shared_objects_bound
from coexec.memory.records import Assignment, Record, verify

__all__ = ["BOUNDS", "FAMILIES", "STRATEGIES", "Family", "Strategy", "assign_all", "smallest"]

Strategy: TypeAlias = Callable[[Sequence[Record]], Assignment]
"""A pure function: same records, same assignment. None of them fails."""

Family = Literal["objects", "offsets"]
"""Whether an object holds one tensor at a time, or many side by side by their offsets.

Images of a GPU cannot be addressed by an offset, so they can only be shared as objects.
"""

FAMILIES: Mapping[Family, Mapping[str, Strategy]] = MappingProxyType(
    {
        "objects": MappingProxyType(
            {
                "by_breadth": by_breadth.assign,
                "by_size_improved": by_size_improved.assign,
                "greedy_in_order": greedy_in_order.assign,
                "min_cost_flow": min_cost_flow.assign,
                "naive": naive.assign,
            }
        ),
        "offsets": MappingProxyType({"offsets_by_size": offsets_by_size.assign}),
    }
)
"""Family -> name -> strategy, sorted by name."""

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {name: strategy for family in FAMILIES.values() for name, strategy in family.items()}
)
"""Name -> strategy."""

BOUNDS: Mapping[Family, Callable[[Sequence[Record]], int]] = MappingProxyType(
    {"objects": shared_objects_bound, "offsets": offsets_bound}
)
"""Family -> least bytes of every assignment of the family."""


def assign_all(
    records: Sequence[Record], families: Sequence[Family] = ("objects", "offsets")
) -> dict[str, Assignment]:
    """The assignment of ``records`` by each strategy of ``families``, by name, verified."""
    assignments = {
        n: assign(records) for family in families for n, assign in FAMILIES[family].items()
    }
    for assignment in assignments.values():
        verify(records, assignment)
    return assignments


def smallest(
    records: Sequence[Record], families: Sequence[Family] = ("objects", "offsets")
) -> tuple[str, Assignment]:
    """The strategy with the least total, and its assignment; of equal ones the first.

    Therefore shared objects win over offsets that save nothing. Raises ValueError if ``families``
    is empty.
    """
    return min(assign_all(records, families).items(), key=lambda item: item[1].total_bytes)
