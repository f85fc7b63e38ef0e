"""Read plan files, JSON or ONNX, and make their text."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec.__about__ import __version__
from coexec.errors import DeviceError, ModelError, PlanError, UsageError
from coexec.model.structure import without_weights
from coexec.plan.plan import Plan
from coexec.plan.plan_file import PLAN_KEY, ModelFacts, PlanFile

if TYPE_CHECKING:
    from coexec.graph.graph import Graph
    from coexec.settings import Settings

__all__ = ["devices_of_plan", "is_onnx", "plan_of", "text_of", "versions_here"]

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
        text = _text_in_model(path) if is_onnx(path) else _text_in_file(path)
        return PlanFile.from_json(text, path)
    except (OSError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            f"cannot read the plan {path!r}: {reason}; make one with "
            f"coexec plan MODEL --output {path}"
        ) from None


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """Whether a plan file of this name is an ONNX model with the plan in it."""
    return Path(path).suffix.lower() == ".onnx"


def _text_in_file(path: str) -> str:
    with Path(path).open("rb") as file:
        return file.read(_MOST_BYTES).decode()


def _text_in_model(path: str) -> str:
    """The text of the plan in the metadata of an ONNX model.

    Raises:
        PlanError: the file is no model, or there is no plan in it.
    """
    with Path(path).open("rb"):  # its error says more about a missing file
        pass
    try:
        properties = without_weights(path).metadata_props
    except ModelError as error:
        raise PlanError(f"cannot read the plan {path!r}: {error}") from None
    texts: list[str] = [entry.value for entry in properties if entry.key == PLAN_KEY]
    if not texts:
        raise PlanError(
            f"there is no plan in the model {path!r}: its metadata have no key {PLAN_KEY!r}; "
            f"write a model with a plan with coexec plan MODEL --output NAME.onnx"
        )
    return texts[-1]


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
            f"plan for this machine with coexec plan MODEL "
            f"--output {plan.path or 'plan.json'}"
        ) from None
