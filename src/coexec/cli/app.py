"""The verbs, one row each."""

from typing import Annotated

import typer

import coexec
from coexec.cli import (
    bench,
    cache,
    cluster,
    devices,
    explain,
    export,
    inspect,
    optimize,
    plan,
    profile,
    run,
    serve,
    simulate,
)

app = typer.Typer(
    name="coexec",
    help="Run one neural network on all the processors of a machine at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every verb as well
)
for verb in (
    optimize, devices, inspect, profile, plan, explain, simulate, run, bench, export, serve,
):  # fmt: skip
    app.command(verb.__name__.rpartition(".")[2])(verb.command)
app.add_typer(cache.verbs, name="cache")
app.add_typer(cluster.verbs, name="cluster")


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"coexec {coexec.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass
