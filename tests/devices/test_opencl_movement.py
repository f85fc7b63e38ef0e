"""Kernels that move elements, and where tensors lie: against ONNX Runtime, on PoCL.

Shapes are drawn so that tensors lie in blocks of channels, whole or not, and row-major. Every
shape is a kernel of its own that takes a moment to compile, so examples and shapes are few.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layout_cases import reshape, squeeze
from onnx import helper
from onnx_models import direct, random_feeds, run, tensor
from opencl_programs import compute, pocl
from operator_cases import Case, Draw, dims, ints, random

from coexec.devices.base import Device
from coexec.devices.opencl.architecture import Architecture
from coexec.devices.opencl.building import build
from coexec.frontend.model import Model
from coexec.frontend.module import Module

pytest.importorskip("pyopencl")

Array = np.ndarray[Any, Any]


def few(device: Any) -> settings:
    """PoCL compiles longer for the groups of a GPU."""
    return settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=4 if device.arch.family == "cpu" else 2,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Device:
    """PoCL with wide vectors, and as if it were a GPU."""
    return pocl(tmp_path_factory.mktemp("binaries"), as_gpu=request.param == "gpu")


def images(draw: Draw) -> tuple[int, ...]:
    """A batch of images: row-major, of whole blocks, and of blocks that are not full."""
    return draw(st.integers(1, 2)), draw(st.sampled_from([3, 16, 20, 40])), 2, 3


def shapes(draw: Draw) -> tuple[int, ...]:
    others = [(5,), (2, 3), (2, 3, 4), (1, 2, 1, 3, 2)]
    return draw(st.sampled_from(others)) if draw(st.integers(0, 2)) == 0 else images(draw)


def signed(draw: Draw, axis: int, rank: int) -> int:
    return draw(st.sampled_from([axis, axis - rank]))


@st.composite
def concat(draw: Draw) -> Case:
    shape = shapes(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    sizes = [draw(st.sampled_from([1, 3, 16, 20])) for _ in range(draw(st.integers(2, 4)))]
    inputs: list[Any] = [(*shape[:axis], s, *shape[axis + 1 :]) for s in sizes]
    if draw(st.booleans()):
        inputs[-1] = random(inputs[-1])
    return Case("Concat", tuple(inputs), {"axis": signed(draw, axis, len(shape))})


@st.composite
def split(draw: Draw) -> Case:
    """Along channels mostly: at whole blocks and inside of them."""
    sizes = draw(st.sampled_from([(16, 16), (16, 8), (3, 20, 17), (1, 1, 1)]))
    axis = draw(st.sampled_from([1, 1, 0, 2]))
    shape = [draw(st.integers(1, 2)), 20, 2, 3]
    shape[axis] = sum(sizes)
    return Case("Split", (tuple(shape), ints(*sizes)), {"axis": axis})


@st.composite
def slice_(draw: Draw) -> Case:
    shape = images(draw)
    axis = draw(st.sampled_from([1, 1, 2, 3]))
    start = draw(st.sampled_from([0, 1, 2, 16])) % shape[axis]
    step = draw(st.sampled_from([1, 1, 2, -1]))
    end = shape[axis] + 5 if step > 0 else -100
    values = (ints(start), ints(end), ints(axis - 4), ints(step))
    return Case("Slice", (shape, *values))


@st.composite
def pad(draw: Draw) -> Case:
    shape = images(draw)
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    begins = [draw(st.integers(-1 if mode == "constant" else 0, 1)) for _ in range(2)]
    channels, end = draw(st.sampled_from([0, 0, 2])), draw(st.integers(0, 1))
    pads = ints(0, channels, *begins, 0, channels, end, end)
    value: Any = draw(st.sampled_from([None, np.array(2.5, np.float32), ()]))
    return Case("Pad", (shape, pads, *([] if value is None else [value])), {"mode": mode}, 19)


@st.composite
def transpose(draw: Draw) -> Case:
    shape = shapes(draw)
    return Case("Transpose", (shape,), {"perm": draw(st.permutations(range(len(shape))))})


@st.composite
def expand(draw: Draw) -> Case:
    target = images(draw)
    shape = tuple(draw(st.sampled_from([1, d])) for d in target)[draw(st.integers(0, 2)) :]
    return Case("Expand", (shape, ints(*target)))


@st.composite
def tile(draw: Draw) -> Case:
    counts = [draw(st.sampled_from([1, 1, 2])) for _ in range(4)]
    return Case("Tile", (images(draw), ints(*counts)))


@st.composite
def gather(draw: Draw) -> Case:
    shape = shapes(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    attribute = {"axis": signed(draw, axis, len(shape))}
    size = shape[axis]
    counts = dims(draw, draw(st.integers(0, 2)), 1, 3)
    numbers = np.random.default_rng(0)
    if draw(st.booleans()):
        return Case("Gather", (shape, numbers.integers(-size, size, counts)), attribute)
    counts = (*shape[:axis], 2, *shape[axis + 1 :])
    return Case("GatherElements", (shape, numbers.integers(-size, size, counts)), attribute)


@st.composite
def gather_nd(draw: Draw) -> Case:
    shape = images(draw)
    batch, count = draw(st.integers(0, 1)), draw(st.integers(1, 3))
    outer = (*shape[:batch], 3)
    numbers = np.random.default_rng(0)
    columns = [numbers.integers(-d, d, outer) for d in shape[batch : batch + count]]
    return Case("GatherND", (shape, np.stack(columns, -1)), {"batch_dims": batch})


@st.composite
def resize(draw: Draw) -> Case:
    shape = images(draw)
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": draw(
            st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
        ),
        "nearest_mode": draw(
            st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
        ),
    }
    sizes = draw(st.sampled_from([(4, 6), (5, 2), (1, 3), (7, 4)]))
    return Case("Resize", (shape, None, None, ints(*shape[:2], *sizes)), attributes)


@st.composite
def upsample(draw: Draw) -> Case:
    scales = np.array([1, 1, *dims(draw, 2, 1, 3)], np.float32)
    kind, opset = draw(st.sampled_from([("Upsample", 9), ("Resize", 10)]))
    mode = draw(st.sampled_from(["nearest", "linear"]))
    return Case(kind, (images(draw), scales), {"mode": mode}, opset)


@st.composite
def space_depth(draw: Draw) -> Case:
    batch, channels, height, width = images(draw)
    if draw(st.booleans()):
        return Case("SpaceToDepth", ((batch, channels, height * 2, width * 2),), {"blocksize": 2})
    mode = draw(st.sampled_from(["DCR", "CRD"]))
    shape = (batch, channels * 4, height, width)
    return Case("DepthToSpace", (shape,), {"blocksize": 2, "mode": mode})


@st.composite
def scatter(draw: Draw) -> Case:
    """Places may be meant twice where the order does not count."""
    shape = images(draw)
    reduction = draw(st.sampled_from(["none", "add", "max"]))
    numbers = np.random.default_rng(0)
    if draw(st.booleans()):
        axis = draw(st.integers(0, 3))
        counts = (*shape[:axis], min(2, shape[axis]), *shape[axis + 1 :])
        places = np.broadcast_to(np.arange(counts[axis]).reshape([-1, *[1] * (3 - axis)]), counts)
        attributes = {"axis": axis, "reduction": reduction}
        return Case("ScatterElements", (shape, places.copy(), counts), attributes, 18)
    places = numbers.integers(0, shape[0], (3, 1)) if reduction != "none" else ints(0)[:, None]
    updates = (len(places), *shape[1:])
    return Case("ScatterND", (shape, places, updates), {"reduction": reduction}, 18)


@st.composite
def by_place(draw: Draw) -> Case:
    """Operators that decide by an element's place alone."""
    shape = images(draw)
    kind = draw(st.sampled_from(["Trilu", "ReverseSequence", "OneHot"]))
    if kind == "Trilu":
        return Case(kind, (shape, np.array(1)), {"upper": draw(st.integers(0, 1))})
    if kind == "ReverseSequence":
        lengths = np.random.default_rng(0).integers(1, shape[0] + 1, shape[1])
        return Case(kind, (shape, lengths))
    values = np.array([2, 5], np.float32)
    indices = np.random.default_rng(0).integers(-3, 3, (2, 3))
    return Case(kind, (indices, np.array(3), values), {"axis": draw(st.integers(-1, 2))})


