"""`coexec devices`: the processors of this machine, and the engines on each."""

from dataclasses import asdict

from coexec.cli.options import DebugOpt, JsonOpt, SettingOptions, takes
from coexec.cli.verbs import prints


@prints(
    clusters="CPU clusters that are devices by default.",
    processors="Processors, each with what its engines say of it.",
    broken="By engine that cannot be imported, the reason.",
)
@takes("fresh")
def command(options: SettingOptions, json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """List this machine's processors and the engines that compute on them. cpu:0-3 may be used in
    parts: cpu:0-1,cpu:2-3. --fresh tries all engines again."""
    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.cli.processors import engine_table, processor_table, remarks
    from coexec.engines.names import default_names
    from coexec.engines.registry import broken, describe, processors

    clusters = [describe(name) for name in default_names()]
    processor_list = processors(fresh=options.settings().fresh)
    not_imported = broken()
    if json:
        print_json(
            {
                "clusters": [asdict(d) for d in clusters],
                "processors": [asdict(driven) for driven in processor_list],
                "broken": not_imported,
            }
        )
        return
    out.print(processor_table(clusters, processor_list))
    out.print(engine_table(processor_list))
    for text in (*remarks(processor_list), *not_imported.values()):
        out.print(text)
    further = [e for d in processor_list if d.name == "cpu" for e in d.usable][1:]
    if further and clusters:
        name = f"{clusters[0].name}/{further[0]}"
        out.print(f"A device computes with its first engine; another is named: --devices {name}")
