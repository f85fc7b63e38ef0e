"""Folds of rows (sums, maxima and others), by vectors and by groups of work items."""

from dataclasses import dataclass

from coexec.engines.kernels.row_kernel import RowKernel
from coexec.engines.kernels.rows import RowPart

__all__ = ["MAXIMUM", "Fold", "across_lanes", "fold", "total"]


@dataclass(frozen=True, slots=True)
class Fold:
    """An associative operation. Its texts serve scalars and vectors alike."""

    start: str
    """Neutral element."""
    term: str
    """Expression of an element ``v``."""
    merge: str
    """Expression of two partial results, ``{a}`` and ``{b}``."""

    def add(self, name: str, other: str) -> str:
        """The statement that merges ``other`` into ``name``."""
        return f"{name} = {self.merge.format(a=name, b=other)};"


MAXIMUM = Fold("-INFINITY", "v", "fmax({a}, {b})")
"""Maximum of floats."""


def total(term: str) -> Fold:
    """The sum of ``term`` over the elements ``v``."""
    return Fold("0.0f", term, "({a} + {b})")


def fold(rows: RowKernel, name: str, operation: Fold) -> list[str]:
    """Lines that declare ``name``, the result of ``operation`` over the row."""
    ctype = rows.ctype
    if rows.layout.kind == "plain":
        add = [operation.add(name, f"({operation.term})")]
        lines = [f"{ctype} {name} = {operation.start};"]
        lines += rows.loop(rows.layout.rest(), lambda _: add)
    else:
        lines = _vectors(rows, name, operation)
    return lines + _joined(rows.sharing, name, ctype, operation)


def _vectors(rows: RowKernel, name: str, operation: Fold) -> list[str]:
    """Lines of a fold by vectors, into several independent partial results."""
    layout = rows.layout
    part, tail = layout.vectors(), layout.rest()
    partials = 4 if part.count >= 16 and rows.sharing == 1 else 1
    vector = part.ctype
    names = [name if layout.side_by_side else f"{name}_lanes"]
    names += [f"{name}_{way}" for way in range(1, partials)]
    lines = [f"{vector} {n} = ({vector})({operation.start});" for n in names]
    whole = part.count - part.count % partials if partials > 1 else 0
    if whole:
        lines.append(f"for (int k = 0; k < {whole}; k += {partials}) {{")
        for way, n in enumerate(names):
            load = part.load.format(part.access(f"(k + {way})").at)
            lines.append(f"  {{ const {vector} v = {load}; {operation.add(n, operation.term)} }}")
        lines.append("}")
    lines += rows.loop(part, lambda _: [operation.add(names[0], operation.term)], whole)
    lane_term = _chosen(operation, tail, layout.block)
    lines += rows.loop(tail, lambda _: [operation.add(names[0], lane_term)])
    lines += [operation.add(names[0], partial) for partial in names[1:]]
    if layout.side_by_side:
        return lines
    return lines + across_lanes(name, names[0], operation, layout.block)


def _chosen(operation: Fold, part: RowPart, width: int) -> str:
    """The term in the lanes that count, and the neutral element in the other lanes."""
    lanes = ", ".join("-1" if lane in (part.lanes or ()) else "0" for lane in range(width))
    return f"((int{width})({lanes}) ? ({operation.term}) : (float{width})({operation.start}))"


def across_lanes(name: str, vector: str, operation: Fold, width: int) -> list[str]:
    """Lines that declare ``name``, the fold of all lanes of ``vector``."""
    lines = []
    while width > 1:
        width //= 2
        ctype = "float" if width == 1 else f"float{width}"
        result = name if width == 1 else f"{name}_lanes{width}"
        merged = operation.merge.format(a=f"{vector}.lo", b=f"{vector}.hi")
        lines.append(f"{ctype} {result} = {merged};")
        vector = result
    return lines


def _joined(sharing: int, name: str, ctype: str, operation: Fold) -> list[str]:
    """Lines that merge ``name`` of all work items of a group; then all of them have the result.

    ``sharing``: number of work items, a power of two; ``item`` is the number of a work item.
    """
    if sharing == 1:
        return []
    return [
        f"__local {ctype} {name}_all[{sharing}];",
        f"{name}_all[item] = {name};",
        f"for (int span = {sharing // 2}; span > 0; span /= 2) {{",
        "  barrier(CLK_LOCAL_MEM_FENCE);",
        "  if (item < span) {",
        f"    const {ctype} {name}_other = {name}_all[item + span];",
        f"    {operation.add(name, f'{name}_other')}",
        f"    {name}_all[item] = {name};",
        "  }",
        "}",
        "barrier(CLK_LOCAL_MEM_FENCE);",
        f"{name} = {name}_all[0];",
    ]