@st.composite
def of_other_types(draw: Draw) -> Case:
    """Types that lie row-major in any shape."""
    dtype = draw(st.sampled_from(["int64", "uint8", "bool", "float64", "int8"]))
    shape = images(draw)
    cases = [
        Case("Transpose", (shape,), {"perm": [0, 2, 3, 1]}),
        Case("Concat", (shape, shape), {"axis": 1}),
        Case("Gather", (shape, ints(1, -1, 0)), {"axis": 1}),
        Case("Slice", (shape, ints(1), ints(3), ints(1))),
        Case("Where", (shape, shape, (1, 1, *shape[2:])), dtypes={0: "bool"}),
    ]
    case = draw(st.sampled_from(cases if dtype in ("int64", "uint8") else cases[:-1]))
    dtypes = {i: dtype for i in range(3)} | case.dtypes
    return Case(case.op_type, case.inputs, case.attributes, dtypes=dtypes)


@st.composite
def broadcast(draw: Draw) -> Case:
    """Operands of fewer channels, rows, columns and axes, computed and constant."""
    shape = images(draw)
    kind = draw(st.sampled_from(["Add", "Div", "Pow", "Max", "PRelu", "Where"]))
    thin = tuple(draw(st.sampled_from([1, d])) for d in shape)[draw(st.integers(0, 3)) :]
    if kind == "Where":
        return Case(kind, (thin, shape, random(shape)), dtypes={0: "bool"})
    if kind == "Pow":
        exponent = draw(st.sampled_from([np.array(2), np.full(thin, 3), thin]))
        return Case(kind, (abs(random(shape)) if exponent is thin else shape, exponent))
    return Case(kind, (shape, thin))


