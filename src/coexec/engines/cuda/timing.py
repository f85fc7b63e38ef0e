"""Times of the kernels of graphs, by the clock of a GPU."""

import time
from collections.abc import Sequence

from coexec.engines.cuda.driver import CudaContext, CudaGraph, Mark
from coexec.timing.trace import Detail


class GraphTimer:
    """Reads the times of graphs that record them.

    A GPU measures the time between two marks. The first mark is made while nothing runs, so that
    the host knows when that was.
    """

    def __init__(self, device: str, context: CudaContext) -> None:
        self._device = device
        context.finish()
        self._start = context.mark(timed=True)
        self._start.wait()
        self._start_s = time.perf_counter()
        self._running: list[tuple[int, CudaGraph, Sequence[tuple[str, str]], float, Mark]] = []
        self._details: list[list[Detail]] = []

    def keep(self, graph: CudaGraph, titles: Sequence[tuple[str, str]], end: Mark) -> int:
        """Remember a graph that was just launched, with name and result of each node, and a mark
        behind it. Returns the number of this run."""
        self._running.append((len(self._details), graph, titles, time.perf_counter(), end))
        self._details.append([])
        return len(self._details) - 1

    def spare(self, graph: CudaGraph) -> None:
        """Read the times of a graph before its next launch overwrites them."""
        if any(graph is running for _, running, *_ in self._running):
            self.collect()

    def collect(self) -> None:
        """Wait for all launched graphs and read their times."""
        running, self._running = self._running, []
        for number, graph, titles, launched_s, last in running:
            last.wait()
            for (name, result), (start, end) in zip(titles, graph.times, strict=True):
                start_s, end_s = (
                    self._start_s + mark.seconds_since(self._start) for mark in (start, end)
                )
                detail = Detail(
                    name, self._device, "kernel", launched_s, launched_s, start_s, end_s, result
                )
                self._details[number].append(detail)

    def span_s(self, number: int) -> tuple[float, float]:
        """Start and end of a run that has ended, in seconds of `time.perf_counter`."""
        self.collect()
        details = self._details[number]
        if not details:  # an empty program
            return self._start_s, self._start_s
        return min(d.start_s for d in details), max(d.end_s for d in details)

    def details(self) -> list[Detail]:
        """The recorded kernels; waits until they have ended."""
        self.collect()
        return [detail for details in self._details for detail in details]


def seconds_of(context: CudaContext, graph: CudaGraph) -> float:
    """Seconds on the GPU of one launch of a graph."""
    start = context.mark(timed=True)
    graph.launch()
    end = context.mark(timed=True)
    end.wait()
    return end.seconds_since(start)
