"""Sessions on whatever processor this is; `make older-cpu` runs this on one without AVX-512."""

from pathlib import Path

import pytest
from fused_blocks import IMAGES, network, quantised_network
from small_models import branches

from coexec.engines.detect import usable_cores
from coexec.frontend.check import plain_session, worst_difference
from coexec.frontend.load import load, random_inputs
from coexec.session import InferenceSession

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
