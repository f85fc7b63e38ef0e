"""Views: operands of matrix products that lie inside of other tensors, and results stored there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyopencl")

from coexec.engines.kernels import base
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.building import build
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from tests.helpers.fake_cuda import fake_cuda
from tests.helpers.gpu_networks import in_float16, module_of, run_on
from tests.helpers.opencl_programs import opened, unoptimised
from tests.helpers.product_networks import (
    TOLERANCES,
    assert_close,
    attention,
    feeds_and_outputs,
    random_network,
)


def names(arch: Architecture) -> list[str]:
    """The kernels of attention."""
    return [launch.name for launch in build(module_of(load(attention())), arch).launches]


def test_nothing_moves_between_the_products_of_attention() -> None:
    gpu = Architecture("nvidia", 4, compute_units=132, max_group=1024, local_bytes=49152)
    assert names(gpu) == ["gemm_tiled", "gemm_tiled", "softmax", "gemm_tiled", "gemm_tiled"]


def test_a_cpu_core_has_no_views() -> None:
    assert {"transpose", "slice"} <= set(names(Architecture("cpu", 8)))


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
    with unoptimised():
        assert_close(run_on(device, load(proto), feeds), wanted, TOLERANCES["float32"])


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("sizes", [(13, 3, 8), (5, 2, 6)])
def test_attention_is_that_of_onnx_runtime(precision: str, sizes: tuple[int, int, int]) -> None:
    proto = attention(*sizes)
    feeds, wanted = feeds_and_outputs(proto)
    with fake_cuda(precision=precision) as engine:
        assert_close(run_on(engine, load(proto), feeds), wanted, TOLERANCES[precision])
