"""`coexec cluster start`: start a cluster whose head is this machine."""

from typing import Annotated

import typer

from coexec.cli.cluster.options import BlockOpt, HostOpt, NameOpt
from coexec.cli.options import DebugOpt, JsonOpt
from coexec.cli.verbs import prints
from coexec.pipeline.cluster.ray_ports import PORT

TRUST = (
    "warning: whoever has the token and reaches these machines may run any program on them; "
    "the token is sent unencrypted, and Ray listens on all addresses"
)


@prints(
    name="Of this machine in the cluster.",
    address="HOST:PORT of the head.",
    token_file="File with the token.",
    network="The network of the address.",
)
def command(
    name: NameOpt = None,
    host: HostOpt = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="That the head listens at.")] = PORT,
    block: BlockOpt = False,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Start a cluster whose head is this machine, with a token of this user.

    It stays when this command has ended, until `coexec cluster stop`. If the head ends, the cluster
    does.
    """
    from coexec.cli.cluster.common import ended_by_signals, hold, named
    from coexec.cli.console import err, out
    from coexec.cli.output import print_json
    from coexec.pipeline.cluster.nodes import start_head
    from coexec.pipeline.cluster.ray_ports import firewall_lines, network_of
    from coexec.pipeline.cluster.tokens import token_file

    with ended_by_signals():
        node = start_head(named(name), port, host)
    address, token = node.node.address, token_file()
    network = network_of(address.rpartition(":")[0])
    if json:
        print_json(
            {
                "name": node.node.name,
                "address": address,
                "token_file": str(token),
                "network": network,
            }
        )
    else:
        out.print(f"machine {node.node.name} is the head of a cluster at {address}")
        out.print(f"token      {token}; copy it to the other machines")
        out.print(f"join       coexec cluster join {address} --token-file TOKEN")
        out.print(f"firewall   {firewall_lines(network)[0]}")
        out.print(f"end        coexec cluster stop{'' if not block else ', or Ctrl-C'}")
    err.print(f"coexec: {TRUST}", soft_wrap=True)
    if block:
        hold(node)
