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

    It stays when this command has ended, until `ray stop`.
    """
    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.pipeline.cluster.nodes import own_name, start

    name = own_name() if name is None else name
    start(name, address, host=host, token=token_file, block=block)
    if json:
        print_json({"name": name, "address": address})
        return
    out.print(f"machine {name} has joined the cluster at {address}")
    out.print("end        ray stop, which ends everything that runs by Ray on this machine")
