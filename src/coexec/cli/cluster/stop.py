"""`coexec cluster stop`: end the nodes that this user has started on this machine."""

from dataclasses import asdict
from typing import Annotated

import typer

from coexec.cli.options import DebugOpt, JsonOpt
from coexec.cli.verbs import prints


@prints(
    ended="The nodes that were ended.",
)
def command(
    name: Annotated[str | None, typer.Option(help="Of a machine; by default all of them.")] = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """End the nodes that this user has started on this machine. A head's end ends its cluster."""
    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.errors import UsageError
    from coexec.pipeline.cluster.nodes import check_installed, known_nodes, stop

    check_installed()
    names = [node.name for node in known_nodes()]
    if name is not None and name not in names:
        raise UsageError(
            f"no machine {name!r} of this user runs here; there "
            f"{'are ' + ', '.join(names) if names else 'is none'}"
        )
    ended = stop(name)
    if json:
        print_json({"ended": [asdict(node) for node in ended]})
        return
    for node in ended:
        what = "the head of the cluster" if node.head else "of the cluster"
        out.print(f"ended machine {node.name}, {what} at {node.address}")
    if not ended:
        out.print("no machine of this user runs here; nothing to end")
