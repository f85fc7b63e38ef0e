"""`coexec cluster join`: add this machine to a cluster."""

from typing import Annotated

import typer

from coexec.cli.cluster.options import BlockOpt, HostOpt, NameOpt, TokenOpt
from coexec.cli.options import DebugOpt, JsonOpt
from coexec.cli.verbs import prints


@prints(
    name="Of this machine in the cluster.",
    address="HOST:PORT of the head.",
)
def command(
    address: Annotated[str, typer.Argument(help="HOST:PORT, as coexec cluster start prints it.")],
    name: NameOpt = None,
    host: HostOpt = None,
    token_file: TokenOpt = None,
    block: BlockOpt = False,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Make this machine one of a cluster. It has to have the cluster's token and the head's coexec.

    It stays when this command has ended, until `coexec cluster stop`.
    """
    from coexec.cli.cluster.common import ended_by_signals, hold, named
    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.pipeline.cluster.roster import join_checked

    with ended_by_signals():
        node = join_checked(address, named(name), host, token_file)
    if json:
        print_json({"name": node.node.name, "address": address})
    else:
        out.print(f"machine {node.node.name} has joined the cluster at {address}")
        out.print(f"end        coexec cluster stop{'' if not block else ', or Ctrl-C'}")
    if block:
        hold(node)
