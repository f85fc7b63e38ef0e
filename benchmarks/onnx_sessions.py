"""Conformance of sessions with ONNX, checked with the ONNX project's own node tests.

Each test is loaded, planned and run by `coexec.InferenceSession`, as a user's model is. A message
with the reason why a model is not run ("refused") is accepted if ONNX Runtime does not run the
model either. Outputs that differ from ONNX Runtime's, and errors that are not CoexecErrors, are
failures. An error during a run is a failure, too, because the model was accepted and its feeds are
valid. If ONNX Runtime itself fails or deviates from ONNX, a session may do the same.
"""

import argparse
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from common import show
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import coexec
from coexec.errors import CoexecError, first_line

OUTCOMES = {
    "passed": "",
    "as ONNX Runtime": "which fails too, draws random numbers, or computes the same",
    "refused": "with one message, as by ONNX Runtime",
    "refused here": "with one message, while ONNX Runtime passes",
    "wrong": "another result than that of ONNX Runtime",
    "traceback": "an error that is no CoexecError, or while an accepted model runs",
}


@dataclass(frozen=True)
class Result:
    """The result of a test."""

    name: str
    outcome: str
    """A key of OUTCOMES."""
    why: str = ""


def check(case: TestCase, settings: Mapping[str, Any]) -> Result:
    """Load the test's model and run it. Any exception is an outcome."""
    inputs, outputs = ([_plain(v) for v in values] for values in case.data_sets[0])
    feeds = dict(zip((v.name for v in case.model.graph.input), inputs, strict=False))
    try:
        session = coexec.InferenceSession(case.model, shapes=_shapes(case, feeds), **settings)
    except CoexecError as error:
        lines = str(error).splitlines()
        if len(lines) > 1:
            return Result(case.name, "traceback", " | ".join(lines))
        ort_outputs = _on_onnx_runtime(case, feeds)
        passes = ort_outputs is not None and _difference(case, ort_outputs, outputs) is None
        return Result(case.name, "refused here" if passes else "refused", lines[0])
    except Exception as error:
        return Result(case.name, "traceback", f"{type(error).__name__}: {first_line(error)}")
    try:
        with session:
            session_outputs = session.run(None, feeds)
    except Exception as error:
        outcome = "traceback" if _on_onnx_runtime(case, feeds) else "as ONNX Runtime"
        return Result(case.name, outcome, f"{type(error).__name__}: {first_line(error)}")
    difference = _difference(case, session_outputs, outputs)
    if difference is None:
        return Result(case.name, "passed")
    ort_outputs, again = _on_onnx_runtime(case, feeds), _on_onnx_runtime(case, feeds)
    same = ort_outputs is not None and _difference(case, session_outputs, ort_outputs) is None
    random = ort_outputs and again and _difference(case, ort_outputs, again) is not None
    return Result(case.name, "as ONNX Runtime" if same or random else "wrong", difference)


def _plain(value: Any) -> Any:
    """The value as an array, also for scalars; or as a list of arrays; absent values unchanged."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    elif isinstance(value, onnx.SequenceProto):
        value = numpy_helper.to_list(value)
    elif isinstance(value, onnx.OptionalProto):
        value = numpy_helper.to_optional(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _shapes(case: TestCase, feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs that are dynamic in the model."""
    shapes = {}
    for info in case.model.graph.input:
        kind = info.type.tensor_type
        is_static = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
        if not is_static and isinstance(feeds.get(info.name), np.ndarray):
            shapes[info.name] = feeds[info.name].shape
    return shapes


def _on_onnx_runtime(case: TestCase, feeds: Mapping[str, Any]) -> list[Any] | None:
    """ONNX Runtime's outputs; None if it fails."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        outputs: list[Any] = session.run(None, dict(feeds))
        return outputs
    except Exception:
        return None


def _difference(case: TestCase, found: Sequence[Any], expected: Sequence[Any]) -> str | None:
    """The error message of ONNX's own runner; None if it accepts the outputs."""
    try:
        Runner.assert_similar_outputs(list(expected), list(found), case.rtol, case.atol)
    except (AssertionError, TypeError) as error:
        return first_line(error)
    return None


def _general(reason: str) -> str:
    """The reason without names and numbers of a single test, so that equal reasons are counted."""
    reason = re.sub(r"(?<!\w)'[^']*'", "'…'", reason)
    return re.sub(r"\bnode \S+|\[[^\]]*\]|\d+", "…", reason)


def _rows(results: Sequence[Result], every: bool) -> list[dict[str, Any]]:
    """Totals, then reasons by falling number of tests, then all failures."""
    totals = Counter(r.outcome for r in results)
    rows = [{"outcome": k, "tests": totals[k], "what": what} for k, what in OUTCOMES.items()]
    reasons = Counter(_general(r.why) for r in results if r.outcome == "refused")
    rows += [{"outcome": "refused", "tests": n, "what": w} for w, n in reasons.most_common()]
    shown = (
        "wrong",
        "refused here",
        "traceback",
        "as ONNX Runtime",
        *(("refused",) if every else ()),
    )
    rows += [
        {"outcome": r.outcome, "tests": 1, "what": f"{r.name}: {r.why}"}
        for r in results
        if r.outcome in shown
    ]
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", default="", metavar="TEXT", help="only tests with this in the name")
    parser.add_argument("--devices", help="as coexec writes them; default: the session's own")
    parser.add_argument("--planner", help="default: the session's own, or hope_greedy for devices")
    parser.add_argument("--cache", default=None, help="folder for profiles and plans")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds, for all tests")
    parser.add_argument("--every", action="store_true", help="list each refused test")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    words = {}
    if args.devices is not None:
        several = "hope_greedy" if "," in args.devices else "single"
        words = {"devices": args.devices, "planner": args.planner or several}
    elif args.planner is not None:
        words = {"planner": args.planner}
    warnings.simplefilter("ignore")  # ONNX computes infinities on purpose
    cases = [case for case in load_model_tests(kind="node") if args.k in case.name]
    results = []
    end_s = time.perf_counter() + args.limit
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(args.cache or folder)
        for case in cases:
            if time.perf_counter() > end_s:
                sys.exit(
                    f"{len(results)} of {len(cases)} tests ran in {args.limit:.0f} s; raise --limit"
                )
            results.append(check(case, {"cache": cache, **words}))
    used = ", ".join(f"{key} {value}" for key, value in words.items()) or "as a session runs them"
    title = f"ONNX {onnx.__version__} node tests, {used}"
    show(title, _rows(results, args.every), args.json)
    if any(result.outcome in ("wrong", "refused here", "traceback") for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
