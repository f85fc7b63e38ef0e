"""`IOBinding`: a subclass of ONNX Runtime's class that also works with plans."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from onnxruntime import IOBinding as OrtIOBinding
from onnxruntime import OrtValue
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

from coexec.arrays import Array
from coexec.errors import InputError
from coexec.session.feeds import array_at, array_of, as_ortvalue, dtype_of
from coexec.session.ort_backend import OrtBackend

if TYPE_CHECKING:
    from coexec.session.router import Router


class Owner(Protocol):
    """The session to which a binding belongs."""

    coexec_router: "Router"

    def get_inputs(self) -> Sequence[Any]: ...


_Bind = Callable[[OrtIOBinding], None]
"""Repeats a bind call on a binding of ONNX Runtime's class."""


@dataclass(frozen=True)
class _Input:
    bind: _Bind
    array: Any
    """The array to feed to a plan; None: the input does not lie in main memory."""


@dataclass(frozen=True)
class _BoundOutput:
    bind: _Bind
    in_main_memory: bool
    into: Array | None = None
    """The caller's memory; None: new memory for the output."""
    value: OrtValue | None = None
    """The bound value, if it is an ``OrtValue``."""


class IOBinding(OrtIOBinding):  # type: ignore[misc]
    """Inputs and outputs of a session, bound to the caller's memory.

    It stores all bind calls. A plan answers if all bound memory is main memory. Otherwise ONNX
    Runtime's own session answers, with a binding of ONNX Runtime's class. That binding is made when
    it is needed, and made again after the session was closed and reopened.
    """

    def __init__(self, session: Owner) -> None:
        self.owner = session
        self._ort = session.coexec_router.ort
        self._inputs: dict[str, _Input] = {}
        self._outputs: dict[str, _BoundOutput] = {}
        self._ort_binding: OrtIOBinding | None = None
        self._answered: OrtIOBinding | None = None
        """ONNX Runtime's binding with the outputs of the latest run; None: a plan has answered."""
        self._results: list[tuple[OrtValue, Array, bool]] | None = None
        """Outputs of a plan's run: value, its memory, and whether that is the caller's memory."""

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Feed this array, with the elements that it has when the session runs."""
        array = arr_on_cpu if isinstance(arr_on_cpu, np.ndarray) else None
        self._bind_input(name, _Input(lambda b: b.bind_cpu_input(name, arr_on_cpu), array))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Feed the memory at ``buffer_ptr``, which the caller keeps alive."""
        arguments = name, device_type, device_id, element_type, shape, buffer_ptr
        array = _at(device_type, element_type, shape, buffer_ptr)
        self._bind_input(name, _Input(lambda b: b.bind_input(*arguments), array))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Feed this value."""
        bound = _Input(lambda b: b.bind_ortvalue_input(name, ortvalue), array_of(ortvalue))
        self._bind_input(name, bound)

    def _bind_input(self, name: str, bound: _Input) -> None:
        is_input = any(arg.name == name for arg in self.owner.get_inputs())
        if not is_input or bound.array is None or self._current() is not None:
            bound.bind(self.ort_binding())  # ONNX Runtime raises an error if the call is invalid
        self._inputs[name] = bound

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Return this output, in the memory at ``buffer_ptr`` or in new memory.

        Raises:
            InputError: a buffer is given without its shape or type.
        """
        arguments = name, device_type, device_id, element_type, shape, buffer_ptr
        into = None
        if buffer_ptr is not None:
            if element_type is None or shape is None:
                raise InputError(
                    f"output {name!r} is bound to a buffer; give its element_type and shape too"
                )
            into = _at(device_type, element_type, shape, buffer_ptr)
        in_main_memory = device_type == "cpu" and (buffer_ptr is None or into is not None)
        bound = _BoundOutput(lambda b: b.bind_output(*arguments), in_main_memory, into)
        self._bind_output(name, bound)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write this output to the memory of ``ortvalue``."""
        into = array_of(ortvalue)
        self._bind_output(
            name,
            _BoundOutput(
                lambda b: b.bind_ortvalue_output(name, ortvalue), into is not None, into, ortvalue
            ),
        )

    def _bind_output(self, name: str, bound: _BoundOutput) -> None:
        if (binding := self._current()) is not None:
            bound.bind(binding)
        self._outputs[name] = bound

    def _current(self) -> OrtIOBinding | None:
        """The binding of ONNX Runtime's own session; None unless it belongs to the session that is
        open now."""
        binding = self._ort_binding
        if binding is None or binding._session is not self._ort.handle:
            return None
        return binding

    def ort_binding(self) -> OrtIOBinding:
        """The binding of ONNX Runtime's own session. The session is opened if necessary."""
        binding = self._current()
        if binding is None:
            binding = OrtIOBinding(self._ort.open())
            binds = [bound.bind for bound in self._inputs.values()]
            for bind in (*binds, *(bound.bind for bound in self._outputs.values())):
                bind(binding)
            self._ort_binding = binding
        return binding

    @property
    def _iobinding(self) -> Any:
        return self.ort_binding()._iobinding

    @property
    def _session(self) -> Any:
        return self.ort_binding()._session

    def feeds(self) -> dict[str, Any] | None:
        """The arrays to feed to a plan, by input; None if a plan cannot answer."""
        outputs = self._outputs.values()
        if not outputs or not all(bound.in_main_memory for bound in outputs):
            return None
        feeds = {name: bound.array for name, bound in self._inputs.items()}
        return None if any(array is None for array in feeds.values()) else feeds

    @property
    def output_names(self) -> list[str]:
        """Names of the bound outputs, in the order of binding."""
        return list(self._outputs)

    has_feeds = False

    def of_plan(self, arrays: Sequence[Array]) -> Self | None:
        """Copy the outputs of a plan to the bound outputs, in the order of `output_names`. Returns
        None if they do not fit the caller's memory."""
        bounds = list(self._outputs.values())
        if not all(_fits(b.into, array) for b, array in zip(bounds, arrays, strict=True)):
            return None
        outputs: list[tuple[OrtValue, Array, bool]] = []
        for bound, array in zip(bounds, arrays, strict=True):
            memory = array if bound.into is None else bound.into
            value = bound.value or as_ortvalue(memory)
            if value is None:
                return None
            if bound.into is not None:
                bound.into[...] = array
            outputs.append((value, memory, bound.into is not None))
        self._results = outputs
        return self

    def of_ort(
        self, ort: OrtBackend, output_names: Sequence[str] | None, feeds: Any, run_options: Any
    ) -> None:
        """Run ONNX Runtime's own session with its binding, which has names, feeds and outputs."""
        ort.run_bound(self.ort_binding(), run_options)
        self._results, self._answered = None, self._ort_binding

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the latest run, in the order in which they were bound."""
        if self._results is not None:
            return [value for value, _, _ in self._results]
        return [] if self._answered is None else list(self._answered.get_outputs())

    def get_outputs_as_ortvaluevector(self) -> Any:
        """The same, as ONNX Runtime's vector."""
        vector = OrtValueVector()
        for value in self.get_outputs():
            vector.push_back(value._ortvalue)
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the latest run as arrays that later runs do not change."""
        if self._results is not None:
            return [array.copy() if callers else array for _, array, callers in self._results]
        return [] if self._answered is None else list(self._answered.copy_outputs_to_cpu())

    def synchronize_inputs(self) -> None:
        """Wait until inputs were copied to their device."""
        if (binding := self._current()) is not None:
            binding.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Wait until outputs were copied from their device."""
        if (binding := self._current()) is not None:
            binding.synchronize_outputs()

    def clear_binding_inputs(self) -> None:
        """Bind no input any more."""
        self._inputs.clear()
        if (binding := self._current()) is not None:
            binding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Bind no output any more."""
        self._outputs.clear()
        self._results = self._answered = None
        if (binding := self._current()) is not None:
            binding.clear_binding_outputs()


def _at(device_type: str, element_type: Any, shape: Sequence[int], address: int) -> Array | None:
    """The caller's memory as an array; None unless it is main memory with a type that NumPy has."""
    dtype = dtype_of(element_type)
    return array_at(address, shape, dtype) if device_type == "cpu" and dtype is not None else None


def _fits(into: Array | None, array: Array) -> bool:
    return into is None or (into.shape == array.shape and into.dtype == array.dtype)
