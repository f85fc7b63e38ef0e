"""Conformance of an engine with ONNX, checked with the ONNX project's own node tests.

Each test is loaded as coexec loads any model. A test with an operator that has no kernel is
refused, with the engine's reason. All other tests are compiled, run and compared with the expected
results, within the tolerance of ONNX's own runner.

The tests feed everything as inputs, also weights and parameters. Real models store these, and some
kernels depend on it: weights, pads or axes must be constants when the kernel is generated.
Therefore a test that is refused in its original form is tried again with the further inputs of its
operators stored in the model. First inputs are always fed, so that tests are not folded to
constants. If the only operator is folded nevertheless, such as Shape, the unfolded model is used.
"""

import argparse
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from common import show
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from coexec.arrays import Array
from coexec.engines.base import OpenEngine
from coexec.engines.names import whole_cpu
from coexec.engines.registry import open_devices
from coexec.errors import ModelError, first_line
from coexec.lowering.module import Module
from coexec.model.group import build_graph
from coexec.model.load import load
from coexec.model.model import Model


@dataclass(frozen=True)
class Result:
    """The result of a test."""

    name: str
    outcome: str
    """"passed", "refused" or "failed"."""
    why: str = ""
    stored: bool = False
    """Whether the parameters were stored in the model."""


@dataclass(frozen=True)
class Question:
    """A test with plain arrays for all inputs and outputs, some of the inputs stored."""

    case: TestCase
    feeds: Mapping[str, Array]
    expected: Mapping[str, Array]
    stored: frozenset[str]

    @property
    def proto(self) -> onnx.ModelProto:
        """The test's model with the stored inputs as initializers."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.case.model)
        fed = [info for info in proto.graph.input if info.name not in self.stored]
        del proto.graph.input[:]
        proto.graph.input.extend(fed)
        arrays = [numpy_helper.from_array(self.feeds[n], n) for n in sorted(self.stored)]
        proto.graph.initializer.extend(arrays)
        return proto


def check(case: TestCase, device: OpenEngine) -> Result:
    """Run the test if the engine accepts it. Any exception is a failure."""
    try:
        return _check(case, device)
    except Exception as error:
        return Result(case.name, "failed", f"{type(error).__name__}: {first_line(error)}")


def _check(case: TestCase, device: OpenEngine) -> Result:
    """Try the test in its original form, then with stored parameters."""
    inputs, outputs = ([_plain(v) for v in values] for values in case.data_sets[0])
    reason = _not_plain([*inputs, *outputs])
    if reason is not None:
        return Result(case.name, "refused", reason)
    graph = case.model.graph
    feeds = _by_name(graph.input, inputs)
    expected = _by_name(graph.output, outputs)
    for stored in dict.fromkeys((frozenset[str](), _parameters(graph))):
        question = Question(case, feeds, expected, stored)
        try:
            model = _model(question)
            reason = _refusal(model, device)
        except ModelError as error:
            reason = first_line(error)
            continue
        if reason is None:
            return _run(question, model, device)
    return Result(case.name, "refused", reason or "")


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _not_plain(values: Iterable[Any]) -> str | None:
    for value in values:
        if value is None:
            return "optional values"
        if isinstance(value, (list, tuple, dict)):
            return "sequences and maps"
        if np.asarray(value).dtype.kind not in "biufc":
            return f"tensors of {np.asarray(value).dtype.name}, which no numpy type of its own has"
    return None


def _by_name(infos: Sequence[onnx.ValueInfoProto], values: Sequence[Any]) -> dict[str, Array]:
    named = zip(infos, values, strict=True)
    return {info.name: np.asarray(value) for info, value in named}


def _parameters(graph: onnx.GraphProto) -> frozenset[str]:
    """The inputs of the test that are not the first input of any operator."""
    firsts = {node.input[0] for node in graph.node if node.input}
    return frozenset(info.name for info in graph.input if info.name not in firsts)


def _model(question: Question) -> Model:
    """The model as `load` returns it; the original one if `load` folds its only operator."""
    proto = question.proto
    shapes = {n: a.shape for n, a in question.feeds.items() if n not in question.stored}
    fixed = {n: s for n, s in shapes.items() if all(s)}
    model = load(proto, shapes=fixed)
    if _computes(model) or len(proto.graph.node) > 1:
        return model
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    source = ir.from_proto(inferred)
    return Model(source, build_graph(source, question.case.name), "")


def _computes(model: Model) -> bool:
    return any(op.op_type != "Constant" for task in model.graph.tasks for op in task.operators)


def _refusal(model: Model, device: OpenEngine) -> str | None:
    if not _computes(model):
        return "nothing is left to run when constants are folded"
    reasons = (device.why_not(task, model.graph.tensors) for task in model.graph.tasks)
    return next((reason for reason in reasons if reason is not None), None)


def _run(question: Question, model: Model, device: OpenEngine) -> Result:
    name = question.case.name
    outputs = _outputs(question, model, device)
    for key, expected in question.expected.items():
        difference = _difference(question.case, outputs[key], expected)
        if difference is not None:
            return Result(name, "failed", f"{key}: {difference}")
    return Result(name, "passed", stored=bool(question.stored))


def _outputs(question: Question, model: Model, device: OpenEngine) -> dict[str, Array]:
    """The outputs of the model as one module, as in a plan with one segment."""
    graph = model.graph
    stored = {
        name: value.const_value.numpy()
        for name, value in model.source.graph.initializers.items()
        if name in graph.outputs and value.const_value is not None
    }
    inputs = tuple(graph.tensors[n] for n in graph.inputs)
    outputs = tuple(graph.tensors[n] for n in graph.outputs if n not in stored)
    module = Module(ir.to_proto(model.source).SerializeToString(), {}, inputs, outputs)
    program = device.compile(module)
    there = {t.name: device.upload(question.feeds[t.name]) for t in inputs}
    back = {t.name: device.allocate(t) for t in outputs}
    program.bind(there, back).run()
    return stored | {name: device.download(tensor) for name, tensor in back.items()}


def _difference(case: TestCase, found: Array, expected: Array) -> str | None:
    """The difference by the rules of ONNX's runner: shape, type, then ``rtol`` and ``atol``."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return f"{found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
    if np.allclose(found, expected, case.rtol, case.atol, equal_nan=True):
        return None
    wrong = ~np.isclose(found, expected, case.rtol, case.atol, equal_nan=True)
    worst = int(np.argmax(np.abs(np.where(wrong, found - 1.0 * expected, 0))))
    return (
        f"{int(wrong.sum())} of {wrong.size} differ, as {found.flat[worst]} "
        f"from {expected.flat[worst]}"
    )