FAMILIES = {
    f.__name__: f()
    for f in (
        concat, split, slice_, pad, transpose, expand, tile, gather, gather_nd, resize, upsample,
        space_depth, scatter, by_place, of_other_types, broadcast, reshape, squeeze,
    )
}  # fmt: skip


def model_around(case: Case) -> Model:
    """The operator between others, so that what it reads and makes is inside of the program.

    These are Neg, whose kernels make and take whole vectors of channels.
    """
    inputs, weights, nodes, names = [], {}, [], []
    for i, item in enumerate(case.inputs):
        names.append("" if item is None else f"x{i}")
        if isinstance(item, tuple):
            dtype = case.dtypes.get(i, "float32")
            inputs.append(tensor(f"x{i}", item, dtype))
            if dtype == "float32":
                nodes.append(helper.make_node("Neg", [f"x{i}"], [f"n{i}"], f"before {i}"))
                names[-1] = f"n{i}"
        elif item is not None:
            weights[f"x{i}"] = item
    count = len(case.inputs[1]) if case.op_type == "Split" else 1
    results = [f"r{i}" for i in range(count)]
    nodes.append(helper.make_node(case.op_type, names, results, "node", **case.attributes))
    if case.dtypes:
        return direct(nodes, inputs, results, weights, case.opset)
    after = [helper.make_node("Neg", [r], [f"y{i}"], r) for i, r in enumerate(results)]
    outputs = [f"y{i}" for i in range(count)]
    return direct([*nodes, *after], inputs, outputs, weights, case.opset)


