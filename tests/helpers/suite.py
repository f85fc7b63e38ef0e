"""The ONNX project's backend tests on `coexec.backend`: the outcome and the engine's reasons."""

import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache as once
from typing import Any, Literal, NamedTuple

from onnx.backend.test.runner import Runner

from coexec.backend import CoexecBackend, CoexecRep
from coexec.cache import Cache
from coexec.errors import first_line

__all__ = ["CATEGORIES", "TestOutcome", "counts", "outcomes"]

CATEGORIES = ("Node", "Simple", "PyTorchConverted", "PyTorchOperator")


class TestOutcome(NamedTuple):
    """The outcome of one test."""

    __test__ = False

    name: str
    outcome: Literal["whole", "in part", "elsewhere", "excluded", "failed"]
    """Passed: all tasks on the engine, some, or none, with ONNX Runtime for the others.
    "excluded": neither the engine nor ONNX Runtime passes it."""
    why: str = ""
    """The engine's first reason; of "excluded" tests ONNX Runtime's, too."""


def outcomes(device: str, cache: Cache, every: int = 1) -> Iterator[TestOutcome]:
    """Run the tests on a device of coexec's.

    Args:
        every: run each n-th test only.
    """
    for test, name in _tests()[::every]:
        yield _outcome(test, name, device, cache)


def counts(found: "list[TestOutcome]") -> Counter[str]:
    return Counter(each.outcome for each in found)


class _Device:
    """The device of the running test, and what `prepare` has returned."""

    device: str
    cache: Cache
    rep: CoexecRep | None = None


class _OnDevice(CoexecBackend):
    """All tests are for "CPU"; here they run on the device of the running test."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        return True  # `prepare` has the reason

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> CoexecRep:
        _Device.rep = super().prepare(model, _Device.device, cache=_Device.cache, **kwargs)
        return _Device.rep


@once
def _tests() -> list[tuple[unittest.TestCase, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX computes infinities on purpose
        cases = Runner(_OnDevice, __name__).test_cases
    found = []
    for category in CATEGORIES:
        case = cases[f"OnnxBackend{category}ModelTest"]
        for name in sorted(dir(case)):
            if name.startswith("test_") and name.endswith("_cpu"):
                found.append((case(name), name))
    return found


def _failure(test: unittest.TestCase, device: str, cache: Cache) -> str | None:
    _Device.device, _Device.cache, _Device.rep = device, cache, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test.debug()
    except (Exception, unittest.SkipTest) as error:
        return f"{type(error).__name__}: {first_line(error)}"
    return None


def _outcome(test: unittest.TestCase, name: str, device: str, cache: Cache) -> TestOutcome:
    failure = _failure(test, device, cache)
    rep = _Device.rep
    elsewhere = dict(rep.elsewhere) if rep else {}
    count = rep.task_count if rep else 0
    why = next(iter(elsewhere.values()), "")
    if rep:
        rep.close()
    if failure is None:
        share = "whole" if not elsewhere else "in part" if len(elsewhere) < count else "elsewhere"
        return TestOutcome(name, share, why)  # type: ignore[arg-type]
    alone = _failure(test, device.partition("/")[0] + "/onnxruntime", cache)
    if _Device.rep:
        _Device.rep.close()
    is_its_own = not why and not device.endswith("/onnxruntime") and rep is not None
    if alone is None or is_its_own:
        return TestOutcome(name, "failed", failure)
    return TestOutcome(name, "excluded", f"{why or failure}; ONNX Runtime: {alone}")
