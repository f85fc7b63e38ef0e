"""The ONNX project's node tests: their values as NumPy arrays, and runs of them with plans."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache as once
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.model.values import run_session
from coexec.plan.plan import Plan, Provenance
from coexec.profiling.profiler import Effort
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

__all__ = ["WAYS", "node_cases", "run_here", "run_on_onnx_runtime"]

_ONCE = Effort(warm_up=0, least=1, most=1)
"""One run for each measurement, because plans need not be good here."""
WAYS = ("single", "heft", "alternate")
"""One device; two devices with a planner; two devices with alternating tasks, so that every tensor
between tasks crosses devices."""


@once
def node_cases() -> Mapping[str, TestCase]:
    """All node tests by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX computes infinities on purpose
        return {case.name.removeprefix("test_"): case for case in load_model_tests(kind="node")}


def run_on_onnx_runtime(case: TestCase) -> None:
    """Raise unless ONNX Runtime passes the test."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    for feeds, expected in _data(case):
        _compare(case, expected, run_session(session, names, feeds))


def run_here(case: TestCase, way: str, cache: Cache) -> None:
    """Plan and execute the test; raise an error unless it passes."""
    cores = usable_cores()[: 1 if way == "single" else 2]
    devices = [f"cpu:{core}" for core in cores]
    data = _data(case)
    shapes = _shapes(case.model, data[0][0])
    work = PlanningContext(case.model, Settings(devices, cache=cache, shapes=shapes, effort=_ONCE))
    prepared = work.prepared(_in_turn(work)) if way == "alternate" else work.prepared_by(way, {})
    names = [output.name for output in case.model.graph.output]
    with work.start(prepared) as executor:
        for feeds, expected in data:
            outputs = executor.run(feeds)
            _compare(case, expected, [outputs[name] for name in names])
    work.release()


def _in_turn(work: PlanningContext) -> Plan:
    """The plan that gives the tasks to the devices in turn."""
    places = [device.first.place for device in work.devices]
    pieces = [work.graph.whole_piece(task) for task in work.graph.tasks]
    rows = {place: tuple(pieces[i :: len(places)]) for i, place in enumerate(places)}
    used = {place: row for place, row in rows.items() if row}
    return Plan.of_places(work.graph.fingerprint, used, Provenance("alternate"))


def _data(case: TestCase) -> list[tuple[dict[str, Any], list[Any]]]:
    """Feeds by name and expected outputs of each data set."""
    names = [value.name for value in case.model.graph.input]
    return [
        (dict(zip(names, map(_plain, inputs), strict=False)), [_plain(v) for v in outputs])
        for inputs, outputs in case.data_sets
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    elif isinstance(value, onnx.SequenceProto):
        value = numpy_helper.to_list(value)
    elif isinstance(value, onnx.OptionalProto):
        value = numpy_helper.to_optional(value)
    return np.require(value, requirements="C") if isinstance(value, np.ndarray) else value


def _shapes(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs that have no fixed shape in the model."""
    shapes = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        is_static = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
        if info.type.HasField("tensor_type") and not is_static:
            shapes[info.name] = np.shape(feeds[info.name])
    return shapes


def _compare(case: TestCase, expected: Sequence[Any], found: Sequence[Any]) -> None:
    """Compare as ONNX's own runner does, with the test's tolerances."""
    Runner.assert_similar_outputs(list(expected), list(found), case.rtol, case.atol)
