"""The verbs, one row each."""

import typer

from coexec.cli import bench, devices, explain, inspect, plan, profile, run, simulate

app = typer.Typer(
    name="coexec",
    help="Run one neural network on all the processors of a machine at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
for verb in (devices, inspect, profile, plan, explain, simulate, run, bench):
    app.command(verb.__name__.rpartition(".")[2])(verb.command)
