"""Does a session compute what ONNX says? The ONNX project's own node tests answer.

Each test goes through `coexec.InferenceSession`, as a user's model does: loaded, planned, run with
the test's own inputs. One message that says why a model is not run ("refused") is a good answer
where ONNX Runtime does not run it either; another result than ONNX Runtime's and any error that is
no CoexecError are not. An error while a model runs is not a refusal either: the model was accepted,
and its feeds are valid. Where ONNX Runtime itself fails or deviates from what ONNX says, a session
may do the same.
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
    """What became of a test."""

    name: str
    outcome: str
    """A key of OUTCOMES."""
    why: str = ""


def check(case: TestCase, settings: Mapping[str, Any]) -> Result:
    """Load the test's model and run it. Whatever is raised is an outcome."""
    inputs, outputs = ([_plain(v) for v in values] for values in case.data_sets[0])
    feeds = dict(zip((v.name for v in case.model.graph.input), inputs, strict=False))
    try:
        session = coexec.InferenceSession(case.model, shapes=_shapes(case, feeds), **settings)
    except CoexecError as error:
        lines = str(error).splitlines()
        if len(lines) > 1:
            return Result(case.name, "traceback", " | ".join(lines))
        theirs = _on_onnx_runtime(case, feeds)
        passes = theirs is not None and _difference(case, theirs, outputs) is None
        return Result(case.name, "refused here" if passes else "refused", lines[0])
    except Exception as error:
        return Result(case.name, "traceback", f"{type(error).__name__}: {first_line(error)}")
    try:
        with session:
            found = session.run(None, feeds)
    except Exception as error:
        outcome = "traceback" if _on_onnx_runtime(case, feeds) else "as ONNX Runtime"
        return Result(case.name, outcome, f"{type(error).__name__}: {first_line(error)}")
    difference = _difference(case, found, outputs)
    if difference is None:
        return Result(case.name, "passed")
    theirs, again = _on_onnx_runtime(case, feeds), _on_onnx_runtime(case, feeds)
    same = theirs is not None and _difference(case, found, theirs) is None
    random = theirs and again and _difference(case, theirs, again) is not None
    return Result(case.name, "as ONNX Runtime" if same or random else "wrong", difference)


def _plain(value: Any) -> Any:
    """Arrays, of scalars too; lists of them; absent values as they are."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    elif isinstance(value, onnx.SequenceProto):
        value = numpy_helper.to_list(value)
    elif isinstance(value, onnx.OptionalProto):
        value = numpy_helper.to_optional(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _shapes(case: TestCase, feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of the inputs that the model leaves dynamic."""
    found = {}
    for info in case.model.graph.input:
        kind = info.type.tensor_type
        known = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
        if not known and isinstance(feeds.get(info.name), np.ndarray):
            found[info.name] = feeds[info.name].shape
    return found


def _on_onnx_runtime(case: TestCase, feeds: Mapping[str, Any]) -> list[Any] | None:
    """What ONNX Runtime computes; None if it fails."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found: list[Any] = session.run(None, dict(feeds))
        return found
    except Exception:
        return None


def _difference(case: TestCase, found: Sequence[Any], expected: Sequence[Any]) -> str | None:
    """What ONNX's own runner says of them; None if it lets them pass."""
    try:
        Runner.assert_similar_outputs(list(expected), list(found), case.rtol, case.atol)
    except (AssertionError, TypeError) as error:
        return first_line(error)
    return None


def _general(reason: str) -> str:
    """The reason without names and numbers of one test, to be counted."""
    reason = re.sub(r"(?<!\w)'[^']*'", "'…'", reason)
    return re.sub(r"\bnode \S+|\[[^\]]*\]|\d+", "…", reason)


def _rows(results: Sequence[Result], every: bool) -> list[dict[str, Any]]:
    """Totals, then reasons by how many tests they concern, then what must not be."""
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
                sys.exit(f"{len(results)} of {len(cases)} tests ran in {args.limit:.0f} s; "
                         f"raise --limit")  # fmt: skip
            results.append(check(case, {"cache": cache, **words}))
    told = ", ".join(f"{key} {value}" for key, value in words.items()) or "as a session runs them"
    title = f"ONNX {onnx.__version__} node tests, {told}"
    show(title, _rows(results, args.every), args.json)
    if any(result.outcome in ("wrong", "refused here", "traceback") for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
