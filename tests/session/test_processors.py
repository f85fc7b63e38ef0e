"""Sessions on whatever processor this is; `make older-cpu` runs this on one without AVX-512."""

import os
import time
from pathlib import Path

import pytest

from coexec.engines.detect import usable_cores
from coexec.engines.registry import open_devices
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.session import InferenceSession
from tests.helpers.fused_blocks import IMAGES, network, quantised_network
from tests.helpers.small_models import branches

_BEGUN_S = 0.2
"""Threads that were started have bound themselves, so that the test sees a wrong binding."""

MODELS = {
    "channels that fill no blocks": branches(channels=18),
    "fused": network(["silu", "residual", "excited"], IMAGES),
    "quantised": quantised_network(["conv", "added", "conv"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_answers_as_onnx_runtime_does(name: str, tmp_path: Path) -> None:
    proto = MODELS[name]
    feeds = random_inputs(load(proto).graph)
    core = f"cpu:{usable_cores()[0]}"
    with InferenceSession(proto, devices=[core], planner="single", cache=tmp_path) as session:
        found = session.run(None, feeds)
        assert session.degraded is None
    for array, expected in zip(found, plain_session(proto).run(None, feeds), strict=True):
        assert worst_difference(array, expected) < 1e-5


@pytest.mark.skipif(
    not Path("/proc/self/task").is_dir() or len(usable_cores()) < 2,
    reason="needs two cores, and a system that lists threads",
)
def test_a_process_that_may_use_one_core_gets_no_threads_on_others() -> None:
    allowed, core = os.sched_getaffinity(0), usable_cores()[0]
    before = set(os.listdir("/proc/self/task"))
    os.sched_setaffinity(0, {core})
    try:
        (device,) = open_devices([f"cpu:{core}"], {})
        session = device.engine.own_session(branches())
        new = set(os.listdir("/proc/self/task")) - before
        assert session is not None
        time.sleep(_BEGUN_S)
        assert all(os.sched_getaffinity(int(thread)) == {core} for thread in new)
    finally:
        os.sched_setaffinity(0, allowed)
