"""`coexec cluster`: several machines that run one model as a pipeline. One file a verb."""

import typer

from coexec.cli.cluster import bench, join, plan, run, serve, start, status, stop

verbs = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run one model on several machines, as a pipeline.",
)
for verb in (start, join, status, plan, run, bench, serve, stop):
    verbs.command(verb.__name__.rpartition(".")[2])(verb.command)
