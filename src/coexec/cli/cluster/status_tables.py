"""The machines and sockets that `coexec cluster status` prints."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from coexec.cli.console import out
from coexec.pipeline.cluster.ray_node import RayNode
from coexec.pipeline.cluster.ray_ports import Socket, firewall_lines, network_of
from coexec.units import format_bytes

__all__ = ["machine_facts", "print_machines", "print_sockets"]


def machine_facts(node: RayNode) -> dict[str, Any]:
    """Facts of a machine for the JSON document."""
    facts = node._asdict()
    del facts["id"]
    return facts


def print_machines(nodes: Sequence[RayNode]) -> None:
    """Print a table with a row for each machine, the head first."""
    table = Table("machine", "address", "state", "coexec", "host", "cores", "memory", box=None)
    for node in sorted(nodes, key=lambda node: (not node.is_head, not node.alive, node.name)):
        if node.name:
            state = "head" if node.is_head else "there" if node.alive else "gone"
            memory = "" if node.memory_bytes is None else format_bytes(node.memory_bytes)
            cores = "" if node.cores is None else str(node.cores)
            table.add_row(node.name, node.address, state, node.build, node.host, cores, memory)
    out.print(table)


def print_sockets(sockets: Sequence[Socket], address: str) -> None:
    """Print the sockets on which Ray listens on this machine, and firewall rules for them."""
    table = Table("Ray listens here at", "port", "process", box=None)
    for each in sockets:
        where = f"{each.address} (all addresses)" if each.is_everywhere else each.address
        table.add_row(where, str(each.port), each.process)
    out.print(table)
    for line in firewall_lines(network_of(address)):
        out.print(f"firewall   {line}")
