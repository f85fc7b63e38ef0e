"""Kernels for cores: convolutions of all kinds, products, Resize, rows of elements.

Each family is one program of many small layers, compared with ONNX Runtime, with blocks of 4, 8 and
16 channels. Each kernel takes a moment to compile, so shapes are chosen at the limits: of blocks,
of tiles, of vectors.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.engines.kernels import base, building, conv_winograd
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.operators import why_not
from tests.helpers.core_programs import compute, opened_cpp
from tests.helpers.gpu_networks import module_of
from tests.helpers.onnx_models import direct, run, tensor

Array = np.ndarray[Any, Any]

CORES = {
    "block 4": Architecture("cpu", 4, compute_units=2, registers=16),
    "block 8": Architecture("cpu", 8, compute_units=2, registers=16),
    "block 16": Architecture("cpu", 16, compute_units=2, registers=32),
}
HALVES = {name: replace(arch, half=True) for name, arch in CORES.items()}


@dataclass
class Layers:
    """A model of layers side by side; arrays of float32 are constant, others are fed."""

    opset: int = 18
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def given(self, *shape: int, dtype: str = "float32", gaps: bool = False) -> str:
        """The name of an input with these numbers; ``gaps``: with NaN and infinity in some."""
        values = np.asarray(self.rng.standard_normal(shape) * 3, dtype)
        if gaps:
            values.reshape(-1)[:: max(3, values.size // 7)] = np.nan
            values.reshape(-1)[1 :: max(5, values.size // 5)] = -np.inf
        name = f"x{len(self.feeds)}"
        self.feeds[name] = values
        return name

    def constant(self, *shape: int, values: Any = None) -> str:
        name = f"w{len(self.weights)}"
        drawn = (self.rng.standard_normal(shape) / 3).astype(np.float32)
        self.weights[name] = drawn if values is None else np.asarray(values)
        return name

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A layer; its first output's name."""
        names = [f"y{len(self.outputs) + i}" for i in range(outputs)]
        number = len(self.nodes)
        self.nodes.append(helper.make_node(kind, inputs, names, f"n{number}", **attributes))
        self.outputs += names
        return names[0]

    def compare(self, arch: Architecture, folder: Path) -> None:
        inputs = [tensor(n, a.shape, a.dtype.name) for n, a in self.feeds.items()]
        nodes = self._away_from_the_ends() if arch.half else self.nodes
        model = direct(nodes, inputs, self.outputs, self.weights, self.opset)
        device = opened_cpp(folder, arch)
        try:
            found = compute(device, model, self.feeds)
        finally:
            device.close()
        makers = {name: node for node in self.nodes for name in node.output}
        for name, made, wanted in zip(
            self.outputs, found, run(model.source, self.feeds), strict=True
        ):
            what = helper.printable_node(makers[name])
            if not arch.half or made.dtype != np.float32:
                np.testing.assert_allclose(made, wanted, 2e-4, 2e-4, err_msg=what, strict=True)
            else:
                _assert_near(made, wanted, what)

    def _away_from_the_ends(self) -> list[onnx.NodeProto]:
        """The nodes between others: the tensors of callers are never in 16 bits."""
        floats = [name for name, array in self.feeds.items() if array.dtype == np.float32]
        enter = [helper.make_node("Neg", [name], [f"{name}.in"]) for name in floats]
        inside = {node.input[0]: node.output[0] for node in enter}
        moved = []
        for node in self.nodes:
            moved.append(onnx.NodeProto())
            moved[-1].CopyFrom(node)
            moved[-1].input[:] = [inside.get(name, name) for name in node.input]
        return [*enter, *moved]


def _assert_near(made: Array, wanted: Array, what: str) -> None:
    """That numbers differ as by rounding to 8 bits: little in the mean, and more where a layer such
    as Erf or Softmax is steep and its operands are larger than its results."""
    finite = np.isfinite(wanted)
    assert np.array_equal(made[~finite], wanted[~finite], equal_nan=True), what
    errors = np.abs(made[finite] - wanted[finite]) / np.abs(wanted[finite]).max(initial=1e-30)
    worst, mean = errors.max(initial=0.0), errors.sum() / max(errors.size, 1)
    assert worst < 0.1 and mean < 3e-3, (what, worst, mean)


Family = Callable[[Layers], None]


