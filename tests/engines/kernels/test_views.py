"""Views: operands of matrix products that lie inside of other tensors, and results stored there."""

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyopencl")

from coexec.engines.kernels import base
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.building import build
from coexec.engines.kernels.value import dense_axes
from coexec.engines.kernels.views import _reshaped
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from tests.helpers.fake_cuda import fake_cuda
from tests.helpers.gpu_networks import in_float16, module_of, run_on
from tests.helpers.opencl_gpu import opened
from tests.helpers.product_networks import (
    TOLERANCES,
    assert_close,
    attention,
    channels_last_blocks,
    feeds_and_outputs,
    random_network,
    window_block,
)

GPU = Architecture("nvidia", 4, compute_units=132, max_group=1024, local_bytes=49152)


def names(proto: onnx.ModelProto, arch: Architecture = GPU) -> list[str]:
    """The kernels of a network."""
    return [launch.name for launch in build(module_of(load(proto)), arch).launches]


def test_nothing_moves_between_the_products_of_attention() -> None:
    made = names(attention())
    assert made == ["gemm_tiled", "gemm_tiled", "softmax", "gemm_tiled", "gemm_tiled"]


def test_a_cpu_core_has_no_views() -> None:
    assert {"transpose", "slice"} <= set(names(attention(), Architecture("cpu", 8)))


def test_windows_of_an_image_need_no_kernel() -> None:
    assert names(window_block()) == ["gemm_tiled"]


def test_a_residual_in_front_of_a_convolution_is_added_behind_the_product() -> None:
    assert names(channels_last_blocks(2)) == [
        "conv_tiled",
        *["conv_depthwise", "gemm_tiled"] * 2,
        "gemm_tiled",
    ]


@given(st.data())
def test_the_axes_of_a_tensor_that_is_reshaped_are_those_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    numbers = np.arange(math.prod(shape)).reshape(shape).transpose(order)
    axes = tuple(dense_axes(shape)[axis] for axis in order)
    rest, target = numbers.size, []
    while rest > 1 or data.draw(st.booleans()):
        divisors = [d for d in range(1, rest + 1) if rest % d == 0]
        target.append(data.draw(st.sampled_from(divisors)))
        rest //= target[-1]
    reshaped = _reshaped(axes, target)
    if reshaped is None:
        with pytest.raises(ValueError, match="copy"):
            numbers.reshape(target, copy=False)
        return
    places = [
        sum(
            coordinate * step
            for i, parts in zip(index, reshaped, strict=True)
            for coordinate, (_, step) in zip(
                np.unravel_index(i, [size for size, _ in parts]), parts, strict=True
            )
        )
        for index in np.ndindex(*target)
    ]
    assert places == numbers.reshape(-1).tolist()


@pytest.mark.parametrize("precision", TOLERANCES)
@settings(max_examples=6)
@given(st.integers(0, 2**32))
def test_products_of_views_are_those_of_onnx_runtime(precision: str, seed: int) -> None:
    proto = random_network(seed)
    feeds, wanted = feeds_and_outputs(proto)
    with pytest.MonkeyPatch.context() as patch, fake_cuda(seed, precision=precision) as engine:
        patch.setattr(base, "_SMALL", 16)  # so that fp16 stores tensors in 16 bits
        assert_close(run_on(engine, load(proto), feeds), wanted, TOLERANCES[precision])


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_networks_in_float16_run_on_cuda(precision: str) -> None:
    proto = in_float16(attention())
    model, names = load(proto), [output.name for output in proto.graph.output]
    feeds = random_inputs(model.graph)
    wanted = dict(zip(names, plain_session(proto).run(names, feeds), strict=True))
    with fake_cuda(precision=precision) as engine:
        found = run_on(engine, model, feeds)
    assert {array.dtype for array in found.values()} == {np.dtype(np.float16)}
    assert_close(found, wanted, 1e-2)


@pytest.mark.parametrize("group", [32, 1024])
@settings(max_examples=4)
@given(st.integers(0, 2**32))
def test_so_are_they_in_opencl(group: int, seed: int) -> None:
    """In tiles, and on a GPU whose groups are too small for a tile."""
    proto = random_network(seed)
    feeds, wanted = feeds_and_outputs(proto)
    device = opened(None, Architecture("mobile", 4, compute_units=4, max_group=group))
    assert_close(run_on(device, load(proto), feeds), wanted, TOLERANCES["float32"])


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize(
    "proto",
    [
        attention(),
        attention(5, 2, 6),
        window_block(),
        window_block(6, 6, 3, 10),
        channels_last_blocks(),
    ],
)
def test_blocks_of_networks_compute_what_onnx_runtime_computes(
    precision: str, proto: onnx.ModelProto
) -> None:
    feeds, wanted = feeds_and_outputs(proto)
    with fake_cuda(precision=precision) as engine:
        assert_close(run_on(engine, load(proto), feeds), wanted, TOLERANCES[precision])
