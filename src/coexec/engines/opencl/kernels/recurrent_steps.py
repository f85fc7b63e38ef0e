"""The kernels that compute one time of an LSTM, GRU or RNN.

With vectors, a work item computes a vector of units for a few samples and streams their recurrent
weights in order: [direction][vector of units][k][gate][lane]. Best where one thread owns a core.

Without, a group of work items computes one unit of one sample. Each sums a part of the inner
products, which are joined in local memory, and neighbours read neighbouring weights. Best on GPUs;
in groups of one it takes weights that are computed on any processor.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Source, Value, ceil_div
from coexec.engines.opencl.kernels.folds import joined
from coexec.engines.opencl.kernels.operands import declare
from coexec.engines.opencl.kernels.positions import at
from coexec.engines.opencl.kernels.recurrent_cells import Phase
from coexec.engines.opencl.kernels.recurrent_shape import Recurrence
from coexec.engines.opencl.kernels.row_kernel import sharing
from coexec.frontend.module import Array

__all__ = ["TIME", "Step"]

_SAMPLES = 4
"""That share the weights which a work item streams."""

TIME = np.zeros(1, np.int32)
"""Stands for the time in the arguments of a step."""


class Step:
    """The kernel of one phase."""

    def __init__(
        self, context: Context, shape: Recurrence, phase: Phase,
        projected: Value, states: Mapping[str, Value],
    ) -> None:  # fmt: skip
        self._context, self._shape, self._phase = context, shape, phase
        self._source = source = Source("recurrent_step", context.arch)
        self._kind = context.arch.vector if shape.block else "float"
        self._load, self._store = ("LOAD", "STORE") if shape.block else ("GET", "PUT")
        source.constant("time", TIME, vector=1)
        source.read("p", projected)
        for name, value in states.items():
            if name in phase.new:
                source.write(f"{name}s", value)
            elif name in (*phase.old, phase.reads):
                source.read(f"{name}s", value)
        self._weights()
        if "lengths" in shape.names:
            declare(source, context, "lengths", shape.names["lengths"])
        self._outputs = [n for n in ("y", "y_h", "y_c") if n in shape.names and "h" in phase.new]
        for name in self._outputs:
            source.write(name, context.value(shape.names[name]))

    def finish(self) -> KernelLaunch:
        return self._vectors() if self._shape.block else self._units()

    def _weights(self) -> None:
        for argument in ("r", "bias", "peepholes"):
            name = self._shape.names.get(argument)
            if name is None:
                continue
            if not self._shape.block:
                declare(self._source, self._context, argument, name)
                continue
            array = self._context.constant(name)
            assert array is not None
            packed = self._packed(array) if argument == "r" else self._shape.padded(array)
            self._source.constant(argument, packed)

    def _packed(self, array: Array) -> Array:
        """[direction][vector of units][k][gate][lane] of the gates of this phase."""
        s = self._shape
        split = array.reshape(s.directions, s.gates, s.hidden, s.hidden)
        rows = split[:, list(self._phase.gates)].reshape(s.directions, -1, s.hidden)
        padded = s.padded(rows).reshape(s.directions, -1, s.units, s.block, s.hidden)
        return np.ascontiguousarray(padded.transpose(0, 2, 4, 1, 3))

    def _vectors(self) -> KernelLaunch:
        s, gates, reads = self._shape, self._phase.gates, self._phase.reads
        samples = range(min(s.batch, _SAMPLES))
        ways = range(max(1, 8 // (len(gates) * len(samples))))  # sums that do not wait
        lines = [
            "const int u = get_global_id(0), d = get_global_id(2);",
            f"const int first = get_global_id(1) * {len(samples)};",
            *self._time_lines(),
            *(f"{self._kind} a{g}_{j}_{w} = ({self._kind})(0.0f);"
              for g in gates for j in samples for w in ways),
            *(f"const int at{j} = {self._old(reads, f'min(first + {j}, {s.batch - 1})', '0')}"
              f" * {s.block};" for j in samples),
        ]  # fmt: skip
        whole = s.hidden - s.hidden % len(ways)
        lines += self._streamed(0, whole, samples, ways)
        lines += self._streamed(whole, s.hidden, samples, range(1))
        for j in samples:
            sums = [
                f"{self._kind} d{g} = {' + '.join(f'a{g}_{j}_{w}' for w in ways)};" for g in gates
            ]
            inner = [f"const int n = first + {j};", *sums, *self._finish()]
            lines += [f"if (first + {j} < {s.batch}) {{", *(f"  {line}" for line in inner), "}"]
        self._source.lines("\n".join(f"  {line}" for line in lines))
        grid = (s.units, ceil_div(s.batch, len(samples)), s.directions)
        return self._source.finish(grid, (1, 1, 1))

    def _streamed(self, start: int, stop: int, samples: range, ways: range) -> list[str]:
        """Lines that add the products of the old states from ``start`` to ``stop``."""
        if start == stop:
            return []
        s, gates = self._shape, self._phase.gates
        lines = [f"for (int k = {start}; k < {stop}; k += {len(ways)}) {{"]
        for w in ways:
            row = f"((d * {s.units} + u) * {s.hidden} + k + {w}) * {len(gates)}"
            lines += [f"  const {self._kind} w{g}_{w} = LOAD_r({row} + {i});"
                      for i, g in enumerate(gates)]  # fmt: skip
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
            *self._time_lines(),
            *(f"float d{g} = 0.0f;" for g in gates),
            f"for (int k = item; k < {s.hidden}; k += {items}) {{",
            f"  const float s = GET_{reads}s({self._old(reads, 'n', 'k')});",
            *(f"  d{g} += s * GET_r({w});" for g, w in zip(gates, weights, strict=True)),
            "}",
            *joined(items, {f"d{g}": "float" for g in gates},
                    [f"d{g} += d{g}_other;" for g in gates]),
            "if (item > 0) return;",
            *self._finish(),
        ]  # fmt: skip
        self._source.lines("\n".join(f"  {line}" for line in lines))
        grid = (items, s.hidden, s.batch * s.directions)
        return self._source.finish(grid, (items, 1, 1))

    def _time_lines(self) -> list[str]:
        """Of the hidden state's two versions, the old one and the new one."""
        return ["const int step = GET_time(0), from = step % 2, to = 1 - from;"]

    def _old(self, name: str, n: str, unit: str) -> str:
        """Where a state is that the time before has left, or an earlier phase of this one."""
        return self._state(n, unit, "from" if name == "h" else "0")

    def _state(self, n: str, unit: str, version: str) -> str:
        """The position in units; states of one version have version 0."""
        s = self._shape
        return f"((({version} * {s.directions} + d) * {s.batch} + {n}) * {s.units} + {unit})"

    def _finish(self) -> list[str]:
        """Lines for what follows the inner products: gates, states and outputs."""
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
        kept = ("h",) if "lengths" in s.names and "h" in phase.new else ()
        for name in dict.fromkeys((*phase.old, *kept)):
            at = self._old(name, "n", "u")
            lines.append(f"const {self._kind} {name} = {self._load}_{name}s({at});")
        lines += [line.format(kind=self._kind) for line in phase.lines]
        return lines + self._results()

    def _read(self, variable: str, name: str, outer: str, count: int, index: int) -> str:
        """The line that reads the unit's number ``index`` of ``count``."""
        at = f"(({outer}) * {count} + {index}) * {self._shape.units} + u"
        return f"{self._kind} {variable} = {self._load}_{name}({at});"

    def _when(self) -> list[str]:
        """Which element of the sequence this step takes; none where the sequence has ended."""
        s = self._shape
        if "lengths" not in s.names:
            return [f"const int when = {s.backward} ? {s.times - 1} - step : step;"]
        return [
            "const int length = GET_lengths(n), active = step < length;",
            f"const int when = {s.backward} && active ? length - 1 - step : step;",
        ]

    def _results(self) -> list[str]:
        """Lines that store the new states, and what is asked for of them."""
        s, ending = self._shape, "lengths" in self._shape.names
        lines = []
        for name in self._phase.new:
            value = f"active ? {name}_new : {name}" if ending and name in "hc" else f"{name}_new"
            lines.append(f"const {self._kind} {name}_next = {value};")
            at = self._state("n", "u", "to" if name == "h" else "0")
            lines.append(f"{self._store}_{name}s({at}, {name}_next);")
        last = []
        for output in self._outputs:
            if output == "y":
                value = f"active ? h_next : ({self._kind})(0.0f)" if ending else "h_next"
                where = ["n", "when", "d"] if s.batch_first else ["when", "d", "n"]
                lines += [f"const {self._kind} seen = {value};", *self._put("y", where, "seen")]
            else:
                where = ["n", "d"] if s.batch_first else ["d", "n"]
                last += self._put(output, where, f"{output[-1]}_next")
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
