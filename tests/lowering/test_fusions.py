"""No plan cuts through what ONNX Runtime fuses: random networks, random plans."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.cache import Cache
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from tests.helpers.examples import scaled
from tests.helpers.fused_blocks import (
    IMAGES,
    ON_IMAGES,
    ON_WORDS,
    QUANTISED,
    WORDS,
    network,
    quantised_network,
)
from tests.helpers.network_cases import pieces_of
from tests.helpers.onnx_models import written
from tests.lowering.test_borders import compiled, operators, optimised, without_reshapes


def blocks(kinds: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(kinds), min_size=1, max_size=5)


NETWORKS = st.one_of(
    blocks(ON_IMAGES).map(lambda names: network(names, IMAGES)),
    blocks(ON_WORDS).map(lambda names: network(names, WORDS)),
    blocks(QUANTISED).map(quantised_network),
)


@settings(max_examples=scaled(12), deadline=None)
@given(NETWORKS, st.randoms(use_true_random=False))
def test_any_plan_keeps_what_the_engine_fuses(
    proto: onnx.ModelProto, chance: random.Random
) -> None:
    model = load(proto)
    device_of = {task.name: chance.randrange(2) for task in model.graph.tasks}
    with TemporaryDirectory() as folder:
        plan, found = compiled(model, Cache(Path(folder) / "c"), lambda t: device_of[t.name])
        expected = optimised(proto, Path(folder))
    assert without_reshapes(operators(plan)) == without_reshapes(expected)
    (result,) = plain_session(proto).run(None, random_inputs(model.graph))
    assert worst_difference(found["y"], result) < 1e-6


@settings(max_examples=scaled(12), deadline=None)
@given(st.data())
def test_tasks_of_many_operators_in_pieces(data: st.DataObject) -> None:
    proto = data.draw(NETWORKS)
    model = load(proto)
    pieces = data.draw(pieces_of(model.graph))
    ends = [(name, model.graph.tensors[name].whole) for name in model.graph.outputs]
    cut = written(model, pieces, ends, [("x", model.graph.tensors["x"].whole)])
    feeds = random_inputs(model.graph)
    (found,) = plain_session(cut, optimised=False).run(None, feeds)
    (expected,) = plain_session(proto, optimised=False).run(None, feeds)
    assert worst_difference(found, expected) < 1e-4
