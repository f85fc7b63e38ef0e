"""Options that several verbs have: those of settings, made from `Settings`, and others.

Like the files of the verbs, this file has no slow imports, because help needs no engine.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from coexec.cli.verbs import VerbOutput, prints
from coexec.errors import UsageError
from coexec.settings import Settings

_Command = TypeVar("_Command", bound=Callable[..., Any])

CHOOSING = (
    "devices",
    "planner_options",
    "pins",
    "shapes",
    "values",
    "examples",
    "fresh",
    "precision",
    "tolerance",
    "engine_options",
    "memory_limit",
    "cache",
)
"""Settings of the planner "auto"."""
PLANNING = ("planner", *CHOOSING)
"""Settings of the verbs that make a plan."""
PLANNED = ("plan", *PLANNING)
"""Settings of the verbs that take a plan, or make one."""
SAMPLES = 3000
"""Number of tasks on each device that a predictor learns from; three of four are convolutions."""

ModelArg = Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")]
ModelOrExportArg = Annotated[
    str, typer.Argument(metavar="MODEL", help="An ONNX file, zoo:NAME, or a folder of an export.")
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
RequestSizeOpt = Annotated[
    str, typer.Option("--max-request", help="Size that a request may have, decompressed.")
]
ClientTokenOpt = Annotated[
    Path | None,
    typer.Option(help="File with the token that clients send, Authorization: Bearer TOKEN."),
]
WithoutTokenOpt = Annotated[
    bool, typer.Option("--without-token", help="Answer other machines without a token, too.")
]
DebugOpt = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
TraceOpt = Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev.")]
CheckOpt = Annotated[
    bool, typer.Option(help="Compare the outputs with ONNX Runtime's; exit code 1 if they differ.")
]
OutputOpt = Annotated[Path | None, typer.Option(help="A file to write the result to.")]
PlatformOpt = Annotated[
    str | None,
    typer.Option(help="Simulate a phone instead of the machine, such as kirin_990; ? lists all."),
]


class SettingOptions:
    """The options of settings as a verb was called with them."""

    def __init__(self, texts: Mapping[str, Any]) -> None:
        """
        Args:
            texts: values by name of the setting, as on the command line; None: not given.
        """
        self._texts = texts

    @property
    def cache(self) -> Path | None:
        """The folder of --cache."""
        return self._texts.get("cache")

    def settings(self, **further_fields: Any) -> Settings:
        """The settings. Sizes that the model leaves open are assumed.

        Args:
            further_fields: further fields of `Settings`.

        Raises:
            CoexecError: a text is not of the form that its option has, or a file cannot be read.
        """
        values = {
            name: _PARSERS.get(name, _unchanged)(text)
            for name, text in self._texts.items()
            if text is not None
        }
        return Settings(**{"assume": True, **values, **further_fields})


def takes(*settings: str) -> Callable[[_Command], _Command]:
    """Decorator of a verb's function that has a parameter ``options``, a `SettingOptions`.

    The verb gets an option for each of these settings, in place of that parameter.
    """
    by_name = {field.name: field for field in fields(Settings)}

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def called(**arguments: Any) -> Any:
            texts = {name: arguments.pop(name) for name in settings}
            if "plan" in texts and texts["plan"] is None and texts["devices"] is None:
                models = arguments["model"]
                for model in [models] if isinstance(models, str) else models or ():
                    _tell_unused_plan(model)
            return command(options=SettingOptions(texts), **arguments)

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name == "options":
                parameters += [_parameter(by_name[name]) for name in settings]
            else:
                parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
        # typer reads both.
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called  # type: ignore[return-value]

    return decorate


def verb(
    result: type, *settings: str
) -> Callable[[Callable[..., VerbOutput]], Callable[..., None]]:
    """Decorator of a verb's function, which returns a `VerbOutput`.

    The verb gets the options of settings as by `takes`, and --json and --debug.

    Args:
        result: the class of its result.
    """

    def decorate(command: Callable[..., VerbOutput]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(*, json: bool, debug: bool, **arguments: Any) -> None:
            command(**arguments).print(json)

        signature = inspect.signature(command)
        own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values()]
        common = [
            inspect.Parameter(name, own[0].kind, default=False, annotation=annotation)
            for name, annotation in (("json", JsonOpt), ("debug", DebugOpt))
        ]
        # takes reads it.
        called.__signature__ = signature.replace(parameters=own + common)  # type: ignore[attr-defined]
        return prints(result)(takes(*settings)(called))

    return decorate


def default_plan(model: str) -> Path:
    """The file in which `coexec optimize` keeps the plan of a model."""
    return _named_after(model, "plan.json")


def default_report(model: str) -> Path:
    """The file to which `coexec report` writes the page of a model."""
    return _named_after(model, "report.html")


def _named_after(model: str, ending: str) -> Path:
    from coexec.research_loader import zoo_name

    zoo = zoo_name(model)
    return Path(f"{Path(model if zoo is None else zoo).stem or 'model'}.{ending}")


def _tell_unused_plan(model: str) -> None:
    """Say that a plan is left unused; an export has one of its own."""
    if (file := default_plan(model)).exists() and not Path(model).is_dir():
        from coexec.cli.console import err

        err.print(
            f"coexec: note: {file} is here, and is used with --plan {file} only", soft_wrap=True
        )


def _parameter(field: Any) -> inspect.Parameter:
    """The option of a setting as a parameter that typer understands."""
    option = field.metadata["option"]
    has_default = field.default is not MISSING and not option.repeats
    default = field.default if has_default else None
    kind: Any = list[str] if option.repeats else option.kind
    kind = kind if default is not None else kind | None
    annotation: Any = Annotated[kind, typer.Option(option.flag, help=option.help)]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _unchanged(value: Any) -> Any:
    return value


def _plan(path: Path) -> Any:
    from coexec.selection.plan_files import plan_of

    return plan_of(path)


def _examples(path: Path) -> Any:
    from coexec.cli.arrays import read_inputs

    return read_inputs(path)


def device_names(text: str) -> list[str]:
    """The names in the text of --devices.

    Raises:
        UsageError: there are none.
    """
    from coexec.engines.names import split_names

    if names := split_names(text):
        return names
    raise UsageError("--devices is empty; name at least one, for example cpu:0")


def _pairs(
    flag: str,
    form: str,
    value_of: Callable[[str], Any],
    split: Callable[[str, str], tuple[str, str, str]] = str.rpartition,
) -> Callable[[Sequence[str]], Any]:
    """A parser of texts with a name, "=" and a value.

    Args:
        form: the form of a text, for the error.
        value_of: the value; raises ValueError for a text without a meaning.
        split: at the last "=", which names of a model may have, too, or at the first one.
    """

    def parse(texts: Sequence[str]) -> dict[str, Any]:
        values = {}
        for text in texts:
            name, equals, value = split(text, "=")
            try:
                if not (name and equals):
                    raise ValueError
                values[name] = value_of(value)
            except ValueError:
                raise UsageError(f"{flag} {text!r} is not of the form {form}") from None
        return values

    return parse


def _engine_options(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """``["opencl.waiting=active"]`` as ``{"opencl": {"waiting": "active"}}``."""
    options: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        engine, dot, option = name.partition(".")
        if not (equals and dot and engine and option):
            raise UsageError(
                f"--engine {text!r} is not of the form ENGINE.OPTION=VALUE, for "
                f"example opencl.waiting=active"
            )
        options.setdefault(engine, {})[option] = value
    return options


def _sizes(text: str) -> tuple[int, ...] | int:
    """ "1,3,8,8" or "1x3x8x8" is the shape of an input, "1" the size of a dimension."""
    sizes = text.replace("x", ",").split(",")
    if len(sizes) == 1 and text.strip():
        return int(text)
    return tuple(int(size) for size in sizes if size.strip())


def _value(text: str) -> Any:
    """ "1,2" is a list of numbers."""
    items = [_number(item.strip()) for item in text.split(",") if item.strip()]
    if not items:
        raise ValueError
    return items if "," in text else items[0]


def _number(text: str) -> Any:
    """A whole number, a float, a truth value, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _literal(text: str) -> Any:
    """A literal of Python, or else as `_number`."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return _number(text)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "devices": device_names,
    "engine_options": _engine_options,
    "examples": _examples,
    "pins": _pairs("--pin", "NAME=VALUE", str),
    "plan": _plan,
    "planner_options": _pairs("--option", "NAME=VALUE", _literal, str.partition),
    "shapes": _pairs(
        "--shape", "INPUT=1,3,224,224, or NAME=1 for a dimension of that name", _sizes
    ),
    "values": _pairs("--value", "INPUT=16000 or INPUT=1,2,3", _value),
}
"""Value of a setting from the text of its option, by setting; others have the same value."""
