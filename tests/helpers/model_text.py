"""An ONNX model as text, one node a line: for people, and for tests to compare with.

    model small opset 17 (x: 1x4x8x8)
      w = tensor(6x4x3x3)
      axes = tensor(2 int64, [2, 3])
      a: 1x6x8x8 = Conv(x, w) pads=[1, 1, 1, 1]
      y: 1x6x1x1 = ReduceMean(a, axes) keepdims=1 {a note}
    return y

A name with blanks or brackets is quoted. An omitted input is `_`. The body of a node stands behind
it, with a title of its own. Weights have values here if they are scalars or few integers.
"""

import json
import math
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from coexec.arrays import Array, is_float, numpy_type
from coexec.graph.graph import Tensor
from coexec.graph.text import format_type
from coexec.model.tensors import tensor_of, value_info

_SHOWN_NUMBERS = 16
_BARE = re.compile(r"[^\s\"'(),={}\[\]]*[^\s\"'(),={}\[\]:]")
_BODY = re.compile(r"\s*(\w+) body (\(.*\))")
_INDENT = "  "


def format_model(model: ir.Model) -> str:
    """``model`` as text: inputs, weights, nodes in order, outputs."""
    graph = model.graph
    values = [*graph.inputs, *(v for node in graph for v in node.outputs)]
    tensors = {v.name or "": tensor_of(v) for v in values if v.type is not None}
    weights = {n: v.const_value for n, v in graph.initializers.items() if v.const_value is not None}
    return ModelText(tensors).of_model(
        f"model {_quoted(graph.name or 'unnamed')} opset {model.opset_imports.get('', 1)}",
        [v.name or "" for v in graph.inputs],
        weights,
        map(ir.serde.serialize_node, graph),
        [v.name or "" for v in graph.outputs],
    )


def parse_model(text: str) -> ir.Model:
    """The model of which `format_model` is ``text``, but for weights whose values are not shown.

    Those get pseudo-random values, which depend on the name only. Notes are ignored.

    Raises:
        ValueError: a line has another form.
    """
    return ir.from_proto(parse_text(text).proto)


