"""Options of engines: from texts that users write to the engines' own dataclasses."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from coexec.engines.base import Engine
from coexec.errors import UsageError, unknown_option

EngineOptions = Mapping[str, Mapping[str, str]]
"""By engine, texts by option name: ``{"opencl": {"precision": "fp16"}}``."""


def parsed(engine: Engine, options: EngineOptions | None, precision: str = "") -> Any:
    """The options of one engine as an object of its own dataclass.

    A field is text, a whole number, a truth value, or one of several words (`Literal`).

    Args:
        precision: in place of the option of this name, if the engine has one; "": the option
            counts.

    Raises:
        UsageError: the engine has no such option, or the value is not allowed.
    """
    texts = dict((options or {}).get(engine.name, {}))
    types = get_type_hints(engine.options)
    names = [field.name for field in fields(engine.options)]
    if precision and "precision" in names:
        texts["precision"] = precision
    values = {}
    for name, text in texts.items():
        if name not in names:
            raise unknown_option(f"engine {engine.name}", name, names)
        values[name] = _value(f"{engine.name}.{name}", str(text), types[name])
    return engine.options(**values)


def _value(name: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        words = get_args(kind)
        if text not in words:
            raise UsageError(f"{name}={text!r}: it is one of {', '.join(words)}")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{name}={text!r}: it is true or false")
        return text.lower() == "true"
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"{name}={text!r}: it is a whole number") from None
    return text
