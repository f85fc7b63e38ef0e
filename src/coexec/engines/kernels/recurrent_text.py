"""The text behind the inner products of a recurrent step: gates, states and outputs.

It has the lines of `recurrent_cells` between loads and stores, for unit ``u`` of sample ``n`` in
direction ``d``, or for a vector of units.
"""

from collections.abc import Sequence

from coexec.engines.kernels.indices import Indices
from coexec.engines.kernels.positions import at
from coexec.engines.kernels.recurrent_cells import Phase
from coexec.engines.kernels.recurrent_shape import Recurrence

__all__ = ["TIME_LINE", "CellText"]

TIME_LINE = "const int step = GET_time(0), from = step % 2, to = 1 - from;"
"""Declares the versions of the hidden state, the old one (``from``) and the new one (``to``)."""


class CellText:
    """The lines for one phase, and the positions of states."""

    def __init__(
        self,
        shape: Recurrence,
        phase: Phase,
        outputs: Sequence[str],
        vector: str,
        lengths: Indices | None,
    ) -> None:
        """
        Args:
            outputs: outputs of the operator that this phase stores.
            vector: the type of a vector of units, where units are computed in vectors.
            lengths: lengths of the sequences, if there are any.
        """
        self._lengths = lengths
        self._shape, self._phase, self._outputs = shape, phase, outputs
        self.ctype = vector if shape.block else "float"
        """Type of a unit, or of a vector of units."""
        self._load, self._store = ("LOAD", "STORE") if shape.block else ("GET", "PUT")

    def old_state(self, name: str, n: str, unit: str) -> str:
        """Position of a state that the previous time or an earlier phase has stored."""
        return self._state(n, unit, "from" if name == "h" else "0")

    def _state(self, n: str, unit: str, version: str) -> str:
        """Position in units. States with one version only have version 0."""
        s = self._shape
        return f"((({version} * {s.directions} + d) * {s.batch} + {n}) * {s.units} + {unit})"

    def lines(self) -> list[str]:
        """Lines behind the inner products: gates, states and outputs."""
        s, phase = self._shape, self._phase
        lines = self._when()
        row = f"n * {s.times} + when" if s.batch_first else f"when * {s.batch} + n"
        for g in phase.gates:
            lines.append(self._read(f"x{g}", "p", f"({row}) * {s.directions} + d", s.gates, g))
            if "bias" in s.names:
                both = 2 * s.gates
                lines += [
                    self._read(f"input_bias{g}", "bias", "d", both, g),
                    self._read(f"own_bias{g}", "bias", "d", both, s.gates + g),
                    f"x{g} += input_bias{g}; d{g} += own_bias{g};",
                ]
        if "peepholes" in s.names:
            lines += [self._read(f"peep{i}", "peepholes", "d", 3, i) for i in range(3)]
        hidden = ("h",) if "lengths" in s.names and "h" in phase.new else ()
        for name in dict.fromkeys((*phase.old, *hidden)):
            at = self.old_state(name, "n", "u")
            lines.append(f"const {self.ctype} {name} = {self._load}_{name}s({at});")
        lines += [line.format(kind=self.ctype) for line in phase.lines]
        return lines + self._results()

    def _read(self, variable: str, name: str, outer: str, count: int, index: int) -> str:
        """The line that declares ``variable`` as the unit's number ``index`` of ``count``."""
        at = f"(({outer}) * {count} + {index}) * {self._shape.units} + u"
        return f"{self.ctype} {variable} = {self._load}_{name}({at});"

    def _when(self) -> list[str]:
        """Lines that declare ``when``, the element of the sequence that this step reads. ``active``
        is false after the end of a sequence."""
        s = self._shape
        if self._lengths is None:
            return [f"const int when = {s.backward} ? {s.times - 1} - step : step;"]
        return [
            "const long given = GET_lengths(n);",
            self._lengths.check("given", 0, s.times, f"{s.names['x']!r} has {s.times} times"),
            f"const int length = (int)clamp(given, 0L, {s.times}L), active = step < length;",
            f"const int when = {s.backward} && active ? length - 1 - step : step;",
        ]

    def _results(self) -> list[str]:
        """Lines that store the new states and the outputs that are made of them."""
        s, ending = self._shape, "lengths" in self._shape.names
        lines = []
        for name in self._phase.new:
            value = f"active ? {name}_new : {name}" if ending and name in "hc" else f"{name}_new"
            lines.append(f"const {self.ctype} {name}_next = {value};")
            at = self._state("n", "u", "to" if name == "h" else "0")
            lines.append(f"{self._store}_{name}s({at}, {name}_next);")
        last = []
        for output in self._outputs:
            if output == "y":
                value = f"active ? h_next : ({self.ctype})(0.0f)" if ending else "h_next"
                where = ["n", "when", "d"] if s.batch_first else ["when", "d", "n"]
                lines += [f"const {self.ctype} seen = {value};", *self._put("y", where, "seen")]
            else:
                where = ["n", "d"] if s.batch_first else ["d", "n"]
                end = f"{output[-1]}_next"
                if ending:  # ONNX Runtime: the last state of a sequence of length 0 is 0
                    end = f"(length > 0 ? {end} : ({self.ctype})(0.0f))"
                last += self._put(output, where, end)
        return [*lines, f"if (step == {s.times - 1}) {{", *last, "}"] if last else lines

    def _put(self, name: str, where: Sequence[str], value: str) -> list[str]:
        """Lines that store the units of ``value``."""
        s = self._shape
        if not s.block:
            return [f"PUT_{name}({at(name, [*where, 'u'])}, {value});"]
        lines = []
        for lane in range(s.block):
            unit = f"u * {s.block} + {lane}"
            store = f"PUT_{name}({at(name, [*where, unit])}, {value}.s{lane:x});"
            lines.append(store if s.hidden == s.width else f"if ({unit} < {s.hidden}) {store}")
        return lines
