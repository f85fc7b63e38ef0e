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
from coexec.cli.options import (
    ClientTokenOpt,
    DebugOpt,
    JsonOpt,
    ModelArg,
    RequestSizeOpt,
    SettingOptions,
    WithoutTokenOpt,
    takes,
)
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
    max_request: RequestSizeOpt = "256MiB",
    queue: Annotated[
        int, typer.Option(help="Requests that may wait; more get the status 429.")
    ] = 100,
    cluster: ClusterOpt = None,
    address: AddressOpt = None,
    nodes: NodesOpt = None,
    token_file: TokenOpt = None,
    client_token_file: ClientTokenOpt = None,
    without_token: WithoutTokenOpt = False,
    planner: PipelineOpt = PLANNER,
    credits: CreditsOpt = None,
    deadline: DeadlineOpt = DEADLINE_S,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Answer requests of the Open Inference Protocol v2 over HTTP by a pipeline, until Ctrl-C or
    SIGTERM.

    Clients of other machines need a token; nothing is encrypted. Requests beyond the credits wait
    in a queue.
    """
    from coexec.cli.cluster.common import checked_model, entered, pipeline_session
    from coexec.cli.cluster.view import logged
    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.cli.serving import (
        check_serving,
        client_token,
        serve_limits,
        served_name,
        silent_onnxruntime,
    )
    from coexec.pipeline.cluster.settings import ClusterSettings, read_settings

    check_serving()
    from coexec.pipeline.cluster.served import ClusterServed
    from coexec.serve.app import Application
    from coexec.serve.models import Models
    from coexec.serve.server import listen, serve, url_of

    config = options.settings()
    cluster_settings = ClusterSettings() if cluster is None else read_settings(cluster)
    limits = serve_limits(max_request, queue, deadline)
    checked_model(model, config, planner, credits, deadline)
    with listen(host, port) as listener:
        token = client_token(
            client_token_file, without_token, host, listener, "--client-token-file"
        )
        with (
            silent_onnxruntime(),
            entered(cluster_settings, address, nodes, token_file, options.cache) as joined,
            pipeline_session(
                joined, model, config, planner, credits=credits, deadline_s=deadline
            ) as session,
            logged(json),
        ):
            served = ClusterServed(session, served_name(model) if name is None else name)
            url, machines = url_of(listener, served.name), session.plan.machines

            def print_address() -> None:
                if json:
                    print_json({"name": served.name, "url": url, "machines": machines})
                else:
                    out.print(
                        f"{served.name} is served at {url} by {', '.join(machines)}; Ctrl-C ends it"
                    )
                sys.stdout.flush()

            serve(Application(Models([served]), limits, token), listener, print_address)
