"""`coexec cluster status`: the machines of a cluster, and where Ray listens on this one."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from coexec.cli.cluster.common import TokenOpt
from coexec.cli.common import DebugOpt, JsonOpt, print_json
from coexec.cli.console import out
from coexec.cluster.build import build
from coexec.cluster.listening import Socket, firewall_lines, network_of, sockets_below
from coexec.cluster.nodes import check_installed, known_nodes
from coexec.cluster.roster import RayNode, roster
from coexec.cluster.tokens import token_file as user_token_file
from coexec.errors import DeviceError
from coexec.units import format_bytes


def command(token_file: TokenOpt = None, json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """Show the machines of the cluster that this one belongs to, and the sockets on which Ray
    listens here. Nothing is started.
    """
    check_installed()
    here = known_nodes()
    path = token_file or (here[-1].token_file if here else user_token_file())
    nodes: Sequence[RayNode] = ()
    address, trouble = (here[-1].address if here else None), None
    if address is not None:
        try:
            nodes = roster(address, path)
        except DeviceError as error:
            trouble = str(error)
    sockets = sockets_below(node.process for node in here)
    if json:
        print_json({
            "address": address, "token_file": str(path), "build": build(), "trouble": trouble,
            "machines": [_facts(node) for node in nodes if node.name],
            "sockets": [each._asdict() for each in sockets],
        })  # fmt: skip
        return
    if address is None:
        out.print("no machine of this user runs here; `coexec cluster start` starts a cluster, "
                  "`coexec cluster join HOST:PORT` joins one")  # fmt: skip
        return
    out.print(f"cluster    {address}")
    out.print(f"token      {path}")
    out.print(f"coexec     {build()}")
    if trouble is not None:
        out.print(f"trouble    {trouble}")
    else:
        _show_machines(nodes)
    _show_sockets(sockets, address.rpartition(":")[0])


def _facts(node: RayNode) -> dict[str, Any]:
    facts = node._asdict()
    del facts["id"]
    return facts


def _show_machines(nodes: Sequence[RayNode]) -> None:
    table = Table("machine", "address", "state", "coexec", "host", "cores", "memory", box=None)
    for node in sorted(nodes, key=lambda node: (not node.is_head, not node.alive, node.name)):
        if node.name:
            state = "head" if node.is_head else "there" if node.alive else "gone"
            memory = "" if node.memory_bytes is None else format_bytes(node.memory_bytes)
            cores = "" if node.cores is None else str(node.cores)
            table.add_row(node.name, node.address, state, node.build, node.host, cores, memory)
    out.print(table)


def _show_sockets(sockets: Sequence[Socket], address: str) -> None:
    """Where Ray listens on this machine, and who may be kept away how."""
    table = Table("Ray listens here at", "port", "process", box=None)
    for each in sockets:
        where = f"{each.address} (all addresses)" if each.is_everywhere else each.address
        table.add_row(where, str(each.port), each.process)
    out.print(table)
    for line in firewall_lines(network_of(address)):
        out.print(f"firewall   {line}")
