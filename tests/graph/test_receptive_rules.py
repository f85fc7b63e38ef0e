"""Needed inputs of the operators without windows, worked out by hand."""

from typing import Any

import pytest

from coexec.graph.region import Region
from tests.helpers.operators import axes, graph_of, needs, operator, pad, parts, resize


def test_element_wise_inputs_are_broadcast() -> None:
    op = operator("Add", ["x", "z"])
    graph = graph_of([op], x=(2, 3, 4), z=(3, 1), y=(2, 3, 4))
    assert axes(graph) == (0, 1, 2)
    assert needs(graph, {0: (1, 2), 1: (1, 3), 2: (0, 2)}) == {
        "x": "[1:2, 1:3, 0:2]",
        "z": "[1:3, 0:1]",
    }


def test_an_input_read_twice_is_needed_once() -> None:
    graph = graph_of([operator("Concat", ["x", "x"], axis=0)], x=(4, 2), y=(8, 2))
    assert needs(graph, {0: (3, 6)}) == {"x": "[0:4, 0:2]"}
    assert [str(r) for r in parts(graph, {0: (3, 6)})[0].inputs] == ["[3:4, 0:2]", "[0:2, 0:2]"]


def test_clip_bounds_are_scalars() -> None:
    op = operator("Clip", ["x", "wlow", ""])
    graph = graph_of([op], x=(4, 2), wlow=(), y=(4, 2))
    assert parts(graph, {0: (1, 2)})[0].inputs == (Region((1, 0), (2, 2)), Region((), ()), None)


@pytest.mark.parametrize(
    ("op_type", "attributes", "expected"),
    [
        ("GlobalAveragePool", {}, (0, 1)),
        ("InstanceNormalization", {}, (0, 1)),
        ("BatchNormalization", {}, (0, 1, 2, 3)),
        ("BatchNormalization", {"training_mode": 1}, ()),
        ("Softmax", {"axis": 2}, (0, 1)),
        ("Softmax", {}, (0,)),
        ("LpNormalization", {"axis": 1}, (0, 2, 3)),
        ("LayerNormalization", {"axis": -2}, (0, 1)),
        ("LRN", {"size": 3}, (0, 2, 3)),
        ("Dropout", {}, (0, 1, 2, 3)),
        ("Celu", {}, (0, 1, 2, 3)),
        ("RandomNormalLike", {}, ()),
        ("Shape", {}, ()),
        ("LSTM", {}, ()),
        ("If", {}, ()),
    ],
)
def test_axes_of_operators_that_keep_the_shape(
    op_type: str, attributes: dict[str, Any], expected: tuple[int, ...]
) -> None:
    shape = (2, 3, 4, 5)
    output = (2, 3, 1, 1) if op_type.startswith("Global") else shape
    assert axes(graph_of([operator(op_type, ["x"], **attributes)], x=shape, y=output)) == expected


def test_channel_parameters_are_cut_with_the_channels() -> None:
    op = operator("BatchNormalization", ["x", "w1", "w2", "w3", "w4"])
    vectors = dict.fromkeys(("w1", "w2", "w3", "w4"), (6,))
    graph = graph_of([op], x=(1, 6, 4, 4), y=(1, 6, 4, 4), **vectors)
    assert [str(r) for r in parts(graph, {1: (2, 4)})[0].inputs[1:]] == ["[2:4]"] * 4


def test_reductions_are_whole_along_their_axes() -> None:
    kept = graph_of([operator("ReduceMean", ["x"], axes=(1,))], x=(2, 3, 4), y=(2, 1, 4))
    assert needs(kept, {2: (1, 2)}) == {"x": "[0:2, 0:3, 1:2]"}
    gone = operator("ReduceSum", ["x", "waxes"], constants={1: (-2,)}, keepdims=0)
    graph = graph_of([gone], x=(2, 3, 4), waxes=(1,), y=(2, 4))
    assert needs(graph, {1: (1, 2)}) == {"x": "[0:2, 0:3, 1:2]"}
    late = graph_of([operator("ReduceSum", ["x", "a"], keepdims=0)], x=(2, 3), a=(1,), y=(2,))
    assert axes(late) == ()


def test_a_cut_concatenation_does_not_read_inputs_outside() -> None:
    op = operator("Concat", ["a", "b", "c"], axis=1)
    graph = graph_of([op], a=(1, 2, 4), b=(1, 3, 4), c=(1, 4, 4), y=(1, 9, 4))
    assert needs(graph, {1: (3, 5), 2: (0, 1)}) == {
        "a": "[0:0, 0:0, 0:0]",
        "b": "[0:1, 1:3, 0:1]",
        "c": "[0:0, 0:0, 0:0]",
    }


def test_slices_with_positive_and_negative_steps() -> None:
    constants = {1: (1, -1), 2: (8, -100), 3: (0, 1), 4: (3, -2)}
    op = operator("Slice", ["x", "w1", "w2", "w3", "w4"], constants=constants)
    graph = graph_of([op], x=(8, 8), y=(3, 4), **dict.fromkeys(("w1", "w2", "w3", "w4"), (2,)))
    assert needs(graph, {0: (1, 3), 1: (1, 3)}) == {"x": "[4:8, 3:6]"}
    late = graph_of([operator("Slice", ["x", "a", "b"])], x=(8,), a=(1,), b=(1,), y=(4,))
    assert axes(late) == ()


