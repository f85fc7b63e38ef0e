"""The zoo holds the published architectures; their weights are fixed, and each one matters.

The figures that each file states come from exports of public PyTorch implementations, batch
normalisation folded; those of `CODL` from the list of convolutions in the public code of CoDL's
authors. Where the exports lie beside the repository, the last tests compare every layer with them.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

import coexec.research.zoo
from coexec.errors import ModelError
from coexec.model.load import build_graph
from coexec.research.zoo import MODELS, build
from coexec.research.zoo.layers import dims
from coexec.runtime.recorder import RealRecorder
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Effort, Settings
from tests.helpers.exports import EXPORTS
from tests.helpers.harmed import DEVICES

Array = npt.NDArray[np.float32]
FOLDER = Path(coexec.research.zoo.__path__[0]) / "networks"


CODL = ("posenet", "retinaface", "style_transfer", "yolov2")
"""Networks of CoDL's paper that are not those of the exports."""

CODL_GMACS = {"posenet": 30.16, "retinaface": 92.43, "style_transfer": 35.89, "vgg16": 15.35}
CODL_GMACS |= {"yolov2": 15.06}
"""Jia et al., "CoDL" (MobiSys 2022): multiply-accumulates of the convolutions alone, in 10^9."""

REDUCED: dict[str, dict[str, int]] = {
    "posenet": {"size": 64},
    "retinaface": {"size": 192},
    "style_transfer": {"height": 96, "width": 128},
    "yolov2": {"size": 128},
}
"""The same networks and weights on inputs so small that running them takes no time."""


class Layer(NamedTuple):
    """A node without its names."""

    op_type: str
    sources: tuple[int, ...]  # numbers of the layers whose outputs it reads; -1 is the input
    constants: tuple[Any, ...]  # shape of each weight; value of integers and of single numbers
    attributes: dict[str, Any]  # without those that have their default value
    shape: tuple[int, ...]


DEFAULTS: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "ceil_mode": 0, "count_include_pad": 0}
DEFAULTS |= {"group": 1, "dilations": [1, 1], "pads": [0, 0, 0, 0], "strides": [1, 1]}
DEFAULTS |= {"momentum": float(np.float32(0.9)), "training_mode": 0, "mode": b"constant"}
DEFAULTS |= {"coordinate_transformation_mode": b"half_pixel", "cubic_coeff_a": -0.75}
DEFAULTS |= {"nearest_mode": b"floor"}  # whatever it is: no Resize here takes the nearest


def exported(path: Path) -> onnx.ModelProto:
    """An export with its constants folded: some compute their padding from shapes."""
    model, size = onnx.load(path), -1
    while len(model.graph.node) != size:
        size = len(model.graph.node)
        model = shape_inference.infer_shapes(model, data_prop=True)
        values = (*model.graph.input, *model.graph.value_info)
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if is_value(t)}
        kept = []
        for node in model.graph.node:
            if node.op_type == "Shape" and all(shapes.get(node.input[0], [0])):
                known[node.output[0]] = np.array(shapes[node.input[0]])
            elif known.keys() >= {*node.input, ""} - {""}:
                feeds = {name: known[name] for name in node.input if name}
                (known[node.output[0]],) = ReferenceEvaluator(node).run(None, feeds)
            else:
                kept.append(node)
        given = {t.name for t in model.graph.initializer}
        del model.graph.node[:]
        model.graph.node.extend(kept)
        model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(v), n) for n, v in known.items() if n not in given
        )
    return model


def layers(proto: onnx.ModelProto) -> list[Layer]:
    """All nodes whose results depend on the input "x", in order."""
    graph = shape_inference.infer_shapes(proto, strict_mode=True).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
    shapes |= {t.name: tuple(t.dims) for t in graph.initializer}
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer if is_value(t)}
    constants = {v.name for v in graph.input if v.name != "x"} | {t.name for t in graph.initializer}
    numbers = {"x": -1}
    found: list[Layer] = []
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs = [name for name in node.input if name]  # "" is an optional input left out
        if node.op_type == "Shape" or constants.issuperset(inputs):
            constants.update(node.output)
            if node.op_type == "Constant":
                known[node.output[0]] = numpy_helper.to_array(attributes["value"])
            continue
        numbers[node.output[0]] = len(found)
        if node.op_type == "LSTM":
            inputs = inputs[:4]  # the rest is the initial state: zeros, or left out
        reads = [
            known[name].tolist() if name in known else shapes[name]
            for name in inputs
            if name in constants
        ]
        sources = tuple(numbers[name] for name in inputs if name in numbers)
        rest = {k: v for k, v in attributes.items() if v != DEFAULTS.get(k)}
        found.append(Layer(node.op_type, sources, tuple(reads), rest, shapes[node.output[0]]))
    return found


def is_value(tensor: onnx.TensorProto) -> bool:
    return prod(tensor.dims) == 1 or tensor.data_type == onnx.TensorProto.INT64


