"""The ONNX project's backend interface: run models and single operators on a named device.

    rep = prepare(model, "cpu:0/opencl")
    outputs = rep.run([x])

A device is named as everywhere in coexec ("cpu:0-3", "cpu:0/opencl", "gpu:0"), or as the interface
names it: "CPU" is all usable cores, "CUDA" and "CUDA:1" are the first and the second GPU. The first
engine of the device computes all tasks that it can. ONNX Runtime computes the others, on the same
cores or on the CPU beside a GPU; `CoexecRep.elsewhere` has the reasons. Nothing is measured, and no
planner is used: this interface serves the tests of conformance.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from coexec.arguments import check_feeds
from coexec.engines.names import parse, whole_cpu
from coexec.engines.opened import engine_at
from coexec.engines.registry import describe
from coexec.errors import (
    ClosedError,
    CoexecError,
    InfeasibleError,
    InputError,
    UsageError,
    unknown_option,
)
from coexec.graph.graph import Piece
from coexec.hardware.hardware import Place
from coexec.plan.plan import Plan, Provenance
from coexec.runtime.runner import Runner
from coexec.selection.plan_selector import PlanSelector
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

__all__ = ["CoexecBackend", "CoexecRep", "device_names", "is_compatible", "prepare", "run",
           "run_model", "run_node", "supports_device"]  # fmt: skip

_INTERFACE = re.compile(r"(CPU|CUDA|GPU)(?::(\d+))?")
"""Devices as the interface names them."""
_FALLBACK = "onnxruntime"
_SETTINGS = ("cache", "engine_options", "waiting")
_SUITE = ("rtol", "atol")
"""Keywords that the suite of ONNX passes to every function."""

Shape = tuple[int, ...]
Assign = Callable[[PlanningContext], tuple[Plan, Mapping[str, str]]]
"""Makes a plan. Also returns reasons by task, as `first_able` does."""


def device_names(device: str) -> list[str]:
    """The devices of coexec that ``device`` means, with ONNX Runtime for what its engine lacks.

    Raises:
        DeviceError: this machine has no such device, or its engine cannot be used.
        UsageError: "CPU" has a number other than 0.
    """
    request = parse(_own_name(device))
    own = request.engine or describe(request.device).engine.name
    names = [f"{request.device}/{own}"]
    if request.kind != "cpu":
        names.append(whole_cpu())
    elif own != _FALLBACK:
        names.append(f"{request.device}/{_FALLBACK}")
    for name in names:
        describe(name)
    return names


def _own_name(device: str) -> str:
    match = _INTERFACE.fullmatch(device)
    if match is None:
        return device
    kind, number = match[1], int(match[2] or 0)
    if kind != "CPU":
        return f"gpu:{number}"
    if number:
        raise UsageError(
            f"device {device!r} does not exist: the CPU is one device; write CPU, or name cores, "
            f"such as cpu:{number}"
        )
    return whole_cpu()


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


class _Started:
    """A plan for inputs of certain shapes."""

    def __init__(self, model: onnx.ModelProto, settings: Settings, assign: Assign) -> None:
        self._work = PlanningContext(model, settings)
        plan, self.elsewhere = assign(self._work)
        self.tasks = len(self._work.graph.tasks)
        self._runner: Runner = self._work.start(self._work.prepared(self._work.whole(plan)))

    def run(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        graph = self._work.graph
        return self._runner.run(check_feeds({n: graph.tensors[n] for n in graph.inputs}, feeds))

    def close(self) -> None:
        self._runner.close()
        self._work.release()


class CoexecRep(BackendRep):
    """A model that is ready to run. Inputs of new shapes are planned for when they come."""

    most_shapes = PlanSelector.most_shapes
    """Shapes with a plan at the same time. A further one takes the place of the least recent."""

    def __init__(
        self, model: onnx.ModelProto, settings: Settings, assign: Assign = first_able
    ) -> None:
        self._model, self._settings, self._assign = model, settings, assign
        stored = {each.name for each in model.graph.initializer}
        self._inputs = [each for each in model.graph.input if each.name not in stored]
        self._outputs = [each.name for each in model.graph.output]
        self._started: OrderedDict[tuple[Any, ...], _Started] = OrderedDict()
        self._is_closed = False
        self._latest: _Started | None = None
        if not any(map(_is_open, self._inputs)):
            self._latest = self._for({})

    @property
    def elsewhere(self) -> Mapping[str, str]:
        """Tasks of the latest run that ONNX Runtime computes in place of the device's engine, each
        with the engine's reason."""
        return self._latest.elsewhere if self._latest else {}

    @property
    def task_count(self) -> int:
        """Number of all tasks of the latest run."""
        return self._latest.tasks if self._latest else 0

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, in the order of the model; also by name: ``outputs["y"]``.

        Args:
            inputs: a sequence in the order of the model's inputs, a dict by name, or an array if
                the model has one input.

        Raises:
            InputError: number, shape or type of the inputs do not fit.
            ClosedError: `close` was called.
            ExecutionError: an engine failed.
        """
        if self._is_closed:
            raise ClosedError("the model is closed; prepare it again")
        feeds = self._by_name(inputs)
        open_inputs = [each.name for each in self._inputs if _is_open(each)]
        shapes = {name: np.shape(feeds[name]) for name in open_inputs if name in feeds}
        self._latest = self._for(shapes)
        found = self._latest.run(feeds)
        values = [found[name] for name in self._outputs]
        outputs: tuple[Any, ...] = namedtupledict("Outputs", self._outputs)(*values)
        return outputs

    def _by_name(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        values = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(values) > len(self._inputs):
            raise InputError(
                f"{len(values)} inputs are given, and the model has {len(self._inputs)}: "
                f"{', '.join(each.name for each in self._inputs)}"
            )
        names = (each.name for each in self._inputs)
        return dict(zip(names, map(_contiguous, values), strict=False))

    def _for(self, shapes: Mapping[str, Shape]) -> _Started:
        key = tuple(sorted(shapes.items()))
        if key not in self._started:
            settings = replace(self._settings, shapes=shapes)
            self._started[key] = _Started(self._model, settings, self._assign)
        self._started.move_to_end(key)
        while len(self._started) > self.most_shapes:
            self._started.popitem(last=False)[1].close()
        return self._started[key]

    def close(self) -> None:
        """Release all resources. No run is possible afterwards."""
        self._is_closed = True
        for started in self._started.values():
            started.close()
        self._started.clear()


def _contiguous(value: Any) -> Any:
    return np.require(value, requirements="C") if isinstance(value, np.ndarray) else value


def _is_open(info: onnx.ValueInfoProto) -> bool:
    """Whether a tensor's shape is not fixed by the model."""
    kind = info.type.tensor_type
    is_fixed = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
    return info.type.HasField("tensor_type") and not is_fixed


