"""Run one model on several machines as a pipeline, by means of Ray.

    with coexec.Cluster("cluster.toml").session("model.onnx") as session:
        for outputs in session.map(frames):
            ...

``jobs``, ``admission`` and ``planning`` depend neither on Ray nor on the clocks of other
machines. ``machine`` runs on each machine, ``conductor`` supervises all machines. ``nodes`` starts
Ray's processes, ``ray_team`` Ray's actors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coexec.pipeline.cluster.cluster import Cluster
    from coexec.pipeline.cluster.session import ClusterSession

_HOME = {"Cluster": "cluster", "ClusterSession": "session"}

__all__ = ["Cluster", "ClusterSession"]


def __getattr__(name: str) -> Any:
    # Import on first use: the command line uses `nodes` without these modules.
    if name in _HOME:
        return getattr(import_module(f"coexec.pipeline.cluster.{_HOME[name]}"), name)
    raise AttributeError(f"module 'coexec.pipeline.cluster' has no attribute {name!r}")
