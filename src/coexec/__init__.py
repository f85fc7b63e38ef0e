"""Run one neural network on all the processors of a machine at once."""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from coexec.__about__ import __version__ as __version__
from coexec.errors import WITHOUT_ONNX_RUNTIME
from coexec.extras import lacks_onnx_runtime
from coexec.research_loader import load_research

if TYPE_CHECKING:
    from coexec.cache import Cache
    from coexec.errors import CoexecError
    from coexec.graph.graph import Graph, Piece, Task, Tensor
    from coexec.graph.region import Region
    from coexec.hardware.hardware import Device, Link, System
    from coexec.model.load import load
    from coexec.pipeline.cluster.cluster import Cluster
    from coexec.plan.plan import Plan, verify_plan
    from coexec.planners import PLANNERS
    from coexec.session import InferenceSession, IOBinding, SessionOptions
    from coexec.timing.trace import Trace

# ONNX Runtime sends events about sessions to Microsoft unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOME = {
    "Cache": "cache",
    "Cluster": "pipeline.cluster.cluster",
    "CoexecError": "errors",
    "Device": "hardware.hardware",
    "Graph": "graph.graph",
    "IOBinding": "session",
    "InferenceSession": "session",
    "Link": "hardware.hardware",
    "PLANNERS": "planners",
    "Piece": "graph.graph",
    "Plan": "plan.plan",
    "Region": "graph.region",
    "SessionOptions": "session",
    "System": "hardware.hardware",
    "Task": "graph.graph",
    "Tensor": "graph.graph",
    "Trace": "timing.trace",
    "load": "model.load",
    "verify_plan": "plan.plan",
}

__all__ = [
    "PLANNERS",
    "Cache",
    "Cluster",
    "CoexecError",
    "Device",
    "Graph",
    "IOBinding",
    "InferenceSession",
    "Link",
    "Piece",
    "Plan",
    "Region",
    "SessionOptions",
    "System",
    "Task",
    "Tensor",
    "Trace",
    "load",
    "verify_plan",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Names are imported on first use, so that planning, which needs no engine, starts fast.
    try:
        return _found(name)
    except (ImportError, AttributeError) as error:
        if not lacks_onnx_runtime(error):
            raise
        raise ImportError(WITHOUT_ONNX_RUNTIME) from None


def _found(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"coexec.{_HOME[name]}"), name)
    if name == "zoo":
        return load_research("zoo")
    if not name.startswith("_") and find_spec(f"coexec.{name}") is None:
        # Programs also use other names of onnxruntime, which makes importing coexec sufficient.
        ort = import_module("coexec.ort").onnxruntime
        if hasattr(ort, name):
            return getattr(ort, name)
    raise AttributeError(f"module 'coexec' has no attribute {name!r}")
