"""What the verbs share: their options, a progress bar, files, numbers as text."""

import ast
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from coexec.choosing.race import REQUESTS
from coexec.cli.arrays import read_inputs
from coexec.cli.console import err
from coexec.defaults import Waiting
from coexec.engines.names import split_names
from coexec.engines.registry import is_pretended
from coexec.errors import ExecutionError, PlanError, UsageError
from coexec.frontend.difference import is_rounding, worst_difference
from coexec.frontend.module import Array
from coexec.plans.plan import Plan
from coexec.units import format_seconds
from coexec.workbench import Candidate, Requests, Settings, Workbench
from coexec.workbench.given import GivenModel

ModelArg = Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")]
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
CacheOpt = Annotated[Path | None, typer.Option(help="Folder for profiles and plans.")]
FreshOpt = Annotated[bool, typer.Option("--fresh", help="Measure everything anew.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DebugOpt = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
PlanOpt = Annotated[Path | None, typer.Option(help="A plan made by coexec plan --output.")]
TraceOpt = Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev.")]

DEFAULTS = Settings()


def settings(
    *,
    devices: str | None = None,
    planner: str = DEFAULTS.planner,
    option: Sequence[str] | None = None,
    shape: Sequence[str] | None = None,
    value: Sequence[str] | None = None,
    inputs: Path | None = None,
    cache: Path | None = None,
    fresh: bool = False,
    progress: Any = None,
    engine: Sequence[str] | None = None,
    pin: Sequence[str] | None = None,
    waiting: Waiting = DEFAULTS.waiting,
    pieces: bool = False,
) -> Settings:
    """What the common options say."""
    return Settings(
        devices=_names(devices),
        planner=planner,
        planner_options=_planner_options(option),
        shapes=dict(_shape(text) for text in shape or ()),
        values=dict(_value(text) for text in value or ()),
        examples={} if inputs is None else read_inputs(inputs),
        assume=True,
        cache=cache,
        engine_options=_engine_options(engine),
        pins=_pairs(pin, "--pin"),
        waiting=waiting,
        pieces=pieces,
        fresh=fresh,
        progress=progress,
    )


def _names(devices: str | None) -> list[str] | None:
    names = None if devices is None else split_names(devices)
    if names == []:
        raise UsageError("--devices is empty; name at least one, for example cpu:0")
    return names


def _pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """``["waiting=active"]`` as ``{"waiting": "active"}``; the last "=" counts."""
    pairs = [text.rpartition("=") for text in texts or ()]
    for name, equals, value in pairs:
        if not equals:
            raise UsageError(f"{option} {name + value!r} is not of the form NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _engine_options(texts: Sequence[str] | None) -> dict[str, dict[str, str]]:
    """``["opencl.precision=fp16"]`` as ``{"opencl": {"precision": "fp16"}}``."""
    found: dict[str, dict[str, str]] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        engine, dot, option = name.partition(".")
        if not (equals and dot and engine and option):
            raise UsageError(f"--engine {text!r} is not of the form ENGINE.OPTION=VALUE, for "
                             f"example opencl.precision=fp16")  # fmt: skip
        found.setdefault(engine, {})[option] = value
    return found


def _shape(text: str) -> tuple[str, tuple[int, ...] | int]:
    name, equals, dims = text.rpartition("=")
    try:
        if not equals or not name:
            raise ValueError
        sizes = dims.replace("x", ",").split(",")
        if len(sizes) == 1 and dims.strip():
            return name, int(dims)
        return name, tuple(int(d) for d in sizes if d.strip())
    except ValueError:
        raise UsageError(f"--shape {text!r} is not of the form INPUT=1,3,224,224, or NAME=1 for a "
                         f"dimension of that name") from None  # fmt: skip


def _value(text: str) -> tuple[str, Any]:
    """``"sr=16000"`` as ``("sr", 16000)``, ``"k=1,2"`` as ``("k", [1, 2])``."""
    name, equals, content = text.rpartition("=")
    if not equals or not name or not content.strip():
        raise UsageError(f"--value {text!r} is not of the form INPUT=16000 or INPUT=1,2,3")
    items = [_number(item.strip()) for item in content.split(",") if item.strip()]
    return name, items if "," in content else items[0]


def _number(text: str) -> Any:
    """A whole number, a float, a truth value, or the text itself."""
    truths = {"true": True, "false": False}
    if text.lower() in truths:
        return truths[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _planner_options(texts: Sequence[str] | None) -> dict[str, Any]:
    """``["top_k=3"]`` as ``{"top_k": 3}``."""
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--option {text!r} is not of the form NAME=VALUE")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def given_plan(path: Path | None, devices: str | None) -> tuple[Plan | None, str | None]:
    """The plan of --plan, if there is one, and the devices: its own, if none are named."""
    if path is None:
        return None, devices
    plan = _read_plan(path)
    if devices is None and plan.places:  # a plan of no tasks names no device
        devices = ",".join(_needed(plan))
    return plan, devices


def _needed(plan: Plan) -> list[str]:
    """The devices of a plan with the engines that it uses of them."""
    engines: dict[str, list[str]] = {}
    for place in plan.places:
        engines.setdefault(place.device, []).append(place.engine)
    return [f"{device}/{'+'.join(names)}" for device, names in engines.items()]


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the plan {str(path)!r}: {error}; make one with "
                        f"coexec plan MODEL --output {path}") from None  # fmt: skip
    except PlanError as error:
        raise PlanError(f"{str(path)!r}: {error}") from None


def check_files(*paths: Path | None) -> None:
    """Refuse, before long work, to write what cannot be a file.

    Raises:
        UsageError: one is a folder.
    """
    for path in paths:
        if path is not None and path.is_dir():
            raise UsageError(f"cannot write {str(path)!r}: it is a folder; name a file")


def write_file(path: Path, content: str | bytes) -> None:
    """Write all of a file or nothing: into a draft beside it, which then takes its name."""
    check_files(path)
    draft = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(draft, path)
    except OSError as error:
        if draft:
            Path(draft).unlink(missing_ok=True)
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror or error}; choose "
                         f"another place") from None  # fmt: skip


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON document on standard output. Infinity becomes null: JSON has none."""
    print(json.dumps(_plain(data), indent=1, default=str))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def differences(
    work: Workbench, feeds: Mapping[str, Array], found: Mapping[str, Array]
) -> dict[str, float]:
    """Of each output from ONNX Runtime's on the model as given, relative to its largest value."""
    idle = [d.spec.name for d in work.devices if is_pretended(d.spec)]
    if idle:
        raise UsageError(f"--check with {', '.join(idle)}, which computes nothing; leave one out")
    expected = work.given.reference(feeds)
    return {name: worst_difference(found[name], expected[name]) for name in found}


def judged(worst: float, work: Workbench, feeds: Mapping[str, Array]) -> str:
    """What is to be said of outputs that differ by so much; see `judged_by`."""
    return judged_by(worst, work.tolerance, work.given, feeds)


def judged_by(worst: float, allowed: float, given: GivenModel, feeds: Mapping[str, Array]) -> str:
    """What is to be said of outputs that differ by so much.

    Some models amplify rounding: see `coexec.frontend.check.is_rounding`.

    Raises:
        ExecutionError: they are not what they should be.
    """
    if worst <= allowed:
        return f"equal to ONNX Runtime within {allowed:.0e} of the largest value: {worst:.1e}"
    optimised, plain = (given.reference(feeds, optimised=each) for each in (True, False))
    own = max(worst_difference(plain[name], optimised[name]) for name in optimised)
    if is_rounding(worst, own):
        return (f"differs from ONNX Runtime by {worst:.1e} of the largest value; its own answers "
                f"with and without its optimisations differ by {own:.1e}, as this model amplifies "
                f"rounding for these inputs")  # fmt: skip
    raise ExecutionError(
        f"the outputs differ from ONNX Runtime's by {worst:.2g} of the largest value, "
        f"{allowed:.0e} is allowed, and its own with and without its optimisations by {own:.2g}; "
        f"that is expected of random operators; otherwise please report it with the model"
    )


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Any]:
    """A callback for `coexec.profiling.profiler` that draws a bar on standard error."""
    if quiet or not err.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        rows: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in rows:
                rows[what] = bar.add_task(what, total=total)
            bar.update(rows[what], completed=done)

        yield tell


def format_candidate(candidate: Candidate) -> str:
    """A configuration that "auto" considered, in a line."""
    text = ", ".join(candidate.devices)
    if candidate.refused is not None:
        return f"{text}: {candidate.refused}"
    text += f" ({candidate.planner})"
    facts = []
    if candidate.predicted_s is not None:
        facts.append(f"predicted {format_seconds(candidate.predicted_s)}")
    figures: dict[Requests, float | None] = {"paced": candidate.paced_s, "loop": candidate.loop_s}
    measured = [
        f"{format_seconds(seconds)} {REQUESTS[requests]}"
        + (" (this figure decided)" if requests == candidate.requests else "")
        for requests, seconds in figures.items()
        if seconds is not None
    ]
    if measured:
        varies = "" if candidate.spread is None else f", varying by {candidate.spread:.0%}"
        facts.append(f"measured {', '.join(measured)}{varies}")
    return f"{text}: {', '.join(facts)}" if facts else text
