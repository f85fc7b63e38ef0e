"""One model on several machines, as a pipeline; Ray is underneath.

    with coexec.Cluster("cluster.toml").session("model.onnx") as session:
        for outputs in session.map(frames):
            ...

``jobs``, ``parts``, ``door``, ``planning`` know neither Ray nor a clock of other machines;
``machine`` is what runs on each machine, ``conductor`` what looks after them all; ``nodes`` and
``ray_team`` are Ray's processes and actors.
"""

from coexec.cluster.cluster import Cluster
from coexec.cluster.session import ClusterSession

__all__ = ["Cluster", "ClusterSession"]