def same(device: Device, model: Model) -> None:
    feeds = random_feeds(model)
    for found, expected in zip(
        compute(device, model, feeds), run(model.source, feeds), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_operator_computes_what_onnx_runtime_does(device: Device, family: str) -> None:
    @few(device)
    @given(FAMILIES[family])
    def check(case: Case) -> None:
        same(device, model_around(case))

    check()


@st.composite
def networks(draw: Draw) -> Model:
    """Values that lie inside of others: parts, views and joins of each other, some of them kept."""
    shape = (draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([20, 32, 40])), 2, 1)
    known = {"x": shape}
    nodes: list[Any] = []
    weights: dict[str, Array] = {}

    def add(kind: str, reads: list[str], shapes: list[tuple[int, ...]], **given: Any) -> None:
        names = [f"v{len(known) + i}" for i in range(len(shapes))]
        nodes.append(helper.make_node(kind, reads, names, f"n{len(nodes)}", **given))
        known.update(zip(names, shapes, strict=True))

    def constant(*values: int) -> str:
        weights[f"c{values}"] = ints(*values)
        return f"c{values}"

    for _ in range(draw(st.integers(3, 9))):
        source = draw(st.sampled_from(sorted(known)))
        shape = known[source]
        n, c, *rest = shape
        kind = draw(st.sampled_from(["Neg", "Split", "Slice", "Concat", "Concat", "Reshape"]))
        if kind == "Neg":
            add(kind, [source], [shape])
        elif kind == "Split" and c > 16:
            first = draw(st.sampled_from([16, 16, 3]))
            parts = [(n, first, *rest), (n, c - first, *rest)]
            add(kind, [source, constant(first, c - first)], parts, axis=1)
        elif kind == "Slice" and c > 16:
            bounds = [constant(v) for v in (c - draw(st.sampled_from([16, 4])), c, 1)]
            start = int(weights[bounds[0]][0])
            add(kind, [source, *bounds], [(n, c - start, *rest)])
        elif kind == "Concat":
            same = [v for v, s in known.items() if (s[0], *s[2:]) == (n, *rest)]
            reads = draw(st.lists(st.sampled_from(sorted(same)), min_size=1, max_size=3))
            total = sum(known[v][1] for v in reads)
            if total < 200:
                add(kind, reads, [(n, total, *rest)], axis=1)
        elif kind == "Reshape":
            target = (n, c * 2) if len(shape) == 4 else (n, c // 2, 2, 1)
            if len(shape) == 4 or c % 2 == 0:
                add(kind, [source, constant(*target)], [target])
    made = [v for v in known if v != "x"]
    last = [v for v in made if not any(v in node.input for node in nodes)]
    kept = draw(st.lists(st.sampled_from(made), max_size=2, unique=True)) if made else []
    outputs = sorted({*last, *kept})
    if not outputs:
        add("Neg", ["x"], [known["x"]])
        outputs = ["v1"]
    return direct(nodes, [tensor("x", known["x"])], outputs, weights)


def test_tensors_inside_of_others_keep_their_values(device: Device) -> None:
    @few(device)
    @given(networks())
    def check(model: Model) -> None:
        same(device, model)

    check()


def kernels_of(nodes: list[Any], outputs: list[str], weights: dict[str, Array]) -> list[str]:
    """The kernels of a network from "x", 1 x 40 x 2 x 3, for vectors of 16."""
    model = direct(nodes, [tensor("x", (1, 40, 2, 3))], outputs, weights)
    ends = ([model.graph.tensors[n] for n in names] for names in (["x"], outputs))
    inputs, made = (tuple(end) for end in ends)
    module = Module(ir.to_proto(model.source).SerializeToString(), {}, inputs, made)
    return [launch.name for launch in build(module, Architecture("cpu", 16)).launches]


def test_parts_at_whole_blocks_need_no_kernel() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], "a"),
        helper.make_node("Split", ["a", "sizes"], ["b", "c"], "split", axis=1),
        helper.make_node("Neg", ["b"], ["d"], "d"),
        helper.make_node("Neg", ["c"], ["e"], "e"),
        helper.make_node("Concat", ["d", "e"], ["f"], "join", axis=1),
        helper.make_node("Neg", ["f"], ["y"], "y"),
    ]
    assert kernels_of(nodes, ["y"], {"sizes": ints(16, 24)}) == ["elementwise"] * 4
    assert kernels_of(nodes, ["y"], {"sizes": ints(24, 16)}).count("slice") == 2


def test_a_view_that_would_outgrow_an_output_is_copied() -> None:
    """40 channels lie in three blocks of 16; an output that is row-major has no room for that."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"], "mean"),
        helper.make_node("Flatten", ["mean"], ["y"], "flatten"),
    ]
    assert kernels_of(nodes, ["y"], {})[-1] == "reshape"
