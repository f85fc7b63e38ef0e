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
    credits="Requests computed at the same time.",
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
        typer.Option(help="Requests computed at the same time; by default one for each core."),
    ] = None,
    queue: Annotated[
        int, typer.Option(help="Requests that may wait; more get the status 429.")
    ] = 100,
    deadline: Annotated[
        float, typer.Option(help="Seconds that a request may wait; then it gets the status 504.")
    ] = 60.0,
    max_request: Annotated[
        str, typer.Option(help="Size that a request may have, decompressed.")
    ] = "256MiB",
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Answer requests of the Open Inference Protocol v2 over HTTP, until Ctrl-C or SIGTERM.

    There is no authentication and no encryption: any client that reaches the port is answered.
    Requests beyond the credits wait in a queue. With planner auto requests are answered at once,
    and faster when a plan has been found in the background.
    """
    from coexec.cli.console import err
    from coexec.cli.serving import check_serving, served_name, tell_address
    from coexec.errors import UsageError
    from coexec.units import parse_bytes

    check_serving()
    from coexec.serve.intake import ServeLimits
    from coexec.serve.server import is_loopback, listen, serve, url_of
    from coexec.serve.session import SessionServed
    from coexec.serve.workers import Workers
    from coexec.session import InferenceSession

    config = options.settings()
    body_bytes = parse_bytes(max_request)
    if body_bytes < 1:
        raise UsageError(f"--max-request {max_request} lets no request in; give for example 256MiB")
    if queue < 0:
        raise UsageError(f"--queue {queue} is no number of requests; give 0 or more")
    if not deadline > 0:
        raise UsageError(f"--deadline {deadline:g} lets no request wait; give seconds above 0")
    limits = ServeLimits(
        body_bytes,
        held_bytes=max(4 * body_bytes, ServeLimits.held_bytes),
        queue=queue,
        wait_s=deadline,
    )
    workers = Workers(credits)
    with listen(host, port) as listener:  # fails early: preparing the model may take minutes
        session = InferenceSession(model, **config.keywords)
        served = SessionServed(
            session, served_name(model) if name is None else name, workers=workers
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
                "credits": workers.credits,
            }
            serve(served, listener, limits, lambda: tell_address(facts, json))