def convolutions_of_one_axis(a: Layers) -> None:
    a.add("Conv", a.given(2, 3, 40), a.constant(5, 3, 4), a.constant(5), pads=[2, 1])
    a.add("Conv", a.given(1, 20, 137), a.constant(33, 20, 3), strides=[2], dilations=[3])
    a.add("Conv", a.given(1, 17, 1), a.constant(18, 17, 1))
    a.add("Conv", a.given(2, 34, 19), a.constant(34, 1, 9), group=34, pads=[4, 4])
    made = a.add("Conv", a.given(1, 16, 300), a.constant(1, 16, 7), auto_pad="SAME_UPPER")
    a.add("Add", a.add("Relu", made), a.given(1, 1, 300))


def convolutions_of_three_axes(a: Layers) -> None:
    a.add("Conv", a.given(2, 3, 4, 5, 6), a.constant(7, 3, 3, 2, 3), a.constant(7), pads=[1] * 6)
    a.add(
        "Conv",
        a.given(1, 20, 5, 4, 9),
        a.constant(16, 20, 3, 3, 3),
        strides=[2, 1, 2],
        pads=[2, 1, 0, 1, 1, 1],
        dilations=[2, 1, 1],
    )
    a.add("Conv", a.given(1, 18, 3, 4, 5), a.constant(18, 1, 3, 3, 3), group=18, pads=[1] * 6)
    a.add("Conv", a.given(1, 12, 3, 4, 5), a.constant(9, 4, 1, 1, 1), group=3)


def convolutions_in_groups(a: Layers) -> None:
    """Groups that share blocks, that fill them, and that reach over their limits."""
    for groups, inner, outer in ((5, 4, 4), (2, 24, 24), (3, 5, 7), (20, 1, 2), (3, 16, 16)):
        shape = (groups * outer, inner, 3, 3)
        a.add(
            "Conv",
            a.given(1, groups * inner, 7, 13, gaps=True),
            a.constant(*shape),
            a.constant(shape[0]),
            group=groups,
            pads=[1] * 4,
        )
    a.add("Conv", a.given(2, 3, 9, 9), a.constant(24, 1, 3, 3), group=3, strides=[2, 2])
    a.add("Conv", a.given(1, 32, 5, 5), a.constant(32, 8, 1, 1), group=4)


def transposed_convolutions(a: Layers) -> None:
    two = {"strides": [2, 2], "pads": [1] * 4}
    a.add("ConvTranspose", a.given(1, 20, 5, 6), a.constant(20, 18, 4, 4), a.constant(18), **two)
    a.add("ConvTranspose", a.given(1, 20, 5, 6), a.constant(20, 3, 3, 3), **two)
    a.add("ConvTranspose", a.given(1, 20, 5, 6), a.constant(20, 1, 4, 4), group=20, **two)
    a.add("ConvTranspose", a.given(1, 9, 17), a.constant(9, 20, 8), strides=[4], pads=[2, 2])
    a.add(
        "ConvTranspose",
        a.given(2, 3, 5),
        a.constant(3, 2, 3),
        dilations=[2],
        output_padding=[1],
        strides=[2],
    )


def products(a: Layers) -> None:
    """Few and many rows and columns, constant and computed right sides, one across, batches."""
    a.add("MatMul", a.given(1, 65), a.constant(65, 37))
    a.add("MatMul", a.given(3, 20, 33), a.constant(33, 70))
    a.add("MatMul", a.given(13, 65), a.given(65, 37))
    a.add("MatMul", a.given(3, 65), a.given(65, 37))
    a.add("MatMul", a.given(40, 9), a.given(9))
    a.add("MatMul", a.given(9), a.given(9, 40))
    a.add("MatMul", a.given(2, 1, 15, 9), a.given(3, 9, 5))
    a.add("MatMul", a.given(5, 15, 9), a.constant(5, 9, 21))
    a.add("Gemm", a.given(31, 14), a.given(25, 31), a.constant(25), transA=1, transB=1, alpha=0.5)
    a.add("Gemm", a.given(14, 31), a.constant(31, 3), a.given(14, 1), beta=0.3)
    made = a.add("Gemm", a.given(9, 31), a.constant(31, 50), a.given(1, 50))
    a.add("Mul", a.add("Erf", a.add("Add", made, a.given(9, 50))), a.given(9, 1))


