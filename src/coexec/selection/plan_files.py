"""Read plan files, and make their text."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec.__about__ import __version__
from coexec.errors import PlanError, UsageError
from coexec.plan.plan import Plan
from coexec.plan.plan_file import ModelFacts, PlanFile

if TYPE_CHECKING:
    from coexec.graph.graph import Graph

__all__ = ["plan_of", "text_of", "versions_here"]

_MOST_BYTES = 1 << 30
"""Largest number of bytes read of a plan file, because /dev/zero, for example, never ends."""


def plan_of(argument: Any) -> PlanFile | None:
    """The plan in a user's argument: the path of a file, a plan, or None for no plan.

    Raises:
        PlanError: the file cannot be read, or is no plan.
        UsageError: the argument has another type.
    """
    if argument is None or isinstance(argument, PlanFile):
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
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES)
        return PlanFile.from_json(content.decode(), path)
    except (OSError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            f"cannot read the plan {path!r}: {reason}; make one with "
            f"coexec plan MODEL --output {path}"
        ) from None


def text_of(plan: Plan, graph: "Graph", shapes: Mapping[str, Any]) -> str:
    """A plan as the text of its file.

    Args:
        graph: the tasks of its model.
        shapes: fixed sizes of inputs that are dynamic in this model.
    """
    return PlanFile(plan, ModelFacts.of(graph, shapes, versions_here())).to_json()


def versions_here() -> Mapping[str, str]:
    """Versions of the packages on which the tasks of a model depend, by name."""
    import onnxruntime

    return {"coexec": __version__, "onnxruntime": onnxruntime.__version__}
