"""Checks that a model is sound enough for an engine. Does not import ``onnx``.

Engines are written in C++ and trust their input more than a download deserves. The check reads the
structure of a model, not the values of its weights, which stay where they are. Everything that ONNX
Runtime runs passes: nodes in any order, an output listed twice, weights that a feed may replace,
custom domains, functions, sequences, weights that are damaged and not used.
"""

import math
import mmap
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coexec.errors import ModelError
from coexec.model.folders import ModelFolders, opened
from coexec.model.messages import ModelProto, TensorProto
from coexec.model.weightless import Hollow, hollow, require_encodable

if TYPE_CHECKING:
    import onnx

_MOST_NESTED = 100
"""Most levels of nested messages: protobuf decodes no more."""
_LARGE_BYTES = 1 << 12
"""Smaller weights are decoded with the rest: copying them is faster than leaving them out."""
_MOST_NODES = 2_000_000
"""Most nodes if functions replace their calls: an engine needs about a KiB for each."""

_KIND = TensorProto
_TYPES = frozenset(_KIND.DataType.values()) - {_KIND.UNDEFINED}
_FORMS: dict[int, tuple[int, str, float]] = {
    _KIND.FLOAT: (32, "float_data", 1),
    _KIND.COMPLEX64: (64, "float_data", 2),
    _KIND.DOUBLE: (64, "double_data", 1),
    _KIND.COMPLEX128: (128, "double_data", 2),
    _KIND.INT64: (64, "int64_data", 1),
    _KIND.UINT64: (64, "uint64_data", 1),
    _KIND.UINT32: (32, "uint64_data", 1),
    _KIND.INT32: (32, "int32_data", 1),
    **dict.fromkeys((_KIND.INT16, _KIND.UINT16, _KIND.FLOAT16, _KIND.BFLOAT16),
                    (16, "int32_data", 1)),
    **dict.fromkeys((_KIND.INT8, _KIND.UINT8, _KIND.BOOL, _KIND.FLOAT8E4M3FN,
                     _KIND.FLOAT8E4M3FNUZ, _KIND.FLOAT8E5M2, _KIND.FLOAT8E5M2FNUZ),
                    (8, "int32_data", 1)),
    **dict.fromkeys((_KIND.INT4, _KIND.UINT4, _KIND.FLOAT4E2M1), (4, "int32_data", 1 / 2)),
}  # fmt: skip
"""By type: bits of a value, the field for values that are not raw, and entries of that field for a
value, as in onnx.proto. Later types are left to the engine."""

_Function = tuple[str, str, str]
"""Domain, name and overload."""


def check_structure(source: "str | os.PathLike[str] | bytes | onnx.ModelProto") -> None:
    """Raise ModelError unless ``source`` is a sound model. It is not changed.

    A sound model can be decoded, its texts are UTF-8, and it has a graph. Weights that are used
    have as many bytes as their shape and type need; external ones are in files that the model may
    name (see `coexec.model.folders`). Every value that is read exists and is computed once. No
    node depends on itself. No function calls itself, and calls of functions do not multiply beyond
    measure. A file or bytes take a hundredth of the time of decoding them, a ModelProto takes a
    copy of each weight.

    Raises:
        ModelError: in one line, with the remedy.
    """
    if isinstance(source, ModelProto):
        check_proto(source, "the ModelProto", None)
    else:
        what, path, small = hollow_source(source)
        check_proto(decoded(small.content, what), what, path, small)


def without_weights(source: str | os.PathLike[str] | bytes) -> "onnx.ModelProto":
    """A model without the raw data of its large weights.

    Raises:
        ModelError: it cannot be read.
    """
    what, _, small = hollow_source(source)
    return decoded(small.content, what)


def hollow_source(source: str | os.PathLike[str] | bytes) -> tuple[str, Path | None, Hollow]:
    """Name of a model in messages, its path, and its content without weights."""
    if isinstance(source, bytes):
        require_encodable(len(source), "the model given as bytes")
        return "the model given as bytes", None, hollow(memoryview(source), _LARGE_BYTES)
    path = Path(source)
    return repr(str(path)), path, _hollow_file(path)


