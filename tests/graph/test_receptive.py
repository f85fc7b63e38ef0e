"""Needed inputs of windows and of whole tasks, worked out by hand; what cannot be cut."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coexec.errors import PlanError
from coexec.graph.graph import Graph
from coexec.graph.receptive import needed_inputs, operator_regions
from coexec.graph.region import Region
from tests.helpers.operators import (
    axes,
    conv,
    cut,
    fused,
    graph_of,
    needs,
    operator,
    pad,
    parts,
    pool,
    resize,
)

quick = settings(deadline=None, derandomize=True, database=None, max_examples=300)


def test_convolution_rows_keep_padding_at_true_borders_only() -> None:
    graph = conv((1, 6, 8, 8), pads=(1, 1, 1, 1))
    assert axes(graph) == (1, 2, 3)
    assert needs(graph, {2: (2, 4)}) == {"x": "[0:1, 0:4, 1:5, 0:8]"}
    assert needs(graph, {2: (0, 4)}) == {"x": "[0:1, 0:4, 0:5, 0:8]"}
    assert [parts(graph, {2: rows})[0].pads for rows in ((0, 4), (2, 4), (4, 8))] == [
        (1, 1, 0, 1),
        (0, 1, 0, 1),
        (0, 1, 1, 1),
    ]
    assert needs(graph, {2: (6, 8), 3: (0, 1)}) == {"x": "[0:1, 0:4, 5:8, 0:2]"}


def test_convolution_with_stride_and_dilation() -> None:
    graph = conv((1, 6, 3, 3), strides=(2, 2), dilations=(2, 2), pads=(1, 1, 1, 1))
    assert needs(graph, {2: (1, 2)}) == {"x": "[0:1, 0:4, 1:6, 0:8]"}
    assert needs(graph, {2: (2, 3)}) == {"x": "[0:1, 0:4, 3:8, 0:8]"}


def test_convolution_with_automatic_padding() -> None:
    """Two rows of padding for kernel 4: one each, or the odd one below or above."""
    upper = conv((1, 6, 8, 8), (6, 4, 4, 4), auto_pad="SAME_UPPER")
    lower = conv((1, 6, 8, 8), (6, 4, 4, 4), auto_pad="SAME_LOWER")
    valid = conv((1, 6, 5, 5), (6, 4, 4, 4), auto_pad="VALID")
    assert needs(upper, {2: (0, 1)}) == {"x": "[0:1, 0:4, 0:3, 0:8]"}
    assert needs(lower, {2: (0, 1)}) == {"x": "[0:1, 0:4, 0:2, 0:8]"}
    assert needs(valid, {2: (0, 1)}) == {"x": "[0:1, 0:4, 0:4, 0:8]"}
    part = parts(upper, {2: (0, 1)})[0]
    assert (part.pads, part.attributes["auto_pad"]) == ((1, 1, 0, 2), None)


def test_convolution_output_channels_cut_weight_and_bias() -> None:
    graph = conv((1, 6, 8, 8), pads=(1, 1, 1, 1))
    assert needs(graph, {1: (2, 5)}) == {"x": "[0:1, 0:4, 0:8, 0:8]"}
    part = parts(graph, {1: (2, 5)})[0]
    assert [str(r) for r in part.inputs[1:]] == ["[2:5, 0:4, 0:3, 0:3]", "[2:5]"]
    assert part.pads == (1, 1, 1, 1) and "group" not in part.attributes


@pytest.mark.parametrize(
    ("channels", "read", "weight", "group"),
    [
        ((0, 3), "0:2", "0:3", 1),  # a group
        ((3, 9), "2:6", "3:9", 2),  # two groups
        ((4, 5), "2:4", "4:5", 1),  # inside a group
        ((2, 4), "0:4", "0:6", 2),  # across a border: both groups, cropped
    ],
)
def test_grouped_convolution_reads_the_channels_of_its_groups(
    channels: tuple[int, int], read: str, weight: str, group: int
) -> None:
    graph = conv((1, 9, 6, 6), (9, 2, 3, 3), group=3)
    assert needs(graph, {1: channels}) == {"x": f"[0:1, {read}, 0:8, 0:8]"}
    part = parts(graph, {1: channels})[0]
    assert [str(r) for r in part.inputs[1:]] == [f"[{weight}, 0:2, 0:3, 0:3]", f"[{weight}]"]
    assert part.attributes["group"] == group
    assert str(part.computes) == f"[0:1, {weight}, 0:6, 0:6]"


def test_depthwise_convolution_reads_the_same_channels() -> None:
    graph = conv((1, 5, 6, 6), (5, 1, 3, 3), group=5)
    assert needs(graph, {1: (1, 4), 2: (0, 2)}) == {"x": "[0:1, 1:4, 0:4, 0:8]"}


def test_rows_of_padding_alone_still_read_a_row_and_are_cropped() -> None:
    """A 1 x 1 convolution with padding: the first row is bias only."""
    graph = conv((1, 6, 10, 10), (6, 4, 1, 1), pads=(1, 1, 1, 1))
    assert needs(graph, {2: (0, 1)}) == {"x": "[0:1, 0:4, 0:1, 0:8]"}
    part = parts(graph, {2: (0, 1)})[0]
    assert part.computes.contains(part.output)


def test_convolution_whose_shape_does_not_follow_is_cut_by_channels_only() -> None:
    graph = conv((1, 6, 7, 7), pads=(1, 1, 1, 1))
    assert axes(graph) == (1,)
    assert parts(graph, {1: (0, 1)})[0].attributes == {}


def test_transposed_convolution() -> None:
    """Stride 2, kernel 4, padding 1: row i adds to rows 2 i - 1 to 2 i + 2."""
    op = operator("ConvTranspose", ["x", "w", "wb"], strides=(2, 2), pads=(1, 1, 1, 1))
    graph = graph_of([op], x=(1, 4, 8, 8), w=(4, 6, 4, 4), wb=(6,), y=(1, 6, 16, 16))
    assert axes(graph) == (1, 2, 3)
    assert needs(graph, {2: (4, 6)}) == {"x": "[0:1, 0:4, 1:4, 0:8]"}
    part = parts(graph, {1: (2, 5)})[0]
    assert [str(r) for r in part.inputs[1:]] == ["[0:4, 2:5, 0:4, 0:4]", "[2:5]"]


def test_pools_cut_all_axes() -> None:
    graph = pool("MaxPool", 4, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 0, 0))
    assert axes(graph) == (0, 1, 2, 3)
    assert needs(graph, {0: (1, 2), 1: (0, 2), 2: (1, 3)}) == {"x": "[1:2, 0:2, 1:6, 0:8]"}


def test_the_last_rows_of_a_rounded_up_pool_keep_their_end() -> None:
    graph = pool("AveragePool", 4, kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)
    assert needs(graph, {2: (1, 3)}) == {"x": "[0:2, 0:3, 2:7, 0:8]"}
    assert needs(graph, {2: (3, 4)}) == {"x": "[0:2, 0:3, 6:8, 0:8]"}
    assert "ceil_mode" not in parts(graph, {2: (3, 4)})[0].attributes


@st.composite
def windows(draw: st.DrawFn) -> tuple[Graph, int, int]:
    """A convolution along one axis, and a part [a, b) of its output."""
    size, kernel, stride = (draw(st.integers(1, most)) for most in (12, 4, 4))
    begin, end = (draw(st.integers(0, kernel)) for _ in range(2))
    rows = (size + begin + end - kernel) // stride + 1
    assume(size + begin + end >= kernel and rows > 1)
    a = draw(st.integers(0, rows - 1))
    b = draw(st.integers(a + 1, rows if a else rows - 1))
    op = operator("Conv", ["x", "w"], strides=(stride,), pads=(begin, end))
    return graph_of([op], x=(1, 1, size), w=(1, 1, kernel), y=(1, 1, rows)), a, b


@quick
@given(windows())
def test_windows_read_what_they_touch(case: tuple[Graph, int, int]) -> None:
    graph, a, b = case
    op, size, kernel = graph.tasks[0].operators[0], *(graph.tensors[n].shape[2] for n in "xw")
    (stride,), (begin, end) = op.ints("strides", ()), op.ints("pads", ())
    touched = {o * stride - begin + k for o in range(a, b) for k in range(kernel)}
    inside = touched & set(range(size))
    part = parts(graph, {2: (a, b)})[0]
    read, pads = part.inputs[0], part.pads
    assert read is not None and pads is not None
    assert pads[0] <= begin or not inside
    assert pads[1] <= end or not inside
    assert inside <= set(range(read.start[2], read.stop[2]))
    if inside and kernel >= stride:  # else the box holds rows that the window jumps over
        assert (read.start[2], read.stop[2]) == (min(inside), max(inside) + 1)
        assert pads == (min(inside) - min(touched), max(touched) - max(inside))
    assert (read.shape[2] + sum(pads) - kernel) // stride + 1 == part.computes.shape[2]
    assert part.computes.contains(part.output)


def test_a_fused_task_is_traced_back_to_each_input() -> None:
    graph = fused()
    assert axes(graph) == (1, 2, 3)
    assert needs(graph, {1: (0, 2), 2: (2, 4)}) == {
        "x": "[0:1, 0:4, 1:5, 0:8]",
        "z": "[0:1, 0:2, 2:4, 0:8]",
    }
    found = parts(graph, {2: (2, 4)})
    assert [str(part.output) for part in found] == ["[0:1, 0:6, 2:4, 0:8]"] * 3


def test_a_pad_in_front_of_a_pool_adds_to_its_receptive_field() -> None:
    operators = [
        operator("Pad", ["x", "w"], ["a"], constants={1: (0, 0, 1, 1, 0, 0, 1, 1)}),
        operator("MaxPool", ["a"], kernel_shape=(3, 3), strides=(2, 2)),
    ]
    graph = graph_of(operators, x=(1, 4, 9, 9), w=(8,), a=(1, 4, 11, 11), y=(1, 4, 5, 5))
    assert axes(graph) == (1, 2, 3)
    assert needs(graph, {1: (1, 3), 2: (1, 3)}) == {"x": "[0:1, 1:3, 1:6, 0:9]"}


def test_operators_that_turn_axes_are_not_cut_through() -> None:
    operators = [
        operator("Relu", ["x"], ["a"]),
        operator("Transpose", ["a"], perm=(1, 0)),
    ]
    assert axes(graph_of(operators, x=(3, 4), a=(3, 4), y=(4, 3))) == ()


def test_more_than_one_output_is_whole() -> None:
    op = operator("MaxPool", ["x"], ["y", "indices"], kernel_shape=(2,))
    shapes = {"x": (1, 2, 8), "y": (1, 2, 7)}
    assert axes(graph_of([op], indices=(1, 2, 7), **shapes)) == ()
    assert axes(graph_of([op], **shapes)) == (1, 2)  # nobody reads the indices
    only = operator("MaxPool", ["x"], ["", "y"], kernel_shape=(2,))
    assert axes(graph_of([only], **shapes)) == ()


def test_other_domains_are_whole() -> None:
    graph = graph_of([operator("Relu", ["x"], domain="com.example")], x=(4,), y=(4,))
    assert axes(graph) == ()


def test_the_whole_output_needs_whole_inputs_unchanged() -> None:
    graph = conv((1, 6, 4, 4), (6, 4, 1, 1), strides=(2, 2))
    assert needs(graph, {}) == {"x": "[0:1, 0:4, 0:8, 0:8]"}
    part = parts(graph, {})[0]
    assert (part.attributes, part.constants, part.pads) == ({}, {}, None)
    assert needs(graph, {2: (0, 4), 3: (0, 3)}) == {"x": "[0:1, 0:4, 0:7, 0:5]"}


def test_nothing_needs_nothing() -> None:
    graph = fused()
    assert needs(graph, {1: (2, 2)}) == dict.fromkeys(("x", "z"), "[0:0, 0:0, 0:0, 0:0]")
    with pytest.raises(PlanError, match="empty"):
        parts(graph, {1: (2, 2)})


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        (
            {2: (0, 9)},
            r"cannot compute \[0:1, 0:6, 0:9, 0:8\] .* outside of \[0:1, 0:6, 0:8, 0:8\]",
        ),
        ({2: (-1, 2)}, "outside"),
    ],
)
def test_regions_outside_are_refused(ranges: dict[int, tuple[int, int]], words: str) -> None:
    graph = fused()
    with pytest.raises(PlanError, match=words):
        needed_inputs(graph, graph.tasks[0], cut(graph, ranges))


def test_a_region_of_another_rank_is_refused() -> None:
    graph = fused()
    with pytest.raises(PlanError, match="outside"):
        operator_regions(graph, graph.tasks[0], Region((0,), (1,)))


def test_cutting_a_whole_axis_names_those_that_can_be_cut() -> None:
    graph = graph_of([operator("Softmax", ["x"], axis=1)], x=(4, 6), y=(4, 6))
    words = r"task 'task' \(Softmax\) .* axis 1 is cut, but only axes 0 can .* whole range 0:6"
    with pytest.raises(PlanError, match=words):
        needed_inputs(graph, graph.tasks[0], cut(graph, {1: (0, 3)}))
    lstm = graph_of([operator("LSTM", ["x"])], x=(4, 6), y=(4, 6))
    with pytest.raises(PlanError, match="no axis can be"):
        needed_inputs(lstm, lstm.tasks[0], cut(lstm, {0: (0, 3)}))


@quick
@given(st.data())
def test_a_larger_region_needs_no_less(data: st.DataObject) -> None:
    graph = data.draw(st.sampled_from(_GRAPHS))
    task = graph.tasks[0]
    outer = inner = graph.output_of(task).whole
    for axis in axes(graph):
        a, b, c, d = sorted(data.draw(st.integers(0, outer.stop[axis])) for _ in range(4))
        if b < c:
            outer, inner = outer.with_axis(axis, a, d), inner.with_axis(axis, b, c)
    larger, smaller = needed_inputs(graph, task, outer), needed_inputs(graph, task, inner)
    for name, region in smaller.items():
        assert graph.tensors[name].whole.contains(larger[name])
        assert larger[name].contains(region)
    for part in operator_regions(graph, task, inner):
        assert part.computes.contains(part.output)


_GRAPHS = [
    fused(),
    conv((1, 9, 6, 6), (9, 2, 3, 3), group=3),
    conv((1, 6, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1)),
    conv((1, 6, 10, 10), (6, 4, 1, 1), pads=(1, 1, 1, 1)),
    pool("AveragePool", 4, kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
    pad("constant", (3, 3)),
    pad("reflect", (3, 2)),
    resize((1.0, 1.0, 3.0), (1, 4, 18), nearest_mode="floor"),
    resize((1.0, 1.0, 2.0), (1, 4, 12), mode="linear"),
    graph_of([operator("Concat", ["a", "b"], axis=0)], a=(3, 2), b=(4, 2), y=(7, 2)),
]
