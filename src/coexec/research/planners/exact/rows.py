"""A formulation as the rows of an integer program, which has no conditional constraints.

The first columns are the decisions, 0 or 1; the moments follow. A rule that holds only if some
literals are true becomes a row that is relaxed if one of them is false. The amount is the largest
possible violation (the "big M"), which follows from the ranges of the rule's moments.
"""

from collections.abc import Iterable, Sequence

from coexec.research.planners.exact.constraints import Constraints, Literal, Rule


class Rows:
    """Rows of the form: a weighted sum of columns is not less than a lower bound."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints = constraints
        self.lower: list[float] = []
        """The lower bound of each row."""
        self.starts: list[int] = [0]
        """The index of the first entry of each row, and at last the index behind all entries."""
        self.columns: list[int] = []
        self.factors: list[float] = []
        for clause in constraints.clauses:
            self._add(1.0, [(1.0, literal) for literal in clause])
        for rule in constraints.rules:
            self._rule(rule)

    def column(self, moment: int) -> int:
        """The column of a moment."""
        return self._constraints.flags + moment

    def _rule(self, rule: Rule) -> None:
        """Add the row: late - early + (relaxation for each literal that is false) >= 0."""
        late, early, conditions, otherwise = rule
        terms = [*late.flags, *((-ticks, literal) for ticks, literal in early.flags)]
        if conditions:
            loss = self._worst(rule) if otherwise is None else otherwise
            if loss <= 0:
                return
            terms += [(loss, -literal) for literal in conditions]
        moments = [(1.0, late.moment), (-1.0, early.moment)]
        self._add(
            early.constant - late.constant,
            terms,
            [(factor, moment) for factor, moment in moments if moment is not None],
        )

    def _worst(self, rule: Rule) -> float:
        """The largest possible value of ``early - late``, from the ranges of their moments."""
        ranges, (late, early, _, _) = self._constraints.moments, rule
        least = late.constant + sum(min(0.0, ticks) for ticks, _ in late.flags)
        most = early.constant + sum(max(0.0, ticks) for ticks, _ in early.flags)
        least += 0.0 if late.moment is None else ranges[late.moment][0]
        most += 0.0 if early.moment is None else ranges[early.moment][1]
        return most - least

    def _add(
        self,
        lower: float,
        terms: Iterable[tuple[float, Literal]],
        moments: Sequence[tuple[float, int]] = (),
    ) -> None:
        row: dict[int, float] = {}
        for factor, literal in terms:
            column = abs(literal) - 1
            row[column] = row.get(column, 0.0) + (factor if literal > 0 else -factor)
            if literal < 0:  # the opposite of a decision x is 1 - x
                lower -= factor
        for factor, moment in moments:
            row[self.column(moment)] = row.get(self.column(moment), 0.0) + factor
        entries = {column: factor for column, factor in row.items() if factor}
        if entries:
            self.lower.append(lower)
            self.columns += entries
            self.factors += entries.values()
            self.starts.append(len(self.columns))
