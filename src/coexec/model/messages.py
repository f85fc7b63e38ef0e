"""ONNX's messages without the other modules of its package.

Importing ``onnx`` takes about 40 ms and 12 MiB, most of it for modules that a check of a model's
structure does not need. Its file of messages alone takes a fifth. The classes are the same as those
of ``onnx``, imported before or afterwards: protobuf keeps one class for a message.
"""

from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

__all__ = ["ModelProto", "TensorProto"]

_FILE = "onnx.onnx_ml_pb2"


def _messages() -> ModuleType:
    """The module of the messages; it is executed once more if ``onnx`` has been imported."""
    package = find_spec("onnx")
    places = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec(_FILE, places)
    if spec is None or spec.loader is None:
        return import_module(_FILE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    ModelProto, TensorProto = _messages().ModelProto, _messages().TensorProto
