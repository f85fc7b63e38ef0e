"""A module as text, one operator of its engine a line."""

import onnx
import onnx_ir as ir

from coexec.lowering.module import Module
from coexec.model import text


def text_of(module: Module) -> str:
    """The operators in order, then the inputs and outputs that are not in the model's layout."""
    lines = [text.text_of(ir.from_proto(onnx.load_model_from_string(module.proto)))]
    lines += [f"layout of {name}: {layout}" for name, layout in module.layouts.items()]
    return "\n".join(lines)
