"""The CUDA engine on a real GPU of NVIDIA. Skips where there is none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coexec import InferenceSession
from coexec.cache import Cache
from coexec.engines.cuda import driver
from coexec.engines.opened import OpenDevice
from coexec.engines.options import parsed
from coexec.engines.registry import describe, listed, load_engine, open_devices
from coexec.errors import DeviceError
from coexec.graph.graph import Tensor
from coexec.model.load import load
from coexec.runtime.executor import Executor
from tests.engines.cuda.test_cuda_programs import assert_close, bound_network, expected, feeds_of
from tests.helpers import product_networks
from tests.helpers.gpu_networks import mixed_network, run_on
from tests.helpers.small_models import branches

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not listed(load_engine("cuda"), "gpu"),
        reason="there is no GPU of NVIDIA, or no cuda-bindings",
    ),
]


def opened(folder: Path, **options: Any) -> Any:
    engine, settings = load_engine("cuda"), {"cuda": options}
    spec = describe("gpu:0/cuda", settings)
    return engine.open(spec, spec.engine, parsed(engine, settings), folder)


@pytest.mark.parametrize("waiting", ["active", "passive"])
@pytest.mark.parametrize("order", ["all", "none", "auto"])
def test_a_network_is_computed_as_by_onnx_runtime(order: str, waiting: str, tmp_path: Path) -> None:
    for proto in (mixed_network(), branches()):
        feeds = feeds_of(proto)
        engine = opened(tmp_path, branches=order, waiting=waiting)
        assert_close(run_on(engine, load(proto), feeds), expected(proto, feeds))


@pytest.mark.parametrize("precision", product_networks.TOLERANCES)
def test_products_of_views_are_those_of_onnx_runtime(precision: str, tmp_path: Path) -> None:
    engine = opened(tmp_path, precision=precision)
    networks = [product_networks.random_network(seed) for seed in range(40)]
    for proto in [*networks, product_networks.attention(), product_networks.attention(197, 3, 64)]:
        feeds, wanted = product_networks.feeds_and_outputs(proto)
        made = run_on(engine, load(proto), feeds)
        product_networks.assert_close(made, wanted, product_networks.TOLERANCES[precision])


def test_runs_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    proto = branches(width=6)
    engine = opened(tmp_path, branches="all")
    bound, inputs, outputs = bound_network(engine, proto)
    engine.upload(feeds_of(proto)["x"], inputs["x"])
    bound.run()
    first = {name: engine.download(tensor).copy() for name, tensor in outputs.items()}
    for _ in range(2000):
        bound.run()
        for name, array in first.items():
            np.testing.assert_array_equal(engine.download(outputs[name]), array)


def test_compiled_kernels_come_from_the_cache(tmp_path: Path) -> None:
    proto = mixed_network()
    first, second = (opened(tmp_path) for _ in range(2))
    run_on(first, load(proto), {}, only_compile=True)
    run_on(second, load(proto), {}, only_compile=True)
    assert first.images.compiled > 5
    assert second.images.compiled == 0


def test_the_clock_agrees_with_the_host(tmp_path: Path) -> None:
    proto = branches()
    engine = opened(tmp_path)
    bound, inputs, _ = bound_network(engine, proto)
    engine.upload(feeds_of(proto)["x"], inputs["x"])
    engine.start_timing()
    run = bound.launch()
    run.wait()
    start_s, end_s = run.span_s()
    details = engine.stop_timing()
    assert all(start_s <= d.start_s <= d.end_s <= end_s for d in details)
    assert 0 < end_s - start_s < 0.1


def test_memory_that_is_not_there_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    with pytest.raises(DeviceError, match=r"gpu:0 ran out of memory while taking .*nvidia-smi"):
        engine.allocate(Tensor("huge", (1 << 42,), "float32"))


@pytest.mark.parametrize("words", [True, False])
def test_a_plan_for_gpu_and_cpu_is_equal_to_the_last_bit(
    words: bool, cache: Cache, tmp_path: Path
) -> None:
    from tests.runtime.test_words import FEEDS, by_turns, right

    (cpu,) = open_devices(["cpu:0"])
    engine = opened(tmp_path)
    engine.awaits_words &= words
    devices = [cpu, OpenDevice.of(engine)]
    with Executor(by_turns(devices, cache), devices) as executor:
        first = [executor.run(feeds) for feeds in FEEDS]
        assert all(right(found, number) for number, found in enumerate(first))
        for number in range(1000):
            found = executor.run(FEEDS[number % len(FEEDS)])
            for name, array in first[number % len(FEEDS)].items():
                np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("devices", [["gpu:0"], ["cpu:0", "gpu:0"]])
def test_a_session_answers_as_onnx_runtime(devices: list[str], tmp_path: Path) -> None:
    proto = mixed_network()
    planner = "single" if len(devices) == 1 else "codl"
    session = InferenceSession(
        proto.SerializeToString(), devices=devices, planner=planner, cache=tmp_path, strict=True
    )
    for seed in range(5):
        feeds = feeds_of(proto, seed)
        names = [output.name for output in session.get_outputs()]
        made = dict(zip(names, session.run(None, feeds), strict=True))
        assert_close(made, expected(proto, feeds))
    assert not int(driver._driver().cuCtxGetCurrent()[1])  # the thread has the context that it had
