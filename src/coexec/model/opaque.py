"""Finds the nodes that run as one task because the values between them cannot be planned.

Nodes that pass an opaque value (`tensors.why_opaque`) become one task, with all nodes on a path out
of that task and back into it. So only plain tensors pass between tasks, and no task depends on
itself.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from coexec.cache.weights import name_of
from coexec.graph.graph import Tensor
from coexec.keys import digest
from coexec.model.stored import Stored


def reads(node: ir.Node) -> list[ir.Value]:
    """The values that a node reads: its inputs, and the outer values that its bodies read."""
    values = [v for v in node.inputs if v is not None and v.name]
    for body in bodies(node):
        own = {id(v) for v in (*body.inputs, *body.initializers.values())}
        own |= {id(v) for inner in body for v in inner.outputs}
        inside = [v for inner in body for v in reads(inner)]
        values += [v for v in (*inside, *body.outputs) if id(v) not in own and v.name]
    return values


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs among the attributes of an If, Loop or Scan."""
    for attribute in node.attributes.values():
        if attribute.is_ref():  # to an attribute of the function that the node is in
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def live(model: ir.Model) -> tuple[list[ir.Node], set[ir.Value]]:
    """The nodes that the outputs need, in the order of the model, and all values they read.

    The outputs are among these values.
    """
    needed = set(model.graph.outputs)
    nodes: set[ir.Node] = set()
    stack = [v.producer() for v in needed]
    while stack:
        node = stack.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        values = reads(node)
        needed.update(values)
        stack += [v.producer() for v in values]
    return [node for node in model.graph if node in nodes], needed


def united(
    groups: Sequence[list[ir.Node]],
    opaque: Collection[ir.Value],
    position: Mapping[ir.Node, int],
) -> list[tuple[list[ir.Node], bool]]:
    """``groups`` of nodes, joined where an ``opaque`` value passes; whether each is opaque.

    Args:
        groups: disjoint, and without a cycle between them; a node that reads or makes an opaque
            value is alone.
        opaque: values that pass between nodes, inputs of the model among them.
        position: of each node in an order in which they can run.
    """
    index = {node: i for i, group in enumerate(groups) for node in group}
    after: list[set[int]] = [set() for _ in groups]
    touched = set[int]()
    for node, i in index.items():
        for value in reads(node):
            maker = index.get(value.producer())  # type: ignore[arg-type]  # inputs have none
            if value in opaque:
                touched.add(i)
            if maker is not None and maker != i:
                after[maker].add(i)
                if value in opaque:  # an edge back makes a cycle, so both are joined
                    after[i].add(maker)
        if any(value in opaque for value in node.outputs):
            touched.add(i)
    tasks = []
    for members in _components(after):
        nodes = sorted((n for i in members for n in groups[i]), key=position.__getitem__)
        tasks.append((nodes, len(members) > 1 or members[0] in touched))
    return tasks


def _components(after: Sequence[Collection[int]]) -> Iterator[list[int]]:
    """Strongly connected components, by Tarjan's method without recursion."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    done: set[int] = set()
    for root in range(len(after)):
        if root in order:
            continue
        stack = [(root, iter(after[root]))]
        order[root] = low[root] = len(order)
        path.append(root)
        while stack:
            vertex, successors = stack[-1]
            following = next(successors, None)
            if following is None:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[vertex])
                if low[vertex] == order[vertex]:
                    members = path[path.index(vertex) :]
                    del path[-len(members) :]
                    done.update(members)
                    yield members
            elif following not in order:
                order[following] = low[following] = len(order)
                path.append(following)
                stack.append((following, iter(after[following])))
            elif following not in done:
                low[vertex] = min(low[vertex], order[following])


def content_of(
    nodes: Sequence[ir.Node],
    inputs: Sequence[Tensor],
    weights: Mapping[str, ir.TensorProtocol],
    functions: Iterable[ir.Function],
) -> str:
    """A digest of everything that an opaque task computes: its duration may depend on any of it."""
    return digest(
        [(t.name, t.shape, t.dtype) for t in inputs],
        *map(_serialized, nodes),
        *(
            fact
            for function in functions
            for fact in (function.identifier(), *map(_serialized, function))
        ),
        *(f"{n} {t.dtype} {t.shape} {_content(t)}" for n, t in weights.items()),
    )


def _content(tensor: ir.TensorProtocol) -> str:
    if isinstance(tensor, Stored):
        return tensor.stored_as
    if tensor.dtype == ir.DataType.STRING:
        return repr(tensor.numpy().tolist())
    return name_of(np.frombuffer(tensor.tobytes(), np.uint8))


def _serialized(node: ir.Node) -> bytes:
    """A node and its bodies, without fields that do not affect the results."""
    proto = ir.serde.serialize_node(node)
    _strip(proto)
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def _strip(node: onnx.NodeProto) -> None:
    for name in ("name", "doc_string", "metadata_props"):
        node.ClearField(name)
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
        for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for name in ("name", "doc_string", "metadata_props", "value_info"):
                body.ClearField(name)
            for inner in body.node:
                _strip(inner)
    attributes = sorted(node.attribute, key=lambda attribute: attribute.name)
    del node.attribute[:]
    node.attribute.extend(attributes)
