"""Parts of models that cannot be planned with: what they become, and that the rest is planned."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from coexec.cli import main
from coexec.costs.estimated import estimated_s
from coexec.engines.detect import usable_cores
from coexec.errors import InfeasibleError, ModelError, ModelWarning, PlanError
from coexec.graph.graph import Graph
from coexec.graph.receptive import needed_inputs, splittable_axes
from coexec.graph.region import Region
from coexec.model import load as loading
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.values import run_session
from coexec.plan.plan import Plan, Provenance
from coexec.planners import PLANNERS
from coexec.research import platforms
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Effort, Settings
from tests.helpers.small_models import from_nodes, tensor_info

node = helper.make_node
CORES = usable_cores()[:2]
TWO = [f"cpu:{core}" for core in CORES]
ONCE = Effort(warm_up=0, least=1, most=1)
FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
TEXT = TensorProto.STRING


def model_of(nodes: list, inputs: list, outputs: list, weights: Any = None, **domains: int) -> Any:
    """A model of the newest operators, with operator sets of other domains by name."""
    proto = from_nodes(nodes, inputs, outputs, weights, opset=21)
    proto.ir_version = 10
    named = {"ml": "ai.onnx.ml", "microsoft": "com.microsoft", "mine": "mine"}
    for domain, version in domains.items():
        proto.opset_import.append(helper.make_opsetid(named[domain], version))
    return proto


def counted() -> onnx.ModelProto:
    """A count that depends on data, between convolutions; a way leaves it and comes back."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "v": rng.standard_normal((8, 8, 3, 3)).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"], "first", pads=[1] * 4),
        node("Relu", ["c"], ["r"], "relu"),
        node("Conv", ["r", "v"], ["d"], "second", pads=[1] * 4),
        node("NonZero", ["r"], ["places"], "places"),
        node("Cast", ["places"], ["numbers"], "numbers", to=TensorProto.FLOAT),
        node("ReduceMax", ["numbers"], ["most"], "most", keepdims=0),  # plain again
        node("Exp", ["most"], ["grown"], "outside"),
        node("Add", ["numbers", "grown"], ["again"], "again"),
        node("Add", ["most", "d"], ["e"], "add"),
        node("Tanh", ["e"], ["y"], "last"),
    ]
    outputs = [tensor_info("y", [1, 8, 9, 9]), tensor_info("again", [4, "n"])]
    return model_of(nodes, [tensor_info("x", [1, 3, 9, 9])], outputs, weights)


def boxes() -> onnx.ModelProto:
    values = {
        "most": np.array([9], np.int64),
        "iou": np.array([0.5], np.float32),
        "least": np.array([0.1], np.float32),
    }
    nodes = [
        node("Sigmoid", ["s"], ["scores"], "scores"),
        node("NonMaxSuppression", ["b", "scores", "most", "iou", "least"], ["kept"], "nms"),
    ]
    inputs = [tensor_info("b", [1, 40, 4]), tensor_info("s", [1, 2, 40])]
    return model_of(nodes, inputs, [tensor_info("kept", ["n", 3], 7)], values)


def reshaped() -> onnx.ModelProto:
    """The declared shape was true of one run."""
    nodes = [node("Relu", ["x"], ["h"], "relu"), node("Reshape", ["h", "s"], ["y"], "reshape")]
    inputs = [tensor_info("x", [6]), tensor_info("s", [2], 7)]
    return model_of(nodes, inputs, [tensor_info("y", [2, 3])])


def branching() -> onnx.ModelProto:
    part = helper.make_graph(
        [node("Slice", ["h", "from", "to"], ["t"])], "part", [], [tensor_info("t", None)]
    )
    whole = helper.make_graph([node("Neg", ["h"], ["e"])], "whole", [], [tensor_info("e", None)])
    nodes = [
        node("Relu", ["x"], ["h"], "relu"),
        node("If", ["c"], ["o"], "if", then_branch=part, else_branch=whole),
        node("ReduceMax", ["o"], ["m"], "max", keepdims=0),
        node("Add", ["m", "h"], ["y"], "add"),
    ]
    inputs = [tensor_info("c", [], TensorProto.BOOL), tensor_info("x", [4, 5])]
    ends = {"from": np.array([0], np.int64), "to": np.array([2], np.int64)}
    return model_of(nodes, inputs, [tensor_info("y", [4, 5])], ends)


def listed() -> onnx.ModelProto:
    sequence = helper.make_sequence_type_proto(FLOATS)
    nodes = [
        node("SequenceInsert", ["s", "x"], ["o"], "insert"),
        node("ConcatFromSequence", ["o"], ["c"], "join", axis=0),
        node("Tanh", ["c"], ["y"], "last"),
    ]
    inputs = [helper.make_value_info("s", sequence), tensor_info("x", [2, 3])]
    outputs = [helper.make_value_info("o", sequence), tensor_info("y", ["n", 3])]
    return model_of(nodes, inputs, outputs)


