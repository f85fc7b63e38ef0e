"""`coexec cluster status`: the machines of a cluster, and Ray's sockets on this machine."""

from collections.abc import Sequence

from coexec.cli.cluster.options import TokenOpt
from coexec.cli.options import DebugOpt, JsonOpt
from coexec.cli.verbs import prints


@prints(
    address="HOST:PORT of the head; null: no machine runs here.",
    token_file="File with the token.",
    build="Of coexec here.",
    trouble="Why the machines are not known; null: they are.",
    machines="The machines with name, address, state and build.",
    sockets="Where Ray listens here.",
)
def command(token_file: TokenOpt = None, json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """Show the machines of the cluster that this one belongs to, and the sockets on which Ray
    listens here. Nothing is started.
    """
    from coexec.cli.cluster.status_tables import machine_facts, print_machines, print_sockets
    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.errors import DeviceError
    from coexec.pipeline.cluster.build import build
    from coexec.pipeline.cluster.nodes import check_installed, known_nodes
    from coexec.pipeline.cluster.ray_node import RayNode
    from coexec.pipeline.cluster.ray_ports import sockets_below
    from coexec.pipeline.cluster.roster import roster
    from coexec.pipeline.cluster.tokens import token_file as user_token_file

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
        print_json(
            {
                "address": address,
                "token_file": str(path),
                "build": build(),
                "trouble": trouble,
                "machines": [machine_facts(node) for node in nodes if node.name],
                "sockets": [each._asdict() for each in sockets],
            }
        )
        return
    if address is None:
        out.print(
            "no machine of this user runs here; `coexec cluster start` starts a cluster, "
            "`coexec cluster join HOST:PORT` joins one"
        )
        return
    out.print(f"cluster    {address}")
    out.print(f"token      {path}")
    out.print(f"coexec     {build()}")
    if trouble is not None:
        out.print(f"trouble    {trouble}")
    else:
        print_machines(nodes)
    print_sockets(sockets, address.rpartition(":")[0])
