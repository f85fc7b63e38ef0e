"""A cost model of simulated processors: rates by kind of operator, overheads, layouts.

The figures come from a platform file (`coexec.research.platforms`); this file only calculates with
them. One operator takes ``operator_s + work / rate``. Its kind decides how work is counted and
which rate applies. Each kind is one method of computing, which inference engines for phones choose
by the same rules (channels in blocks of four, Winograd's algorithm for square filters with stride
one, a pass over all weights where there is a single output position)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from coexec.costs.base import PartSeconds
from coexec.graph.graph import Graph, Operator, Task, Tensor
from coexec.graph.region import Region
from coexec.graph.task_samples import TaskParts
from coexec.hardware.hardware import Link, Place

BLOCK = 4
"""Number of channels in a block of memory: NC4HW4 on CPUs, RGBA pixels on GPUs."""

_VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_FUSED = frozenset(
    {"Clip", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid", "Tanh"}
)
_COPY_BOUND = frozenset(
    {
        "copy_bytes_per_s",
        "unaligned_concat_bytes_per_s",
        "vector_conv_bytes_per_s",
        "matmul_bytes_per_s",
        "conv_weight_bytes_per_s",
    }
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of one processor: all cores of a cluster together, or a GPU."""

    conv_macs_per_s: float
    """Filters that are not square or have a larger stride than one: direct or as a matrix
    product."""
    winograd_macs_per_s: float
    """Square filters with stride one, in multiply-accumulates of the direct method. Engines without
    Winograd's algorithm have a special kernel for these filters, too."""
    pointwise_macs_per_s: float
    """1x1 filters."""
    depthwise_macs_per_s: float
    strided_depthwise_macs_per_s: float
    """Depthwise filters with a larger stride than one."""
    pool_elements_per_s: float
    """Elements of all windows together."""
    copy_bytes_per_s: float
    """Bytes read plus bytes written: element-wise operators, concatenation, and operators that only
    move data."""
    unaligned_concat_bytes_per_s: float
    """Concatenation whose parts do not end with a block of channels: elements are copied one by
    one."""
    vector_conv_bytes_per_s: float
    """Weights per second of a fully connected layer: a convolution with a single position."""
    matmul_bytes_per_s: float
    """The same for MatMul and recurrent layers, for which engines made for images have simple
    code."""
    operator_s: float
    """Seconds of each operator besides its work: calling it, waking threads or enqueueing a kernel
    and waiting for it."""
    half_items: float = 0.0
    """Number of work items, of 4 channels x 4 columns each, that use half of the processor; 0: the
    processor is always fully used. Small feature maps are therefore slow on a processor with many
    lanes."""
    conv_weight_bytes_per_s: float = math.inf
    """Bytes of a convolution's weights, in addition to its multiply-accumulates. All weights are
    read even if there are few output positions; Winograd's algorithm reads a form that is several
    times as large."""
    largest_winograd: float = math.inf
    """Columns of the largest filter for `winograd_macs_per_s`; MACE has it for 3x3 only."""

    def at_clock(self, ratio: float) -> "Rates":
        """Rates of the same processor at ``ratio`` times the clock; rates that memory limits
        stay."""
        faster = {
            f.name: getattr(self, f.name) * ratio
            for f in fields(self)
            if f.name.endswith("_per_s") and f.name not in _COPY_BOUND
        }
        return replace(self, **faster, operator_s=self.operator_s / ratio)