WEIGHTED = {"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LSTM"}


def stated(name: str) -> tuple[int, int, tuple[int, ...]]:
    """Parameters, multiply-accumulates and shape of the output, as the network's file says."""
    text = (FOLDER / f"{name}.txt").read_text()
    counts = [
        int(re.findall(rf"([\d ]+\d) {what}", text)[-1].replace(" ", ""))
        for what in ("parameters", "multiply-accumulates")
    ]
    (shape,) = re.findall(r"-> \w+ \[(.*?)\]", text)
    return counts[0], counts[1], tuple(map(int, shape.split(", ")))


def figures(found: list[Layer]) -> tuple[int, int, tuple[int, ...]]:
    """The same, counted; the shape is that of the last layer."""
    parameters = macs = 0
    for layer in found:
        if layer.op_type in WEIGHTED:
            parameters += sum(map(prod, layer.constants))
        if layer.op_type in ("Conv", "Gemm"):  # each output element reads one filter
            macs += prod(layer.shape) * prod(layer.constants[0][1:])
        if layer.op_type == "ConvTranspose":  # each input element reads one filter
            macs += prod(found[layer.sources[0]].shape) * prod(layer.constants[0][1:])
        if layer.op_type == "LSTM":
            steps, _, batch, _ = layer.shape
            macs += steps * batch * sum(map(prod, layer.constants[:2]))
    return parameters, macs, found[-1].shape


class Bare(NamedTuple):
    """A model whose weights are graph inputs: quick to check, and any weight can be changed."""

    proto: onnx.ModelProto
    weights: dict[str, ir.TensorProtocol]
    shapes: dict[str, tuple[int, ...]]  # what the builder says of each layer's output

    def arrays(self) -> dict[str, Array]:
        return {key: tensor.numpy() for key, tensor in self.weights.items()}


def bare(name: str) -> Bare:
    return bared(build(name))


def bared(model: ir.Model, *, inner: bool = False) -> Bare:
    """`inner` adds the output of every layer to the outputs."""
    graph = model.graph
    weights: dict[str, ir.TensorProtocol] = {}
    for key, value in list(graph.initializers.items()):
        if isinstance(value.const_value, ir.LazyTensor):
            weights[key] = value.const_value
            del graph.initializers[key]
            value.const_value = None
            graph.inputs.append(value)
    made = [v for node in graph for v in node.outputs]
    if inner:
        graph.outputs.extend(v for v in made if v not in graph.outputs)
    return Bare(ir.to_proto(model), weights, {str(v.name): dims(v) for v in made})


def runner(model: bytes) -> Any:
    """`InferenceSession.run` on one core."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run


def reduced(name: str) -> ir.Model:
    """The network on an input that it runs quickly on."""
    return build(name, **REDUCED.get(name, {}))


def sample(model: ir.Model, seed: int) -> Array:
    """A standard-normal input."""
    shape = dims(model.graph.inputs[0])
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def difference(a: Array, b: Array) -> float:
    """Largest difference over largest value."""
    return float(np.abs(a - b).max() / np.abs(a).max())


def test_models_are_listed_in_order() -> None:
    assert list(MODELS) == sorted(path.stem for path in FOLDER.iterdir())


def test_unknown_name_lists_the_models() -> None:
    with pytest.raises(ModelError, match=r"'alexnet'.*deeplab_v3, inception_v3, .*vgg16"):
        build("alexnet")


@pytest.mark.parametrize("name", MODELS)
def test_figures(name: str) -> None:
    assert figures(layers(bare(name).proto)) == stated(name)


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes(name: str) -> None:
    model, (proto, _, shapes) = build(name), bare(name)
    assert (model.opset_imports, model.ir_version) == ({"": 17}, 8)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert [v.name for v in model.graph.outputs] == ["y" if name == "lstm" else "logits"]
    assert set(Counter(node.name for node in model.graph).values()) == {1}
    onnx.checker.check_model(proto, full_check=True)
    del proto.graph.value_info[:]
    inferred = shape_inference.infer_shapes(proto, strict_mode=True).graph
    for value in [*inferred.value_info, *inferred.output]:
        assert shapes[value.name] == tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def test_same_weights_in_every_process() -> None:
    weight = bare("squeezenet").weights["conv1/conv/weight"]
    assert zlib.crc32(weight.tobytes()) == 1462286065


ALIVE = ("conv", "relu", "relu6", "hswish", "hsigmoid", "add")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_activations_stay_alive(name: str) -> None:
    """Units are on and off, numbers stay in range, and another input gives another output."""
    network = reduced(name)
    samples = [sample(network, seed) for seed in (1, 2)]
    model = bared(network, inner=True)
    names = [key for key in model.shapes if key.endswith(ALIVE)]
    run, weights = runner(model.proto.SerializeToString()), model.arrays()
    output = model.proto.graph.output[0].name
    y, *inner = run([output, *names], {"x": samples[0], **weights})
    (other,) = run([output], {"x": samples[1], **weights})
    assert 0.1 < y.std() < 10
    assert difference(y, other) > 0.05
    for key, tensor in zip(names, inner, strict=True):
        assert 0.1 < tensor.std() < 20, key
        if key.endswith("hsigmoid"):
            assert ((tensor > 0) & (tensor < 1)).mean() > 0.7, key
        else:
            assert 0.2 < (tensor > 0).mean() < 0.99, key
        assert not key.endswith("relu6") or 0.001 < (tensor == 6).mean() < 0.2, key


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["lstm", "mobilenet_v1", "mobilenet_v3", "squeezenet"])
def test_every_weight_shows_in_the_output(name: str) -> None:
    """A kernel that reads a layer's filters backwards or forgets its bias is seen at the end."""
    model = bare(name)
    feeds = {"x": sample(build(name), 1), **model.arrays()}
    run = runner(model.proto.SerializeToString())
    (y,) = run(None, feeds)
    for key in model.weights:
        filters = feeds[key].reshape(len(feeds[key]), -1)
        wrong = np.zeros_like(filters) if key.endswith("bias") else filters[:, ::-1]
        (changed,) = run(None, {**feeds, key: wrong.reshape(feeds[key].shape)})
        assert difference(y, changed) > (0.01 if key.endswith("bias") else 0.05), key


