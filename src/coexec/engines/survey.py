"""The processors of this machine, listed by another process: an engine that crashes or hangs
when it is loaded is left out, with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coexec import processes
from coexec.engines.registry import Driven, engine_names
from coexec.errors import CoexecError

__all__ = ["PROCESS", "Survey", "survey"]

PROCESS = "coexec.engines.survey_process"
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
        limit_s: seconds for a step of one engine, after which the engine counts as hanging.
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
    with processes.Child(PROCESS, "lists processors") as child:
        try:
            child.send(without)
            while isinstance(message := child.receive(limit_s), str):
                engine = message
            assert isinstance(message, Survey)
            return message
        except TimeoutError:
            limit = f"it did not answer within {limit_s:g} s, and its process was ended"
            return engine, f"{limit}; {remedy}"
        except processes.EndedError:
            code = child.wait()
            return engine, f"it {processes.ending(code)} when it was loaded; {remedy}"
