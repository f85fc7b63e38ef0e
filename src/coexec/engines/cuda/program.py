"""A compiled module as one CUDA graph: its kernels, constants and memory, and its runs."""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coexec.engines.base import NativeCall
from coexec.engines.cuda.driver import CudaError, CudaGraph, CudaMemory, GraphNode, Mark
from coexec.engines.cuda.failures import failure, translated
from coexec.engines.cuda.tensors import GpuMemory, GpuTensor
from coexec.engines.cuda.timing import GraphTimer
from coexec.engines.kernels.base import Value
from coexec.engines.kernels.building import Build
from coexec.engines.kernels.dependencies import Dependencies, shared_buffers, uses_of
from coexec.errors import ExecutionError


def resident(build: Build, memory: GpuMemory) -> Build:
    """``build`` with its constants in the memory of the GPU in place of the host's. The same array
    is there once."""
    memories: dict[int, CudaMemory] = {}

    def moved(argument: Any) -> Any:
        if not isinstance(argument, np.ndarray):
            return argument
        if id(argument) not in memories:
            memories[id(argument)] = memory.constant(argument)
        return memories[id(argument)]

    launches = (
        replace(one, arguments=tuple(map(moved, one.arguments)), with_images=lambda names: "")
        for one in build.launches
    )
    return replace(build, launches=tuple(launches))


class CudaProgram:
    """The launches of a module on one GPU, in a partial order."""

    def __init__(self, name: str, build: Build, memory: GpuMemory, order: Dependencies) -> None:
        """
        Args:
            name: the device, for messages.
            build: with `resident` constants.
            order: one in which the launches compute what they compute in the order of ``build``.
        """
        self.name = name
        self.build = build
        self.memory = memory
        self.order = order
        self._kernels = memory.kernels.of(build.launches, build.tasks)
        self._buffer_of, sizes = shared_buffers(build, order)
        self._buffers = [memory.context.memory(size) for size in sizes]
        self.scratch_bytes = sum(sizes)
        """Bytes of memory for the tensors between the launches."""
        self.ends: list[Any] = []
        """The kernels by which tensors enter and leave, so that they stay loaded."""

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "_BoundGraph":
        return _BoundGraph(self, inputs, outputs)

    def nodes(self, tensors: Mapping[str, GpuTensor]) -> list[GraphNode]:
        """The launches as nodes, with the tensors that enter and leave the program."""

        def place_of(value: Value) -> tuple[int, int]:
            place = self.build.aliases.of(value.name)
            tensor = tensors.get(place.root)
            if tensor is not None:
                return tensor.memory.address, place.offset
            return self._buffers[self._buffer_of[place.root]].address, place.offset

        return [
            self.memory.kernels.node(launch, kernel, place_of, waits)
            for launch, kernel, waits in zip(
                self.build.launches, self._kernels, self.order.waits, strict=True
            )
        ]


