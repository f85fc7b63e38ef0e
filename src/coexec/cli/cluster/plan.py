"""`coexec cluster plan`: plan a pipeline, and predict its period and latency."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from coexec.cli.cluster.options import (
    PLANNER,
    AddressOpt,
    ClusterOpt,
    NodesOpt,
    PipelineOpt,
    TokenOpt,
)
from coexec.cli.options import (
    DebugOpt,
    JsonOpt,
    ModelArg,
    OutputOpt,
    SettingOptions,
    takes,
)
from coexec.cli.verbs import prints
from coexec.pipeline.network import NetworkKind


@prints(
    period_s="Seconds from one answer to the next, predicted.",
    latency_s="Of a frame that is alone, predicted.",
    credits="The most frames inside.",
    redundancy="Share of the work that is done twice.",
    machines="By machine, its capacity, stages, utilisation and bytes.",
    plan="The plan, as in its file.",
)
@takes("planner_options", "shapes", "values", "cache")
def command(
    model: ModelArg,
    options: SettingOptions,
    cluster: ClusterOpt = None,
    machines: Annotated[int | None, typer.Option(help="Plan for so many, made up.")] = None,
    gflops: Annotated[
        str | None, typer.Option(help="Their capacities: 8 for all, or 2,2,1.")
    ] = None,
    mbit: Annotated[str | None, typer.Option(help="Of their ports: 50, or 50,50,10.")] = None,
    medium: Annotated[
        NetworkKind | None, typer.Option(help="What carries one message at a time.")
    ] = None,
    door: Annotated[
        str | None,
        typer.Option(help="Machine that frames come from; by default the leader of stage 0."),
    ] = None,
    nodes: NodesOpt = None,
    address: AddressOpt = None,
    token_file: TokenOpt = None,
    planner: PipelineOpt = PLANNER,
    output: OutputOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Plan a pipeline for machines that are stated, or that are measured.

    Nothing runs if --gflops and --mbit, or the file of --cluster, state all of the machines. Else
    those of the cluster are measured, or of --nodes on this machine.
    """
    from coexec.cache import Cache
    from coexec.cli.cluster.common import entered, numbers, pipeline_session
    from coexec.cli.cluster.planned import plan_facts, show_plan
    from coexec.cli.console import out
    from coexec.cli.output import check_files, print_json, write_file
    from coexec.errors import UsageError
    from coexec.pipeline.cluster.planning import KnownMachine, Planned, Planning
    from coexec.pipeline.cluster.settings import (
        ClusterSettings,
        lacking,
        made_up,
        read_settings,
        stated_machines,
    )
    from coexec.selection.user_model import UserModel

    check_files(output)
    config = options.settings()
    stated = ClusterSettings() if cluster is None else read_settings(cluster)
    if medium is not None:
        stated = replace(stated, network=medium)
    graph = UserModel.of(model, config, Cache(options.cache)).model.graph
    lack = lacking(stated)
    machine_specs: Sequence[KnownMachine]
    planned: Planned
    if (machines, gflops, mbit) != (None, None, None):
        if (cluster, nodes, address) != (None, None, None):
            raise UsageError(
                "--machines, --gflops and --mbit make machines up; leave --cluster, "
                "--nodes and --address out"
            )
        if gflops is None or mbit is None:
            raise UsageError(
                "machines that are made up need both --gflops and --mbit, for example "
                "--machines 4 --gflops 8 --mbit 50"
            )
        machine_specs = made_up(machines, numbers("--gflops", gflops), numbers("--mbit", mbit))
    elif nodes is None and address is None and lack is None:
        machine_specs = stated_machines(stated)
    else:
        machine_specs = ()
    if machine_specs:
        planning = Planning(graph, planner, config.planner_options, stated.network)
        planning.door = door
        planned = planning.plan(machine_specs)
    else:
        try:
            with (
                entered(stated, address, nodes, token_file, options.cache) as joined,
                pipeline_session(joined, model, config, planner) as session,
            ):
                planned, machine_specs = session.planned, session.known_machines
        except UsageError as error:
            if cluster is None or lack is None:
                raise
            raise UsageError(f"{cluster}: {lack}, and it cannot be measured: {error}") from None
    if output is not None:
        write_file(output, planned.plan.to_json())
    facts = plan_facts(planned, graph, machine_specs)
    if json:
        print_json(facts)
        return
    out.print(f"model      {graph.name}, {len(graph.tasks)} tasks")
    show_plan(planned, graph, facts)
    if output is not None:
        out.print(f"written    {output}")
