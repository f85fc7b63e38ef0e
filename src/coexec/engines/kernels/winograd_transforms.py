"""The transforms of Winograd's minimal filtering, and the lines that compute them.

F(m, r) makes m neighbouring outputs of a filter of r taps from m + r - 1 inputs, with as many
multiplications in place of m r. Inputs and taps are read as polynomials, multiplied as values at
some points, one of which is infinity, and the product is read from its values (Toom and Cook). The
roles of inputs and outputs are exchanged then, which gives filtering. In the names of Lavin and
Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308, the outputs are
A^T ((G w) * (B^T d)) for taps w and inputs d.

Rounding errors grow with the number of points, and fractions near one lose least: Barabasz et al.,
"Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks",
arXiv:1803.10986.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property

Row = tuple[float, ...]
Matrix = tuple[Row, ...]
Name = Callable[[int], str]
"""The expression of an element, by its index."""

_POINTS: tuple[tuple[float, ...], ...] = (
    (),
    (0,),
    (1,),
    (0, 1),
    (1 / 2, 5 / 4),
    (0, 3 / 4, 7 / 4),
    (3 / 8, 7 / 8, 7 / 4),
    (0, 1 / 2, 1, 2),
    (1 / 2, 7 / 8, 5 / 4, 5 / 2),
    (0, 1 / 2, 7 / 8, 5 / 4, 5 / 2),
)
"""By the number of points beside infinity: zero, and those that are used together with their
negatives. Of all sets of fractions with denominators of up to eight, these lose least, or nearly
so: 4 outputs of 3 taps half of what 0, 1, 2 and their negatives lose, which others use."""
LARGEST = len(_POINTS)
"""The largest number of inputs for which there are points."""


@dataclass(frozen=True)
class Filtering:
    """F(m, r). The factors of `inputs` and `outputs` are exact in binary."""

    m: int
    """Outputs."""
    r: int
    """Taps of the filter."""

    @property
    def size(self) -> int:
        """Number of inputs, and of multiplications."""
        return self.m + self.r - 1

    @cached_property
    def inputs(self) -> Matrix:
        """B^T: a row for each point, the last one for infinity."""
        rows = self._products
        return tuple(_row([*row, *[Fraction(0)] * (self.size - len(row))]) for row in rows)

    @cached_property
    def outputs(self) -> Matrix:
        """A^T: a column for each point, the last one for infinity."""
        last = self.m - 1
        return tuple(
            _row([*(p**i for p in self._points), Fraction(i == last)]) for i in range(self.m)
        )

    @cached_property
    def filter(self) -> Matrix:
        """G: a row for each point, the last one for infinity."""
        *products, all_roots = self._products
        rows = []
        for point, row in zip(self._points, products, strict=True):
            value = _value(row, point)
            rows.append(_row([point**j / value for j in range(self.r)]))
        last = [Fraction(0)] * (self.r - 1) + [1 / all_roots[-1]]
        return (*rows, _row(last))

    @cached_property
    def _products(self) -> list[list[Fraction]]:
        """For each point, the polynomial whose roots are the others; all are for infinity."""
        points = self._points
        return [_scaled(_product([p for p in points if p != point])) for point in (*points, None)]

    @property
    def _points(self) -> list[Fraction]:
        """The points but infinity."""
        points = map(Fraction, _POINTS[self.size - 1])
        return [p for point in points for p in ((point, -point) if point else (point,))]


@cache
def filtering(m: int, r: int) -> Filtering:
    """F(m, r), with its matrices once they are made."""
    return Filtering(m, r)


def _product(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, the constant first. All are integers."""
    product = [Fraction(1)]
    for root in roots:
        longer = [Fraction(0)] * (len(product) + 1)
        for power, factor in enumerate(product):
            longer[power] -= root.numerator * factor
            longer[power + 1] += root.denominator * factor
        product = longer
    return product


def _value(polynomial: Sequence[Fraction], point: Fraction) -> Fraction:
    return sum((c * point**power for power, c in enumerate(polynomial)), Fraction(0))


def _scaled(polynomial: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients divided by a power of two, so that large inputs do not overflow."""
    largest = max(map(abs, polynomial))
    scale = 1
    while largest >= 8 * scale:
        scale *= 2
    return [c / scale for c in polynomial]


def _row(numbers: Sequence[Fraction]) -> Row:
    return tuple(map(float, numbers))


def transform_inputs(of: Filtering, vector: str, source: Name, target: Name) -> list[str]:
    """Lines that set the ``target`` of each point from the ``source`` of each input.

    The rows of two opposite points differ in the signs of their odd columns. So both are made of
    the same two sums.
    """
    lines = []
    for i, j in _paired(of.inputs):
        row = of.inputs[i]
        if j is None:
            lines.append(f"{target(i)} = {_sum(row, source)};")
        else:
            even = tuple(a if a == b else 0.0 for a, b in zip(row, of.inputs[j], strict=True))
            odd = tuple(a - b for a, b in zip(row, even, strict=True))
            lines += [
                f"{{ const {vector} even = {_sum(even, source)};",
                f"  const {vector} odd = {_sum(odd, source)};",
                f"  {target(i)} = even + odd; {target(j)} = even - odd; }}",
            ]
    return lines


def transform_outputs(of: Filtering, vector: str, source: Name, target: Name) -> list[str]:
    """Lines that set the ``target`` of each output from the ``source`` of each point, with the sums
    and differences of two opposite points."""
    columns = tuple(zip(*of.outputs, strict=True))
    pairs, lines = list(_paired(columns)), ["{"]
    for i, j in pairs:
        if j is not None:
            lines += [
                f"  const {vector} sum{i} = {source(i)} + {source(j)};",
                f"  const {vector} difference{i} = {source(i)} - {source(j)};",
            ]
    for number, row in enumerate(of.outputs):
        terms = {}
        for i, j in pairs:
            name = source(i) if j is None else f"sum{i}" if row[i] == row[j] else f"difference{i}"
            terms[name] = row[i]
        names = list(terms)
        lines.append(f"  {target(number)} = {_sum(tuple(terms.values()), names.__getitem__)};")
    return [*lines, "}"]


def _paired(rows: Matrix) -> Iterator[tuple[int, int | None]]:
    """The indices of neighbouring rows that are equal but for signs, and of single rows."""
    i = 0
    while i < len(rows):
        following = rows[i + 1] if i + 1 < len(rows) else ()
        is_pair = tuple(map(abs, rows[i])) == tuple(map(abs, following))
        yield i, i + 1 if is_pair else None
        i += 2 if is_pair else 1


def _sum(factors: Sequence[float], name: Name) -> str:
    """A sum of elements with constant factors."""
    terms = []
    for k, factor in enumerate(factors):
        if factor:
            scale = "" if abs(factor) == 1 else f"{abs(factor)!r}f * "
            terms.append(f"{'-' if factor < 0 else '+'} {scale}{name(k)}")
    return " ".join(terms).removeprefix("+ ")
