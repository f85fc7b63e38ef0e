"""The ONNX project's backend tests on each engine, through ONNX's own runner: none fails."""

import pytest

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.registry import processors
from tests.helpers.suite import TestOutcome, counts, outcomes

EVERY = {"onnxruntime": 1, "opencl": 10, "openvino": 4}
"""By engine, of how many tests one is run: OpenCL compiles kernels, for a second a test."""


def outcomes_of(engine: str, cache: Cache, every: int) -> list[TestOutcome]:
    """Skips the test, with the reason, where the engine cannot be used."""
    (cpu,) = [driven for driven in processors("cpu") if driven.name == "cpu"]
    reason = cpu.by[engine].unusable if engine in cpu.by else f"{engine} is not installed"
    if reason is not None:
        pytest.skip(reason)
    return list(outcomes(f"cpu:{usable_cores()[-1]}/{engine}", cache, every))


def failed(found: list[TestOutcome]) -> dict[str, str]:
    return {each.name: each.why for each in found if each.outcome == "failed"}


@pytest.mark.parametrize("engine", EVERY)
def test_sample(engine: str, cache: Cache) -> None:
    found = outcomes_of(engine, cache, every=400)
    assert not failed(found) and counts(found)["whole"]


@pytest.mark.conformance
@pytest.mark.parametrize(("engine", "every"), EVERY.items())
def test_many(engine: str, every: int, cache: Cache) -> None:
    found = outcomes_of(engine, cache, every)
    assert not failed(found)
    assert all(each.why for each in found if each.outcome != "whole")
    print(dict(counts(found)))
