"""What MLAS's kernels do, counted by hand."""

from typing import Any

import numpy as np
import pytest

from coexec.research.predictor.mlas import workload
from coexec.research.predictor.workloads import Workload
from tests.helpers.onnx_models import model_of
from tests.helpers.operator_cases import Case

BLOCK = 16


def described(
    inputs: int,
    outputs: int,
    size: tuple[int, int],
    kernel: tuple[int, int] = (1, 1),
    compiled: str = "nchwc.Conv",
    block: int = BLOCK,
    **attributes: Any,
) -> Workload:
    groups = attributes.get("group", 1)
    weights = np.zeros((outputs, inputs // groups, *kernel), np.float32)
    case = Case("Conv", ((1, inputs, *size), weights), attributes)
    graph = model_of(case).graph
    return workload(graph.tasks[0].operators, graph.tensors, compiled, block)


@pytest.mark.parametrize(
    ("channels", "kernel", "words", "kind"),
    [
        ((64, 64), (1, 1), {}, "pointwise"),
        ((64, 64), (3, 3), {"pads": [1] * 4}, "direct"),
        ((64, 64), (1, 1), {"pads": [1] * 4}, "direct"),
        ((3, 64), (3, 3), {}, "few channels"),
        ((32, 32), (3, 3), {"group": 32}, "depthwise"),
        ((64, 64), (3, 3), {"group": 2}, "direct"),
        ((32, 32), (3, 3), {"group": 8, "compiled": "Conv"}, "Conv"),
        ((32, 32), (3, 3), {"group": 8, "compiled": ""}, "Conv"),
        ((64, 64), (3, 3), {"compiled": "Conv"}, "Conv"),
    ],
)
def test_kinds(
    channels: tuple[int, int], kernel: tuple[int, int], words: dict[str, Any], kind: str
) -> None:
    assert described(*channels, (12, 12), kernel, **words).kind == kind


def test_channels_count_in_whole_blocks_and_four_blocks_go_together() -> None:
    part, whole = described(64, 49, (6, 6)), described(64, 64, (6, 6))
    work = {"products", "waits", "tiles", "weights", "summed"}
    assert {n: part.terms[n] for n in work} == {n: whole.terms[n] for n in work}
    assert described(64, 65, (6, 6)).terms["tiles"] == 2 * whole.terms["tiles"]


def test_products_of_whole_tiles_are_the_multiply_accumulates() -> None:
    """Two vectors of 16 products a cycle; tiles of six columns and four blocks never wait."""
    terms = described(64, 64, (6, 12)).terms
    assert terms["products"] == 64 * 64 * 6 * 12 / 16 / 2
    assert terms["waits"] == 0 and terms["tiles"] == 12


def test_sixteen_registers_hold_tiles_of_three_columns() -> None:
    """Blocks of 8 channels: the same multiply-accumulates in twice as many vectors."""
    terms = described(64, 64, (6, 12), block=8).terms
    assert terms["products"] == 64 * 64 * 6 * 12 / 8 / 2
    assert terms["waits"] == 0 and terms["tiles"] == 2 * 6 * 12 / 3  # two sets of four blocks
    assert described(64, 64, (1, 11), block=8).terms["tiles"] == 2 * 4  # 3 + 3 + 3 + 2


def test_columns_that_read_padding_are_tiles_of_their_own() -> None:
    """A row of 14 columns: one at each border, with two of three taps, and twelve in two tiles."""
    terms = described(16, 16, (1, 14), (1, 3), pads=[0, 1, 0, 1]).terms
    assert terms["tiles"] == 4
    assert terms["taps"] == 4 * 3  # those in the padding are looked at, too
    assert terms["products"] == 16 * (12 * 3 + 2 * 2) / 2
    # Of 48 steps of a tile, the last 448 / 13 overlap with the next tile; those alone all do.
    assert terms["waits"] == pytest.approx(16 * 2 * 3 * (1 - 448 / 13 / 48))


@pytest.mark.parametrize(
    ("channels", "words", "loops"),
    [
        ((32, 80), {}, 2 * 2),  # blocks of input channels, sets of filters
        ((3, 80), {}, 3 * 2),  # each input channel alone
        ((32, 32), {"group": 32}, 2),  # blocks
    ],
)
def test_taps_count_for_each_tile_of_a_row(
    channels: tuple[int, int], words: dict[str, Any], loops: int
) -> None:
    """Of four rows, each in two tiles of six columns, two read one row of padding."""
    terms = described(*channels, (4, 14), (3, 3), pads=[1, 0, 1, 0], **words).terms
    assert terms["taps"] == loops * (4 * 3 - 2) * 2 * 3


def test_weights_that_never_meet_the_image_are_not_read() -> None:
    whole = described(16, 16, (8, 8), (3, 3), pads=[1] * 4).terms["weights"]
    corner = described(16, 16, (2, 2), (3, 3), pads=[1] * 4, strides=[2, 2]).terms["weights"]
    assert corner / whole == pytest.approx(4 / 9)


def test_each_block_of_input_channels_adds_to_the_output() -> None:
    one, four = (described(n, 16, (9, 9), (3, 3)).terms["summed"] for n in (16, 64))
    assert four == 4 * one == 4 * 7 * 7 * 16 * 4


def test_changes_of_layout_count_where_they_are_known() -> None:
    names = "nchwc.ReorderInput nchwc.Conv nchwc.ReorderOutput"
    terms = described(64, 32, (8, 8), compiled=names).terms
    assert (terms["entered"], terms["left"], terms["nodes"]) == (64 * 64 * 4, 32 * 64 * 4, 2)
    assert described(64, 32, (8, 8), compiled="").terms["entered"] == 0
