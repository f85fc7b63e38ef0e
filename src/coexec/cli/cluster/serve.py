"""`coexec cluster serve`: serve a pipeline to clients of the Open Inference Protocol v2."""

import sys
from typing import Annotated

import typer

from coexec.cli.cluster.options import (
    DEADLINE_S,
    PLANNER,
    AddressOpt,
    ClusterOpt,
    CreditsOpt,
    DeadlineOpt,
    NodesOpt,
    PipelineOpt,
    TokenOpt,
)
from coexec.cli.options import DebugOpt, JsonOpt, ModelArg, SettingOptions, takes
from coexec.cli.verbs import prints


@prints(
    name="Of the model in URLs.",
    url="Where it is served.",
    machines="The machines of the plan.",
)
@takes("planner_options", "shapes", "values", "cache")
def command(
    model: ModelArg,
    options: SettingOptions,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: a free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="Name of the model in URLs; by default the file's.")
    ] = None,
    max_request: Annotated[
        str, typer.Option(help="Size that a request may have, decompressed.")
    ] = "256MiB",
    cluster: ClusterOpt = None,
    address: AddressOpt = None,
    nodes: NodesOpt = None,
    token_file: TokenOpt = None,
    planner: PipelineOpt = PLANNER,
    credits: CreditsOpt = None,
    deadline: DeadlineOpt = DEADLINE_S,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Answer requests of the Open Inference Protocol v2 over HTTP by a pipeline, until Ctrl-C or
    SIGTERM.

    There is no authentication and no encryption: any client that reaches the port is answered.
    More requests at a time than there are credits get the status 429.
    """
    from coexec.cli.cluster.common import checked_model, entered
    from coexec.cli.cluster.view import logged
    from coexec.cli.console import err, out
    from coexec.cli.output import print_json
    from coexec.cli.serving import check_serving, served_name
    from coexec.pipeline.cluster.settings import ClusterSettings, read_settings
    from coexec.units import parse_bytes

    check_serving()
    from coexec.pipeline.cluster.served import ClusterServed
    from coexec.serve.intake import ServeLimits
    from coexec.serve.server import is_loopback, listen, serve, url_of

    config = options.settings()
    cluster_settings = ClusterSettings() if cluster is None else read_settings(cluster)
    body_bytes = parse_bytes(max_request)
    limits = ServeLimits(body_bytes, held_bytes=max(4 * body_bytes, ServeLimits.held_bytes))
    checked_model(model, config, planner, credits, deadline)
    with (
        listen(host, port) as listener,
        entered(cluster_settings, address, nodes, token_file, options.cache) as joined,
        joined.session(
            model,
            planner=planner,
            planner_options=config.planner_options,
            shapes=config.shapes,
            values=config.values,
            credits=credits,
            deadline_s=deadline,
        ) as session,
        logged(json),
    ):
        served = ClusterServed(session, served_name(model) if name is None else name)
        if not is_loopback(listener):
            err.print(
                f"coexec: warning: other machines are answered at {host}, without "
                f"authentication or encryption; a proxy can add both"
            )
        url, machines = url_of(listener, served), session.plan.machines

        def tell() -> None:
            if json:
                print_json({"name": served.name, "url": url, "machines": machines})
            else:
                out.print(
                    f"{served.name} is served at {url} by {', '.join(machines)}; Ctrl-C ends it"
                )
            sys.stdout.flush()

        serve(served, listener, limits, tell)