class ModelText:
    """Writes models whose values have types and notes."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        notes: Mapping[str, str] | None = None,
        named: Collection[str] = (),
    ) -> None:
        """
        Args:
            tensors: types and shapes of values, by name.
            notes: a note for each of some values, by name.
            named: the nodes whose names are written, too.
        """
        self._tensors, self._notes, self._named = tensors, notes or {}, named

    def of_model(
        self,
        title: str,
        inputs: Sequence[str],
        weights: Mapping[str, ir.TensorProtocol],
        nodes: Iterable[onnx.NodeProto],
        outputs: Iterable[str],
    ) -> str:
        """The lines of a model; ``weights`` by name, ``inputs`` and ``outputs`` by name."""
        return "\n".join(self._lines(title, inputs, weights, nodes, outputs, ""))

    def _lines(
        self,
        title: str,
        inputs: Iterable[str],
        weights: Mapping[str, ir.TensorProtocol],
        nodes: Iterable[onnx.NodeProto],
        outputs: Iterable[str],
        indent: str,
    ) -> Iterator[str]:
        yield f"{indent}{title} ({', '.join(self._value(n) + self._note([n]) for n in inputs)})"
        for name, weight in weights.items():
            yield f"{indent}{_INDENT}{_quoted(name)} = {_format_tensor(weight)}"
        for node in nodes:
            yield from self._node(node, indent + _INDENT)
        yield f"{indent}return {', '.join(map(_quoted, outputs))}".rstrip()

    def _node(self, node: onnx.NodeProto, indent: str) -> Iterator[str]:
        outputs = ", ".join(map(self._value, node.output))
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        attributes = sorted(node.attribute, key=lambda a: a.name)
        values = {a.name: onnx.helper.get_attribute_value(a) for a in attributes}
        bodies = {k: v for k, v in values.items() if isinstance(v, onnx.GraphProto)}
        words = [f"{k}={_format_attribute(v)}" for k, v in values.items() if k not in bodies]
        if node.name in self._named:
            words.insert(0, f"name={json.dumps(node.name)}")
        text = f"{outputs} = {kind}({', '.join(map(_quoted, node.input))})"
        yield f"{indent}{' '.join((text, *words))}{self._note(node.output)}"
        for key, body in bodies.items():
            weights = {t.name: ir.serde.deserialize_tensor(t) for t in body.initializer}
            infos = [*body.input, *body.value_info, *body.output]
            own = {v.name: tensor_of(ir.serde.deserialize_value_info_proto(v, None)) for v in infos}
            inner = ModelText({**self._tensors, **own}, self._notes, self._named)
            inputs, outputs_ = ([v.name for v in vs] for vs in (body.input, body.output))
            yield from inner._lines(
                f"{key} body", inputs, weights, body.node, outputs_, indent + _INDENT
            )

    def _value(self, name: str) -> str:
        tensor = self._tensors.get(name)
        if tensor is None or (tensor.opaque and not tensor.dtype):
            return _quoted(name)
        kind = format_type(tensor)
        return f"{_quoted(name)}: {json.dumps(kind) if tensor.opaque else kind}"

    def _note(self, names: Iterable[str]) -> str:
        notes = [self._notes[name] for name in names if self._notes.get(name)]
        return f" {{{'; '.join(notes)}}}" if notes else ""


class ParsedModel(NamedTuple):
    """A model as it was written."""

    proto: onnx.ModelProto
    notes: Mapping[str, str]
    """By the first output of a node, or by the input."""


def parse_text(text: str) -> ParsedModel:
    """A model and its notes; see `parse_model`."""
    lines = [line for line in text.splitlines() if line.strip()]
    title = re.fullmatch(r"\s*\w+ (.*) opset (\d+) (\(.*\))", lines[0]) if lines else None
    if title is None:
        raise ValueError("the first line is not of the form: model NAME opset 17 (x: 1x3)")
    reader = _GraphReader(lines)
    graph = reader.graph(_LineReader(title[1]).name(), title[3])
    domains = dict.fromkeys(n.domain for n in _all_nodes(graph) if n.domain)
    opsets = [onnx.helper.make_opsetid("", int(title[2]))]
    opsets += [onnx.helper.make_opsetid(domain, 1) for domain in domains]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ParsedModel(proto, reader.notes)


class _GraphReader:
    """Reads the lines of a model one after the other."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines, self._next = lines, 0
        self.notes: dict[str, str] = {}

    def graph(self, name: str, inputs: str) -> onnx.GraphProto:
        """The graph whose title is the next line, with ``inputs`` in brackets."""
        indent = _indent_of(self._lines[self._next])
        self._next += 1
        graph = onnx.GraphProto(name=name)
        types: dict[str, Tensor] = {}
        line = _LineReader(inputs)
        graph.input.extend(value_info(t) for t in line.values("(", ")", self.notes))
        while not (line := self._line()).take("return"):
            if _indent_of(line.text) <= indent:
                raise line.error("a line of the graph, or: return")
            self._add(graph, line, types)
        for output in line.names():
            graph.output.append(
                value_info(types[output]) if output in types else onnx.ValueInfoProto(name=output)
            )
            types.pop(output, None)
        graph.value_info.extend(value_info(tensor) for tensor in types.values())
        return graph

    def _line(self) -> "_LineReader":
        if self._next == len(self._lines):
            raise ValueError("the last line is no: return")
        self._next += 1
        return _LineReader(self._lines[self._next - 1])

    def _add(self, graph: onnx.GraphProto, line: "_LineReader", types: dict[str, Tensor]) -> None:
        """Add the weight or the node of a line, with the bodies in the lines behind it."""
        outputs = line.typed()
        line.expect("=")
        if line.take("tensor("):
            graph.initializer.append(line.tensor(outputs[0].name))
            return
        domain, _, kind = line.word().rpartition(".")
        line.expect("(")
        inputs = [] if line.take(")") else line.names()
        if inputs:
            line.expect(")")
        attributes = line.attributes()
        name = str(attributes.pop("name", ""))
        note = line.note()
        if note:
            self.notes[outputs[0].name] = note
        types.update({t.name: t for t in outputs if t.dtype})
        node = onnx.helper.make_node(kind, inputs, [t.name for t in outputs], name, domain=domain)
        for key, value in attributes.items():
            ints = onnx.AttributeProto.INTS if value == [] else None
            node.attribute.append(onnx.helper.make_attribute(key, value, attr_type=ints))
        graph.node.append(node)
        while self._next < len(self._lines) and (body := _BODY.fullmatch(self._lines[self._next])):
            inner = self.graph(body[1], body[2])
            graph.node[-1].attribute.append(onnx.helper.make_attribute(body[1], inner))


