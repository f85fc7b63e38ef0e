"""Where tensors lie that are parts, views and joins of others: against ONNX Runtime.

Every kernel takes a moment to compile, so examples are few.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.engines.base import OpenEngine
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.building import build
from coexec.lowering.module import Module
from coexec.model.model import Model
from tests.helpers.core_programs import compute, opened_cpp
from tests.helpers.examples import scaled
from tests.helpers.onnx_models import direct, random_feeds, run, tensor
from tests.helpers.opencl_gpu import opened
from tests.helpers.operator_cases import Draw, ints

Array = np.ndarray[Any, Any]


def few(device: Any) -> settings:
    """More for the processor that kernels are compiled for with all optimisations."""
    return settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=scaled(3 if device.arch.family == "cpu" else 2),
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module", params=["cpp", "gpu"])
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenEngine:
    """Kernels for cores, and PoCL as if it were a GPU."""
    folder = tmp_path_factory.mktemp("binaries")
    made: OpenEngine = opened_cpp(folder) if request.param == "cpp" else opened(folder)
    return made


def same(device: OpenEngine, model: Model) -> None:
    feeds = random_feeds(model)
    for found, expected in zip(
        compute(device, model, feeds), run(model.source, feeds), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, strict=True)


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


@pytest.mark.sampled(2)
def test_tensors_inside_of_others_keep_their_values(device: OpenEngine) -> None:
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


def test_rows_at_computed_positions(device: OpenEngine) -> None:
    """As an embedding has them. What is out of range is NaN, which a session leaves to ONNX
    Runtime."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((40, 24)).astype(np.float32)
    image = rng.standard_normal((1, 20, 6, 5)).astype(np.float32)
    words = np.array([[0, 39, -1], [-40, 7, 7]], np.int64)
    channels = np.array([19, -20, 4], np.int32)
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["rows"], "rows"),
        helper.make_node("Gather", ["image", "channels"], ["planes"], "planes", axis=1),
        helper.make_node("Gather", ["image", "channels"], ["lines"], "lines", axis=2),
    ]
    inputs = [
        tensor("words", (2, 3), "int64"),
        tensor("image", image.shape),
        tensor("channels", (3,), "int32"),
    ]
    model = direct(nodes, inputs, ["rows", "planes", "lines"], {"table": table})
    feeds: dict[str, Array] = {"words": words, "image": image, "channels": channels % 5 - 5}
    for made, expected in zip(compute(device, model, feeds), run(model.source, feeds), strict=True):
        np.testing.assert_array_equal(made, expected)
    feeds |= {"words": words * 41, "channels": channels}
    rows, planes, lines = compute(device, model, feeds)
    np.testing.assert_array_equal(np.isnan(rows).all(-1), [[False, True, True], [True] * 3])
    np.testing.assert_array_equal(rows[0, 0], table[0])
    np.testing.assert_array_equal(planes, image[:, channels])
    np.testing.assert_array_equal(np.isnan(lines).all((0, 1, 3)), [True, True, False])
