"""Reasons why OpenVINO is not given an operator. None of it needs OpenVINO."""

from typing import Any

import pytest

from coexec.engines.openvino.support import why_not
from coexec.graph.graph import Operator, Tensor


def reason(
    op_type: str,
    shapes: list[tuple[int, ...]],
    made: tuple[int, ...] = (2, 3),
    dtypes: tuple[str, str] = ("float32", "float32"),
    *,
    version: int = 17,
    constants: dict[int, Any] | None = None,
    outputs: int = 1,
    **attributes: Any,
) -> str | None:
    """Of one operator that reads tensors of ``shapes``; those in ``constants`` are weights."""
    fixed = constants or {}
    tensors = {
        f"x{i}": Tensor(f"x{i}", shape, "int64" if i in fixed else dtypes[0], i in fixed)
        for i, shape in enumerate(shapes)
    }
    results = [f"y{i}" for i in range(outputs)]
    inputs = tuple(tensors)
    tensors |= {name: Tensor(name, made, dtypes[1]) for name in results}
    op = Operator(op_type, inputs, tuple(results), attributes, fixed, "", version)
    return why_not(op, tensors)


IMAGE = (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (reason("NonZero", [(2, 3)]), "not known to compute NonZero"),
        (
            reason(
                "QLinearConv",
                [IMAGE, (), (), (8, 3, 3, 3), (8,), (8,), (), ()],
                constants={2: 0, 5: 0, 7: 0},
                dtypes=("uint8", "uint8"),
            ),
            "a scale for each channel",
        ),
        (reason("Relu", [(2, 3)], dtypes=("float64", "float64")), "compute in float32"),
        (reason("Add", [(2, 3)] * 2, dtypes=("int64", "int64")), "in 32 bits with sign"),
        (reason("Sub", [(2, 3)] * 2, dtypes=("uint8", "uint8")), "uint8: not known"),
        (reason("ReduceSum", [(2, 3)], dtypes=("int32", "int32")), "int32: not known"),
        (reason("Identity", [(2,)], dtypes=("bfloat16", "bfloat16")), "bfloat16"),
        (reason("Identity", [(2,)], dtypes=("str", "str")), "str"),
        (reason("Concat", [(0, 3), (2, 3)]), "empty tensor, 'x0'"),
        (reason("Softmax", [(2, 3, 4)], version=11, axis=1), "opset 11 over several axes"),
        (reason("Pad", [(2, 3)], mode="wrap"), "mode=wrap"),
        (reason("Pad", [(2, 3), (4,), ()], constants={1: (0, 0, 1, 1)}), "is computed"),
        (reason("Resize", [IMAGE], antialias=1), "antialias"),
        (reason("Resize", [IMAGE], keep_aspect_ratio_policy="not_larger"), "keep_aspect"),
        (
            reason(
                "Upsample", [(1, 1, 2, 2)], (1, 1, 3, 3), version=7, scales=(1.0, 1.0, 1.5, 1.6)
            ),
            "whole sizes",
        ),
        (reason("Conv", [(1, 1, 8, 6), (1, 1, 1, 1)], pads=(1, 1, 0, 2)), "uneven border"),
        (reason("HardSigmoid", [(2, 3)], beta=0.0), "beta=0"),
        (reason("TopK", [(2, 3)], outputs=2), "not known to compute TopK"),
        (reason("MaxPool", [IMAGE], outputs=2, kernel_shape=(2, 2)), "more than one output"),
        (reason("PRelu", [(2, 3, 4, 3), (3,)]), "channels"),
        (reason("Mod", [(2, 3)] * 2, fmod=1), "not known to compute Mod"),
        (reason("Clip", [(2, 3)], dtypes=("float16", "float16")), "one limit"),
        (reason("BatchNormalization", [IMAGE], training_mode=1), "training"),
        (reason("Less", [(2, 3)] * 2, dtypes=("int32", "bool")), "int32: not known"),
        (reason("LayerNormalization", [(2, 3), (3,)], outputs=3), "more than one output"),
        (reason("ConvTranspose", [IMAGE, (3, 1, 1, 1)], output_shape=(9, 9)), "output_shape"),
        (reason("AveragePool", [IMAGE], kernel_shape=(2, 2), ceil_mode=1), "ceil_mode=1"),
        (reason("Gather", [(5, 3), (2,)]), "indices that are computed"),
        (reason("LSTM", [(1, 2, 3), (1, 8, 3), (1, 8, 2)]), "not known to compute LSTM"),
        (reason("SpaceToDepth", [IMAGE], mode="CRD"), "mode=CRD"),
        (reason("QuantizeLinear", [(2, 3), (), ()], constants={1: (0.1,)}), "is computed"),
    ],
)
def test_what_it_would_compute_otherwise_is_refused(found: str | None, expected: str) -> None:
    assert found is not None and found.startswith("OpenVINO") and expected in found
    assert "\n" not in found


def test_a_zero_point_that_is_constant_or_absent_is_accepted() -> None:
    assert reason("QuantizeLinear", [(2, 3), (), ()], constants={1: (0.1,), 2: (3,)}) is None
    assert reason("QuantizeLinear", [(2, 3), ()]) is None


def test_a_last_window_in_the_padding_is_refused_and_no_other() -> None:
    window = {"kernel_shape": (1, 1), "strides": (2, 2), "ceil_mode": 1}
    assert reason("MaxPool", [(1, 1, 2, 2)], (1, 1, 1, 1), **window) is not None
    assert reason("MaxPool", [(1, 1, 3, 3)], (1, 1, 2, 2), **window) is None


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners"])
def test_scales_that_give_no_whole_sizes_are_refused(mode: str) -> None:
    def of_scale(scale: float, size: int) -> str | None:
        made = (1, 3, size, size)
        return reason(
            "Resize",
            [IMAGE, (8,), (4,)],
            made,
            constants={2: (1.0, 1.0, scale, scale)},
            coordinate_transformation_mode=mode,
        )

    found = of_scale(0.6, int(0.6 * IMAGE[2]))
    assert found is not None and "whole sizes" in found
    assert of_scale(2.0, 2 * IMAGE[2]) is None


@pytest.mark.parametrize(
    "found",
    [
        reason("Softmax", [(2, 3, 4)], axis=1),
        reason("Softmax", [(2, 3, 1)], version=11, axis=1),
        reason("Gather", [(5, 3), (2,)], constants={1: (0, 1)}),
        reason("Add", [(2, 3)] * 2, dtypes=("int32", "int32")),
        reason("Transpose", [(2, 3)], dtypes=("uint8", "uint8")),
        reason("PRelu", [(2, 3, 4, 5), (3, 1, 1)]),
        reason("Split", [(2, 3)], outputs=2),
    ],
)
def test_what_it_computes_right_has_no_reason(found: str | None) -> None:
    assert found is None
