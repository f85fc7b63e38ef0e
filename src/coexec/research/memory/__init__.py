"""The strategies of the papers for the memory of intermediate tensors, to compare them.

    from coexec.plan.memory import records_of
    from coexec.research.memory import assign_all

    totals = {name: a.total_bytes for name, a in assign_all([*records_of(graph).values()]).items()}

A run uses the strategies of `coexec.plan.memory`, one for each family. To add one here: a file with
the strategy's name, with a function ``assign``, and one row.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from coexec.plan.memory import (
    Assignment,
    Family,
    Record,
    Strategy,
    by_size_improved,
    offsets_by_size,
    verify,
)
from coexec.research.memory import by_breadth, greedy_in_order, min_cost_flow, naive

__all__ = ["FAMILY_OF", "STRATEGIES", "assign_all"]

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "by_breadth": by_breadth.assign,
        "by_size_improved": by_size_improved,
        "greedy_in_order": greedy_in_order.assign,
        "min_cost_flow": min_cost_flow.assign,
        "naive": naive.assign,
        "offsets_by_size": offsets_by_size,
    }
)
"""Name -> strategy, sorted by name."""

FAMILY_OF: Mapping[str, Family] = MappingProxyType(
    {name: "offsets" if name == "offsets_by_size" else "objects" for name in STRATEGIES}
)
"""Name of a strategy -> its family."""


def assign_all(records: Sequence[Record]) -> dict[str, Assignment]:
    """The assignment of ``records`` by each strategy, by name, verified."""
    assignments = {name: strategy(records) for name, strategy in STRATEGIES.items()}
    for assignment in assignments.values():
        verify(records, assignment)
    return assignments