class _BoundGraph:
    def __init__(
        self, program: CudaProgram, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        self._program = program
        self._memory = program.memory
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._tensors: dict[str, GpuTensor] = {**inputs, **outputs}
        self._graphs: dict[tuple[frozenset[str], frozenset[str], bool], _Assembled] = {}
        """By the inputs that come from the host, the outputs that go there, and whether its kernels
        are timed."""
        self._calls: list[NativeCall] = []
        """Those of `native`, and last the one of `native_wait`."""

    def set_input(self, name: str, tensor: Any) -> None:
        if self._tensors[name] is tensor:
            return
        self._tensors[name] = tensor
        with self.translated():
            for assembled in self._graphs.values():
                nodes = self._assembled(assembled.entering, assembled.leaving)
                for number, (old, new) in enumerate(zip(assembled.nodes, nodes, strict=True)):
                    if old.arguments != new.arguments:
                        assembled.graph.change(number, new)
                assembled.nodes = nodes

    set_output = set_input

    def enter(self, written: Collection[str]) -> None:
        context = self._memory.context
        with self.translated():
            self._end = context.mark()
            self._calls = context.native(self._graph(frozenset(written)).graph, self._end)

    @property
    def native(self) -> Sequence[NativeCall]:
        return self._calls[:-1]

    @property
    def native_wait(self) -> Sequence[NativeCall]:
        return self._calls[-1:]

    def failure(self, result: int) -> Exception:
        error = self._memory.context.error(result)
        return failure(self._program.name, self._doing, error, ExecutionError)

    def run(self) -> None:
        self.launch().wait()

    def launch(
        self,
        written: Collection[str] = (),
        words: Sequence[int] = (),
        end_word: int | None = None,
    ) -> "_GraphRun":
        timer, context = self._memory.timer, self._memory.context
        with self.translated():
            for name in written:
                self._tensors[name].is_pending = True
            entering = frozenset(n for n in self._inputs if self._tensors[n].is_pending)
            assembled = self._graph(entering)
            graph = assembled.graph
            if timer is not None:
                timer.spare(graph)
            for word in words:
                context.await_word(word)
            graph.launch()
            if end_word is not None:
                context.set_word(end_word)
            # Who waits for it would poll while the CPU computes what the graph waits for.
            end = context.mark(sleeps=bool(words))
            run = _GraphRun(self, end, dict(self._tensors), timer)
            if timer is not None:
                run.number = timer.keep(graph, self._titles(assembled), end)
            for name in (*self._outputs, *entering):
                self._tensors[name].is_pending = False
            for name in entering.difference(written):
                self._tensors[name].users.append(end)
        return run

    def _graph(self, entering: frozenset[str]) -> "_Assembled":
        """The graph for these inputs from the host; timed if the GPU has a timer now."""
        leaving = frozenset(n for n in self._outputs if self._tensors[n].leaving)
        timed = self._memory.timer is not None
        key = entering, leaving, timed
        if key not in self._graphs:
            nodes = self._assembled(entering, leaving)
            graph = self._memory.context.graph(nodes, timed=timed)
            self._graphs[key] = _Assembled(graph, nodes, entering, leaving)
        return self._graphs[key]

    def _assembled(self, entering: frozenset[str], leaving: frozenset[str]) -> list[GraphNode]:
        """The nodes of a graph: tensors that enter, the launches, tensors that leave."""
        build, memory, tensors = self._program.build, self._memory, self._tensors
        entrances = {name: number for number, name in enumerate(sorted(entering))}
        nodes = [memory.enter(tensors[name]) for name in entrances]
        shift = len(nodes)
        users: dict[str, list[int]] = {}
        launches = self._program.nodes(tensors)
        for number, (launch, node) in enumerate(zip(build.launches, launches, strict=True), shift):
            roots = {use.root for use in uses_of(launch, build.aliases)}
            for root in roots:
                users.setdefault(root, []).append(number)
            fetched = sorted(entrances[root] for root in roots if root in entrances)
            waits = (*fetched, *(shift + other for other in node.waits))
            nodes.append(replace(node, waits=waits))
        return nodes + [memory.leave(tensors[n], users.get(n, ())) for n in sorted(leaving)]

    def _titles(self, graph: "_Assembled") -> list[tuple[str, str]]:
        """Name and result of each node, for traces."""
        build = self._program.build
        launches = zip((launch.name for launch in build.launches), build.tasks, strict=True)
        return [
            *(("reorder", name) for name in sorted(graph.entering)),
            *launches,
            *(("reorder", name) for name in sorted(graph.leaving)),
        ]

    def translated(self) -> AbstractContextManager[None]:
        """Convert errors of CUDA; the message names the tasks of this program."""
        return translated(self._program.name, self._doing, ExecutionError)

    @property
    def _doing(self) -> str:
        tasks = self._program.build.tasks
        return f"running {tasks[0]!r} to {tasks[-1]!r}" if tasks else "waiting"


@dataclass(eq=False)
class _Assembled:
    """A graph with its nodes."""

    graph: CudaGraph
    nodes: list[GraphNode]
    entering: frozenset[str]
    leaving: frozenset[str]


class _GraphRun:
    """A graph that was launched, with the memory that it uses."""

    number = 0
    """The number that its timer has given to this run."""

    def __init__(
        self,
        bound: _BoundGraph,
        mark: Mark,
        tensors: Mapping[str, GpuTensor],
        timer: GraphTimer | None,
    ) -> None:
        self._bound = bound
        self._mark = mark
        self._tensors = tensors
        self._timer = timer
        self._launched_s = time.perf_counter()

    @property
    def ended(self) -> bool:
        try:
            return self._mark.ended
        except CudaError:  # which `wait` raises
            return True

    def wait(self) -> None:
        with self._bound.translated():
            self._mark.wait()

    def span_s(self) -> tuple[float, float]:
        if self._timer is None:
            return self._launched_s, self._launched_s
        return self._timer.span_s(self.number)