class _LineReader:
    """Reads one line from its start to its end."""

    def __init__(self, text: str) -> None:
        self.text, self._at = text, 0

    def error(self, expected: str) -> ValueError:
        return ValueError(f"{self.text[: self._at]} <-- here: expected {expected} of {self.text!r}")

    def take(self, token: str) -> bool:
        """Whether ``token`` comes next; it is then read."""
        while self.text[self._at : self._at + 1] == " ":
            self._at += 1
        if not self.text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise self.error(repr(token))

    def word(self) -> str:
        """The next characters that are bare in a name."""
        self.take(" ")
        match = _BARE.match(self.text, self._at)
        if match is None:
            raise self.error("a name")
        self._at = match.end()
        return match[0]

    def json(self) -> Any:
        """The next value in JSON."""
        self.take(" ")
        try:
            value, self._at = json.JSONDecoder().raw_decode(self.text, self._at)
        except json.JSONDecodeError:
            raise self.error("a value") from None
        return value

    def name(self) -> str:
        self.take(" ")
        if self.text.startswith('"', self._at):
            return str(self.json())
        word = self.word()
        return "" if word == "_" else word

    def names(self) -> list[str]:
        names = [self.name()]
        while self.take(","):
            names.append(self.name())
        return names

    def typed(self) -> list[Tensor]:
        """Names with their types, if they have one; else ``dtype`` is empty."""
        tensors = [self._typed()]
        while self.take(","):
            tensors.append(self._typed())
        return tensors

    def _typed(self) -> Tensor:
        name = self.name()
        return self._type(name) if self.take(":") else Tensor(name, (), "", opaque=True)

    def _type(self, name: str) -> Tensor:
        self.take(" ")
        if self.text.startswith('"', self._at):
            return Tensor(name, (), str(self.json()), opaque=True)
        shape = self.word()
        if re.fullmatch(r"scalar|\d+(x\d+)*", shape) is None:
            raise self.error("a shape before this")
        dtype = re.compile(r" (\w+)").match(self.text, self._at)
        self._at = dtype.end() if dtype else self._at
        sizes = () if shape == "scalar" else tuple(map(int, shape.split("x")))
        return Tensor(name, sizes, dtype[1] if dtype else "float32")

    def values(self, opening: str, closing: str, notes: dict[str, str]) -> list[Tensor]:
        """Typed names with notes, in brackets."""
        self.expect(opening)
        tensors: list[Tensor] = []
        while not self.take(closing):
            if tensors:
                self.expect(",")
            tensors.append(self._typed())
            if note := self.note():
                notes[tensors[-1].name] = note
        return tensors

    def attributes(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not self.take("{") and self._at < len(self.text):
            key = self.word()
            self.expect("=")
            values[key] = self.tensor("") if self.take("tensor(") else self.json()
        if self.text[self._at - 1] == "{":
            self._at -= 1
        return values

    def note(self) -> str:
        if not self.take("{"):
            return ""
        start, self._at = self._at, self.text.index("}", self._at) + 1
        return self.text[start : self._at - 1]

    def tensor(self, name: str) -> onnx.TensorProto:
        """The tensor behind "tensor("."""
        tensor = self._type(name)
        if tensor.dtype == "string":
            self.expect(")")
            texts = [name.encode()] * math.prod(tensor.shape)
            return onnx.TensorProto(
                name=name, data_type=onnx.TensorProto.STRING, dims=tensor.shape, string_data=texts
            )
        kind = numpy_type(tensor.dtype)
        if self.take(","):
            array = np.array(self.json()).astype(kind).reshape(tensor.shape)
        else:
            array = _pseudo_random(name, tensor.shape, kind)
        self.expect(")")
        return ir.serde.serialize_tensor(ir.Tensor(array, name=name))


def _quoted(name: str) -> str:
    """A name as it is written: `_` for an omitted value."""
    if not name:
        return "_"
    return name if name != "_" and _BARE.fullmatch(name) else json.dumps(name)


def _format_tensor(tensor: ir.TensorProtocol) -> str:
    dtype = "string" if tensor.dtype == ir.DataType.STRING else tensor.dtype.numpy().name
    text = format_type(Tensor("", tuple(tensor.shape.numpy()), dtype))
    integers = dtype.startswith(("int", "uint", "bool")) and tensor.size <= _SHOWN_NUMBERS
    if tensor.size == 0 or dtype == "string" or not (integers or tensor.size == 1):
        return f"tensor({text})"
    array = tensor.numpy().reshape(-1)
    numbers = array.tolist() if integers else [float(str(x)) for x in array]
    return f"tensor({text}, {json.dumps(numbers)})"


def _format_attribute(value: Any) -> str:
    if isinstance(value, onnx.TensorProto):
        return _format_tensor(ir.serde.deserialize_tensor(value))
    return json.dumps(value, default=_plain_number)


def _plain_number(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pseudo_random(name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    random = np.random.default_rng(zlib.crc32(name.encode()))
    values = random.standard_normal(shape)
    return (values if is_float(dtype) else abs(4 * values)).astype(dtype)


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g)
