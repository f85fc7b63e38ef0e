"""Tasks from what ONNX Runtime fuses: found, bounded, and kept with the model."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.model import fused
from coexec.model.group import build_graph
from coexec.model.load import load, restore, save
from coexec.model.model import Model
from tests.helpers.fused_blocks import IMAGES, WORDS, network, quantised_network
from tests.helpers.small_models import from_nodes, tensor_info


def kinds(model: Model) -> list[str]:
    return [task.kind for task in model.graph.tasks]


def test_what_is_fused_is_one_task() -> None:
    images = kinds(load(network(["silu", "hard_swish", "residual"], IMAGES)))
    assert images == ["Conv", "Conv", "Sigmoid+Mul", "Conv+HardSwish", "Conv+Add+Relu", "Neg"]
    words = kinds(load(network(["layer_norm", "gelu", "skip"], WORDS)))
    assert words[0] == "MatMul+Add" and words[2] == "MatMul+Add" and words[-1] == "Neg"
    assert set(words[1].split("+")) == {"LayerNormalization"}
    assert set(words[3].split("+")) == {"Div", "Erf", "Add", "Mul"}
    quantised = kinds(load(quantised_network(["conv", "added"])))
    assert quantised[0] == "QuantizeLinear" and quantised[-1] == "DequantizeLinear"
    assert [kind.endswith("+QuantizeLinear") for kind in quantised[1:-1]] == [True] * 3


def test_a_dequantised_value_with_two_readers_joins_both() -> None:
    graph = load(quantised_network(["joined"])).graph
    between = {name for task in graph.tasks for name in task.inputs}
    crossing = {graph.tensors[name].dtype for name in between - {"x"}}
    assert crossing == {"uint8"}, "only quantised values lie between tasks"


def test_operators_that_were_only_moved_stay_apart() -> None:
    """Between two Transposes that the optimizer takes away."""
    weights = {f"w{i}": np.eye(8, dtype=np.float32) for i in range(2)}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "there", perm=[0, 2, 1, 3]),
        helper.make_node("Relu", ["t"], ["r"], "relu"),
        helper.make_node("Exp", ["r"], ["e"], "exp"),
        helper.make_node("Tanh", ["e"], ["h"], "tanh"),
        helper.make_node("Transpose", ["h"], ["b"], "back", perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["b", "w0"], ["m"], "first"),
        helper.make_node("MatMul", ["m", "w1"], ["y"], "second"),
    ]
    ends = [tensor_info(name, [1, 4, 4, 8]) for name in ("x", "y")]
    model = load(from_nodes(nodes, ends[:1], ends[1:], weights))
    assert kinds(model) == ["Relu", "Exp", "Tanh", "MatMul", "MatMul"]


def test_a_result_that_others_read_leaves_its_task() -> None:
    """A sum that is normalised, and an output too: a task has one operator that others read.

    The model is marked already, as if it had none.
    """
    model = load(network(["skip"], WORDS)).source
    total = next(node for node in model.graph if node.name == "0.Add4").outputs[0]
    model.graph.outputs.append(total)
    graph = load(model).graph
    assert total.name in {name for task in graph.tasks for name in task.outputs}


def test_groups_are_kept_with_the_model(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(network(["silu", "gelu", "layer_norm"], WORDS))
    assert load(network(["silu", "gelu", "layer_norm"], WORDS)).graph == model.graph
    monkeypatch.setattr(fused, "_optimised", lambda *_: pytest.fail("the optimizer was asked"))
    stored = save(model, cache)
    entry = cache.find("models", model.digest)
    assert entry is not None and stored is not model
    assert restore(entry, cache, model.digest, model.graph.name).graph == model.graph


def test_without_an_answer_the_rules_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fused, "_optimised", full)
    assert kinds(load(network(["silu", "residual"], IMAGES))) == [
        "Conv",
        "Conv",
        "Sigmoid",
        "Mul",
        "Conv+Add+Relu",
        "Neg",
    ]


def test_tasks_do_not_wait_for_each_other() -> None:
    names = ["attention", "skip", "gelu", "silu", "layer_norm"]
    for source in (network(names, WORDS), quantised_network(["joined", "pooled", "added"])):
        model = load(source)
        done = set(model.graph.inputs)
        for task in model.graph.tasks:
            assert set(task.inputs) <= done
            done.update(task.outputs)
        again = build_graph(ir.from_proto(ir.to_proto(model.source)), model.graph.name)
        assert again == model.graph
