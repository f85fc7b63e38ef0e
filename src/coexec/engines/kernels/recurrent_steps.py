"""The kernels that compute one time of an LSTM, GRU or RNN.

With vectors, a work item computes a vector of units for a few samples and streams their recurrent
weights in order: [direction][vector of units][k][gate][lane]. This is best on CPU cores.

Without vectors, a group of work items computes one unit of one sample. Each item sums a part of the
inner products, which are added in local memory, and neighbours read neighbouring weights. This is
best on GPUs. With groups of one item it also serves weights that are computed, on any processor.
"""

from collections.abc import Mapping

import numpy as np

from coexec.arrays import Array, aligned
from coexec.engines.kernels.base import Context, KernelLaunch, Source, Value, ceil_div, indented
from coexec.engines.kernels.indices import Indices
from coexec.engines.kernels.recurrent_cells import Phase
from coexec.engines.kernels.recurrent_shape import Recurrence
from coexec.engines.kernels.recurrent_text import TIME_LINE, CellText
from coexec.engines.kernels.reductions import joined
from coexec.engines.kernels.row_kernel import sharing
from coexec.graph.graph import Operator

__all__ = ["TIME", "RecurrentStep"]

_LENGTHS = 4
"""Position of the input with the lengths of the sequences."""

_SAMPLES = 4
"""Most samples that share the weights which a work item streams."""

TIME = aligned(np.zeros(1, np.int32))
"""Placeholder for the time in the arguments of a step: the array itself, as it is aligned."""


class RecurrentStep:
    """The kernel of one phase."""

    def __init__(
        self,
        op: Operator,
        context: Context,
        shape: Recurrence,
        phase: Phase,
        projected: Value,
        states: Mapping[str, Value],
    ) -> None:
        self._context, self._shape, self._phase = context, shape, phase
        self._source = source = Source("recurrent_step", context.arch)
        source.constant("time", TIME, vector=1)
        source.read("p", projected)
        for name, value in states.items():
            if name in phase.new:
                source.write(f"{name}s", value)
            elif name in (*phase.old, phase.reads):
                source.read(f"{name}s", value)
        self._weights()
        lengths = None
        if "lengths" in shape.names:
            source.read("lengths", context.operand(shape.names["lengths"]))
            lengths = Indices(source, context, op, _LENGTHS, "lengths")
        outputs = [n for n in ("y", "y_h", "y_c") if n in shape.names and "h" in phase.new]
        for name in outputs:
            source.write(name, context.value(shape.names[name]))
        self._cell = CellText(shape, phase, outputs, context.arch.vector, lengths)

    def finish(self) -> KernelLaunch:
        return self._vectors() if self._shape.block else self._units()

    def _weights(self) -> None:
        for argument in ("r", "bias", "peepholes"):
            name = self._shape.names.get(argument)
            if name is None:
                continue
            if not self._shape.block:
                self._source.read(argument, self._context.operand(name))
                continue
            array = self._context.constant(name)
            assert array is not None
            packed = self._packed(array) if argument == "r" else self._shape.padded(array)
            self._source.constant(argument, packed)

    def _packed(self, array: Array) -> Array:
        """The recurrent weights of this phase as [direction][vector of units][k][gate][lane]."""
        s = self._shape
        split = array.reshape(s.directions, s.gates, s.hidden, s.hidden)
        rows = split[:, list(self._phase.gates)].reshape(s.directions, -1, s.hidden)
        padded = s.padded(rows).reshape(s.directions, -1, s.units, s.block, s.hidden)
        return aligned(padded.transpose(0, 2, 4, 1, 3))

    def _vectors(self) -> KernelLaunch:
        s, gates, reads = self._shape, self._phase.gates, self._phase.reads
        ctype = self._cell.ctype
        samples = range(min(s.batch, _SAMPLES))
        numbers = [f"min(first + {j}, {s.batch - 1})" for j in samples]
        starts = [self._cell.old_state(reads, n, "0") for n in numbers]
        slots = range(max(1, 8 // (len(gates) * len(samples))))  # independent partial sums
        lines = [
            "const int u = get_global_id(0), d = get_global_id(2);",
            f"const int first = get_global_id(1) * {len(samples)};",
            TIME_LINE,
            *(
                f"{ctype} a{g}_{j}_{w} = ({ctype})(0.0f);"
                for g in gates
                for j in samples
                for w in slots
            ),
            *(f"const int at{j} = {start} * {s.block};" for j, start in enumerate(starts)),
        ]
        whole = s.hidden - s.hidden % len(slots)
        lines += self._streamed(0, whole, samples, slots)
        lines += self._streamed(whole, s.hidden, samples, range(1))
        for j in samples:
            sums = [f"{ctype} d{g} = {' + '.join(f'a{g}_{j}_{w}' for w in slots)};" for g in gates]
            inner = [f"const int n = first + {j};", *sums, *self._cell.lines()]
            lines += [f"if (first + {j} < {s.batch}) {{", *indented(inner), "}"]
        self._source.lines(lines)
        grid = (s.units, ceil_div(s.batch, len(samples)), s.directions)
        return self._source.finish(grid, (1, 1, 1))

    def _streamed(self, start: int, stop: int, samples: range, slots: range) -> list[str]:
        """Lines that add the products of the old states from ``start`` to ``stop``."""
        if start == stop:
            return []
        s, gates, ctype = self._shape, self._phase.gates, self._cell.ctype
        lines = [f"for (int k = {start}; k < {stop}; k += {len(slots)}) {{"]
        for w in slots:
            row = f"((d * {s.units} + u) * {s.hidden} + k + {w}) * {len(gates)}"
            lines += [
                f"  const {ctype} w{g}_{w} = LOAD_r({row} + {i});" for i, g in enumerate(gates)
            ]
            for j in samples:
                lines.append(f"  const float s{j}_{w} = GET_{self._phase.reads}s(at{j} + k + {w});")
                lines += [f"  a{g}_{j}_{w} += w{g}_{w} * s{j}_{w};" for g in gates]
        return [*lines, "}"]

    def _units(self) -> KernelLaunch:
        s, gates, reads = self._shape, self._phase.gates, self._phase.reads
        items = sharing(self._context.arch, max(1, s.hidden // 2), most=128)
        weights = [f"((d * {s.gates} + {g}) * {s.hidden} + u) * {s.hidden} + k" for g in gates]
        lines = [
            "const int item = get_local_id(0), u = get_global_id(1);",
            f"const int n = get_global_id(2) % {s.batch}, d = get_global_id(2) / {s.batch};",
            TIME_LINE,
            *(f"float d{g} = 0.0f;" for g in gates),
            f"for (int k = item; k < {s.hidden}; k += {items}) {{",
            f"  const float s = GET_{reads}s({self._cell.old_state(reads, 'n', 'k')});",
            *(f"  d{g} += s * GET_r({w});" for g, w in zip(gates, weights, strict=True)),
            "}",
            *joined(
                items, {f"d{g}": "float" for g in gates}, [f"d{g} += d{g}_other;" for g in gates]
            ),
            "if (item > 0) return;",
            *self._cell.lines(),
        ]
        self._source.lines(lines)
        grid = (items, s.hidden, s.batch * s.directions)
        return self._source.finish(grid, (items, 1, 1))