def optional() -> onnx.ModelProto:
    inputs = [helper.make_value_info("o", helper.make_optional_type_proto(FLOATS))]
    nodes = [
        node("OptionalHasElement", ["o"], ["there"], "there"),
        node("Neg", ["x"], ["y"], "negate"),
    ]
    outputs = [tensor_info("there", [], TensorProto.BOOL), tensor_info("y", [3])]
    return model_of(nodes, [*inputs, tensor_info("x", [3])], outputs)


def texts() -> onnx.ModelProto:
    labels = {"keys_strings": ["a", "b"], "values_int64s": [1, 2]}
    nodes = [
        node("LabelEncoder", ["s"], ["i"], "labels", domain="ai.onnx.ml", **labels),
        node("Cast", ["i"], ["f"], "floats", to=TensorProto.FLOAT),
        node("Mul", ["f", "x"], ["y"], "product"),
        node("StringConcat", ["s", "end"], ["t"], "concat"),
        node("Identity", ["end"], ["constant"], "constant"),
    ]
    inputs = [tensor_info("s", [3], TEXT), tensor_info("x", [3])]
    outputs = [
        tensor_info("y", [3]),
        tensor_info("t", [3], TEXT),
        tensor_info("constant", [1], TEXT),
    ]
    return model_of(nodes, inputs, outputs, {"end": np.array(["é"], object)}, ml=3)


def mapped() -> onnx.ModelProto:
    """As classifiers of scikit-learn end."""
    kind = helper.make_map_type_proto(TensorProto.INT64, FLOATS)
    labels = {"classlabels_int64s": [0, 1, 2]}
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "product"),
        node("Softmax", ["m"], ["p"], "softmax"),
        node("ZipMap", ["p"], ["z"], "zip", domain="ai.onnx.ml", **labels),
    ]
    outputs = [helper.make_value_info("z", helper.make_sequence_type_proto(kind))]
    weights = {"w": np.eye(5, 3, dtype=np.float32)}
    return model_of(nodes, [tensor_info("x", [4, 5])], outputs, weights, ml=3)


def map_read() -> onnx.ModelProto:
    kind = helper.make_map_type_proto(TensorProto.INT64, FLOATS)
    words = {"int64_vocabulary": [0, 2]}
    nodes = [
        node("DictVectorizer", ["d"], ["v"], "vector", domain="ai.onnx.ml", **words),
        node("Neg", ["v"], ["y"], "negate"),
    ]
    return model_of(nodes, [helper.make_value_info("d", kind)], [tensor_info("y", [1, 2])], ml=1)


def microsoft() -> onnx.ModelProto:
    nodes = [
        node("FusedMatMul", ["x", "w"], ["h"], "fused", domain="com.microsoft", alpha=0.5),
        node("Relu", ["h"], ["y"], "relu"),
    ]
    weights = {"w": np.eye(5, dtype=np.float32)}
    ends = [tensor_info("x", [4, 5])], [tensor_info("y", [4, 5])]
    return model_of(nodes, *ends, weights, microsoft=1)


def narrow() -> onnx.ModelProto:
    """bfloat16 as an input, as weights, between tasks, as outputs and as a constant output."""
    nodes = [
        node("Cast", ["x"], ["f"], "wide", to=TensorProto.FLOAT),
        node("Cast", ["w"], ["v"], "weights", to=TensorProto.FLOAT),
        node("MatMul", ["f", "v"], ["m"], "product"),
        node("Cast", ["m"], ["n"], "narrow", to=TensorProto.BFLOAT16),
        node("Reshape", ["n", "flat"], ["y"], "reshape"),
        node("Identity", ["k"], ["constant"], "constant"),
    ]
    kind = TensorProto.BFLOAT16
    outputs = [tensor_info("y", [64], kind), tensor_info("constant", [2], kind)]
    weights = {"flat": np.array([64], np.int64)}
    proto = model_of(nodes, [tensor_info("x", [2, 32], kind)], outputs, weights)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (32, 32)), ("k", (2,))):
        values = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    return proto


FEEDS: dict[str, Any] = {
    "listed": {"s": [np.ones((2, 3), np.float32)] * 2},
    "optional": {"o": np.ones(3, np.float32)},
    "texts": {"s": np.array(["a", "b", "a"], object)},
    "reshaped": {"s": np.array([3, 2])},
    "map_read": {"d": {0: 2.0, 2: 3.0}},
}
MODELS: list[Callable[[], onnx.ModelProto]] = [
    counted,
    boxes,
    reshaped,
    branching,
    listed,
    optional,
    texts,
    mapped,
    map_read,
    microsoft,
    narrow,
]
pytestmark = pytest.mark.filterwarnings("ignore:.*was not compared:coexec.errors.ModelWarning")


