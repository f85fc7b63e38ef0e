"""`coexec serve`: serve models to clients of the Open Inference Protocol v2."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from coexec.cli.options import (
    ClientTokenOpt,
    DebugOpt,
    JsonOpt,
    RequestSizeOpt,
    SettingOptions,
    WithoutTokenOpt,
    takes,
)
from coexec.cli.verbs import prints


@prints(
    name="Of the first model in URLs; null: none is loaded.",
    url="Where the first model is served; null: none is loaded.",
    models="URL of each loaded model, by name.",
    server="Where the server answers.",
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
    "precision",
    "tolerance",
    "engine_options",
    "mode",
    "waiting",
    "cache",
)
def command(
    options: SettingOptions,
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODEL...",
            help="ONNX files, zoo:NAME, or folders of exports, with their names in URLs.",
            show_default=False,
        ),
    ] = None,
    repository: Annotated[
        Path | None,
        typer.Option(help="Folder of models that clients may load, besides those named here."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: a free one.")] = 8000,
    name: Annotated[
        str | None,
        typer.Option(help="Name of a single model; by default that of the file or folder."),
    ] = None,
    credits: Annotated[
        int | None,
        typer.Option(help="Requests computed at the same time; by default one for each core."),
    ] = None,
    queue: Annotated[
        int, typer.Option(help="Requests of a model that may wait; more get the status 429.")
    ] = 100,
    deadline: Annotated[
        float, typer.Option(help="Seconds that a request may wait; then it gets the status 504.")
    ] = 60.0,
    max_request: RequestSizeOpt = "256MiB",
    token_file: ClientTokenOpt = None,
    without_token: WithoutTokenOpt = False,
    access_log: Annotated[
        Literal["text", "json"] | None,
        typer.Option(help="Log each request on standard error, a line each."),
    ] = None,
    stop_time: Annotated[
        float, typer.Option(help="Seconds for the last answers after SIGTERM.")
    ] = 60.0,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Answer requests of the Open Inference Protocol v2 over HTTP, until Ctrl-C or SIGTERM.

    Several models share the devices and take turns. Requests beyond the credits wait in a queue.
    Clients of other machines need a token; nothing is encrypted. With planner auto requests are
    answered at once, and faster when a plan has been found in the background.
    """
    from coexec.cli.serving import (
        check_number,
        check_serving,
        client_token,
        log_requests,
        named_models,
        print_addresses,
        serve_limits,
        silent_onnxruntime,
    )

    check_serving()
    from coexec.serve.app import Application
    from coexec.serve.models import Models
    from coexec.serve.server import listen, serve, url_of
    from coexec.serve.session import SessionSource, Workers

    config = options.settings()
    named = named_models(model or (), name, repository, config.plan is not None)
    limits = serve_limits(max_request, queue, deadline)
    check_number("--stop-time", stop_time)
    with listen(host, port) as listener:  # fails early: preparing the models may take minutes
        token = client_token(token_file, without_token, host, listener)
        if access_log is not None:
            log_requests()
        workers = Workers(credits)
        models = Models(source=SessionSource(named, workers, config.keywords, repository))
        with silent_onnxruntime(), closing(workers), closing(models):
            models.open(named)
            urls = {each: url_of(listener, each) for each in named}
            begun = partial(print_addresses, url_of(listener), urls, workers.credits, json)
            serve(Application(models, limits, token, access_log), listener, begun, stop_time)
