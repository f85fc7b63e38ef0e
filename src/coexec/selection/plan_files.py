"""Read plan files, and make their text."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec.__about__ import __version__
from coexec.errors import DeviceError, PlanError, UsageError

if TYPE_CHECKING:  # a session without a plan file starts sooner
    from coexec.graph.graph import Graph
    from coexec.plan.plan import Plan
    from coexec.plan.plan_file import PlanFile
    from coexec.settings import Settings

_MOST_BYTES = 1 << 30
"""Largest number of bytes read of a plan file, because /dev/zero, for example, never ends."""


def plan_of(argument: Any) -> "PlanFile | None":
    """The plan in a user's argument: the path of a file, a plan, or None for no plan.

    Raises:
        PlanError: the file cannot be read, or is no plan.
        UsageError: the argument has another type.
    """
    if argument is None:
        return None
    from coexec.plan.plan import Plan
    from coexec.plan.plan_file import PlanFile

    if isinstance(argument, PlanFile):
        return argument
    if isinstance(argument, Plan):
        return PlanFile(argument)
    if not isinstance(argument, str | os.PathLike):
        raise UsageError(
            f"plan={argument!r} is a {type(argument).__name__}; give the path of a file "
            f"that coexec plan --output has written, or a coexec.Plan"
        )
    path = os.fspath(argument)
    try:
        return PlanFile.from_json(_text_in_file(path), path)
    except UnicodeDecodeError:
        raise PlanError(
            f"there is no plan in {path!r}: it is no text; make one with coexec plan MODEL "
            f"--output plan.json"
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            f"cannot read the plan {path!r}: {reason}; make one with "
            f"coexec plan MODEL --output {path}"
        ) from None


def _text_in_file(path: str) -> str:
    with Path(path).open("rb") as file:
        return file.read(_MOST_BYTES).decode()


def text_of(plan: "Plan", graph: "Graph", shapes: Mapping[str, Any]) -> str:
    """A plan as the text of its file.

    Args:
        graph: the tasks of its model.
        shapes: fixed sizes of inputs that are dynamic in this model.
    """
    from coexec.plan.plan_file import ModelFacts, PlanFile

    return PlanFile(plan, ModelFacts.of(graph, shapes, versions_here())).to_json()


def versions_here() -> Mapping[str, str]:
    """Versions of the packages on which the tasks of a model depend, by name."""
    import onnxruntime

    return {"coexec": __version__, "onnxruntime": onnxruntime.__version__}


@contextmanager
def devices_of_plan(settings: "Settings") -> Iterator[None]:
    """Context that adds the title of the plan to the error of a device that this machine lacks.

    Raises:
        DeviceError: raised inside the context.
    """
    try:
        yield
    except DeviceError as error:
        plan = settings.plan
        if plan is None or not settings.has_devices_of_plan:
            raise
        kind = type(error)  # keeps subclasses: callers handle ForkedError separately
        raise kind(
            f"{plan.title} computes on {', '.join(plan.plan.requests)}: {error}. Or make a "
            f"plan for this machine with coexec plan MODEL --output new.plan.json"
        ) from None