def test_constant_padding_is_cut_like_a_window() -> None:
    graph = pad("constant", (2, 1))
    assert needs(graph, {1: (4, 6)}) == {"x": "[0:2, 2:4]"}
    assert parts(graph, {1: (1, 5)})[0].constants == {1: (0, 1, 0, 0)}
    assert needs(pad("constant", (-2, 1)), {1: (0, 3)}) == {"x": "[0:2, 2:5]"}


def test_reflected_padding_reads_what_it_mirrors() -> None:
    graph = pad("reflect", (3, 3))
    assert axes(graph) == (0, 1)
    assert needs(graph, {1: (0, 2)}) == {"x": "[0:2, 0:4]"}
    assert needs(graph, {1: (5, 7)}) == {"x": "[0:2, 2:4]"}
    assert axes(pad("wrap", (1, 0))) == (0,)


def test_resizing_by_a_whole_number_is_cut_at_rows() -> None:
    nearest = resize(
        (1.0, 1.0, 3.0),
        (1, 4, 18),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    assert needs(nearest, {2: (4, 8)}) == {"x": "[0:1, 0:4, 1:3]"}
    assert str(parts(nearest, {2: (4, 8)})[0].computes) == "[0:1, 0:4, 3:9]"
    linear = resize((1.0, 1.0, 2.0), (1, 4, 12), mode="linear")
    assert needs(linear, {2: (4, 8)}) == {"x": "[0:1, 0:4, 1:5]"}


@pytest.mark.parametrize(
    ("scale", "attributes", "expected"),
    [
        (2.0, {"mode": "cubic"}, (1,)),
        (2.0, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, (1,)),
        (2.0, {"coordinate_transformation_mode": "tf_crop_and_resize"}, ()),
        (2.0, {"antialias": 1}, ()),
        (1.5, {}, (1,)),
        (0.5, {}, (1,)),
    ],
)
def test_other_resizing_is_whole_along_scaled_axes(
    scale: float, attributes: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert axes(resize((1.0, 1.0, scale), (1, 4, int(6 * scale)), **attributes)) == expected


def test_transposing_turns_the_axes() -> None:
    graph = graph_of([operator("Transpose", ["x"], perm=(2, 0, 1))], x=(2, 3, 4), y=(4, 2, 3))
    assert needs(graph, {0: (1, 2), 2: (0, 2)}) == {"x": "[0:2, 0:2, 1:2]"}


@pytest.mark.parametrize(
    ("source", "target", "expected", "ranges", "needed"),
    [
        ((1, 6, 5, 4), (1, 2, 3, 5, 4), (1, 3, 4), {1: (1, 2), 3: (0, 2)}, "[0:1, 3:6, 0:2, 0:4]"),
        ((1, 2, 3, 5), (1, 6, 5), (2,), {2: (1, 3)}, "[0:1, 0:2, 0:3, 1:3]"),
        ((1, 8, 1, 1), (1, 8), (1,), {1: (2, 4)}, "[0:1, 2:4, 0:1, 0:1]"),
        ((1, 4, 14), (1, 4, 7, 2), (1, 2), {2: (1, 3)}, "[0:1, 0:4, 2:6]"),
        ((3, 4), (4, 3), (), {}, "[0:3, 0:4]"),
    ],
)
def test_reshaping_is_cut_along_axes_that_survive(
    source: tuple[int, ...],
    target: tuple[int, ...],
    expected: tuple[int, ...],
    ranges: dict[int, tuple[int, int]],
    needed: str,
) -> None:
    op = operator("Reshape", ["x", "w"], constants={1: target})
    graph = graph_of([op], x=source, w=(len(target),), y=target)
    assert axes(graph) == expected
    assert needs(graph, ranges) == {"x": needed}


def test_squeeze_without_axes_is_whole() -> None:
    assert axes(graph_of([operator("Squeeze", ["x"])], x=(4, 1, 3), y=(4, 3))) == ()
    assert axes(graph_of([operator("Squeeze", ["x"], axes=(1,))], x=(4, 1, 3), y=(4, 3))) == (0, 1)


def test_matrix_products_are_cut_by_rows_and_columns() -> None:
    op = operator("Gemm", ["x", "w", "wb"], transB=1)
    graph = graph_of([op], x=(4, 5), w=(6, 5), wb=(6,), y=(4, 6))
    assert needs(graph, {0: (1, 2), 1: (3, 6)}) == {"x": "[1:2, 0:5]"}
    assert [str(r) for r in parts(graph, {1: (3, 6)})[0].inputs[1:]] == ["[3:6, 0:5]", "[3:6]"]
    batched = graph_of(
        [operator("MatMul", ["x", "z"])], x=(2, 3, 4, 5), z=(3, 5, 6), y=(2, 3, 4, 6)
    )
    assert axes(batched) == (0, 1, 2, 3)
    assert needs(batched, {0: (0, 1), 1: (1, 2), 3: (2, 4)}) == {
        "x": "[0:1, 1:2, 0:4, 0:5]",
        "z": "[1:2, 0:5, 2:4]",
    }


def test_looking_up_rows() -> None:
    graph = graph_of([operator("Gather", ["w", "x"])], w=(9, 6), x=(3, 4), y=(3, 4, 6))
    assert needs(graph, {0: (1, 2), 2: (0, 2)}) == {"x": "[1:2, 0:4]"}
    assert str(parts(graph, {2: (0, 2)})[0].inputs[0]) == "[0:9, 0:2]"
