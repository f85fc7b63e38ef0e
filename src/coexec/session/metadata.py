"""`Metadata`: the report of a session about its model."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from coexec.session.model_source import DeclaredShapes, declared_shapes
from coexec.session.ort_backend import OrtBackend
from coexec.session.signature import Signature, fixed, is_dynamic

if TYPE_CHECKING:
    from coexec.session.plan_backend import PlanBackend


class Metadata:
    """Inputs, outputs and metadata of a session's model, as ONNX Runtime reports them.

    If a plan answers, the report may come from an earlier process. Then it is available without
    opening ONNX Runtime's own session.
    """

    def __init__(
        self, ort: OrtBackend, plans: "PlanBackend | None", shapes: Mapping[str, Any]
    ) -> None:
        self._ort, self._plans = ort, plans
        self.shapes = shapes
        """Sizes that the settings fix, see `fixed`."""

    @cached_property
    def signature(self) -> Signature:
        """ONNX Runtime's report about the model, of this process or of an earlier one."""
        stored = None
        if self._plans is not None and not self._ort.is_open:
            stored = self._plans.stored_signature()
        return stored or Signature.of(self._ort.open())

    @property
    def inputs(self) -> list[Any]:
        """The model's inputs, in order, with the sizes that the settings fix."""
        return [fixed(arg, self.shapes) for arg in self.signature.inputs]

    @cached_property
    def dynamic_inputs(self) -> tuple[str, ...]:
        """Sorted names of the inputs that the model leaves dynamic."""
        return tuple(sorted(arg.name for arg in self.signature.inputs if is_dynamic(arg, {})))

    @cached_property
    def declared_shapes(self) -> DeclaredShapes:
        """Shapes of the inputs in the model's file, where session options fix no dimension. Empty
        if nothing is planned."""
        return {} if self._plans is None else declared_shapes(self._plans.selector.source)

    @property
    def required_inputs(self) -> list[str]:
        """Names of the inputs that every request has to feed."""
        return [a.name for a in self.signature.inputs if not a.type.startswith("optional")]

    @cached_property
    def fixed_shapes(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """`dynamic_inputs` with the sizes that the settings fix; other sizes stay as they are."""
        shape_of = {arg.name: tuple(arg.shape) for arg in self.inputs} if self.shapes else {}
        return tuple((name, shape_of[name]) for name in self.dynamic_inputs) if shape_of else ()

    @property
    def undecided_inputs(self) -> list[Any]:
        """The inputs whose shapes are unknown before the first request."""
        return [arg for arg in self.signature.inputs if is_dynamic(arg, self.shapes)]
