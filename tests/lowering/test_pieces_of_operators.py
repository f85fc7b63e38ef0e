"""Every splitting rule: a piece computed from what it needs equals that part of the whole."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from coexec.graph.graph import Piece
from coexec.graph.receptive import needed_inputs, splittable_axes
from coexec.graph.region import Region
from coexec.graph.rules import RULES
from tests.helpers import computing_cases, layout_cases, shape_cases
from tests.helpers.examples import scaled
from tests.helpers.onnx_models import (
    model_of,
    part_feeds,
    proto_of,
    random_feeds,
    run,
    segment_inputs,
    written,
)
from tests.helpers.operator_cases import Case

COMMON = computing_cases.FAMILIES | layout_cases.FAMILIES
FAMILIES = COMMON | {f"{name}, doubtful": f for name, f in shape_cases.FAMILIES.items()}

quick = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=scaled(15),
    suppress_health_check=list(HealthCheck),
)


@st.composite
def regions(draw: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Region:
    """A box that is cut along ``axes`` only."""
    region = Region.whole(shape)
    for axis in axes:
        start = draw(st.integers(0, shape[axis] - 1))
        region = region.with_axis(axis, start, draw(st.integers(start + 1, shape[axis])))
    return region


@pytest.mark.parametrize("family", FAMILIES)
def test_a_piece_equals_the_slice_of_the_whole(family: str) -> None:
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        if family.endswith("doubtful"):
            assume(is_computed(case))
        model = model_of(case)
        graph, task = model.graph, model.graph.tasks[0]
        feeds = random_feeds(model)
        whole = run(model.source, feeds)[0]
        shape = graph.output_of(task).shape
        axes = splittable_axes(graph, task)
        assert whole.shape == shape
        if case.axes is not None:
            assert axes == tuple(axis for axis in case.axes if shape[axis] > 1)

        region = data.draw(regions(shape, axes))
        piece = Piece("node", region)
        reads = segment_inputs(graph, [piece])
        needed = needed_inputs(graph, task, region)
        assert set(reads) == {(name, part) for name, part in needed.items() if part.size}
        small = written(model, [piece], [("y", region)])
        found = run(small, part_feeds(model, reads, feeds))[0]
        np.testing.assert_allclose(found, whole[region.slices], rtol=1e-5, atol=1e-5)

    check()


def is_computed(case: Case) -> bool:
    """Whether ONNX Runtime runs it, and the result has elements."""
    model = ir.from_proto(proto_of(case))
    inputs = {
        f"x{i}": np.ones(s, np.float32) for i, s in enumerate(case.inputs) if isinstance(s, tuple)
    }
    try:
        return run(model, inputs)[0].size > 0
    except Exception:
        return False


def test_every_rule_is_tested() -> None:
    """With one of its operators at least, where many operators share a rule that cuts."""
    drawn: set[str] = set()
    for family in COMMON.values():

        @settings(quick, max_examples=60)  # enough for each operator of the largest family
        @given(family)
        def draw(case: Case) -> None:
            drawn.add(case.op_type)

        draw()
    tested = {id(RULES[op_type]) for op_type in drawn}
    cutting = {op_type: rule for op_type, rule in RULES.items() if rule.along}
    assert not {op_type for op_type, rule in cutting.items() if id(rule) not in tested}
