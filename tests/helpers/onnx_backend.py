"""A model on named devices, as a representation of ONNX's backend interface: the tests of ONNX run
on it.

The first engine of a device computes all tasks that it can. ONNX Runtime computes the others, on
the same cores or on the CPU beside a GPU; `CoexecRep.elsewhere` has the reasons. Nothing is
measured, and no planner is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import BackendRep

from coexec.arguments import check_feeds
from coexec.engines.names import parse, whole_cpu
from coexec.engines.opened import engine_at
from coexec.engines.registry import describe
from coexec.errors import CoexecError, InfeasibleError
from coexec.graph.graph import Piece
from coexec.hardware.hardware import Place
from coexec.plan.plan import Plan, Provenance
from coexec.runtime.runner import Runner
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

_FALLBACK = "onnxruntime"

Assign = Callable[[PlanningContext], tuple[Plan, Mapping[str, str]]]
"""Makes a plan. Also returns reasons by task, as `first_able` does."""


def device_names(device: str) -> list[str]:
    """The devices for ``device``, with ONNX Runtime for what its engine lacks.

    Raises:
        DeviceError: this machine has no such device, or its engine cannot be used.
    """
    request = parse(device)
    own = request.engine or describe(request.device).engine.name
    names = [f"{request.device}/{own}"]
    if request.kind != "cpu":
        names.append(whole_cpu())
    elif own != _FALLBACK:
        names.append(f"{request.device}/{_FALLBACK}")
    for name in names:
        describe(name)
    return names


def first_able(work: PlanningContext) -> tuple[Plan, Mapping[str, str]]:
    """The plan that gives each task to the first place whose engine runs it. Also returns the
    reasons of the first place for the tasks that it does not run.

    Raises:
        InfeasibleError: no place runs a task.
    """
    graph = work.graph
    places = [device.spec.place for device in work.devices]
    rows: dict[str, list[Piece]] = {}
    engines, reasons = {}, {}
    for task in graph.tasks:
        refusals = {}
        for place in places:
            refusal = engine_at(place, work.devices).refusal(task, graph.tensors)
            if refusal is None:
                break
            refusals[place] = refusal
        else:
            raise _nowhere(task.name, refusals)
        if refusals:
            reasons[task.name] = refusals[places[0]]
        piece = graph.whole_piece(task)
        rows.setdefault(place.device, []).append(piece)
        engines[piece] = place.engine
    order = {device: tuple(pieces) for device, pieces in rows.items()}
    return Plan(graph.fingerprint, order, engines, Provenance("backend")), reasons


def _nowhere(task: str, refusals: Mapping[Place, str]) -> CoexecError:
    each = "; ".join(f"{place}: {reason}" for place, reason in refusals.items())
    return InfeasibleError(f"no engine of the device runs task {task!r}: {each}; name another one")


class CoexecRep(BackendRep):
    """A model that is ready to run. Sizes that the model leaves open are those of a run's inputs,
    for which it is planned again."""

    def __init__(
        self, model: onnx.ModelProto, settings: Settings, assign: Assign = first_able
    ) -> None:
        self._model, self._settings, self._assign = model, settings, assign
        stored = {each.name for each in model.graph.initializer}
        self._inputs = [each for each in model.graph.input if each.name not in stored]
        self._open = [each.name for each in self._inputs if _is_open(each)]
        self._started: tuple[PlanningContext, Runner] | None = None
        self.task_count = 0
        self.elsewhere: Mapping[str, str] = {}
        """Tasks of the latest run that ONNX Runtime computes in place of the device's engine, each
        with the engine's reason."""
        if not self._open:
            self._start({})

    def _start(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[PlanningContext, Runner]:
        self.close()
        work = PlanningContext(self._model, replace(self._settings, shapes=shapes))
        plan, self.elsewhere = self._assign(work)
        self.task_count = len(work.graph.tasks)
        self._started = work, work.start(work.prepared(work.whole(plan)))
        return self._started

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        """The outputs of inputs in the order of the model."""
        names = (each.name for each in self._inputs)
        feeds = dict(zip(names, map(_contiguous, inputs), strict=False))
        shapes = {name: np.shape(feeds[name]) for name in self._open}
        work, runner = self._start(shapes) if shapes else self._started or self._start({})
        tensors = {name: work.graph.tensors[name] for name in work.graph.inputs}
        values = runner.run(check_feeds(tensors, feeds))
        return tuple(values[each.name] for each in self._model.graph.output)

    def close(self) -> None:
        if self._started is not None:
            work, runner = self._started
            self._started = None
            runner.close()
            work.release()


def _contiguous(value: Any) -> Any:
    return np.require(value, requirements="C") if isinstance(value, np.ndarray) else value


def _is_open(info: onnx.ValueInfoProto) -> bool:
    """Whether a tensor's shape is not fixed by the model."""
    kind = info.type.tensor_type
    is_fixed = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
    return info.type.HasField("tensor_type") and not is_fixed