def expected(proto: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, run_session(session, names, feeds), strict=True))


def in_turn(work: PlanningContext) -> Plan:
    """Every task on another device than the one before."""
    places = [device.engine.place for device in work.devices]
    pieces = [work.graph.whole_piece(task) for task in work.graph.tasks]
    rows = {place: tuple(pieces[i :: len(places)]) for i, place in enumerate(places)}
    used = {place: row for place, row in rows.items() if row}
    return Plan.of_places(work.graph.fingerprint, used, Provenance("in turn"))


def runs(proto: onnx.ModelProto, feeds: dict[str, Any], cache: Path) -> set[str]:
    """Compare with ONNX Runtime on one device and two, cold and from the cache: fingerprints."""
    wanted, found = expected(proto, feeds), set()
    for devices in (TWO[:1], TWO, TWO):
        work = PlanningContext(proto, Settings(devices=devices, cache=cache, effort=ONCE))
        found.add(work.graph.fingerprint)
        by = ("heft", "single")[len(devices) % 2]
        for prepared in (work.prepared_by(by, {}), work.prepared(in_turn(work))):
            with work.start(prepared) as executor:
                for _ in range(2):
                    outputs = executor.run(feeds)
            assert outputs.keys() == wanted.keys()
            assert max(worst_difference(outputs[n], v) for n, v in wanted.items()) < 1e-6
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore:.*rest on estimates:coexec.errors.ModelWarning")
def test_results_are_those_of_onnx_runtime(make: Any, tmp_path: Path) -> None:
    proto = make()
    feeds = random_inputs(load(proto).graph) | FEEDS.get(make.__name__, {})
    assert len(runs(proto, feeds, tmp_path)) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", [*MODELS], ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore::coexec.errors.ModelWarning")