class CoexecBackend(Backend):
    """Models on one device, with ONNX Runtime for the tasks that its engine lacks."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether this machine has the device, and its engine works."""
        try:
            device_names(device)
        except CoexecError:
            return False
        return True

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model runs on the device, at least in part."""
        try:
            cls.prepare(model, device, **kwargs).close()
        except CoexecError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> CoexecRep:
        """The model, planned and compiled unless shapes of its inputs are open.

        Args:
            kwargs: ``cache``, ``engine_options`` and ``waiting`` as for
                `coexec.InferenceSession`.

        Raises:
            CoexecError: its subclass names the cause, and its message the remedy.
        """
        for name in kwargs:
            if name not in (*_SETTINGS, *_SUITE):
                raise unknown_option("the backend", name, _SETTINGS)
        chosen = {name: value for name, value in kwargs.items() if name in _SETTINGS}
        return CoexecRep(model, Settings(devices=device_names(device), **chosen))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one run. Arguments as for `prepare` and `CoexecRep.run`."""
        rep = cls.prepare(model, device, **kwargs)
        try:
            return rep.run(inputs)
        finally:
            rep.close()

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, Shape]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one operator for arrays.

        Args:
            outputs_info: type and shape of each output; None: they are inferred.
            inputs: a sequence in the order of the node's inputs, a dict by name, or an array if it
                has one input.
            kwargs: ``opset_version``, and as for `prepare`.
        """
        opset = kwargs.pop("opset_version", None)
        names = [name for name in node.input if name]
        if isinstance(inputs, Mapping):
            inputs = [inputs[name] for name in names if name in inputs]
        values = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(values) != len(names):
            raise InputError(
                f"{node.op_type} has {len(names)} inputs, and {len(values)} arrays are given"
            )
        arrays = {n: _contiguous(np.asarray(v)) for n, v in zip(names, values, strict=True)}
        model = _model_of(node, arrays, outputs_info, opset)
        return cls.run_model(model, arrays, device, **kwargs)


def _model_of(
    node: onnx.NodeProto,
    arrays: Mapping[str, Any],
    outputs_info: Sequence[tuple[Any, Shape]] | None,
    opset: int | None,
) -> onnx.ModelProto:
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]
    names = [name for name in node.output if name]
    if outputs_info is None:
        outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names]
    else:
        outputs = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
            )
            for name, (dtype, shape) in zip(names, outputs_info, strict=True)
        ]
    graph = onnx.helper.make_graph([node], node.op_type, inputs, outputs)
    version = onnx.defs.onnx_opset_version() if opset is None else opset
    domain = onnx.helper.make_opsetid(node.domain, version)
    model = onnx.helper.make_model(graph, opset_imports=[domain], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=outputs_info is None)


is_compatible = CoexecBackend.is_compatible
prepare = CoexecBackend.prepare
run_model = CoexecBackend.run_model
run_node = CoexecBackend.run_node
supports_device = CoexecBackend.supports_device
run = run_model
