"""What `--check` says of outputs that differ from ONNX Runtime's."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coexec.cli.checks import judged_by
from coexec.errors import ExecutionError
from coexec.graph.graph import Tensor
from coexec.model.difference import tolerance_of

RANDOM = 0.5
"""What two runs of a model that draws numbers differ by."""


def model(own: float, kind: str = "float32") -> Any:
    """A model whose answers with and without optimisations differ by so much."""

    def reference(feeds: Any, *, optimised: bool = True) -> dict[str, np.ndarray]:
        return {"y": np.array([1.0, 0.5 if optimised else 0.5 + own], np.float64)}

    graph = SimpleNamespace(tensors={"y": Tensor("y", (2,), kind)}, tasks=())
    return SimpleNamespace(reference=reference, model=SimpleNamespace(graph=graph))


def judged(worst: float, model: Any) -> str:
    return judged_by(worst, tolerance_of(model.model.graph), model, {})


def test_a_small_difference_is_none() -> None:
    said = judged(9e-5, model(0.0))
    assert said == "equal to ONNX Runtime within 1e-04 of the largest value: 9.0e-05"


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_numbers_of_16_bits_may_be_rounded_the_other_way(kind: str) -> None:
    assert "within 1e-02" in judged(2**-11, model(0.0, kind))


def test_a_model_that_amplifies_rounding_may_differ_as_it_does_from_itself() -> None:
    said = judged(4e-3, model(3e-3))
    assert "by 4.0e-03" in said and "differ by 3.0e-03" in said and "amplifies rounding" in said


@pytest.mark.parametrize("own", [0.0, 1e-5, 1.9e-3, float("inf")])
def test_more_than_that_is_an_error(own: float) -> None:
    with pytest.raises(ExecutionError, match=r"by 0\.004 of .* 1e-04 is allowed, and its own"):
        judged(4e-3, model(own))


def test_a_model_that_differs_from_itself_by_no_more_than_is_allowed_amplifies_nothing() -> None:
    with pytest.raises(ExecutionError, match=r"by 0\.00015 of .* 1e-04 is allowed, and its own"):
        judged(1.5e-4, model(9e-5))


def test_random_numbers_are_no_rounding() -> None:
    with pytest.raises(ExecutionError, match="expected of random operators"):
        judged(RANDOM, model(RANDOM))