def test_what_cannot_be_grouped_is_one_task(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not simplified, and not grouped either: restored from the cache as the same."""
    build = loading.build_graph

    def only_whole(model: ir.Model, name: str, whole: str = "") -> Graph:
        if not whole:
            raise KeyError("made to fail")
        return build(model, name, whole)

    proto = make()
    feeds = random_inputs(load(proto).graph) | FEEDS.get(make.__name__, {})
    monkeypatch.setattr(loading, "build_graph", only_whole)
    graph = load(proto).graph
    assert [task.opaque for task in graph.tasks] == ["'made to fail'"]
    assert len(runs(proto, feeds, tmp_path)) == 1


def test_a_model_that_cannot_be_simplified_is_grouped_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("made to fail")

    monkeypatch.setattr(loading, "simplified", fail)
    with pytest.warns(ModelWarning, match="is planned as it was given: made to fail"):
        graph = load(counted()).graph
    assert [bool(task.opaque) for task in graph.tasks].count(True) == 1 < len(graph.tasks)


def test_a_wrong_simplification_does_not_reach_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    simplified = loading.simplified

    def wrong(model: ir.Model, **how: Any) -> ir.Model:
        found = simplified(model, **how)
        next(n for n in found.graph if n.op_type == "Tanh").op_type = "Sigmoid"
        return found

    monkeypatch.setattr(loading, "simplified", wrong)
    with pytest.warns(ModelWarning, match="differs from the given one in output 'y'"):
        model = load(counted(), check=True)
    assert [n.op_type for n in model.source.graph][-1] == "Tanh"


def test_what_onnx_runtime_refuses_is_refused() -> None:
    proto = model_of(
        [node("Unheard", ["x"], ["y"], domain="mine")],
        [tensor_info("x", [3])],
        [tensor_info("y", [3])],
        mine=1,
    )
    for check in (False, True):
        with pytest.raises(ModelError, match="ONNX Runtime does not run the model") as caught:
            load(proto, check=check)
        assert len(str(caught.value).splitlines()) == 1


def test_only_plain_tensors_pass_between_tasks() -> None:
    """What lies on a way out of an opaque task and back into it is a part of it."""
    graph = load(counted()).graph
    (opaque,) = [task for task in graph.tasks if task.opaque]
    names = {name for op in opaque.operators for name in op.outputs}
    assert names == {"places", "numbers", "most", "grown", "again"}
    assert opaque.opaque == "the shape of 'places' (NonZero) depends on data"
    assert opaque.inputs == ("r",) and set(opaque.outputs) == {"most", "again"}
    passed = {name for task in graph.tasks for name in task.inputs}
    assert not any(graph.tensors[name].opaque for name in passed)
    again = graph.tensors["again"]
    assert again.opaque and again.size_bytes == 0 and again.dtype == "tensor(float)"
    order = [task.name for task in graph.tasks]
    assert order.index(opaque.name) < order.index(graph.producer["y"].name)


def test_a_group_that_an_opaque_task_takes_in_keeps_its_order() -> None:
    """A convolution and the addition behind it are a group; what is added comes between them."""
    weights = {"w": np.ones((4, 4, 1, 1), np.float32)}
    nodes = [
        node("NonZero", ["x"], ["places"], "places"),
        node("Cast", ["places"], ["numbers"], "numbers", to=TensorProto.FLOAT),
        node("ReduceMax", ["numbers"], ["most"], "most", keepdims=0),
        node("Mul", ["x", "most"], ["scaled"], "scaled"),
        node("Conv", ["scaled", "w"], ["c"], "conv"),
        node("Exp", ["most"], ["other"], "other"),
        node("Add", ["c", "other"], ["sum"], "sum"),
        node("ReduceMax", ["sum"], ["top"], "top", keepdims=0),
        node("Add", ["numbers", "top"], ["y"], "again"),
    ]
    x = tensor_info("x", [1, 4, 3, 3])
    proto = model_of(nodes, [x], [tensor_info("y", [4, "n"])], weights)
    graph = load(proto, check=True).graph
    (opaque,) = [task for task in graph.tasks if task.opaque]
    made = set(opaque.inputs)
    for op in opaque.operators:
        assert {name for name in op.inputs if name not in opaque.weights} <= made
        made.update(op.outputs)
    assert {"sum", "other"} <= made and opaque.inputs == ("x",)


def test_simulated_platforms_run_no_opaque_task() -> None:
    graph = load(boxes()).graph
    phone = platforms.load("snapdragon_625")
    with pytest.raises(InfeasibleError):
        PLANNERS["heft"](graph, phone.cost, phone.system)


def test_reasons_are_plain_words() -> None:
    wanted = {
        boxes: "the shape of 'kept' (NonMaxSuppression) depends on data",
        reshaped: "the shape of 'y' (Reshape) depends on data",
        branching: "the shape of 'o' (If) depends on data",
        listed: "'s' is no tensor but seq(tensor(float))",
        optional: "'o' is no tensor but optional(tensor(float))",
        texts: "'s' is tensor(string), which cannot be moved between tasks",
        mapped: "'z' (ai.onnx.ml.ZipMap) is no tensor but seq(map(int64,tensor(float)))",
        map_read: "'d' is no tensor but map(int64,tensor(float))",
    }
    for make, reason in wanted.items():
        tasks = load(make()).graph.tasks
        assert reason in [task.opaque for task in tasks], [task.opaque for task in tasks]
    for make in (microsoft, narrow):  # ONNX Runtime tells the shapes
        assert not any(task.opaque for task in load(make()).graph.tasks)


def test_no_two_opaque_tasks_share_a_profile() -> None:
    proto = boxes()
    other = boxes()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([3], np.int64), "most"))
    one, same, two = (load(p).graph for p in (proto, boxes(), other))
    assert one.fingerprint == same.fingerprint != two.fingerprint
    assert one.tasks[-1].signature != two.tasks[-1].signature


def test_an_opaque_task_is_never_cut() -> None:
    graph = load(branching()).graph
    task = next(task for task in graph.tasks if task.opaque)
    assert splittable_axes(graph, task) == ()
    with pytest.raises(PlanError):
        needed_inputs(graph, task, Region((1,), (2,)))
    with pytest.raises(PlanError):
        kept = next(task for task in load(boxes()).graph.tasks if task.opaque)
        needed_inputs(load(boxes()).graph, kept, Region((0,), (1,)))


def test_an_estimate_counts_the_operators_of_an_opaque_task() -> None:
    graph = load(counted()).graph
    (opaque,) = [task for task in graph.tasks if task.opaque]
    assert estimated_s(graph, opaque, 1) > 5 * 5e-6


def test_other_engines_refuse(tmp_path: Path) -> None:
    work = PlanningContext(counted(), Settings(devices=["null:0"], cache=tmp_path))
    with pytest.raises(InfeasibleError, match="null runs no opaque tasks: the shape of 'places'"):
        work.prepared_by("single", {})
    mixed = PlanningContext(
        counted(), Settings(devices=["null:0", TWO[0]], cache=tmp_path, effort=ONCE)
    )
    cost, _ = mixed.measured
    name = next(task.name for task in mixed.graph.tasks if task.opaque)
    null, cpu = (device.engine.place for device in mixed.devices)
    assert cost.tasks_s[null][name] == float("inf") > cost.tasks_s[cpu][name] > 0


def test_inspect_lists_opaque_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "boxes.onnx"
    onnx.save(boxes(), str(path))
    assert main(["inspect", str(path), "--json", "--cache", str(tmp_path / "cache")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["opaque"].values()) == [
        "the shape of 'kept' (NonMaxSuppression) depends on data"
    ]
