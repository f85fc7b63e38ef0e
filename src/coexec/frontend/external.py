"""Weights in files beside the model: which files a model may name.

A location is relative, has no "..", and names an entry of the folder where the model lies, as the
user named it or where the file really is. Symbolic links on the way may lead only within that
folder, or within the cache of Hugging Face that the model lies in: there, "snapshots/REVISION" has
links to the files in "blobs". Anything else would let a downloaded model read any file of the
machine. A hard link is a file like any other.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir
from onnx import external_data_helper

from coexec.errors import ModelError

__all__ = ["attach", "embed_in_bodies"]


def attach(model: ir.Model, path: Path | None) -> None:
    """Point external weights at their files, after making sure that these may be read.

    Weights of the graph stay in their files; constants in nodes, bodies and functions are read.

    Args:
        path: of the model as the user named it; None if it was given as an object.

    Raises:
        ModelError: a file that is missing, too short, or may not be read.
    """
    folders = None if path is None else _ModelFolders(path)

    def found(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        name, location = tensor.name or "", os.fspath(tensor.location)
        if folders is None:
            raise ModelError(
                f"weight {name!r} lies in the external file {location!r}, but the model "
                f"was given as an object without a folder; load it from its path instead"
            )
        file = folders.file(name, location)
        _require_inside(tensor, file)
        # Without a base folder, onnx_ir leaves it to us which files may be read.
        return ir.ExternalTensor(
            str(file), tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=name
        )

    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = found(value.const_value)
    for graph in _bodies(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _read(found(value.const_value))
    for node in _nodes(model):
        for attribute in list(node.attributes.values()):
            _read_attribute(node, attribute, found)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _bodies(model: ir.Model) -> Iterator[ir.Graph]:
    """The graphs inside of nodes, at any depth."""
    for node in _nodes(model):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield attribute.as_graph()
            elif attribute.type == ir.AttributeType.GRAPHS:
                yield from attribute.as_graphs()


def _read_attribute(
    node: ir.Node, attribute: ir.Attr, found: Callable[[ir.ExternalTensor], ir.ExternalTensor]
) -> None:
    """Replace external tensors in an attribute by what is in their files."""

    def read(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return _read(found(tensor)) if isinstance(tensor, ir.ExternalTensor) else tensor

    name = attribute.name
    if attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        if isinstance(attribute.value, ir.ExternalTensor):
            node.attributes[name] = ir.AttrTensor(name, read(attribute.value))
    elif attribute.type == ir.AttributeType.TENSORS:
        node.attributes[name] = ir.AttrTensors(name, [read(t) for t in attribute.value])


def _read(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def embed_in_bodies(nodes: Iterable[onnx.NodeProto], folder: Path) -> None:
    """Read what the bodies of ``nodes`` have in files of ``folder``, which are our own.

    ONNX Runtime moves large constants of bodies there, too, when it saves a model.
    """
    for node in nodes:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                for tensor in body.initializer:
                    if external_data_helper.uses_external_data(tensor):
                        external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                        tensor.data_location = onnx.TensorProto.DEFAULT
                        del tensor.external_data[:]
                embed_in_bodies(body.node, folder)


def _require_inside(tensor: ir.ExternalTensor, file: Path) -> None:
    """Raise ModelError unless the file holds all that ``tensor`` claims of it."""
    what = f"weight {tensor.name!r} needs"
    offset, length = tensor.offset or 0, tensor.length
    if offset < 0 or (length is not None and length != tensor.nbytes):
        raise ModelError(
            f"{what} {tensor.nbytes} bytes, and its entry says {length} bytes from {offset} of "
            f"{str(file)!r}; the model is damaged: export or download it again"
        )
    have = file.stat().st_size
    if have < offset + tensor.nbytes:
        raise ModelError(
            f"{what} {offset + tensor.nbytes} bytes of {str(file)!r}, which is only {have} bytes "
            f"long; copy the model together with all of its data files"
        )


class _ModelFolders:
    """The folders of one model."""

    def __init__(self, path: Path) -> None:
        named = path.parent.absolute()
        self._folders = tuple(dict.fromkeys((named, path.resolve().parent)))
        hub = _hub_of(named)
        roots = (*self._folders, *(() if hub is None else (hub,)))
        self._roots = tuple(folder.resolve() for folder in roots)

    def file(self, weight: str, location: str) -> Path:
        """The regular file that ``location`` names, with its links resolved."""
        if not _is_below(location):
            raise self._outside(weight, location, location)
        folder = next((f for f in self._folders if os.path.lexists(f / location)), None)
        if folder is None:
            raise self._unusable(weight, self._folders[0] / location, "missing")
        entry = folder / location
        try:
            file = entry.resolve(strict=True)
            mode = file.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            reason = getattr(error, "strerror", None) or "a loop of links"
            raise self._unusable(weight, entry, f"not there ({reason})") from None
        if not any(file.is_relative_to(root) for root in self._roots):
            raise self._outside(weight, location, str(file))
        if not stat.S_ISREG(mode):
            raise self._unusable(weight, entry, "not a regular file")
        if not os.access(file, os.R_OK):
            raise self._unusable(weight, entry, "not readable for this user")
        return file

    def _outside(self, weight: str, location: str, leads_to: str) -> ModelError:
        link = "" if leads_to == location else f", a link to {leads_to!r}"
        return ModelError(
            f"weight {weight!r} points to {location!r}{link}, outside of the model's folder "
            f"{str(self._folders[0])!r}; refused, since such a path could read any file of the "
            f"machine: move the data beside the model and save it again"
        )

    def _unusable(self, weight: str, file: Path, how: str) -> ModelError:
        return ModelError(
            f"weight {weight!r} lies in {str(file)!r}, which is {how}; copy the model together "
            f"with all of its data files"
        )


def _is_below(location: str) -> bool:
    """Whether a location is a relative path without "..", by the rules of any system."""
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    absolute = posix.is_absolute() or bool(windows.drive or windows.root)
    return bool(posix.parts) and not absolute and ".." not in windows.parts and "\0" not in location


def _hub_of(folder: Path) -> Path | None:
    """The folder of a model in the cache of Hugging Face that ``folder`` is a snapshot in."""
    for above in folder.parents:
        inside = folder.relative_to(above).parts
        if inside[0] == "snapshots" and (above / "blobs").is_dir():
            return above
    return None
