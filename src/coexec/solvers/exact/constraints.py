"""Decisions, moments and what has to hold between them: a model that any exact solver can read.

A literal is a decision or, with a minus, its opposite. A rule says that one sum of moments and
decided durations is not less than another, always or where some literals are true. CP-SAT takes
rules as they are; an integer program weakens each by what it can be violated by at most, which
follows from the ranges of its moments.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["FALSE", "TRUE", "Constraints", "Literal", "Rule", "Sum"]

Literal = int
TRUE: Literal = 1
FALSE: Literal = -1


class Sum(NamedTuple):
    """A constant, a moment, and something for each literal that is true.

    In seconds when it is made; in ticks once it is part of `Constraints`.
    """

    constant: float = 0
    moment: int | None = None
    flags: tuple[tuple[float, Literal], ...] = ()

    def plus(self, seconds: float = 0.0, flags: Iterable[tuple[float, Literal]] = ()) -> "Sum":
        """This and ``seconds``, and for each literal that is true its own."""
        added = [(s, literal) for s, literal in flags if s and literal != FALSE]
        constant = self.constant + seconds + sum(s for s, literal in added if literal == TRUE)
        free = tuple(pair for pair in added if pair[1] != TRUE)
        return Sum(constant, self.moment, self.flags + free)


class Rule(NamedTuple):
    """``late`` is not less than ``early`` if all of ``literals`` are true."""

    late: Sum
    early: Sum
    literals: tuple[Literal, ...] = ()
    otherwise: float | None = None
    """By how much ``late`` may be less where they are not, if that is known."""


class _Definition(NamedTuple):
    """``literal`` is true exactly where all of ``parts`` are."""

    literal: Literal
    parts: tuple[Literal, ...]


class Constraints:
    """A model that grows: decisions, moments, clauses, rules.

    It counts time in ticks of ``tick_s`` seconds, in ``whole`` ones if a solver wants that: then
    what adds up here adds up there.
    """

    def __init__(self, tick_s: float, whole: bool = False) -> None:
        self.tick_s, self.whole = tick_s, whole
        self.flags = 1
        """Decisions are numbered from 1 to this; the first is `TRUE`."""
        self.moments: list[tuple[float, float]] = []
        """By moment, its earliest and latest tick."""
        self.clauses: list[tuple[Literal, ...]] = []
        """In each, at least one literal is true."""
        self.rules: list[Rule] = []
        self._definitions: dict[tuple[Literal, ...], _Definition] = {}

    def ticks(self, seconds: float) -> float:
        """So many ticks."""
        return round(seconds / self.tick_s) if self.whole else seconds / self.tick_s

    def in_ticks(self, terms: Sum) -> Sum:
        """The same in ticks, each term rounded on its own."""
        flags = tuple((self.ticks(s), literal) for s, literal in terms.flags)
        return Sum(self.ticks(terms.constant), terms.moment, flags)

    def flag(self) -> Literal:
        """A new decision."""
        self.flags += 1
        return self.flags

    def moment(self) -> int:
        """A new moment."""
        self.moments.append((0, math.inf))
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
        otherwise = None if otherwise_s is None else self.ticks(otherwise_s)
        if FALSE not in conditions:
            late, early = self.in_ticks(late), self.in_ticks(early)
            self.rules.append(Rule(late, early, conditions, otherwise))

    def rounding(self) -> float:
        """Ticks by which rounded terms can lengthen or shorten a way through all moments.

        Such a way passes each moment once, by one of the rules that it is the later side of; each
        term there is off by half a tick at most. One more for each moment is left to the solver's
        own rule, one task after the other.
        """
        terms: dict[int | None, int] = {}
        for rule in self.rules:
            count = 2 + len(rule.late.flags) + len(rule.early.flags)
            terms[rule.late.moment] = max(count, terms.get(rule.late.moment, 0))
        return 0.5 * (sum(terms.values()) + len(self.moments)) if self.whole else 0.0

    def complete(self, chosen: Mapping[Literal, bool]) -> list[bool]:
        """By decision, its value, where the free ones are ``chosen``; the rest is defined."""
        values = [False] * (self.flags + 1)
        values[TRUE] = True
        for literal, value in chosen.items():
            values[abs(literal)] = value == (literal > 0)
        for definition in self._definitions.values():
            values[definition.literal] = all(values[abs(p)] == (p > 0) for p in definition.parts)
        return values

    def earliest(
        self, values: Sequence[bool], order: Sequence[int], extra: Sequence[Rule] = ()
    ) -> list[float]:
        """By moment, the least that fits the decisions; fast if ``order`` is theirs in time."""
        place = {moment: at for at, moment in enumerate(order)}
        active = [
            (rule.late.moment, rule.early.moment, _fixed(rule, values))
            for rule in (*self.rules, *extra)
            if rule.late.moment is not None
            and all(values[abs(x)] == (x > 0) for x in rule.literals)
        ]
        active.sort(key=lambda row: place.get(row[0], len(place)))
        found: list[float] = [0] * len(self.moments)
        for _ in self.moments:  # each pass settles one more, if the decisions have no circle
            changed = False
            for late, early, after in active:
                least = after + (0 if early is None else found[early])
                if found[late] < least:
                    found[late], changed = least, True
            if not changed:
                break
        return found


def _fixed(rule: Rule, values: Sequence[bool]) -> float:
    """What ``early`` has on top of its moment, less that of ``late``."""
    return _chosen(rule.early, values) - _chosen(rule.late, values)


def _chosen(terms: Sum, values: Sequence[bool]) -> float:
    return terms.constant + sum(
        ticks for ticks, literal in terms.flags if values[abs(literal)] == (literal > 0)
    )