def _hollow_file(path: Path) -> Hollow:
    file = opened(path)
    try:
        require_encodable(os.fstat(file).st_size, repr(str(path)))
        try:
            with (
                mmap.mmap(file, 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as content,
            ):
                return hollow(content, _LARGE_BYTES)
        except (OSError, ValueError):  # empty, or on a disk that cannot be mapped
            return hollow(memoryview(path.read_bytes()), _LARGE_BYTES)
    finally:
        os.close(file)


def decoded(content: bytes, what: str) -> "onnx.ModelProto":
    """A serialized model as a message.

    Raises:
        ModelError: it is cut off, something else, or nested too deeply.
    """
    try:
        proto: onnx.ModelProto = ModelProto.FromString(content)
        return proto
    except Exception:
        raise ModelError(
            f"{what} ({len(content)} bytes) is not an ONNX model or is cut off: its protobuf "
            f"cannot be decoded; export or download it again"
        ) from None


def check_proto(
    proto: "onnx.ModelProto", what: str, path: Path | None, small: Hollow | None = None
) -> None:
    """`check_structure` of a decoded model.

    Args:
        what: name of the model in messages.
        path: of the model, with external weights beside it; None: there can be no such weights.
        small: the content that ``proto`` was decoded from, if weights were left out.
    """
    if not proto.HasField("graph"):
        size_bytes = proto.ByteSize()
        fault = "it has no graph" if size_bytes else "it is empty"
        raise ModelError(
            f"{what} ({size_bytes} bytes) is not an ONNX model: {fault}; export or download it "
            f"again"
        )
    broken = next(_broken_texts(proto, 0, what), None)
    if broken is not None:
        raise ModelError(
            f"{what} is damaged: {broken!r} is no text in UTF-8; export or download it again"
        )
    _check_functions(proto, what)
    raw_bytes = () if small is None else small.raw_bytes
    _Check(what, None if path is None else ModelFolders(path)).model(proto, raw_bytes)


def _broken_texts(message: Any, depth: int, what: str) -> Iterator[bytes]:
    """Texts that are not UTF-8, at any depth: protobuf returns these as bytes.

    Raises:
        ModelError: messages are nested too deeply.
    """
    if depth > _MOST_NESTED:
        raise ModelError(
            f"{what} has bodies of nodes in bodies of nodes, {depth} messages deep, "
            f"{_MOST_NESTED} are possible; export it again"
        )
    if isinstance(message, TensorProto):  # to list its fields would copy its values
        fields: list[Any] = [message.name, message.external_data]
    else:
        fields = [v for f, v in message.ListFields() if f.type in (f.TYPE_STRING, f.TYPE_MESSAGE)]
    for field in fields:
        single = isinstance(field, str | bytes) or hasattr(field, "ListFields")
        for value in [field] if single else field:
            if isinstance(value, bytes):
                yield value
            elif not isinstance(value, str):
                yield from _broken_texts(value, depth + 1, what)


def _held(node: "onnx.NodeProto") -> "tuple[list[onnx.TensorProto], list[onnx.GraphProto]]":
    """The constants and the bodies in the attributes of a node."""
    tensors: list[onnx.TensorProto] = []
    bodies: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("t"):
            tensors.append(attribute.t)
        if attribute.HasField("g"):
            bodies.append(attribute.g)
        if attribute.HasField("sparse_tensor"):
            tensors += attribute.sparse_tensor.values, attribute.sparse_tensor.indices
        tensors += attribute.tensors
        bodies += attribute.graphs
    return tensors, bodies


def _inner(nodes: Any) -> "Iterator[onnx.NodeProto]":
    """The nodes and those of their bodies, at any depth."""
    for node in nodes:
        yield node
        for body in _held(node)[1]:
            yield from _inner(body.node)


def _check_functions(proto: "onnx.ModelProto", what: str) -> None:
    """Refuse recursive functions, and those whose calls double at each of many levels."""
    if not proto.functions:
        return
    nodes = {(f.domain, f.name, f.overload): list(_inner(f.node)) for f in proto.functions}
    calls = {
        function: [k for n in inside if (k := (n.domain, n.op_type, n.overload)) in nodes]
        for function, inside in nodes.items()
    }
    try:
        order = tuple(TopologicalSorter(calls).static_order())
    except CycleError as error:
        names = " calls ".join(repr(name) for _, name, _ in error.args[1][::-1])
        raise ModelError(
            f"{what} has functions that call themselves: {names}; export it again"
        ) from None
    sizes: dict[_Function, int] = {}
    for function in order:
        sizes[function] = len(nodes[function]) + sum(sizes[called] for called in calls[function])
    count = sum(sizes.get((n.domain, n.op_type, n.overload), 1) for n in _inner(proto.graph.node))
    if count > _MOST_NODES:
        raise ModelError(
            f"{what} has {count:.2g} nodes with functions in the place of their "
            f"calls, {_MOST_NODES} are possible; export it without functions that "
            f"call each other"
        )


class _Scope(NamedTuple):
    """A graph or body under check, with the sizes of the weights that its messages lack."""

    graph: "onnx.GraphProto"
    outer: tuple[Container[str], ...] = ()
    """Names of the outer values, level by level: joining them would be slow for many bodies."""
    raw_bytes: tuple[int | None, ...] = ()


class _Check:
    """One model under check."""

    def __init__(self, what: str, folders: ModelFolders | None) -> None:
        self._what = what
        self._folders = folders

    def model(self, proto: "onnx.ModelProto", raw_bytes: tuple[int | None, ...]) -> None:
        """Raise ModelError unless the graph, its bodies and the functions are sound."""
        self._graph(_Scope(proto.graph, raw_bytes=raw_bytes))
        for function in proto.functions:  # their values are known only where they are called
            for node in _inner(function.node):
                tensors, bodies = _held(node)
                for tensor in (*tensors, *(t for body in bodies for t in body.initializer)):
                    self._tensor(tensor)

    def _graph(self, scope: _Scope) -> set[str]:
        """Check a graph; return the names of outer values that it reads."""
        graph, input_names = scope.graph, _named(scope.graph)
        nodes = list(graph.node)
        made = self._made(nodes, input_names)
        levels = (*scope.outer, input_names, made)
        needs: list[set[str]] = []
        for node in nodes:
            tensors, bodies = _held(node) if node.attribute else ((), ())
            for tensor in tensors:
                self._tensor(tensor)
            inputs = list(node.input)
            outer = [n for n in inputs if n and n not in made and n not in input_names]
            lost = next((n for n in outer if not _is_known(n, scope.outer)), None)
            if lost is not None:
                raise ModelError(
                    f"{self._what}: the {node.op_type!r} node {node.name!r} reads {lost!r}, which "
                    f"is no input or weight and which no node computes; export the model again"
                )
            inside = (self._graph(_Scope(body, levels)) for body in bodies)
            needs.append(set(inputs).union(*inside))
        self._require_outputs(graph, levels)
        self._require_order(graph, needs, made)
        read = {v.name for v in graph.output}.union(*needs)
        self._weights(scope, read)
        return read - input_names - made.keys()

    def _made(
        self, nodes: "Sequence[onnx.NodeProto]", input_names: Container[str]
    ) -> Mapping[str, int]:
        """The index of the node that computes each value."""
        makers: dict[str, int] = {}
        for index, node in enumerate(nodes):
            for name in node.output:
                if name and (name in makers or name in input_names):
                    raise ModelError(
                        f"{self._what} computes {name!r} twice, or computes an input "
                        f"or weight; export it again"
                    )
                makers[name] = index
        makers.pop("", None)
        return makers

    def _require_outputs(
        self, graph: "onnx.GraphProto", levels: tuple[Container[str], ...]
    ) -> None:
        names = (v.name for v in graph.output)
        lost = next((n for n in names if not n or not _is_known(n, levels)), None)
        if lost is not None:
            raise ModelError(
                f"{self._what}: the graph {graph.name!r} has the output {lost!r}, "
                f"which nothing computes; export it again"
            )

    def _require_order(
        self, graph: "onnx.GraphProto", needs: list[set[str]], made: Mapping[str, int]
    ) -> None:
        """Raise ModelError if a node depends on itself. The order in the file does not matter."""
        if all(made.get(n, -1) < i for i, names in enumerate(needs) for n in names):
            return
        before = {i: {made[n] for n in names if n in made} for i, names in enumerate(needs)}
        try:
            TopologicalSorter(before).prepare()
        except CycleError as error:
            nodes = [graph.node[i] for i in error.args[1]]
            names = " before ".join(f"{n.op_type} {n.name!r}" for n in nodes[:6])
            raise ModelError(
                f"{self._what} has nodes that wait for each other in a circle: "
                f"{names}; export the model again"
            ) from None

    def _weights(self, scope: _Scope, read: set[str]) -> None:
        """Check the weights that are read. Others are left out before an engine computes
        anything."""
        graph, sizes = scope.graph, scope.raw_bytes
        for index, tensor in enumerate(graph.initializer):
            if tensor.name in read:
                self._tensor(tensor, sizes[index] if sizes else None)
        for sparse in graph.sparse_initializer:
            if sparse.values.name in read:
                self._tensor(sparse.values)
                self._tensor(sparse.indices)

    def _tensor(self, tensor: "onnx.TensorProto", raw_bytes: int | None = None) -> None:
        _require_values(tensor, raw_bytes, self._folders)


def _is_known(name: str, levels: tuple[Container[str], ...]) -> bool:
    return any(name in names for names in levels)


def _named(graph: "onnx.GraphProto") -> set[str]:
    """Names of inputs and weights."""
    weights = {t.name for t in graph.initializer}
    weights |= {t.values.name for t in graph.sparse_initializer}
    return weights | {v.name for v in graph.input}


def _require_values(
    tensor: "onnx.TensorProto", raw_bytes: int | None, folders: ModelFolders | None
) -> None:
    """Raise ModelError unless ``tensor`` has all of its values and no more.

    Args:
        raw_bytes: length of the raw data if it was left out of ``tensor``, else None.
        folders: where external values may lie; None: nowhere.
    """
    dims, kind = tuple(tensor.dims), tensor.data_type
    if min(dims, default=0) < 0 or kind not in _TYPES:
        raise ModelError(
            f"{_described(tensor)} and type {kind} does not hold what it should; "
            f"export the model or download it again"
        )
    count = math.prod(dims)
    bits, field, entries = _FORMS.get(kind, (0, "", 0))
    if tensor.data_location == _KIND.EXTERNAL:
        _require_file(tensor, (count * bits + 7) // 8, folders)
    elif kind == _KIND.STRING:
        _require_count(tensor, len(tensor.string_data), count, "texts")
    elif raw_bytes is not None or tensor.HasField("raw_data"):
        have = len(tensor.raw_data) if raw_bytes is None else raw_bytes
        if bits:
            _require_count(tensor, have, (count * bits + 7) // 8, "bytes")
    elif bits:
        _require_count(tensor, len(getattr(tensor, field)), math.ceil(count * entries), "values")


def _described(tensor: "onnx.TensorProto") -> str:
    return f"weight {tensor.name!r} of shape {list(tensor.dims)}".replace(", ", ",")


def _require_count(tensor: "onnx.TensorProto", have: int, need: int, unit: str) -> None:
    if have != need:
        raise ModelError(
            f"{_described(tensor)} does not hold what it should: {have} {unit}, {need} "
            f"are needed; export the model or download it again"
        )


def _require_file(
    tensor: "onnx.TensorProto", size_bytes: int, folders: ModelFolders | None
) -> None:
    entries = {item.key: item.value for item in tensor.external_data}
    if folders is None:
        raise ModelError(
            f"weight {tensor.name!r} lies in the external file {entries.get('location', '')!r}, "
            f"but the model was given as an object without a folder; load it from its path instead"
        )
    folders.require(tensor.name, entries, size_bytes)
