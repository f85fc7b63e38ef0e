"""`coexec cluster start`: start a cluster whose head is this machine."""

from typing import Annotated

import typer

from coexec.cli.cluster.options import BlockOpt, HostOpt, NameOpt
from coexec.cli.options import DebugOpt, JsonOpt
from coexec.cli.verbs import prints

PORT = 6380
TRUST = (
    "warning: whoever has the token and reaches these machines may run any program on them; "
    "the token is sent unencrypted, and Ray listens on all addresses"
)


@prints(
    name="Of this machine in the cluster.",
    address="HOST:PORT of the head.",
    token_file="File with the token; null: RAY_AUTH_TOKEN holds it.",
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

    It stays when this command has ended, until `ray stop`. If the head ends, the cluster does.
    """
    from coexec.cli.console import err, out
    from coexec.cli.output import print_json
    from coexec.pipeline.cluster.nodes import own_name, start, token_file

    name = own_name() if name is None else name
    file = token_file()
    if block:
        err.print(f"coexec: {TRUST}", soft_wrap=True)
    address = start(name, port=port, host=host, block=block)
    err.print(f"coexec: {TRUST}", soft_wrap=True)
    if json:
        print_json({"name": name, "address": address, "token_file": file and str(file)})
        return
    out.print(f"machine {name} is the head of a cluster at {address}")
    out.print(f"token      {file or 'of RAY_AUTH_TOKEN'}; copy it to the other machines")
    out.print(f"join       coexec cluster join {address} --token-file TOKEN")
    out.print("end        ray stop, which ends everything that runs by Ray on this machine")
