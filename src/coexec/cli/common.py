"""Settings from the options of verbs; and candidates of "auto" as text."""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coexec.cli.arrays import read_inputs
from coexec.cli.console import out
from coexec.defaults import AUTO, WAITING, Waiting
from coexec.engines.names import split_names
from coexec.errors import UsageError
from coexec.selection.plan_files import plan_of
from coexec.selection.prepared import Candidate, Requests
from coexec.selection.race import REQUESTS
from coexec.selection.settings import Settings
from coexec.units import format_seconds

__all__ = ["format_candidate", "print_candidates", "settings"]


def settings(
    *,
    devices: str | None = None,
    planner: str = AUTO,
    plan: Path | None = None,
    option: Sequence[str] | None = None,
    shape: Sequence[str] | None = None,
    value: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    inputs: Path | None = None,
    cache: Path | None = None,
    fresh: bool = False,
    progress: Any = None,
    engine: Sequence[str] | None = None,
    pin: Sequence[str] | None = None,
    waiting: Waiting = WAITING,
    pieces: bool = False,
) -> Settings:
    """The settings that the common options of verbs specify."""
    return Settings(
        devices=_names(devices),
        planner=planner,
        plan=plan_of(plan),
        planner_options=_planner_options(option),
        shapes=dict(_shape(text) for text in shape or ()),
        values=dict(_value(text) for text in value or ()),
        without_passes=without or (),
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
    options: dict[str, dict[str, str]] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        engine, dot, option = name.partition(".")
        if not (equals and dot and engine and option):
            raise UsageError(
                f"--engine {text!r} is not of the form ENGINE.OPTION=VALUE, for "
                f"example opencl.precision=fp16"
            )
        options.setdefault(engine, {})[option] = value
    return options


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
        raise UsageError(
            f"--shape {text!r} is not of the form INPUT=1,3,224,224, or NAME=1 for a "
            f"dimension of that name"
        ) from None


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
    options: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--option {text!r} is not of the form NAME=VALUE")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def print_candidates(candidates: Sequence[Candidate]) -> None:
    """Print the configurations that "auto" considered, one per line; the first one was chosen."""
    for number, candidate in enumerate(candidates):
        out.print(f"{'tried' if number else 'taken':10} {format_candidate(candidate)}")


def format_candidate(candidate: Candidate) -> str:
    """A line of text about a configuration that "auto" considered."""
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
    if candidate.note is not None:
        facts.append(candidate.note)
    return f"{text}: {', '.join(facts)}" if facts else text
