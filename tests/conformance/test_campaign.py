"""Random operators with hostile values, and random graphs, beside ONNX Runtime's own answers.

``python -m tests.helpers.campaign`` runs as many as are wanted; here are its first ones.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.openvino.library import installed_version
from tests.helpers.campaign.comparing import difference
from tests.helpers.campaign.graphs import network
from tests.helpers.campaign.judging import SETTINGS, Verdict, verdicts
from tests.helpers.campaign.operators import probe
from tests.helpers.campaign.planning import of_graphs
from tests.helpers.campaign.probe import Given, Probe
from tests.helpers.core_programs import cpp_name

SEED = 1
PARTS = range(10)
"""Tests that the cases are dealt to, for several processes."""


def judged(found: Iterable[Any]) -> list[Verdict]:
    return [verdict for verdict in found if isinstance(verdict, Verdict)]


def cores_of(engine: str) -> list[int]:
    """What it computes on. Skips the test, with the reason, where the engine cannot be had."""
    if engine == "cpp":
        cpp_name()
    elif engine == "openvino" and installed_version() is None:
        pytest.skip("OpenVINO is not installed: pip install openvino")
    return usable_cores()[:2] if engine == "onnxruntime" else usable_cores()[-1:]


def bad(found: Iterable[Verdict]) -> list[str]:
    good = ("right", "refused", "without ONNX Runtime")
    return [f"{v.index} {v.outcome}: {v.what}: {v.why}" for v in found if v.outcome not in good]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", SETTINGS)
def test_first_operators(engine: str, cache: Cache) -> None:
    count = 12
    found = judged(verdicts(engine, SEED, range(count), 20, cores_of(engine), cache))
    assert sorted(v.index for v in found) == list(range(count))
    assert not bad(found)
    assert sum(v.outcome == "right" for v in found) > count / 4


@pytest.mark.conformance
@pytest.mark.parametrize("engine", SETTINGS)
@pytest.mark.parametrize("part", PARTS)
def test_operators(engine: str, part: int, cache: Cache) -> None:
    cases = range(1000)[part :: len(PARTS)]
    assert not bad(judged(verdicts(engine, SEED, cases, 20, cores_of(engine), cache)))


def test_first_graphs(cache: Cache) -> None:
    found = judged(of_graphs(SEED, range(3), cache))
    assert len(found) == 3 and not bad(found)


@pytest.mark.conformance
@pytest.mark.parametrize("part", PARTS)
def test_graphs(part: int, cache: Cache) -> None:
    assert not bad(judged(of_graphs(SEED, range(100)[part :: len(PARTS)], cache)))


@pytest.mark.conformance
def test_a_graph_that_only_an_optimization_of_onnx_runtime_makes_fail(cache: Cache) -> None:
    (found,) = judged(of_graphs(1126, [442], cache))
    assert found.outcome == "right", found.why


def test_cases_are_the_same_every_time() -> None:
    for index in range(30):
        one, other = probe(SEED, index), probe(SEED, index)
        assert str(one) == str(other)
        for name, values in one.feeds(0).items():
            np.testing.assert_array_equal(values, other.feeds(0)[name])
    assert network(SEED, 5).model == network(SEED, 5).model


def of_one(op_type: str, values: Any, **attributes: Any) -> Probe:
    """An operator of one input of 32 bits."""
    return Probe(op_type, (Given((np.asarray(values, np.float32),)),), attributes, index=0)


@pytest.mark.parametrize(
    ("right", "found", "told"),
    [
        ([1.0, 2.0], [1.0, 2.0001], None),
        ([1.0, 2.0], [1.0, 2.1], "1 of 2 differ"),
        ([1.0, np.nan], [1.0, 2.0], "2.0 for nan"),
        ([1.0, 2.0], [1.0, np.nan], None),  # ONNX Runtime answers
        ([1e-40, -1e-39], [0.0, -0.0], None),
    ],
)
def test_what_is_a_difference(right: Any, found: Any, told: str | None) -> None:
    case = of_one("Relu", right)
    answers = [[np.array(v, np.float32)] for v in (right, found)]
    reason = difference(case, 0, *answers, lambda feeds: answers[0])
    assert (told is None) == (reason is None) and (told or "") in (reason or "")


def test_shapes_types_and_integers_are_the_same() -> None:
    case = of_one("Shape", [1.0])
    for right, found in (([1, 2], [1, 3]), ([1, 2], [[1, 2]]), ([1], [1.0])):
        one, other = [np.asarray(right)], [np.asarray(found)]
        assert difference(case, 0, one, other, lambda feeds: []) is not None
        assert difference(case, 0, one, one, lambda feeds: []) is None


def test_a_tie_between_two_steps_may_be_rounded_to_either() -> None:
    scale, zero = np.float32(0.5), np.uint8(7)
    inputs = [np.array([1.25, 1.4], np.float32), scale, zero]
    given = tuple(Given((np.asarray(v),), constant=i > 0) for i, v in enumerate(inputs))
    case = Probe("QuantizeLinear", given, index=0)
    right = np.array([9, 10], np.uint8)  # 2.5 is rounded to the even neighbour
    for found, good in (([10, 10], True), ([11, 10], False), ([9, 9], False)):
        reason = difference(case, 0, [right], [np.array(found, np.uint8)], lambda feeds: [right])
        assert (reason is None) == good
