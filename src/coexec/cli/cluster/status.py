"""`coexec cluster status`: the machines of a cluster."""

from coexec.cli.cluster.options import AddressOpt, TokenOpt
from coexec.cli.options import DebugOpt, JsonOpt
from coexec.cli.verbs import prints


@prints(
    address="HOST:PORT of the head.",
    build="Of coexec here.",
    machines="The machines with name, address, state and build.",
)
def command(
    address: AddressOpt = None,
    token_file: TokenOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Show the machines of a cluster. Nothing is started, and the cluster is not entered."""
    from rich.table import Table

    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.pipeline.cluster.build import build
    from coexec.pipeline.cluster.nodes import address_here, nodes_of, prepare

    prepare(token_file)
    address = address or address_here()
    nodes = sorted(
        (node for node in nodes_of(address) if node.name),
        key=lambda node: (not node.is_head, not node.alive, node.name),
    )
    if json:
        machines = [node._asdict() for node in nodes]
        print_json({"address": address, "build": build(), "machines": machines})
        return
    out.print(f"cluster    {address}")
    out.print(f"coexec     {build()}")
    table = Table("machine", "address", "state", "coexec", "host", box=None)
    for node in nodes:
        state = "gone" if not node.alive else "head" if node.is_head else "there"
        table.add_row(node.name, node.address, state, node.build, node.host)
    out.print(table)
