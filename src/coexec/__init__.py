"""Run one neural network on all the processors of a machine at once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coexec.cache import Cache
    from coexec.errors import CoexecError
    from coexec.frontend.load import load
    from coexec.hardware import Device, Link, System
    from coexec.ir.graph import Graph, Piece, Task, Tensor
    from coexec.ir.region import Region
    from coexec.plan import Plan, verify_plan
    from coexec.planners import PLANNERS
    from coexec.session import InferenceSession
    from coexec.trace import Trace

_HOME = {
    "Cache": "cache",
    "CoexecError": "errors",
    "Device": "hardware",
    "Graph": "ir.graph",
    "InferenceSession": "session",
    "Link": "hardware",
    "PLANNERS": "planners",
    "Piece": "ir.graph",
    "Plan": "plan",
    "Region": "ir.region",
    "System": "hardware",
    "Task": "ir.graph",
    "Tensor": "ir.graph",
    "Trace": "trace",
    "load": "frontend.load",
    "verify_plan": "plan",
}

__all__ = [
    "PLANNERS",
    "Cache",
    "CoexecError",
    "Device",
    "Graph",
    "InferenceSession",
    "Link",
    "Piece",
    "Plan",
    "Region",
    "System",
    "Task",
    "Tensor",
    "Trace",
    "load",
    "verify_plan",
]


def __getattr__(name: str) -> Any:
    # Names are imported when first used: planning alone needs no engine, and starts at once.
    if name not in _HOME:
        raise AttributeError(f"module 'coexec' has no attribute {name!r}")
    return getattr(import_module(f"coexec.{_HOME[name]}"), name)
