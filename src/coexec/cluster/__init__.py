"""One model on several machines, as a pipeline; Ray is underneath.

    with coexec.Cluster("cluster.toml").session("model.onnx") as session:
        for outputs in session.map(frames):
            ...

``jobs``, ``parts``, ``door``, ``planning`` know neither Ray nor a clock of other machines;
``machine`` is what runs on each machine, ``conductor`` what looks after them all; ``nodes`` and
``ray_team`` are Ray's processes and actors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coexec.cluster.cluster import Cluster
    from coexec.cluster.session import ClusterSession

_HOME = {"Cluster": "cluster", "ClusterSession": "session"}

__all__ = ["Cluster", "ClusterSession"]


def __getattr__(name: str) -> Any:
    # Names are imported when first used: the command line knows of nodes without it.
    if name in _HOME:
        return getattr(import_module(f"coexec.cluster.{_HOME[name]}"), name)
    raise AttributeError(f"module 'coexec.cluster' has no attribute {name!r}")