def products_of_heads(a: Layers) -> None:
    """Matrices side by side in blocks of channels, as attention has them."""
    scores = a.add("MatMul", a.given(2, 12, 9, 20), a.given(2, 12, 20, 15))
    made = a.add("Softmax", a.add("Mul", scores, a.constant(values=np.float32(0.3))), axis=-1)
    a.add("MatMul", made, a.given(2, 12, 15, 5))
    a.add("MatMul", a.given(1, 20, 1, 7), a.given(1, 20, 7, 1))


def resizes(a: Layers) -> None:
    for shape, scales, mode in (
        ((1, 20, 5, 6), (1, 1, 2, 2), "linear"),
        ((2, 3, 9, 7), (1, 1, 0.6, 1.7), "linear"),
        ((1, 3, 5, 6), (1, 1, 1, 2), "linear"),
        ((2, 3, 9), (1, 1, 2), "linear"),
        ((1, 20, 5, 6), (1, 1, 2, 1.5), "cubic"),
        ((1, 2, 3, 4, 5), (1, 1, 2, 2, 2), "linear"),
    ):
        given = a.constant(values=np.array(scales, np.float32))
        a.add("Resize", a.given(*shape), "", given, mode=mode)


def rows(a: Layers) -> None:
    """Rows side by side, and what is computed by vectors along them."""
    for shape, axis in (((2, 9, 37), 1), ((70, 18), 0), ((3, 2, 5, 33), 2)):
        a.add("Softmax", a.given(*shape), axis=axis)
        axes = a.constant(values=np.array([axis]))
        a.add("ReduceMean", a.given(*shape), axes, keepdims=0)
        a.add("ReduceL2", a.given(*shape), axes)
    a.add("Pow", a.given(3, 37), a.constant(values=np.float32(2)))
    a.add("Pow", a.given(3, 37), a.constant(values=np.float32(3)))
    a.add("Sigmoid", a.add("Add", a.given(3, 1, 37), a.constant(5, 1)))
    a.add("Greater", a.given(3, 37), a.given(37))
    a.add("Concat", a.given(3, 5, 7), a.given(3, 2, 7), a.constant(3, 1, 7), axis=1)


def transposes(a: Layers) -> None:
    """Between row-major and blocked tensors whose neighbours are other axes."""
    for shape, order in (
        ((33, 18), (1, 0)),
        ((2, 19, 37), (0, 2, 1)),
        ((2, 3, 17, 18), (0, 3, 1, 2)),
        ((1, 20, 9, 18), (0, 2, 3, 1)),
        ((1, 18, 20, 5), (0, 2, 1, 3)),
        ((17, 3, 20), (2, 1, 0)),
        ((1, 20, 9, 18), (3, 2, 1, 0)),
        ((2, 16, 3, 17, 2), (0, 3, 4, 2, 1)),
        ((3, 5), (1, 0)),
    ):
        a.add("Transpose", a.given(*shape), perm=order)


def pads(a: Layers) -> None:
    """Images and rows, up to the limit of what is reflected once, cropped, and behind a Conv."""
    for mode in ("reflect", "edge", "constant"):
        for shape, ends in (
            ((1, 20, 6, 9), [0, 0, 5, 8, 0, 0, 5, 8]),
            ((2, 3, 4, 30), [0, 0, 3, -2, 0, 0, 3, -5]),
            ((1, 40, 7, 5), [0, 3, 1, 0, 0, 2, 6, 0]),
        ):
            given = a.given(*shape)
            made = a.constant(values=np.array(ends))
            a.add("Pad", given, made, mode=mode)
            inner = a.add("Conv", given, a.constant(shape[1], shape[1], 1, 1))
            a.add("Pad", inner, made, mode=mode)