def test_a_number_that_the_file_does_not_name() -> None:
    with pytest.raises(ValueError, match="squeezenet has no number size"):
        build("squeezenet", size=64)


def test_saved_model_holds_the_weights(tmp_path: Path) -> None:
    ir.save(build("squeezenet"), tmp_path / "model.onnx")
    feeds = {"x": sample(build("squeezenet"), 1)}
    (y,) = runner((tmp_path / "model.onnx").read_bytes())(None, feeds)
    model = bare("squeezenet")
    (expected,) = runner(model.proto.SerializeToString())(None, feeds | model.arrays())
    assert difference(expected, y) < 1e-4


@pytest.mark.parametrize("name", CODL_GMACS)
def test_size_is_that_of_the_paper(name: str) -> None:
    found = [layer for layer in layers(bare(name).proto) if layer.op_type == "Conv"]
    assert figures(found)[1] == pytest.approx(CODL_GMACS[name] * 1e9, rel=0.01)
    tasks = build_graph(build(name), name).tasks
    assert sum(task.macs for task in tasks) == stated(name)[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["posenet", "retinaface", "style_transfer"])
def test_same_result_on_one_core_and_on_two(name: str, tmp_path: Path) -> None:
    network = reduced(name)
    feeds, model = {"x": sample(network, 1)}, ir.to_proto(network).SerializeToString()
    (expected,) = runner(model)(None, feeds)
    tasks = [task.name for task in build_graph(network, name).tasks]
    both = dict(zip((tasks[0], tasks[-1]), DEVICES, strict=False))
    for devices, pins in ((DEVICES[:1], {}), (DEVICES, both)):
        once = Effort(warm_up=0, least=1, most=1)  # the plan need not be good
        work = PlanningContext(model, Settings(devices, cache=tmp_path, pins=pins, effort=once))
        prepared = work.prepared_by("heft", {})
        recorder = RealRecorder(prepared.compiled, work.names)
        with work.start(prepared) as executor:
            (y,) = executor.run(feeds, recorder).values()
        assert {span.device for span in recorder.trace().spans} == {*devices}
        assert difference(expected, y) < 1e-4


def export(name: str) -> list[Layer]:
    """The layers of an export that lies beside the repository."""
    if not (path := EXPORTS / f"{name}.onnx").exists():
        pytest.skip(f"no exports to compare with: {path} is absent")
    return layers(exported(path))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in CODL])
def test_equals_the_export(name: str) -> None:
    expected = export(name)
    assert figures(expected) == stated(name)
    assert layers(bare(name).proto) == expected


def test_yolov2_of_the_export() -> None:
    """On other inputs and classes; its Reshape, Transpose, Reshape are one SpaceToDepth here."""
    expected = [layer._replace(sources=()) for layer in export("yolov2")]
    at = next(i for i, layer in enumerate(expected) if layer.op_type == "Reshape")
    attributes, shape = {"blocksize": 2}, expected[at + 2].shape
    expected[at : at + 3] = [Layer("SpaceToDepth", (), (), attributes, shape)]
    model = bared(build("yolov2", size=448, outputs=425, passthrough=64))
    found = [layer._replace(sources=()) for layer in layers(model.proto)]
    assert found == expected


@pytest.mark.parametrize(("name", "times"), [("posenet", 18.7), ("style_transfer", 4.7)])
def test_exports_are_smaller(name: str, times: float) -> None:
    """The factors that docs/zoo.md states."""
    assert CODL_GMACS[name] * 1e9 / figures(export(name))[1] == pytest.approx(times, abs=0.05)
