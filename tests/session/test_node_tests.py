"""A sample of the ONNX project's node tests, through the session, on one and on two devices.

`benchmarks/onnx_sessions.py` runs all of them.
"""

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase

import coexec
from coexec.engines.detect import usable_cores
from coexec.errors import ModelWarning
from tests.helpers.suite import node_cases

TWO = [f"cpu:{core}" for core in usable_cores()[:2]]

RUN = [
    "div_int8", "div_int32_trunc", "div_uint8", "div_uint64", "reshape_reordered_all_dims",
    "reshape_allowzero_reordered", "expand_dim_changed", "tile", "squeeze_negative_axes",
    "unsqueeze_three_axes", "slice", "slice_neg", "split_variable_parts_1d_opset18",
    "split_zero_size_splits_opset18", "constantofshape_int_zeros", "top_k_same_values",
    "resize_upsample_sizes_nearest", "resize_downsample_scales_nearest", "upsample_nearest",
    "reduce_l1_keep_dims_example", "reduce_max_bool_inputs", "nonmaxsuppression_two_classes",
    "col2im", "affine_grid_2d", "melweightmatrix", "hannwindow", "blackmanwindow",
    "constant_pad", "reflect_pad", "loop11", "dropout_default_mask_ratio", "if",
    "scatter_elements_with_axis", "gather_0", "gather_elements_0", "gathernd_example_int32",
    "center_crop_pad_crop", "center_crop_pad_crop_and_pad", "group_normalization_example",
    "nllloss_NCd1d2_with_weight", "sce_mean_weight_ii", "sce_none_log_prob_expanded",
    "qlinearconv", "qlinearmatmul_2D_uint8_float32", "matmulinteger", "cumsum_1d",
    "lstm_defaults", "batchnorm_epsilon", "basic_conv_with_padding", "averagepool_2d_pads",
]  # fmt: skip
"""Inputs decide axes, sizes, divisors, indices; operators are functions; values are quantized."""


@pytest.fixture(scope="module")
def cases() -> dict[str, TestCase]:
    return {case.name.removeprefix("test_"): case for case in node_cases()}


def array(value: Any) -> np.ndarray:
    return np.asarray(numpy_helper.to_array(value) if isinstance(value, TensorProto) else value)


@pytest.mark.long
@pytest.mark.parametrize("name", RUN)
def test_node(name: str, cases: dict[str, TestCase], tmp_path_factory: Any) -> None:
    case = cases[name]
    inputs, outputs = ([array(v) for v in values] for values in case.data_sets[0])
    feeds = dict(zip((v.name for v in case.model.graph.input), inputs, strict=True))
    cache = tmp_path_factory.getbasetemp() / "node_tests"  # links are measured once
    for devices, planner in ((TWO[:1], "single"), (TWO, "hope_greedy")):
        words: dict[str, Any] = {"devices": devices, "planner": planner, "cache": cache}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            session = coexec.InferenceSession(case.model, **words)
        with session:
            for found, expected in zip(session.run(None, feeds), outputs, strict=True):
                assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
                np.testing.assert_allclose(found, expected, case.rtol, case.atol)