def _general(reason: str) -> str:
    """The reason without names and numbers of a single test, so that equal reasons are counted."""
    reason = re.sub(r"(?<!\w)'[^']*'", "'…'", reason)
    return re.sub(r"\bnode \S+|\[[^\]]*\]", "…", reason)


def _rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Totals, then reasons by falling number of tests, then each failure."""
    totals = Counter(r.outcome for r in results)
    stored = sum(r.stored for r in results)
    notes = {"passed": f"{stored} of them with parameters stored in the model"}
    rows = [
        {"outcome": k, "tests": totals[k], "what": notes.get(k, "")}
        for k in ("passed", "refused", "failed")
    ]
    reasons = Counter(_general(r.why) for r in results if r.outcome == "refused")
    rows += [{"outcome": "refused", "tests": n, "what": w} for w, n in reasons.most_common()]
    rows += [
        {"outcome": "failed", "tests": 1, "what": f"{r.name}: {r.why}"}
        for r in results
        if r.outcome == "failed"
    ]
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", default="", metavar="TEXT", help="only tests with this in the name")
    parser.add_argument("--device", default=f"{whole_cpu()}/cpp", help="such as gpu:0/opencl")
    parser.add_argument("--cache", default=None, help="folder for compiled kernels")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX computes infinities on purpose
        cases = [case for case in load_model_tests(kind="node") if args.k in case.name]
    with tempfile.TemporaryDirectory() as folder:
        (device,) = open_devices([args.device], folder=Path(args.cache or folder))
        results = [check(case, device.engine) for case in cases]
        device.close()
    show(f"ONNX {onnx.__version__} node tests on {args.device}", _rows(results), args.json)
    if any(result.outcome == "failed" for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
