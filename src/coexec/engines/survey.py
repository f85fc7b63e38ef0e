"""The processors of this machine, listed by another process: an engine that crashes or hangs
when it is loaded is left out, with the reason."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from coexec.engines.registry import Driven, broken, engine_names, load_engine, processors
from coexec.errors import CoexecError, DeviceError
from coexec.processes import Child, EndedError, Parent, ending

LIMIT_S = 70.0
"""Seconds for one step of one engine. A trial ends its own process after 60, and then gives a more
exact reason."""


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
    crashed: dict[str, str] = {}
    while True:
        try:
            found = _attempt(tuple(crashed), limit_s)
        except CoexecError as error:
            return Survey(broken=dict.fromkeys(engine_names(), str(error)) | crashed)
        if isinstance(found, Survey):
            return Survey(found.processors, {**found.broken, **crashed})
        engine, reason = found
        if engine in crashed or engine not in engine_names():
            return Survey(broken={**crashed, engine or "all": reason})
        crashed[engine] = reason


def _attempt(without: tuple[str, ...], limit_s: float) -> Survey | tuple[str, str]:
    """The survey; or the engine that ended the process, and how.

    Raises:
        ExecutionError: no process can be started.
    """
    engine = ""
    remedy = "update or reinstall its package, or leave this engine out"
    with Child("coexec.engines.survey:serve", "lists processors") as child:
        try:
            child.send(without)
            while isinstance(message := child.receive(limit_s), str):
                engine = message
            assert isinstance(message, Survey)
            return message
        except TimeoutError:
            limit = f"it did not answer within {limit_s:g} s, and its process was ended"
            return engine, f"{limit}; {remedy}"
        except EndedError:
            return engine, f"it {ending(child.wait())} when it was loaded; {remedy}"


def serve(parent: Parent) -> None:
    """List the processors. Before each step that may crash, send the name of the engine."""
    without = parent.receive()
    names = [name for name in engine_names() if name not in without]
    for name in names:  # `broken` and `processors` give the reason for what fails here
        parent.send(name)
        with suppress(DeviceError):
            load_engine(name)
    for name in names:
        parent.send(name)
        with suppress(Exception):
            load_engine(name).preload()
    for name in names:
        parent.send(name)
        with suppress(Exception):
            engine = load_engine(name)
            for kind in () if engine.pretends else engine.kinds:
                list(engine.processors(kind))
    parent.send("")  # from here on, what may crash runs in further processes
    tried = processors(without=without, begin=parent.send)
    parent.send("")
    parent.send(Survey(tuple(tried), broken(without)))
