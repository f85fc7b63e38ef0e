"""Measure the time to launch a segment, and the time to use its results on another device."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise

import numpy as np

from coexec.cache import Cache, never_warn, private_folder
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice
from coexec.graph.graph import Graph, Piece, Tensor
from coexec.hardware.hardware import Place
from coexec.lowering.layout import blocks_of
from coexec.lowering.synthetic import convolutions, products, vector_products
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.model import Model
from coexec.plan.derive import derive, stepwise
from coexec.plan.plan import Plan, Provenance
from coexec.plan.schedule import Segment
from coexec.profiling.store import Measurement
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.settings import Waiting
from coexec.timing.trace import Span

_CHAIN = 40
_RUNS = 10
_QUICK, _LONG = 128, 384
"""Sizes of square matrix products. The first is large enough for several threads; the second runs
long enough for another device to fall asleep. A thread that has slept for a while takes longer to
wake up."""

_KERNEL = 3
"""Height and width of the filters of convolutions."""

_STITCHED = (8, 56)
"""Heights, equal to the widths, of two feature maps that are stitched."""
_JOINED_BYTES = 48 << 20
"""More than the caches of a core hold, and more than the 32 MiB up to which glibc uses memory again
without new pages of the system."""
_LAYERS, _CHANNELS = 24, 128
_OWN_HEIGHT = 48
_UNEVEN = 124
"""Number of channels that is no multiple of a block width above four, and takes the same time."""
_MATRICES, _WIDTH = 6, 1024
"""24 MiB of weights: more than the caches of a core hold."""
_MAPS = ((16, 3), (48, 1))
"""Two pairs: height and width of feature maps, and of filters. The work is about the same; the
first has few bytes, the second has many."""


def launch_overhead(engine: OpenEngine) -> Measurement:
    """Launch overhead in seconds: time saved by running two operators in one segment.

    It is the time to launch a program; with several threads it includes waking them.
    """
    feeds = {"v0": np.zeros((_QUICK, _QUICK), np.float32)}
    devices = [OpenDevice.of(engine)]
    plans = [_products([engine], _QUICK, fused) for fused in (1, _CHAIN)]
    with Executor(plans[0], devices) as apart, Executor(plans[1], devices) as together:
        seconds = []
        for _ in range(3 * _RUNS):
            busy_s = []
            for executor, compiled in zip((apart, together), plans, strict=True):
                recorder = RealRecorder(compiled, [engine.device.name])
                executor.run(feeds, recorder)
                busy_s.append(math.fsum(s.duration_s for s in recorder.trace().of("compute")))
            seconds.append((busy_s[0] - busy_s[1]) / (_CHAIN - 1))
    return Measurement.of([max(s, 0.0) for s in seconds[_RUNS:]])


def stitching(engine: OpenEngine) -> tuple[Measurement, Measurement]:
    """Time to stitch a feature map from two boxes of rows.

    Returns:
        Seconds of a feature map without bytes, and seconds per byte.
    """
    few, many = (_stitch_s(engine, height) for height in _STITCHED)
    return _straight(few, many, _STITCHED)


def _stitch_s(engine: OpenEngine, height: int) -> Measurement:
    """Seconds to stitch one feature map."""
    tensor = Tensor("stitched", (1, _CHANNELS, height, height), "float32")
    layout = blocks_of(engine.dialect.block)
    target = engine.allocate(tensor)
    halves = [
        tensor.whole.with_axis(2, 0, height // 2),
        tensor.whole.with_axis(2, height // 2, height),
    ]
    zeros = np.zeros(tensor.shape, np.float32)
    boxes = [(layout.view(zeros, half).copy(), half) for half in halves]
    seconds = []
    for _ in range(3 * _RUNS):
        began_s = time.perf_counter()
        engine.fill(target, boxes, layout)
        seconds.append(time.perf_counter() - began_s)
    return Measurement.of(seconds[_RUNS:])


def joining() -> Measurement:
    """Seconds per byte to copy a result to new memory, as an output is that devices compute in
    parts."""
    part = np.ones(_JOINED_BYTES, np.uint8)  # zeros would all lie in one page
    seconds = []
    for _ in range(2 * _RUNS):
        began_s = time.perf_counter()
        whole = np.empty_like(part)
        whole[...] = part
        seconds.append(time.perf_counter() - began_s)
    return Measurement.of([s / _JOINED_BYTES for s in seconds[_RUNS:]])


def wake_up(source: OpenEngine, target: OpenEngine, waiting: Waiting) -> Measurement:
    """Seconds from the end of a segment to the start of the one that waits, in a shared memory."""
    devices = [OpenDevice.of(source), OpenDevice.of(target)]
    compiled = _products([source, target], _LONG, 1)
    gaps_s: list[float] = []
    with Executor(compiled, devices, waiting=waiting) as executor:
        for _ in range(_RUNS):
            names = dict.fromkeys(device.spec.name for device in devices)
            recorder = RealRecorder(compiled, list(names))
            executor.run({"v0": np.zeros((_LONG, _LONG), np.float32)}, recorder)
            gaps_s += _gaps_s(recorder.trace().of("compute"))
    return Measurement.of(gaps_s)


def own_layout(own: OpenEngine, other: OpenEngine, waiting: Waiting) -> Measurement:
    """Seconds per byte for ``own`` to stitch its own results with those of ``other``, if both have
    to be in the layout of the model: ``own`` converts from its layout and back again.

    The convolutions of a chain are divided in halves by rows. It is the difference between feature
    maps with partly filled blocks and feature maps that fill their blocks.
    """
    seconds, devices = [], [OpenDevice.of(own), OpenDevice.of(other)]
    with _own_cache() as cache:
        for channels in (_CHANNELS, _UNEVEN):
            model = _convolutions(_OWN_HEIGHT, _KERNEL, channels)
            graph = model.graph
            divided = _divided(graph, own.place, other.place, [2] * _LAYERS, 1 / 2)
            compiled = Compiler(model, cache).compile(derive(divided, graph), devices)
            runs = _spans(compiled, devices, waiting, graph)
            spans = [[s.duration_s for s in run[2:-2] if s.place == own.place] for run in runs]
            seconds.append([statistics.median(durations_s) for durations_s in spans])
    size_bytes = 4 * _UNEVEN * _OWN_HEIGHT**2 // 2
    even_s = statistics.median(seconds[0])
    return Measurement.of([max(0.0, s - even_s) / size_bytes for s in seconds[1]])


def reading(engines: Sequence[OpenEngine], waiting: Waiting) -> list[Measurement]:
    """Seconds per byte for each engine to read weights from memory, while all of them read.

    The engines multiply a vector with matrices, each engine its own vector. 0 for all if one of
    them does not run these products.
    """
    model = load(vector_products(len(engines), _MATRICES, _WIDTH), check=False)
    graph, own = model.graph, dict[Place, list[Piece]]()
    for task in graph.tasks:
        chain = graph.output_of(task).name.partition("/")[0].removeprefix("y")
        engine = engines[int(chain)]
        if engine.refusal(task, graph.tensors) is not None:
            return [Measurement.of([0.0])] * len(engines)
        own.setdefault(engine.place, []).append(graph.whole_piece(task))
    pieces = {place: tuple(of_place) for place, of_place in own.items()}
    plan = Plan.of_places(graph.fingerprint, pieces, Provenance("a way to measure"))
    devices = [OpenDevice.of(engine) for engine in engines]
    with _own_cache() as cache:
        compiled = Compiler(model, cache).compile(derive(plan, graph), devices)
        runs = _spans(compiled, devices, waiting, graph)
    read_bytes = 4 * _MATRICES * _WIDTH**2
    return [
        Measurement.of(
            [
                math.fsum(s.duration_s for s in run if s.place == e.place) / read_bytes
                for run in runs
            ]
        )
        for e in engines
    ]


def _divided(graph: Graph, first: Place, second: Place, axes: Sequence[int], share: float) -> Plan:
    """A plan that divides each task along its axis: ``share`` of it is at ``first``."""
    pieces = dict[Place, list[Piece]]({first: [], second: []})
    for task, axis in zip(graph.tasks, axes, strict=True):
        whole = graph.output_of(task).whole
        cut = int(whole.shape[axis] * share)
        pieces[first].append(Piece(task.name, whole.with_axis(axis, 0, cut)))
        pieces[second].append(Piece(task.name, whole.with_axis(axis, cut, whole.stop[axis])))
    places = {place: tuple(own) for place, own in pieces.items()}
    return Plan.of_places(graph.fingerprint, places, Provenance("a way to measure"))


def _gaps_s(spans: Sequence[Span]) -> list[float]:
    """Seconds from the end of each span to the start of the next."""
    return [max(0.0, b.start_s - a.end_s) for a, b in pairwise(spans)]


def crossing(
    source: OpenEngine, target: OpenEngine, waiting: Waiting
) -> tuple[Measurement, Measurement]:
    """Time to read a result of ``source`` on ``target``, if they share no memory.

    The convolutions of a chain run on both devices in turn. At a crossing, both convolutions take
    longer than on one device: each engine has its own layout of feature maps and changes it at the
    border, inside of segments. Only a part of the time is the copy. Measurements of two sizes
    separate the time per byte from the constant time.

    Returns:
        Seconds of a crossing without bytes, and seconds per byte.
    """
    return _crossing_s(source, target, waiting, _CHANNELS)


def changing_layout(
    source: OpenEngine, target: OpenEngine, waiting: Waiting
) -> tuple[Measurement, Measurement]:
    """Time to read a result of ``source`` on ``target``, in a shared memory, if their layouts
    differ.

    Measured as in `crossing`, with feature maps that do not fill their blocks. Such feature maps
    are transferred in the layout of the model.

    Returns:
        Seconds of a tensor without bytes, including the handover, and seconds per byte.
    """
    return _crossing_s(source, target, waiting, _UNEVEN)


def _crossing_s(
    source: OpenEngine, target: OpenEngine, waiting: Waiting, channels: int
) -> tuple[Measurement, Measurement]:
    few, many = (_extra_s(source, target, waiting, channels, *of) for of in _MAPS)
    return _straight(few, many, [height for height, _ in _MAPS], channels)


def _straight(
    few: Measurement, many: Measurement, heights: Sequence[int], channels: int = _CHANNELS
) -> tuple[Measurement, Measurement]:
    """Seconds without bytes and seconds per byte, from feature maps of two heights."""
    sizes = [4 * channels * height**2 for height in heights]
    byte_s = max(0.0, many.seconds - few.seconds) / (sizes[1] - sizes[0])
    fixed_s = max(0.0, few.seconds - byte_s * sizes[0])
    return (
        Measurement(fixed_s, few.spread, few.samples),
        Measurement(byte_s, many.spread, many.samples),
    )


def _extra_s(
    source: OpenEngine,
    target: OpenEngine,
    waiting: Waiting,
    channels: int,
    height: int,
    kernel: int,
) -> Measurement:
    """Additional seconds of two successive convolutions if the second is on another device."""
    model = _convolutions(height, kernel, channels)
    tasks = [task.name for task in model.graph.tasks]
    places = [source.place, target.place]
    devices = [OpenDevice.of(source), OpenDevice.of(target)]

    def spans(turns: Sequence[Place]) -> list[Sequence[Span]]:
        """Spans of each run of a chain on these places in turn, without the first and last four."""
        place_of = {name: turns[i % 4] for i, name in enumerate(tasks)}
        compiled = compiler.compile(stepwise(model.graph, place_of), devices)
        return [run[4:-4] for run in _spans(compiled, devices, waiting, model.graph)]

    with _own_cache() as cache:
        compiler = Compiler(model, cache)
        alone = [[s.duration_s for run in spans([place] * 4) for s in run] for place in places]
        turns = spans([places[0], places[0], places[1], places[1]])
    staying_s = sum(statistics.median(durations_s) for durations_s in alone)
    crossings_s = [
        b.end_s - a.start_s - staying_s
        for run in turns
        for a, b in pairwise(run)
        if [a.place, b.place] == places
    ]
    return Measurement.of([max(0.0, s) for s in crossings_s])


def _convolutions(height: int, kernel: int, channels: int = _CHANNELS) -> Model:
    """Equal convolutions in a chain."""
    return load(convolutions(_LAYERS, channels, height, kernel))


def _spans(
    compiled: CompiledPlan, devices: Sequence[OpenDevice], waiting: Waiting, graph: Graph
) -> list[Sequence[Span]]:
    """Compute spans of each run, without the first runs, which bind programs."""
    names = list(dict.fromkeys(device.spec.name for device in devices))
    feeds = random_inputs(graph)
    runs: list[Sequence[Span]] = []
    with Executor(compiled, devices, waiting=waiting) as executor:
        for _ in range(3 + _RUNS):
            recorder = RealRecorder(compiled, names)
            executor.run(feeds, recorder)
            runs.append(recorder.trace().of("compute"))
    return runs[3:]


@contextmanager
def _own_cache() -> Iterator[Cache]:
    """A temporary cache; the user's cache if no private folder can be made."""
    with ExitStack() as stack:
        root = None
        with suppress(OSError):
            root = stack.enter_context(private_folder())
            never_warn(root)
        yield Cache(root)


def _products(engines: Sequence[OpenEngine], size: int, fused: int) -> CompiledPlan:
    """A chain of square matrix products: segments of ``fused`` products, on the engines in turn."""
    count = _CHAIN // fused
    segments = tuple(
        Segment(i, *engines[i % len(engines)].place, (), (), (), (i - 1,) if i else ())
        for i in range(count)
    )
    modules = tuple(products(range(i * fused, (i + 1) * fused), size) for i in range(count))
    return CompiledPlan(modules[0].inputs, modules[-1].outputs, {}, {}, segments, (), modules)