@dataclass(frozen=True)
class PlatformCosts:
    """Seconds on simulated processors.

    Operators are started one by one, as in HOPE's engine, so a segment of several operators saves
    nothing: `launch_s` is 0 and each operator pays its ``operator_s``. An activation behind another
    operator of its task runs in that operator's kernel and costs nothing.
    """

    rates: Mapping[Place, Rates]
    setups_s: Mapping[tuple[Place, Place], float]
    """Seconds of each transfer besides its bytes (mapping, waiting), by (source, target) device."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        """A part of a task takes its share of the work and all of the overheads. A part with all
        rows of some channels reads only the weights of these channels; a part with some rows reads
        all weights.

        Opaque tasks have infinite cost: the engines whose figures were published run none.
        """
        if task.opaque:
            return math.inf
        whole = graph.output_of(task).whole
        share = region.size / max(1, whole.size)
        channels = region.shape[1] / max(1, whole.shape[1]) if len(whole.shape) > 1 else 1.0
        first, *followers = task.operators
        kernels = [first, *(op for op in followers if op.op_type not in _FUSED)]
        rates = self.rates[place]
        return math.fsum(operator_s(op, graph.tensors, rates, share, channels) for op in kernels)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        return lambda task, region: self.piece_s(parts.graph, task, region, place)

    def launch_s(self, place: Place) -> float:
        return 0.0

    def stitch_s(self, tensor: str, size_bytes: int, own_bytes: int, place: Place) -> float:
        """0: the published transfer times include it."""
        return 0.0

    def join_s(self, size_bytes: int) -> float:
        """0, for the same reason."""
        return 0.0

    def transfer_s(self, tensor: str, size_bytes: int, link: Link) -> float:
        return self.setups_s.get((link.source, link.target), 0.0) + link.copy_s(size_bytes)


def operator_s(
    op: Operator,
    tensors: Mapping[str, Tensor],
    rates: Rates,
    share: float = 1.0,
    channels: float = 1.0,
) -> float:
    """Seconds of ``share`` of one operator that is started by itself.

    ``channels`` is the share of the output channels that are computed, 0 to 1: a convolution reads
    only the weights of these channels.
    """
    # The graph lacks outputs that nothing reads: of an LSTM, all states but the last may be unread.
    output = next(tensors[n] for n in op.outputs if n in tensors)
    inputs = [tensors[n] for n in op.inputs if n and n in tensors and not tensors[n].constant]
    if op.op_type in _VIEWS:
        return rates.operator_s
    if op.op_type in ("MatMul", "LSTM", "GRU", "RNN"):
        return rates.operator_s + _weight_bytes(op, tensors) * share / rates.matmul_bytes_per_s
    if op.op_type == "Gemm" or _is_vector(op, output):
        return rates.operator_s + _weight_bytes(op, tensors) * share / rates.vector_conv_bytes_per_s
    if op.op_type in ("Conv", "ConvTranspose"):
        weight = tensors[op.inputs[1]]
        seconds = _conv_s(op, weight, inputs[0], output, rates, share)
        if share:
            seconds += weight.size_bytes * channels / rates.conv_weight_bytes_per_s
    elif op.op_type in ("MaxPool", "AveragePool"):
        window = math.prod(op.ints("kernel_shape", (1, 1)))
        seconds = _padded(output) * window * share / rates.pool_elements_per_s
    elif op.op_type.startswith("Global"):
        seconds = _padded(inputs[0]) * share / rates.pool_elements_per_s
    else:
        moved_bytes = sum(_padded(t) * t.item_bytes for t in (*inputs, output)) * share
        seconds = moved_bytes / _copy_rate(op, inputs, rates)
    return rates.operator_s + seconds


def _conv_s(
    op: Operator, weight: Tensor, source: Tensor, output: Tensor, rates: Rates, share: float
) -> float:
    kernel, strides = weight.shape[2:], op.ints("strides", (1,) * (len(weight.shape) - 2))
    group = op.int("group", 1)
    # A transposed convolution multiplies each input by the whole filter, not each output.
    made, read = (source, output) if op.op_type == "ConvTranspose" else (output, source)
    macs = _padded(made) * math.prod(kernel)
    columns = output.shape[-1]
    items = share * _padded(output) / columns / BLOCK * math.ceil(columns / BLOCK)
    if group == 1:
        macs *= _round_up(read.shape[1])
        winograd = max(kernel) <= rates.largest_winograd
        if max(kernel) == 1:
            rate = rates.pointwise_macs_per_s
        elif winograd and _is_winograd(kernel, strides, source, output):
            rate = rates.winograd_macs_per_s
        else:
            rate = rates.conv_macs_per_s
    elif group == source.shape[1]:
        strided = max(strides) > 1
        rate = rates.strided_depthwise_macs_per_s if strided else rates.depthwise_macs_per_s
    else:
        macs *= _round_up(read.shape[1] // group)
        rate = rates.conv_macs_per_s
    if not items:
        return 0.0
    # The rate falls to items / (items + half_items), because the other lanes are idle.
    return macs * share / rate * (1 + rates.half_items / items)


def _is_winograd(
    kernel: tuple[int, ...], strides: tuple[int, ...], source: Tensor, output: Tensor
) -> bool:
    square = len(set(kernel)) == 1 and max(strides) == 1
    return square and min(source.shape[1], output.shape[1]) >= 2 * BLOCK


def _is_vector(op: Operator, output: Tensor) -> bool:
    """A convolution that makes a single position is a fully connected layer."""
    return op.op_type == "Conv" and math.prod(output.shape[2:]) == 1 and op.int("group", 1) == 1


def _weight_bytes(op: Operator, tensors: Mapping[str, Tensor]) -> float:
    """Bytes of weights that are read; a recurrent layer reads its recurrent weights in each
    step."""
    weights = [tensors[n] for n in op.inputs[1:3] if n and n in tensors]
    sizes = [float(w.size_bytes) for w in weights]
    if op.op_type in ("LSTM", "GRU", "RNN"):
        sizes[1] *= tensors[op.inputs[0]].shape[0]
    return math.fsum(sizes)


def _copy_rate(op: Operator, inputs: list[Tensor], rates: Rates) -> float:
    unaligned = op.op_type == "Concat" and any(
        t.shape[1] % BLOCK for t in inputs if len(t.shape) == 4
    )
    return rates.unaligned_concat_bytes_per_s if unaligned else rates.copy_bytes_per_s


def _padded(tensor: Tensor) -> int:
    """Number of elements, with the channels of a feature map rounded up to whole blocks."""
    if len(tensor.shape) != 4:
        return math.prod(tensor.shape)
    batch, channels, height, width = tensor.shape
    return batch * _round_up(channels) * height * width


def _round_up(channels: int) -> int:
    return math.ceil(channels / BLOCK) * BLOCK
