"""Run one neural network on all the processors of a machine at once."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from coexec.__about__ import __version__ as __version__

if TYPE_CHECKING:
    from coexec.cache import Cache
    from coexec.cluster import Cluster
    from coexec.errors import CoexecError
    from coexec.frontend.load import load
    from coexec.ir.graph import Graph, Piece, Task, Tensor
    from coexec.ir.region import Region
    from coexec.planners import PLANNERS
    from coexec.plans.plan import Plan, verify_plan
    from coexec.session import InferenceSession, IOBinding, SessionOptions
    from coexec.system.hardware import Device, Link, System
    from coexec.timing.trace import Trace

_HOME = {
    "Cache": "cache",
    "Cluster": "cluster",
    "CoexecError": "errors",
    "Device": "system.hardware",
    "Graph": "ir.graph",
    "IOBinding": "session",
    "InferenceSession": "session",
    "Link": "system.hardware",
    "PLANNERS": "planners",
    "Piece": "ir.graph",
    "Plan": "plans.plan",
    "Region": "ir.region",
    "SessionOptions": "session",
    "System": "system.hardware",
    "Task": "ir.graph",
    "Tensor": "ir.graph",
    "Trace": "timing.trace",
    "load": "frontend.load",
    "verify_plan": "plans.plan",
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
    if name in _HOME:
        return getattr(import_module(f"coexec.{_HOME[name]}"), name)
    if not name.startswith("_") and find_spec(f"coexec.{name}") is None:
        # Programs also use other names of onnxruntime, which makes importing coexec sufficient.
        ort = import_module("onnxruntime")
        if hasattr(ort, name):
            return getattr(ort, name)
    raise AttributeError(f"module 'coexec' has no attribute {name!r}")
