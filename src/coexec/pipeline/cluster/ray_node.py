"""A node of a cluster."""

from typing import NamedTuple

__all__ = ["RayNode"]


class RayNode(NamedTuple):
    """A node as Ray reports it."""

    id: str
    name: str
    """"" for a node that only sends frames and receives answers."""
    build: str
    """Version of its coexec, see `coexec.pipeline.cluster.build`."""
    address: str
    host: str
    alive: bool
    is_head: bool
    cores: int | None
    memory_bytes: int | None
