"""Options that several verbs have.

Like the files of the verbs, this file has no slow imports, because help needs no engine.
"""

from pathlib import Path
from typing import Annotated

import typer

from coexec.defaults import Mode, Waiting

ModelArg = Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")]
ModelOrExportArg = Annotated[
    str, typer.Argument(metavar="MODEL", help="An ONNX file, zoo:NAME, or a folder of an export.")
]
DevicesOpt = Annotated[
    str | None, typer.Option(help="For example cpu:0-3,cpu:4-7 or cpu:0,cpu:1/opencl.")
]
PlannerOpt = Annotated[
    str, typer.Option(help="What makes the plan; auto also chooses devices, by running plans.")
]
OptionOpt = Annotated[
    list[str] | None, typer.Option("--option", help="NAME=VALUE for the planner; may be repeated.")
]
ShapeOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        help="INPUT=1,3,224,224 fixes a dynamic shape, NAME=1 a symbolic dimension; repeatable.",
    ),
]
WithoutOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        help="A pass to leave out, one of inspect --passes; repeatable.",
    ),
]
ValueOpt = Annotated[
    list[str] | None,
    typer.Option("--value", help="INPUT=16000 or INPUT=1,2,3 makes an input constant; repeatable."),
]
InputsOpt = Annotated[
    Path | None,
    typer.Option(help="An .npz file of inputs to run with; they fix shapes that are open."),
]
EngineOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--engine", help="ENGINE.OPTION=VALUE, for example opencl.precision=fp16; repeatable."
    ),
]
PinOpt = Annotated[
    list[str] | None,
    typer.Option("--pin", help="TASK=DEVICE, patterns such as 'conv*=cpu:0' allowed; repeatable."),
]
WaitingOpt = Annotated[
    Waiting,
    typer.Option(help="While a device waits for another, its cores stay awake, or may halt."),
]
ModeOpt = Annotated[
    Mode, typer.Option(help="One request as soon as possible, or as many as possible a second.")
]
CacheOpt = Annotated[Path | None, typer.Option(help="Folder for profiles and plans.")]
FreshOpt = Annotated[bool, typer.Option("--fresh", help="Measure everything again.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DebugOpt = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
PlanOpt = Annotated[
    Path | None, typer.Option(help="A plan made by coexec plan --output, in place of a planner's.")
]
TraceOpt = Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev.")]
CheckOpt = Annotated[
    bool, typer.Option(help="Compare the outputs with ONNX Runtime's; exit code 1 if they differ.")
]
OutputOpt = Annotated[Path | None, typer.Option(help="A file to write the result to.")]
PlatformOpt = Annotated[
    str | None,
    typer.Option(help="Simulate a phone instead of the machine, such as kirin_990; ? lists all."),
]
