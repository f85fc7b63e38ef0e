"""Random graphs through the default session: planned, remembered, and told apart from guesses."""

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from quick_choice import quick_choice

import coexec
from campaign.graphs import Network, network
from campaign.judging import Verdict, of_run, quiet
from coexec.cache import Cache
from coexec.choosing import ranking
from coexec.errors import CoexecError
from coexec.ort import OrtSession

__all__ = ["of_graphs"]


@contextmanager
def _plans_win() -> Iterator[None]:
    """A choice in little time, of which a plan comes out wherever there is one.

    Small graphs are fastest on ONNX Runtime as they are, and then no plan would be tried.
    """
    with quick_choice(), pytest.MonkeyPatch.context() as patch:
        for name in ("_GAIN", "_OTHER_GAIN", "_NOT_SLOWER"):
            patch.setattr(ranking, name, 1e9)
        patch.setattr(ranking, "mostly", lambda shares: True)
        yield


def of_graphs(seed: int, indices: Sequence[int], cache: Cache | None = None) -> Iterator[Any]:
    """Judge these graphs. Before each, its number is given as a list.

    Args:
        cache: where plans are remembered; by default a temporary folder.
    """
    warnings.simplefilter("ignore")
    ort.set_default_logger_severity(4)
    with _plans_win(), tempfile.TemporaryDirectory() as folder:
        for index in indices:
            yield [index]
            yield _verdict(network(seed, index), cache or Cache(Path(folder)))


def _verdict(case: Network, cache: Cache) -> Verdict:
    """Of a graph when it is first opened, and when its plan is remembered."""
    answers: list[Any] = []
    try:
        theirs = OrtSession(case.model, quiet(0), ["CPUExecutionProvider"])
    except Exception as error:
        return Verdict(case.index, "without ONNX Runtime", "refused by it", str(error), str(case))

    def run(feeds: Any) -> Any:
        return theirs.run(None, feeds)

    for feeds in case.sets:
        try:
            answers.append(run(feeds))
        except Exception as error:
            answers.append(error)
    kinds = []
    for time in ("first", "again"):
        words = {"cache": cache, "background": False}
        if case.shapes:
            words["shapes"] = case.shapes
        try:
            with coexec.InferenceSession(case.model, **words) as own:
                kinds.append("a plan" if own.devices else "ONNX Runtime")
                for number, right in enumerate(answers):
                    told = of_run(own, None, case, number, right, run)
                    if told is not None:
                        why = f"{time}, by {kinds[-1]}: {told[1]}"
                        return Verdict(case.index, told[0], f"by {kinds[-1]}", why, str(case))
        except CoexecError as error:
            return Verdict(case.index, "wrong", "opened", f"{time}: {error}", str(case))
        except Exception as error:
            said = f"{time}: {type(error).__name__}: {error}"
            return Verdict(case.index, "raw exception", "opened", said, str(case))
    return Verdict(case.index, "right", f"by {kinds[0]}, then {kinds[1]}")
