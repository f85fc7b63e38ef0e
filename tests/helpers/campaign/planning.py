"""Random graphs in the default session, with a new plan and with the plan from the cache."""

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime as ort

import coexec
from coexec.cache import Cache
from coexec.errors import CoexecError
from coexec.ort import OrtSession
from coexec.rules import default_rules
from tests.helpers.campaign.comparing import Run
from tests.helpers.campaign.graphs import Network, network
from tests.helpers.campaign.judging import Verdict, answer_of, of_run, quiet
from tests.helpers.quick_choice import QUICK_RULES

_PLANS_WIN = replace(QUICK_RULES, gain=1e9, other_gain=1e9, not_slower=1e9, deciding_rounds=0.0)
"""The choice is fast, and it selects a plan whenever one exists. Small graphs are fastest in ONNX
Runtime's own session, so otherwise no plan would be tested."""


def of_graphs(seed: int, indices: Sequence[int], cache: Cache | None = None) -> Iterator[Any]:
    """Judge these graphs. Yields, for each graph, a list with its number and then its verdict.

    Args:
        cache: the cache of plans; by default in a temporary folder.
    """
    warnings.simplefilter("ignore")
    ort.set_default_logger_severity(4)
    with default_rules(_PLANS_WIN), tempfile.TemporaryDirectory() as folder:
        for index in indices:
            yield [index]
            yield _verdict(network(seed, index), cache or Cache(Path(folder)))


def _verdict(case: Network, cache: Cache) -> Verdict:
    """The verdict about a graph in two sessions: the first makes a plan, the second reuses it."""
    try:
        run = _reference(case)
    except Exception as error:
        return Verdict(case.index, "without ONNX Runtime", "refused by it", str(error), str(case))
    answers = [answer_of(run, feeds) for feeds in case.sets]
    kinds = []
    for time in ("first", "again"):
        words = {"cache": cache, "background": False}
        if case.shapes:
            words["shapes"] = case.shapes
        try:
            with coexec.InferenceSession(case.model, **words) as own:
                kinds.append("a plan" if own.devices else "ONNX Runtime")
                for number, right in enumerate(answers):
                    failure = of_run(own, None, case, number, right, run)
                    if failure is not None and isinstance(right, Exception):
                        failure = _beside_unoptimized(own, case, number)
                    if failure is not None:
                        why = f"{time}, by {kinds[-1]}: {failure[1]}"
                        return Verdict(case.index, failure[0], f"by {kinds[-1]}", why, str(case))
        except CoexecError as error:
            return Verdict(case.index, "wrong", "opened", f"{time}: {error}", str(case))
        except Exception as error:
            message = f"{time}: {type(error).__name__}: {error}"
            return Verdict(case.index, "raw exception", "opened", message, str(case))
    return Verdict(case.index, "right", f"by {kinds[0]}, then {kinds[1]}")


def _beside_unoptimized(
    own: coexec.InferenceSession, case: Network, number: int
) -> tuple[str, str] | None:
    """Outcome and reason beside ONNX Runtime without its optimizations. With them a valid model
    can fail, for instance because a buffer of another shape was to be reused."""
    run = _reference(case, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    return of_run(own, None, case, number, answer_of(run, case.feeds(number)), run)


def _reference(
    case: Network, level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
) -> Run:
    """ONNX Runtime's own session, as a function from feeds to all outputs."""
    options = quiet(0)
    options.graph_optimization_level = level
    return partial(OrtSession(case.model, options, ["CPUExecutionProvider"]).run, None)
