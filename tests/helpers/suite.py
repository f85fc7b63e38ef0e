"""The ONNX project's backend tests with any plan on any devices, by ONNX's own runner.

python -m tests.helpers.suite cpu:0/openvino 4    # each fourth test; a row of docs/reliability.md
"""

import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache as once
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from coexec.cache import Cache
from coexec.errors import first_line
from coexec.graph.graph import Piece
from coexec.model.values import run_session
from coexec.plan.plan import Plan, Provenance
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Effort, Settings
from tests.helpers.onnx_backend import Assign, CoexecRep, device_names, first_able

CATEGORIES = ("Node", "Simple", "PyTorchConverted", "PyTorchOperator")
_ONCE = Effort(warm_up=0, least=1, most=1)
"""One run for each measurement, because plans need not be good here."""


class TestOutcome(NamedTuple):
    """The outcome of one test."""

    __test__ = False

    name: str
    outcome: Literal["whole", "in part", "elsewhere", "excluded", "failed"]
    """Passed: all tasks on the first engine, some, or none. "excluded": ONNX Runtime's own session
    does not pass it either."""
    why: str = ""
    """The engine's first reason; of "excluded" tests ONNX Runtime's, too."""


def counts(found: Collection[TestOutcome]) -> Counter[str]:
    return Counter(each.outcome for each in found)


def alternate(work: PlanningContext) -> tuple[Plan, Mapping[str, str]]:
    """The tasks on the devices in turn: every tensor between two tasks crosses devices."""
    places = [device.engine.place for device in work.devices]
    rows: dict[str, list[Piece]] = {}
    engines = {}
    for number, task in enumerate(work.graph.tasks):
        place, piece = places[number % len(places)], work.graph.whole_piece(task)
        rows.setdefault(place.device, []).append(piece)
        engines[piece] = place.engine
    order = {device: tuple(pieces) for device, pieces in rows.items()}
    return Plan(work.graph.fingerprint, order, engines, Provenance("alternate")), {}


def by_heft(work: PlanningContext) -> tuple[Plan, Mapping[str, str]]:
    """The plan of a planner, from measured costs."""
    return work.plan("heft"), {}


class Suite(NamedTuple):
    """The tests on devices of coexec's."""

    devices: Sequence[str]
    cache: Cache
    assign: Assign = first_able

    def outcomes(self, part: int = 0, parts: int = 1) -> Iterator[TestOutcome]:
        """Run each ``parts``-th test, from number ``part`` on."""
        for name in list(_tests())[part::parts]:
            yield self.outcome(name)

    def outcome(self, name: str) -> TestOutcome:
        """Run the test of a name, such as ``"test_add"``."""
        reps: list[CoexecRep] = []

        def prepared(model: onnx.ModelProto) -> BackendRep:
            settings = Settings(self.devices, cache=self.cache, effort=_ONCE)
            reps.append(CoexecRep(model, settings, self.assign))
            return reps[0]

        failure = _failure(name, prepared)
        elsewhere = dict(reps[0].elsewhere) if reps else {}
        count = reps[0].task_count if reps else 0
        for rep in reps:
            rep.close()
        why = next(iter(elsewhere.values()), "")
        if failure is None:
            return TestOutcome(name, _share(len(elsewhere), count), why)
        # Another engine that computes all tasks differs by itself.
        is_own = bool(reps) and not why and not self.devices[0].endswith("/onnxruntime")
        alone = None if is_own else _failure(name, _OnnxRuntime)
        if alone is None:
            return TestOutcome(name, "failed", failure)
        return TestOutcome(name, "excluded", f"{why or failure}; ONNX Runtime: {alone}")


def _share(elsewhere: int, count: int) -> Literal["whole", "in part", "elsewhere"]:
    return "whole" if not elsewhere else "in part" if elsewhere < count else "elsewhere"


class _OnnxRuntime(BackendRep):
    """ONNX Runtime's own session of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4  # every error is raised too
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        fed = (each.name for each in self._session.get_inputs())
        arrays = (np.require(v, requirements="C") if hasattr(v, "dtype") else v for v in inputs)
        names = [each.name for each in self._session.get_outputs()]
        return tuple(run_session(self._session, names, dict(zip(fed, arrays, strict=False))))


class _Running(Backend):
    """The backend of all tests. `_failure` sets the function that prepares the model."""

    preparing: Callable[[onnx.ModelProto], BackendRep]

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        return True  # `prepare` has the reason

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> BackendRep:
        return cls.preparing(model)


@once
def _tests() -> Mapping[str, unittest.TestCase]:
    """All tests by name."""
    node_cases()
    cases = Runner(_Running, __name__).test_cases
    found = {}
    for category in CATEGORIES:
        case = cases[f"OnnxBackend{category}ModelTest"]
        for name in sorted(dir(case)):
            if name.startswith("test_") and name.endswith("_cpu"):
                found[name.removesuffix("_cpu")] = case(name)
    return found


@once
def node_cases() -> Sequence[TestCase]:
    """The tests of operators, with their models and arrays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX computes infinities on purpose
        return load_model_tests(kind="node")


def _failure(name: str, preparing: Callable[[onnx.ModelProto], BackendRep]) -> str | None:
    _Running.preparing = staticmethod(preparing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _tests()[name].debug()
    except (Exception, unittest.SkipTest) as error:
        return f"{type(error).__name__}: {first_line(error)}"
    return None


def _row(device: str, found: Collection[TestOutcome]) -> str:
    number = counts(found)
    kinds = ("whole", "in part", "elsewhere", "excluded", "failed")
    cells = [device, str(len(found)), *(str(number[kind]) for kind in kinds)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    device, parts = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    outcomes = list(Suite(device_names(device), Cache()).outcomes(parts=parts))
    print(_row(device, outcomes))
    for each in outcomes:
        if each.outcome == "failed":
            print(f"{each.name}: {each.why}")
