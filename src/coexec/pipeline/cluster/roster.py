"""List the nodes of a cluster; join a cluster and check that list."""

from collections.abc import Sequence
from pathlib import Path

from coexec.errors import DeviceError
from coexec.pipeline.cluster.build import build
from coexec.pipeline.cluster.nodes import NodeProcess, check_answers, join, prepare
from coexec.pipeline.cluster.ray_node import RayNode

__all__ = ["check_welcome", "join_checked", "roster"]


def roster(address: str, token: Path | None = None) -> tuple[RayNode, ...]:
    """Nodes of a cluster. This process enters it for a moment, by a node of this machine.

    Raises:
        UsageError: there is no token, or the text is no address.
        DeviceError: the cluster cannot be reached from here.
    """
    check_answers(address)
    prepare(token)
    from coexec.pipeline.cluster.ray_team import (
        Connection,  # Ray reads the token when it is imported
    )

    connection = Connection(address)
    try:
        return connection.nodes()
    finally:
        connection.close()


def join_checked(
    address: str, name: str, host: str | None = None, token: Path | None = None
) -> NodeProcess:
    """Call `nodes.join`; check that the head's machine runs the same coexec and that no other
    machine has the name.

    Raises:
        UsageError: there is no token, or a name or address is invalid; Ray is not installed.
        DeviceError: the head does not answer or does not take the machine.
    """
    node = join(address, name, host, token)
    try:
        check_welcome(roster(address, token), address, name)
    except BaseException:
        node.stop()
        raise
    return node


def check_welcome(nodes: Sequence[RayNode], address: str, name: str) -> None:
    """
    Raises:
        DeviceError: the head runs another coexec than this machine, or another machine has the
            name.
    """
    head = next((node for node in nodes if node.alive and node.is_head), None)
    head_build = "none" if head is None else head.build or "none"
    if head_build != build():
        raise DeviceError(
            f"the head at {address} has coexec {head_build}, this machine {build()}; "
            f"install the same on both"
        )
    same = [node for node in nodes if node.alive and node.name == name]
    if len(same) > 1:
        raise DeviceError(
            f"the cluster at {address} has a machine {name!r} already; choose "
            f"another name with --name, or wait some seconds if it has just "
            f"gone"
        )
