"""The precisions of CUDA's devices, and models in float16 in a session."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coexec import InferenceSession
from coexec.engines.cuda import engine
from coexec.engines.cuda.listing import Listing
from coexec.engines.detect import usable_cores
from coexec.engines.registry import describe, processors
from coexec.errors import DeviceError
from coexec.hardware.hardware import Place
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.plan.plan import Plan, Provenance
from tests.helpers.fake_cuda import machine_with_gpu
from tests.helpers.gpu_networks import in_float16, small_network

MODEL = small_network("concat", as_model=True)
X = np.random.default_rng(0).standard_normal((1, 8, 9, 7), np.float32)
CPU = f"cpu:{usable_cores()[0]}"


def answer(model: Any, x: Any, folder: Path, *devices: str, **words: Any) -> Any:
    with InferenceSession(model, devices=devices, cache=folder, strict=True, **words) as session:
        (made,) = session.run(None, {"x": x})
        assert session.degraded is None
    return made


@pytest.mark.parametrize("precision", ["float32", "tf32", "fp16"])
def test_a_device_computes_in_the_precision_of_its_name(precision: str, tmp_path: Path) -> None:
    (wanted,) = plain_session(MODEL).run(None, {"x": X})
    with machine_with_gpu():
        made = answer(MODEL, X, tmp_path, f"gpu:0/cuda:{precision}", planner="single")
    assert np.abs(made - wanted).max() <= 1e-2 * np.abs(wanted).max()


def test_matrix_units_give_two_more_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine_with_gpu():
        (gpu,) = processors("gpu")
        assert gpu.by["cuda"].precisions == ("float32", "tf32", "fp16")
        names = [f"gpu:0/cuda{ending}" for ending in ("", ":tf32", ":fp16")]
        memories = {describe(name).memory for name in names}
        assert len(memories) == 3  # tensors are stored differently
        older = replace(engine.listing("").gpus[0], capability="7.5")
        monkeypatch.setattr(engine, "listing", lambda bindings: Listing((older,)))
        (gpu,) = processors("gpu")
        assert gpu.by["cuda"].precisions == ("float32",)
        with pytest.raises(
            DeviceError, match=r"no matrix units for tf32: .* 8\.0, and it has 7\.5"
        ):
            describe("gpu:0/cuda:tf32")


@pytest.mark.parametrize("beside", [False, True])
def test_a_model_in_float16_runs(beside: bool, tmp_path: Path) -> None:
    """On the GPU alone, and in a plan that hands its tensors to a core."""
    model, x = in_float16(MODEL), X.astype(np.float16)
    (wanted,) = plain_session(model).run(None, {"x": x})
    graph = load(model).graph
    pieces = {task.name: graph.whole_piece(task) for task in graph.tasks}
    on_core = ("left",) if beside else ()
    order = {
        Place("gpu:0", "cuda"): tuple(p for name, p in pieces.items() if name not in on_core),
        Place(CPU, "onnxruntime"): tuple(pieces[name] for name in on_core),
    }
    plan = Plan.of_places(graph.fingerprint, order, Provenance("by hand"))
    with machine_with_gpu():
        made = answer(model, x, tmp_path, "gpu:0/cuda", CPU, plan=plan)
    assert made.dtype == np.float16
    assert np.abs(made - wanted).max() <= 1e-2 * np.abs(wanted).max()
