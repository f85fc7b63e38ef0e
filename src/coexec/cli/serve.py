"""`coexec serve`: serve a model to clients of the Open Inference Protocol v2."""

import contextlib
from typing import Annotated

import typer

from coexec.cli.options import (
    DebugOpt,
    JsonOpt,
    ModelOrExportArg,
    SettingOptions,
    takes,
)
from coexec.cli.verbs import prints


@prints(
    name="Of the model in URLs.",
    url="Where it is served.",
    credits="Requests that may be under way.",
)
@takes(
    "plan",
    "devices",
    "planner",
    "planner_options",
    "pins",
    "shapes",
    "values",
    "engine_options",
    "mode",
    "waiting",
    "cache",
)
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: a free one.")] = 8000,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the model in URLs; by default that of the file or folder."),
    ] = None,
    credits: Annotated[
        int | None,
        typer.Option(help="Requests that may be under way; by default two for each core."),
    ] = None,
    max_request: Annotated[
        str, typer.Option(help="Size that a request may have, decompressed.")
    ] = "256MiB",
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Answer requests of the Open Inference Protocol v2 over HTTP, until Ctrl-C or SIGTERM.

    There is no authentication and no encryption: any client that reaches the port is answered.
    More requests at a time than there are credits get the status 429. With planner auto requests
    are answered at once, and faster when a plan has been found in the background.
    """
    from coexec.cli.console import err
    from coexec.cli.serving import check_serving, served_name, tell_address
    from coexec.errors import UsageError
    from coexec.units import parse_bytes

    check_serving()
    from coexec.serve.intake import ServeLimits
    from coexec.serve.server import is_loopback, listen, serve, url_of
    from coexec.serve.session import SessionServed
    from coexec.session import InferenceSession

    config = options.settings()
    body_bytes = parse_bytes(max_request)
    if body_bytes < 1:
        raise UsageError(f"--max-request {max_request} lets no request in; give for example 256MiB")
    limits = ServeLimits(body_bytes, held_bytes=max(4 * body_bytes, ServeLimits.held_bytes))
    with listen(host, port) as listener:  # fails early: preparing the model may take minutes
        session = InferenceSession(model, **config.keywords)
        served = SessionServed(
            session, served_name(model) if name is None else name, credits=credits
        )
        with contextlib.closing(served):
            if not is_loopback(listener):
                err.print(
                    f"coexec: warning: other machines are answered at {host}, without "
                    f"authentication or encryption; a proxy can add both",
                    soft_wrap=True,
                )
            facts = {
                "name": served.name,
                "url": url_of(listener, served),
                "credits": served.credits,
            }
            serve(served, listener, limits, lambda: tell_address(facts, json))
