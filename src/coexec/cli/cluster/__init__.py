"""`coexec cluster`: run one model on several machines as a pipeline. Each verb has a file."""

import typer

from coexec.cli.verbs import make_group, show_help

__all__ = ["VERBS", "group"]

VERBS = {
    "start": "Start a cluster whose head is this machine.",
    "join": "Make this machine one of a cluster.",
    "status": "Show the machines of the cluster.",
    "plan": "Plan a pipeline, and predict what it takes.",
    "run": "Send frames through a pipeline.",
    "bench": "Compare a pipeline with one machine and other schemes.",
    "serve": "Answer requests over HTTP by a pipeline.",
}
"""One line of help for each verb, by name. A verb has the name of its file."""

_app = typer.Typer(
    name="cluster",
    help="Run one model on several machines, as a pipeline.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)
_app.callback()(show_help)
group = make_group(_app, "coexec.cli.cluster", VERBS)
