"""The order in which configurations are tried, and which of them are not worth it."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coexec.rules import Rules
from coexec.selection.configurations import Configuration

__all__ = ["Agenda", "AgendaItem"]


class AgendaItem(NamedTuple):
    """A configuration, and its expected seconds; None if nothing is known."""

    names: Configuration
    expected_s: float | None = None


class Agenda:
    """Configurations in the order in which they are tried.

    First those that run in any case, then optional ones by expectation, as many as the rules allow.
    Expectations are computed again before each step, because the profile of one configuration
    improves the expectations of the rest. A configuration of many devices follows one of at least
    half as many: only then is it known how long planners will take.
    """

    def __init__(
        self,
        certain: Sequence[Configuration],
        optional: Sequence[Configuration],
        expected_s: Callable[[Configuration], float | None] | None,
        rules: Rules,
        before_optional: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            certain: configurations that are tried in any case, in this order.
            optional: configurations that are tried afterwards.
            expected_s: returns the expected seconds of a configuration; None: nothing is known.
                Without it, all configurations are tried in the given order.
            before_optional: called once, before the first optional one is chosen by expectation.
        """
        self._first = list(certain) if expected_s is not None else [*certain, *optional]
        self._optional = list(optional) if expected_s is not None else []
        self._all = (*certain, *optional)
        self._expected_s = expected_s or (lambda names: None)
        self._rules, self._before_optional = rules, before_optional
        self._taken, self._most_devices = 0, 0

    @property
    def count(self) -> int:
        """Number of all configurations."""
        return len(self._all)

    def next(self) -> AgendaItem | None:
        """The next configuration; None if no other one is worth trying."""
        if self._first:
            return self._item(self._first.pop(0))
        if not self._optional or self._taken == self._rules.most_profiled:
            return None
        if self._taken == 0:
            self._before_optional()
        best_s = self._best_s()
        items = map(self._item, self._optional)
        worth = [item for item in items if self._is_worth(item, best_s)]
        if not worth:
            return None
        known = [item for item in worth if self._is_known(item.names)]
        item = min(known or worth, key=lambda x: best_s if x.expected_s is None else x.expected_s)
        self._optional.remove(item.names)
        self._taken += 1
        self._most_devices = max(self._most_devices, len(item.names))
        return item

    def left_out(self) -> list[tuple[AgendaItem, str]]:
        """The configurations that are not worth trying, each with the reason."""
        best_s = self._best_s()
        return [(item, self._reason(item, best_s)) for item in map(self._item, self._optional)]

    def _reason(self, item: AgendaItem, best_s: float) -> str:
        if item.expected_s is None or self._is_worth(item, best_s):
            return f"others come first, and at most {self._taken} are profiled"
        return (
            f"that is {item.expected_s / best_s:.2f} times the best expectation; above "
            f"{self._rules.worth_profiling:g} a configuration is not tried"
        )

    def _item(self, names: Configuration) -> AgendaItem:
        return AgendaItem(names, self._expected_s(names))

    def _best_s(self) -> float:
        """The best expectation, also of configurations that were tried."""
        expected = map(self._expected_s, self._all)
        return min((seconds for seconds in expected if seconds is not None), default=math.inf)

    def _is_worth(self, item: AgendaItem, best_s: float) -> bool:
        most_s = self._rules.worth_profiling * best_s
        return item.expected_s is None or item.expected_s <= most_s

    def _is_known(self, names: Configuration) -> bool:
        """Whether the time of planners is known, at least roughly."""
        return len(names) <= max(self._rules.quick_devices, 2 * self._most_devices)
