"""Replacements for classes of ``onnxruntime``: its session and the classes around it."""

from coexec.session.binding import IOBinding
from coexec.session.inference import InferenceSession
from coexec.session.options import SessionOptions
from coexec.session.signature import NodeArg

__all__ = ["IOBinding", "InferenceSession", "NodeArg", "SessionOptions"]
