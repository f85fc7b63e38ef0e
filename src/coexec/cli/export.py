"""`coexec export`: write a folder with a model, its plan and its compiled parts, ready to start."""

from pathlib import Path
from typing import Annotated

import typer

from coexec.cli.options import (
    PLANNED,
    DebugOpt,
    JsonOpt,
    ModelArg,
    SettingOptions,
    takes,
)
from coexec.cli.verbs import prints


@prints(
    folder="Where the export lies.",
    model="Name of the graph.",
    places="Devices and engines of the plan.",
    inputs="Shapes of the inputs.",
    files="By file, its bytes.",
    digest="Of the model, its weights and its plan.",
)
@takes(*PLANNED)
def command(
    model: ModelArg,
    folder: Annotated[Path, typer.Argument(help="New, empty, or an export to be replaced.")],
    options: SettingOptions,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Write a folder with the model, its weights, its plan and what was compiled for this machine.

    coexec run, bench and serve take the folder in place of the model, and so does InferenceSession:
    an equal machine measures nothing, and another machine reports the differences.
    """
    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.cli.progress import progress
    from coexec.exports.manifest import PARTS
    from coexec.session.exporting import export
    from coexec.units import format_bytes

    with progress(f"loading {model}") as tell:
        config = options.settings(progress=tell)
        done = export(model, folder, config)
    sizes = done.manifest.files
    tensors = done.prepared.graph.tensors
    parts = {name: size for name, size in sizes.items() if name.startswith(f"{PARTS}/")}
    places = [str(place) for place in done.prepared.plan.places]
    if json:
        print_json(
            {
                "folder": str(done.folder),
                "model": done.manifest.model,
                "places": places,
                "inputs": {
                    name: {"shape": list(tensors[name].shape), "dtype": tensors[name].dtype}
                    for name in done.prepared.graph.inputs
                },
                "files": sizes,
                "digest": done.manifest.digest,
            }
        )
        return
    whole, compiled = (format_bytes(sum(own.values())) for own in (sizes, parts))
    out.print(
        f"{done.folder}: {done.manifest.model} on {', '.join(places)}, {whole} in "
        f"{len(sizes)} files, of which {compiled} in {len(parts)} were compiled"
    )
    if (reason := done.agreement.reason) is not None:
        out.print(f"not compared yet: {reason}; sessions compare it with the first requests")
