"""Decisions, moments and what has to hold between them: a model that any exact solver can read.

A literal is a decision or, with a minus, its opposite. A rule says that one sum of moments and
decided durations is not less than another, always or where some literals are true. CP-SAT takes
rules as they are; an integer program weakens each by what it can be violated by at most, which
follows from the ranges of its moments.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["FALSE", "TRUE", "Constraints", "Literal", "Rule", "Sum"]

Literal = int
TRUE: Literal = 1
FALSE: Literal = -1


class Sum(NamedTuple):
    """A constant, a moment, and seconds for each literal that is true."""

    constant_s: float = 0.0
    moment: int | None = None
    flags: tuple[tuple[float, Literal], ...] = ()

    def plus(self, seconds: float = 0.0, flags: Iterable[tuple[float, Literal]] = ()) -> "Sum":
        """This and ``seconds``, and for each literal that is true its own."""
        added = [(s, literal) for s, literal in flags if s and literal != FALSE]
        constant_s = self.constant_s + seconds + sum(s for s, literal in added if literal == TRUE)
        free = tuple(pair for pair in added if pair[1] != TRUE)
        return Sum(constant_s, self.moment, self.flags + free)


class Rule(NamedTuple):
    """``late`` is not less than ``early`` if all of ``literals`` are true."""

    late: Sum
    early: Sum
    literals: tuple[Literal, ...] = ()
    otherwise_s: float | None = None
    """By how much ``late`` may be less where they are not, if that is known."""


class _Definition(NamedTuple):
    """``literal`` is true exactly where all of ``parts`` are."""

    literal: Literal
    parts: tuple[Literal, ...]


class Constraints:
    """A model that grows: decisions, moments, clauses, rules."""

    def __init__(self) -> None:
        self.flags = 1
        """Decisions are numbered from 1 to this; the first is `TRUE`."""
        self.moments: list[tuple[float, float]] = []
        """By moment, its earliest and latest."""
        self.clauses: list[tuple[Literal, ...]] = []
        """In each, at least one literal is true."""
        self.rules: list[Rule] = []
        self._definitions: dict[tuple[Literal, ...], _Definition] = {}

    def flag(self) -> Literal:
        """A new decision."""
        self.flags += 1
        return self.flags

    def moment(self, earliest_s: float, latest_s: float) -> int:
        """A new moment."""
        self.moments.append((earliest_s, latest_s))
        return len(self.moments) - 1

    def all_of(self, literals: Iterable[Literal]) -> Literal:
        """What is true where all of them are."""
        parts = tuple(sorted(set(literals) - {TRUE}))
        if FALSE in parts or any(-part in parts for part in parts):
            return FALSE
        if len(parts) <= 1:
            return parts[0] if parts else TRUE
        if parts not in self._definitions:
            literal = self.flag()
            self._definitions[parts] = _Definition(literal, parts)
            self.clauses += [(-literal, part) for part in parts]
            self.clauses.append((literal, *(-part for part in parts)))
        return self._definitions[parts].literal

    def any_of(self, literals: Iterable[Literal]) -> Literal:
        """What is true where one of them is."""
        return -self.all_of(-literal for literal in literals)

    def clause(self, *literals: Literal) -> None:
        """One of them is true."""
        if TRUE not in literals:
            self.clauses.append(tuple(x for x in literals if x != FALSE))

    def rule(
        self,
        late: Sum,
        early: Sum,
        literals: Iterable[Literal] = (),
        otherwise_s: float | None = None,
    ) -> None:
        """``late`` is not less than ``early`` where all ``literals`` are true."""
        conditions = tuple(x for x in literals if x != TRUE)
        if FALSE not in conditions:
            self.rules.append(Rule(late, early, conditions, otherwise_s))

    def complete(self, chosen: Mapping[Literal, bool]) -> list[bool]:
        """By decision, its value, where the free ones are ``chosen``; the rest is defined."""
        values = [False] * (self.flags + 1)
        values[TRUE] = True
        for literal, value in chosen.items():
            values[abs(literal)] = value == (literal > 0)
        for definition in self._definitions.values():
            values[definition.literal] = all(values[abs(p)] == (p > 0) for p in definition.parts)
        return values

    def earliest_s(self, values: Sequence[bool], order: Sequence[int]) -> list[float]:
        """By moment, the least that fits the decisions; fast if ``order`` is theirs in time."""
        place = {moment: at for at, moment in enumerate(order)}
        active = [
            (rule.late.moment, rule.early.moment, _fixed_s(rule, values))
            for rule in self.rules
            if rule.late.moment is not None and all(values[abs(x)] == (x > 0) for x in rule.literals)
        ]
        active.sort(key=lambda row: place.get(row[0], len(place)))
        found_s = [earliest_s for earliest_s, _ in self.moments]
        changed = True
        while changed:
            changed = False
            for late, early, after_s in active:
                least_s = after_s + (0.0 if early is None else found_s[early])
                if found_s[late] < least_s - 1e-15:
                    found_s[late], changed = least_s, True
        return found_s


def _fixed_s(rule: Rule, values: Sequence[bool]) -> float:
    """What ``early`` has on top of its moment, less that of ``late``."""

    def of(side: Sum) -> float:
        chosen = (s for s, literal in side.flags if values[abs(literal)] == (literal > 0))
        return side.constant_s + sum(chosen)

    return of(rule.early) - of(rule.late)