FAMILIES: list[Family] = [
    convolutions_of_one_axis, convolutions_of_three_axes, convolutions_in_groups,
    transposed_convolutions, pads, products, products_of_heads, resizes, rows, transposes,
]  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "cores",
    ["block 8", *(pytest.param(n, marks=pytest.mark.conformance) for n in ("block 4", "block 16"))],
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_layers_are_right_with_blocks_of_any_width(
    family: Family, cores: str, tmp_path: Path
) -> None:
    layers = Layers()
    family(layers)
    layers.compare(CORES[cores], tmp_path)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("cores", HALVES)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_layers_are_right_in_16_bits(
    family: Family, cores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_SMALL", 8)
    layers = Layers()
    family(layers)
    layers.compare(HALVES[cores], tmp_path)


@pytest.mark.parametrize("family", [products, products_of_heads, rows, transposes])
def test_layers_are_right_with_blocks_everywhere(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As next to convolutions. Alone, these layers have rows."""
    monkeypatch.setattr(building, "row_major_tensors", lambda *_: set())
    layers = Layers()
    family(layers)
    layers.compare(CORES["block 8"], tmp_path)


@pytest.mark.parametrize("lost_s", [-1.0, 1.0], ids=["steps apart", "bands"])
def test_convolutions_for_many_cores_are_right(
    lost_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small images and few rows; the least and the most tiles of Winograd's method."""
    monkeypatch.setattr(conv_winograd, "_BARRIER_S", lost_s)
    layers = Layers()
    for batch, channels, size, pads in (
        (1, 40, 24, 1),
        (2, 64, 7, 1),
        (1, 24, 5, 0),
        (1, 48, 9, 2),
    ):
        given = layers.given(batch, channels, size, size + 2)
        values = layers.rng.standard_normal((36, channels, 3, 3)) / 50
        weights = layers.constant(values=values.astype(np.float32))
        made = layers.add("Conv", given, weights, layers.constant(36), pads=[pads] * 4)
        layers.add("Conv", layers.add("Relu", made), layers.constant(80, 36, 1, 1))
        layers.add("Conv", given, weights, strides=[2, 2], pads=[0, 1, 2, 1])
    stem = layers.constant(64, 3, 7, 7)
    layers.add("Conv", layers.given(2, 3, 65, 70), stem, strides=[2, 2], pads=[3] * 4)
    arch = replace(CORES["block 8"], compute_units=16)
    layers.compare(arch, tmp_path)


@pytest.mark.parametrize("cores", CORES)
def test_channels_on_the_last_axis_are_neighbours(cores: str, tmp_path: Path) -> None:
    """A block of ConvNeXt: between the Transposes, products of matrices store whole vectors."""
    a, node = Layers(), helper.make_node
    x = a.given(1, 24, 5, 7)
    scale, bias = (a.constant(24) for _ in range(2))
    nodes = [
        node("Conv", [x, a.constant(24, 1, 7, 7)], ["c"], pads=[3] * 4, group=24),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        node("LayerNormalization", ["t", scale, bias], ["l"], axis=-1),
        node("MatMul", ["l", a.constant(24, 96)], ["m"]),
        node("Add", ["m", a.constant(96)], ["a"]),
        node("Erf", ["a"], ["e"]),
        node("Add", ["e", a.constant(values=np.float32(1))], ["p"]),
        node("Mul", ["a", "p"], ["g"]),
        node("MatMul", ["g", a.constant(96, 24)], ["o"]),
        node("Transpose", ["o"], ["u"], perm=[0, 3, 1, 2]),
        node("Add", ["u", x], ["y"]),
    ]
    inputs = [tensor(x, a.feeds[x].shape)]
    model = direct(nodes, inputs, ["y"], a.weights)
    for launch in building.build(module_of(model), CORES[cores], on_arrays=True).launches:
        assert launch.name != "gemm_cpu" or "float out[" not in launch.source
    device = opened_cpp(tmp_path, CORES[cores])
    (found,), (expected,) = compute(device, model, a.feeds), run(model.source, a.feeds)
    device.close()
    np.testing.assert_allclose(found, expected, 2e-4, 2e-4)


def test_what_is_slow_on_cores_is_refused_there_alone() -> None:
    """A ConvTranspose along three axes, unless it is small."""
    for depth, slow in ((8, True), (1, False)):
        shapes = [(1, 16, depth, 2 * depth, depth), (16, 16, 2, 2, 2)]
        x = tensor("x", shapes[0])
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "node")
        graph = direct([node], [x], ["y"], {"w": np.ones(shapes[1], np.float32)}).graph
        (op,) = graph.tasks[0].operators
        for arch in CORES.values():
            reason = why_not(op, graph.tensors, arch) or ""
            assert ("ONNX Runtime's time" in reason) == slow
        assert why_not(op, graph.tensors, Architecture("nvidia", 4)) is None


def test_what_is_slow_but_small_stays(tmp_path: Path) -> None:
    layers = Layers()
    layers.add("ConvTranspose", layers.given(1, 2, 3, 4, 5), layers.constant(2, 3, 2, 2, 2))
    layers.compare(CORES["block 8"], tmp_path)
