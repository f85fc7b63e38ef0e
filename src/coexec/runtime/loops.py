"""The run loops that can be used here: in C++ if it was built, and in Python."""

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module

from coexec.errors import UsageError
from coexec.runtime.steps import RunLoop, TileTeam
from coexec.runtime.twin import TwinLoop
from coexec.runtime.twin_team import TwinTeam

VARIABLE = "COEXEC_LOOP"
"""Environment variable that chooses a loop by its name."""

_log = logging.getLogger("coexec")


@cache
def loop_classes() -> Mapping[str, Callable[..., RunLoop]]:
    """The loops by name, the fastest one first."""
    try:
        native = import_module("coexec.runtime._loop").NativeLoop
    except ImportError:
        return {"twin": TwinLoop}
    return {"native": native, "twin": TwinLoop}


def loop_class() -> Callable[..., RunLoop]:
    """The loop to use: what `VARIABLE` names, or the fastest one.

    Raises:
        UsageError: there is no loop of this name.
    """
    loops = loop_classes()
    name = os.environ.get(VARIABLE) or next(iter(loops))
    if name not in loops:
        raise UsageError(
            f"{VARIABLE}={name} names no run loop; here are: {', '.join(loops)}"
            + ("" if "native" in loops else f" ({_REMEDY})")
        )
    if "native" not in loops:
        _tell_once()
    return loops[name]


@cache
def team_classes() -> Mapping[str, Callable[[int, float], TileTeam]]:
    """The teams by the name of the loop whose steps they compute."""
    if "native" in loop_classes():
        return {"native": import_module("coexec.runtime._loop").NativeTeam, "twin": TwinTeam}
    return {"twin": TwinTeam}


def team_class() -> Callable[[int, float], TileTeam]:
    """The team for `loop_class`, made of its number of threads and the seconds for which one that
    waits keeps its core busy before it sleeps."""
    return team_classes()[loop_reason()[0]]


def loop_reason() -> tuple[str, str]:
    """The name of the loop to use, and why it is this one.

    Raises:
        UsageError: `VARIABLE` names no loop.
    """
    chosen, loops = loop_class(), loop_classes()
    name = next(name for name, each in loops.items() if each is chosen)
    if os.environ.get(VARIABLE):
        return name, f"{VARIABLE}={name} chooses it"
    return name, "in C++, the fastest one" if name == "native" else _REMEDY


_REMEDY = (
    "the loop in C++ was not built; install a C++ compiler and then coexec again, or a wheel of "
    "coexec for this machine"
)


@cache
def _tell_once() -> None:
    _log.info("plans run in Python's loop, which hands over more slowly: %s", _REMEDY)
