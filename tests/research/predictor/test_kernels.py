"""What predictors are told of kernels is what the generators make."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import KernelLaunch
from coexec.engines.kernels.building import build
from coexec.research.predictor.kernels import workload
from coexec.research.predictor.workloads import Workload, together
from tests.helpers.gpu_networks import module_of
from tests.helpers.onnx_models import model_of
from tests.helpers.operator_cases import Case

CPU = Architecture("cpu", 16, registers=32)
GPU = Architecture("nvidia", 4, compute_units=16, max_group=1024, local_bytes=49152)
PHONE = Architecture("mobile", 4, compute_units=2)


def told(
    inputs: int,
    outputs: int,
    size: int,
    edge: int,
    stride: int = 1,
    arch: Architecture = CPU,
    group: int = 1,
) -> tuple[Workload, tuple[KernelLaunch, ...]]:
    """Of a convolution with padding: its workload and its launches."""
    weights = np.zeros((outputs, inputs // group, edge, edge), np.float32)
    attributes: dict[str, Any] = {
        "pads": [edge // 2] * 4,
        "strides": [stride] * 2,
        "group": group,
    }
    model = model_of(Case("Conv", ((1, inputs, size, size + 3), weights), attributes))
    graph = model.graph
    launches = build(module_of(model), arch).launches
    return workload(graph.tasks[0].operators, graph.tensors, arch), launches


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "edge", "stride"),
    list(product((3, 16, 72), (16, 80, 200), (7, 20, 56), (1, 3, 5), (1, 2))),
)
def test_the_workload_is_of_the_kernels_that_are_launched(
    inputs: int, outputs: int, size: int, edge: int, stride: int
) -> None:
    found, launches = told(inputs, outputs, size, edge, stride)
    names = {launch.name for launch in launches}
    assert found.kind.endswith("winograd") == ("conv_winograd" in names)
    assert found.kind.startswith("phases") == ("conv_phases" in names)
    if not found.kind.endswith("winograd"):
        assert found.terms["launches"] == len(launches)
        assert (found.terms["copied"] > 0) == ("pad_copy" in names)


def test_the_layers_of_a_depthwise_convolution_are_a_kind() -> None:
    found, launches = told(32, 32, 20, 3, group=32)
    assert found.kind == "depthwise" and {x.name for x in launches} == {"conv_depthwise"}
    # Rows at the borders miss a row of the filter, columns there are computed alone.
    assert found.terms["alone"] == 2 * (20 * 3 - 2) * 3 * 2


def test_a_group_of_blocks_reads_the_pixels_under_its_taps() -> None:
    halved, _ = told(32, 16, 20, 1, stride=2)
    assert halved.terms["lines"] == 10 * 12 * 2  # of 23 columns each other one, two blocks deep
    padded, _ = told(32, 16, 20, 9)
    assert padded.terms["lines"] == (20 * 9 - 2 * (4 + 3 + 2 + 1)) * (23 + 8) * 2
    wider, _ = told(32, 16 * 16, 20, 9)
    assert wider.terms["lines"] >= 4 * padded.terms["lines"]  # at most four blocks in a group


def test_images_that_lie_row_major_are_a_kind_whatever_the_filter() -> None:
    kinds = [told(inputs, 16, 20, edge)[0].kind for inputs in (3, 32) for edge in (1, 9)]
    assert kinds == ["few channels", "few channels", "pointwise", "direct"]


def test_blocks_of_channels_take_equally_long_filled_or_not() -> None:
    part, whole = (told(16, n, 12, 9)[0].terms for n in (17, 32))
    steps = {"launches", "cycles", "loops", "tiles"}
    assert {n: part[n] for n in steps} == {n: whole[n] for n in steps}


def test_a_large_image_is_read_once_by_filters_of_one_tap() -> None:
    """Its bands read all weights, each of them."""
    small, large = (told(160, 192, size, 1)[0].terms for size in (20, 80))
    assert small["again"] > 4 * 160 * 20 * 23  # each group reads it
    assert large["again"] == 4 * 160 * 80 * 83
    assert small["streamed"] == 4 * 160 * 192 and large["streamed"] > 10 * small["streamed"]


def test_winograd_tells_tiles_that_read_padding_from_the_others() -> None:
    """Four by five tiles of 5 x 5 pixels; a tile reads a pixel around itself, and each of its 7 x 7
    positions is made of the seven of its column and of its row."""
    found, _ = told(64, 64, 20, 3)
    assert found.kind == "winograd"
    vectors = 49 * (7 + 7) * 64 // 16
    assert found.terms["inside"] == 2 * 3 * vectors
    assert found.terms["inside"] + found.terms["checked"] == 4 * 5 * vectors


def test_no_term_may_have_the_name_of_another() -> None:
    assert together({"a": 1.0}, {"b": 2.0}) == {"a": 1.0, "b": 2.0}
    with pytest.raises(ValueError, match="named twice: a, b"):
        together({"a": 1.0, "b": 1.0}, {"b": 2.0, "a": 0.0})


@pytest.mark.parametrize("arch", [GPU, PHONE], ids=["nvidia", "mobile"])
@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "edge"),
    list(product((3, 16, 72, 512), (16, 80, 200), (7, 20, 56), (1, 3, 5))),
)
def test_gpus_take_the_groups_that_are_launched_in_turns(
    inputs: int, outputs: int, size: int, edge: int, arch: Architecture
) -> None:
    """Groups of 128 where the rule for work groups may choose."""
    found, (first, *others) = told(inputs, outputs, size, edge, arch=arch)
    terms = found.terms
    items = math.prod(first.grid)
    groups = items // math.prod(first.group) if first.group else math.ceil(items / 128)
    assert terms["launches"] == 1 + len(others)
    assert terms["turns"] == terms["alone"] * math.ceil(groups / arch.compute_units)
    assert terms["shares"] * arch.compute_units == pytest.approx(terms["alone"] * groups)


def test_a_gpu_shares_out_the_inner_axis_of_what_has_few_tiles() -> None:
    few, launches = told(512, 16, 7, 3, arch=GPU)
    assert [x.name for x in launches] == ["conv_tiled", "conv_sum"]
    (_, parts, _), (_, _, splits) = launches[0].group or (0, 0, 0), launches[0].grid
    assert few.terms["alone"] == math.ceil(512 * 9 / (16 * parts * splits))
    assert few.kind.endswith(f"{parts} parts") and parts > 1 and splits > 1


def test_a_gpu_computes_filters_of_any_size_by_tiles_alike() -> None:
    assert len({told(64, 64, 56, edge, arch=GPU)[0].kind for edge in (1, 3, 5, 7)}) == 1
    assert told(64, 64, 56, 3, arch=PHONE)[0].kind == "direct"
