"""The processors of this machine, listed by a process for each engine: an engine that crashes or
hangs when it is loaded is left out, with the reason."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from coexec.engines.base import Processor
from coexec.engines.registry import (
    Driven,
    check_listing,
    engine_names,
    grouped,
    listed,
    load_engine,
    tried,
)
from coexec.errors import CoexecError
from coexec.processes import Child, EndedError, Parent, ending

LIMIT_S = 70.0
"""Seconds for one step of an engine. A trial ends its own process after 60, and then gives a more
exact reason."""

_Listing = tuple[int, str, list[Processor]]
"""Rank and name of an engine, and the processors that it drives."""


@dataclass(frozen=True)
class Survey:
    """Processors with the engines that drive them."""

    processors: tuple[Driven, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    """By engine that cannot be used at all, the reason."""


def survey(limit_s: float = LIMIT_S) -> Survey:
    """The processors, and the engines that cannot be used.

    Args:
        limit_s: seconds for a step of an engine, after which the engine counts as hanging.
    """
    listings: list[_Listing] = []
    broken: dict[str, str] = {}
    for name in engine_names():
        found = _listing(name, limit_s)
        if isinstance(found, str):
            broken[name] = found
        else:
            listings.append(found)
    return Survey(tuple(grouped({name: found for _, name, found in sorted(listings)})), broken)


def _listing(name: str, limit_s: float) -> _Listing | str:
    """The processors of an engine; or why it cannot be used."""
    remedy = "update or reinstall its package, or leave this engine out"
    try:
        with Child("coexec.engines.survey:serve", "lists processors") as child:
            try:
                child.send(name)
                while (listing := child.receive(limit_s)) is None:
                    pass
            except TimeoutError:
                limit = f"it did not answer within {limit_s:g} s, and its process was ended"
                return f"{limit}; {remedy}"
            except EndedError:
                return f"it {ending(child.wait())} when it was loaded; {remedy}"
            found: _Listing = listing
            return found
    except CoexecError as error:  # no process can be started, or the engine cannot be imported
        return str(error)


def serve(parent: Parent) -> None:
    """List the processors of an engine. After each step that may last long, send None."""
    name = parent.receive()
    engine = load_engine(name)
    parent.send(None)
    with suppress(Exception):  # such an engine fails again, with a message
        engine.preload()
    parent.send(None)
    found = []
    for processor in listed(engine, None):
        parent.send(None)
        found.append(tried(engine, processor))
    if not found:
        check_listing(engine)
    parent.send((engine.rank, name, found))
