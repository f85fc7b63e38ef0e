"""Decisions, moments and the constraints between them: a model for any exact solver.

A literal is the number of a decision or, negated, its opposite. A rule requires that one sum of
moments and conditional durations is not less than another one, either always or if some literals
are true. CP-SAT takes rules as they are. An integer program relaxes each rule by its largest
possible violation, which follows from the ranges of its moments.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Literal = int
TRUE: Literal = 1
FALSE: Literal = -1


class Sum(NamedTuple):
    """The sum of a constant, a moment, and a duration for each literal that is true.

    In seconds when it is created; in ticks once it is part of `Constraints`.
    """

    constant: float = 0
    moment: int | None = None
    flags: tuple[tuple[float, Literal], ...] = ()

    def plus(self, seconds: float = 0.0, flags: Iterable[tuple[float, Literal]] = ()) -> "Sum":
        """This sum plus ``seconds`` plus the duration of each literal that is true.

        Args:
            flags: durations in seconds with their literals.
        """
        nonzero = [(s, literal) for s, literal in flags if s and literal != FALSE]
        constant = self.constant + seconds + sum(s for s, literal in nonzero if literal == TRUE)
        free = tuple(pair for pair in nonzero if pair[1] != TRUE)
        return Sum(constant, self.moment, self.flags + free)


class Rule(NamedTuple):
    """``late`` is not less than ``early`` if all of ``literals`` are true."""

    late: Sum
    early: Sum
    literals: tuple[Literal, ...] = ()
    otherwise: float | None = None
    """Largest value of ``early - late`` if a literal is false, in ticks; None if it is unknown."""


class _Definition(NamedTuple):
    """``literal`` is true if and only if all of ``parts`` are true."""

    literal: Literal
    parts: tuple[Literal, ...]


class Constraints:
    """A model to which decisions, moments, clauses and rules are added.

    Time is counted in ticks of ``tick_s`` seconds. With ``whole``, each duration is a whole number
    of ticks, so that sums here are equal to the sums of a solver that works with integers.
    """

    def __init__(self, tick_s: float, whole: bool = False) -> None:
        self.tick_s, self.whole = tick_s, whole
        self.flags = 1
        """Number of decisions. They are numbered from 1; the first is `TRUE`."""
        self.moments: list[tuple[float, float]] = []
        """The earliest and the latest tick of each moment."""
        self.clauses: list[tuple[Literal, ...]] = []
        """In each clause, at least one literal is true."""
        self.rules: list[Rule] = []
        self._definitions: dict[tuple[Literal, ...], _Definition] = {}

    def ticks(self, seconds: float) -> float:
        """``seconds`` in ticks, rounded if this model has whole ticks."""
        return round(seconds / self.tick_s) if self.whole else seconds / self.tick_s

    def in_ticks(self, terms: Sum) -> Sum:
        """A sum of seconds in ticks; each term is rounded on its own."""
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
        """A literal that is true if and only if all of ``literals`` are true."""
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
        """A literal that is true if and only if at least one of ``literals`` is true."""
        return -self.all_of(-literal for literal in literals)

    def clause(self, *literals: Literal) -> None:
        """Require that at least one of ``literals`` is true."""
        if TRUE not in literals:
            self.clauses.append(tuple(x for x in literals if x != FALSE))

    def rule(
        self,
        late: Sum,
        early: Sum,
        literals: Iterable[Literal] = (),
        otherwise_s: float | None = None,
    ) -> None:
        """Require that ``late`` is not less than ``early`` if all ``literals`` are true.

        Args:
            otherwise_s: as `Rule.otherwise`, in seconds.
        """
        conditions = tuple(x for x in literals if x != TRUE)
        otherwise = None if otherwise_s is None else self.ticks(otherwise_s)
        if FALSE not in conditions:
            late, early = self.in_ticks(late), self.in_ticks(early)
            self.rules.append(Rule(late, early, conditions, otherwise))

    def rounding(self) -> float:
        """The most ticks by which rounding can lengthen or shorten a path through all moments.

        Such a path passes each moment once, by one of the rules whose ``late`` side has the moment.
        Each term of a rule has a rounding error of at most half a tick. One additional term for
        each moment covers the solver's own constraint that tasks do not overlap.
        """
        terms: dict[int | None, int] = {}
        for rule in self.rules:
            count = 2 + len(rule.late.flags) + len(rule.early.flags)
            terms[rule.late.moment] = max(count, terms.get(rule.late.moment, 0))
        return 0.5 * (sum(terms.values()) + len(self.moments)) if self.whole else 0.0

    def complete(self, chosen: Mapping[Literal, bool]) -> list[bool]:
        """The value of each decision, by its number.

        Args:
            chosen: values of the free decisions; the others follow from their definitions.
        """
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
        """The earliest tick of each moment under all rules that apply.

        Args:
            values: the value of each decision.
            order: moments in an order; the computation is fast if it is their order in time.
            extra: further rules.
        """
        place = {moment: at for at, moment in enumerate(order)}
        active = [
            (rule.late.moment, rule.early.moment, _fixed(rule, values))
            for rule in (*self.rules, *extra)
            if rule.late.moment is not None
            and all(values[abs(x)] == (x > 0) for x in rule.literals)
        ]
        active.sort(key=lambda row: place.get(row[0], len(place)))
        ticks: list[float] = [0] * len(self.moments)
        # Each pass fixes at least one more moment if the decisions contain no cycle.
        for _ in self.moments:
            changed = False
            for late, early, after in active:
                least = after + (0 if early is None else ticks[early])
                if ticks[late] < least:
                    ticks[late], changed = least, True
            if not changed:
                break
        return ticks


def _fixed(rule: Rule, values: Sequence[bool]) -> float:
    """Ticks by which the moment of ``late`` must follow the moment of ``early``."""
    return _chosen(rule.early, values) - _chosen(rule.late, values)


def _chosen(terms: Sum, values: Sequence[bool]) -> float:
    return terms.constant + sum(
        ticks for ticks, literal in terms.flags if values[abs(literal)] == (literal > 0)
    )
