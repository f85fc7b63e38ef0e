"""The table of verbs, and the command line's root command."""

from typing import Annotated

import typer

import coexec
from coexec.cli.verbs import HELP, make_group, show_help

VERBS = {
    "optimize": "Find the fastest way to run a model within a time.",
    "devices": "List processors, and the engines on each.",
    "doctor": "Show machine and installation, for a report of a problem.",
    "inspect": "Show what a model is made of.",
    "profile": "Measure what each task costs on each device.",
    "plan": "Plan a model, and predict what it takes.",
    "explain": "Say why tasks are where they are.",
    "report": "Write one HTML page about a model and its plan.",
    "simulate": "Simulate a plan, and draw it.",
    "run": "Run a model once.",
    "check": "Compare a plan with ONNX Runtime, and find what is wrong.",
    "bench": "Compare the plan with ONNX Runtime.",
    "export": "Keep a model with its plan and what was compiled.",
    "serve": "Answer requests over HTTP.",
    "cache": "Show what the cache holds; trim or clear it.",
    "cluster": "Run a model on several machines.",
}
"""One line of help for each verb, by name. A verb has the name of its file."""

app = typer.Typer(
    name="coexec",
    help="Run one neural network on all the processors of a machine at once.",
    epilog="coexec VERB --help lists the options of a verb.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP,
)


def _say_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"coexec {coexec.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    show_help(context)


group = make_group(app, "coexec.cli", VERBS)
