"""Options that several verbs of `coexec cluster` have."""

from pathlib import Path
from typing import Annotated

import typer

DEADLINE_S = 60.0
PLANNER = "pico"

NameOpt = Annotated[
    str | None, typer.Option(help="Of this machine in the cluster; by default its host name.")
]
HostOpt = Annotated[
    str | None, typer.Option(help="Address of this machine that others reach it at.")
]
TokenOpt = Annotated[
    Path | None, typer.Option("--token-file", help="File with the cluster's token.")
]
BlockOpt = Annotated[
    bool, typer.Option("--block", help="Stay as long as the node, with Ray's output.")
]
ClusterOpt = Annotated[
    Path | None, typer.Option("--cluster", help="A cluster.toml that describes the machines.")
]
AddressOpt = Annotated[
    str | None, typer.Option(help="HOST:PORT of a head; by default of the node that runs here.")
]
NodesOpt = Annotated[
    int | None, typer.Option(help="Start so many on this machine for the time being.")
]
PipelineOpt = Annotated[str, typer.Option("--planner", help="The planner of pipelines.")]
CreditsOpt = Annotated[
    int | None, typer.Option(help="The most frames inside; by default what keeps machines busy.")
]
DeadlineOpt = Annotated[
    float, typer.Option(help="Seconds from a frame's admission; then it has failed.")
]
