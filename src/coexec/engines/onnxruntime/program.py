"""Modules as sessions of ONNX Runtime, on the caller's tensors."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import onnxruntime as ort

from coexec.engines.base import Bound, OpaqueValue
from coexec.engines.onnxruntime.seeds import with_seeds
from coexec.errors import DeviceError, ExecutionError, first_line
from coexec.lowering.module import Module
from coexec.model.values import ort_value, run_session
from coexec.ort import OpenSession, OrtSession, on_cpu, raised_by_ort, reason_of

_MOST_GRAPHS = 8
"""Graphs that a session records: each keeps memory of the device."""
_NO_GRAPH = -1
"""The number of a graph with which ONNX Runtime records and launches none."""


class OrtProgram:
    """One ONNX Runtime session that reads and writes the caller's tensors."""

    def __init__(
        self,
        module: Module,
        options: ort.SessionOptions,
        device: str,
        open_session: OpenSession = on_cpu,
        graphs: bool = False,
    ) -> None:
        """
        Args:
            graphs: the execution provider records its work as a graph of the GPU's driver in the
                first run, and launches the graph in later ones.

        Raises:
            DeviceError: ONNX Runtime does not take the module.
        """
        self._device = device
        self._graphs = count(1) if graphs else None
        self._module = module
        values = {n: ort_value(w) for n, w in module.weights.items()}
        if values:
            options.add_external_initializers(list(values), list(values.values()))
        try:
            proto = with_seeds(module.proto)
            self._session = open_session(proto, options)
        except Exception as error:
            names = ", ".join(t.name for t in module.outputs)
            raise DeviceError(
                f"{device} cannot compile what makes {names}: {reason_of(error)}; "
                f"run that part elsewhere with another plan"
            ) from error
        self._weights = values  # the session borrows their memory

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        if any(t.opaque for t in (*self._module.inputs, *self._module.outputs)):
            return _CalledSession(self._session, self._device, dict(inputs), dict(outputs))
        bound = _BoundSession(self._session, self._device, self._graphs)
        for tensor in self._module.inputs:
            bound.set_input(tensor.name, inputs[tensor.name])
        for tensor in self._module.outputs:
            bound.set_output(tensor.name, outputs[tensor.name])
        return bound

    def end_profiling(self) -> tuple[str, float]:
        """The file of the profile, and its start time in seconds since 1970."""
        return self._session.end_profiling(), 1e-9 * self._session.get_profiling_start_time_ns()


class _BoundSession:
    """ONNX Runtime's IO binding on arrays of the caller, or on values in a device's memory: nothing
    is copied."""

    def __init__(
        self, session: OrtSession, device: str, graphs: Iterator[int] | None = None
    ) -> None:
        """``graphs``: gives the numbers of graphs of the session; None: it records none."""
        self._session = session
        self._device = device
        self._binding = session.io_binding()
        self._held: dict[str, tuple[Any, ort.OrtValue]] = {}
        self._graphs = graphs
        self._options: ort.RunOptions | None = None

    def set_input(self, name: str, tensor: Any) -> None:
        bound = self._held.get(name)
        if bound is not None and bound[0] is tensor:
            return  # the caller fills the same array again
        self._bind(self._binding.bind_ortvalue_input, name, tensor)

    def set_output(self, name: str, tensor: Any) -> None:
        self._bind(self._binding.bind_ortvalue_output, name, tensor)

    def _bind(self, bind: Callable[[str, ort.OrtValue], None], name: str, tensor: Any) -> None:
        # A tensor is held for one that is bound only after it was: a signal handler may raise in
        # between, and the next request may bring the same array again.
        self._held.pop(name, None)
        value = tensor if isinstance(tensor, ort.OrtValue) else ort_value(tensor)
        bind(name, value)
        self._held[name] = (tensor, value)
        self._options = None

    def run(self) -> None:
        if self._graphs is not None and self._options is None:
            self._options = self._of_next_graph(self._graphs)
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:
            if not raised_by_ort(error):
                raise  # by a signal handler, in the middle of the call
            raise ExecutionError(f"{self._device}: {first_line(error)}") from error

    def _of_next_graph(self, numbers: Iterator[int]) -> ort.RunOptions:
        """Options of the runs with the tensors that are bound now. A graph has their addresses, so
        other tensors need another graph; after `_MOST_GRAPHS` no more is recorded."""
        number = next(numbers)
        options = ort.RunOptions()
        entry = str(number if number <= _MOST_GRAPHS else _NO_GRAPH)
        options.add_run_config_entry("gpu_graph_id", entry)
        return options


class _CalledSession:
    """A session that is run without IO binding: opaque values have no memory to be bound."""

    def __init__(
        self,
        session: OrtSession,
        device: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
    ) -> None:
        self._session, self._device = session, device
        self._inputs, self._outputs = inputs, outputs

    def set_input(self, name: str, tensor: Any) -> None:
        self._inputs[name] = tensor

    def set_output(self, name: str, tensor: Any) -> None:
        self._outputs[name] = tensor

    def run(self) -> None:
        try:
            results = run_session(self._session, list(self._outputs), self._inputs)
        except Exception as error:
            if not raised_by_ort(error):
                raise  # by a signal handler, in the middle of the call
            raise ExecutionError(f"{self._device}: {first_line(error)}") from error
        for (name, tensor), result in zip(self._outputs.items(), results, strict=True):
            if isinstance(tensor, OpaqueValue):
                tensor.value = result
            elif tensor.shape == result.shape:
                tensor[...] = result
            else:  # an assignment would broadcast the result
                raise ExecutionError(
                    f"{self._device}: {name!r} has the shape {list(result.shape)} where the "
                    f"operators say {list(tensor.shape)}"
                )


def session_options(threads: int, cores: Sequence[int] = ()) -> ort.SessionOptions:
    """Options for ``threads`` threads, bound to ``cores`` if these are given.

    Threads spin for work during a run and stop at its end, so that the cores of a waiting cluster
    are free for other threads. All sessions share one memory arena; otherwise each session would
    keep the memory of its own peak.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # every error is raised too
    for key, value in session_entries(cores, _share_allocator()).items():
        options.add_session_config_entry(key, value)
    return options


def session_entries(cores: Sequence[int], shared_arena: bool = True) -> dict[str, str]:
    """ONNX Runtime's configuration of such a session."""
    entries = {"session.force_spinning_stop": "1"} | _affinities(cores)
    return entries | ({"session.use_env_allocators": "1"} if shared_arena else {})


def bind_threads(options: ort.SessionOptions, cores: Sequence[int]) -> None:
    """Bind each thread of a session, except the calling thread, to a core of its own."""
    for key, value in _affinities(cores).items():
        options.add_session_config_entry(key, value)


def _affinities(cores: Sequence[int]) -> dict[str, str]:
    if len(cores) < 2:
        return {}
    # The first core is the calling thread's. ONNX Runtime counts cores from 1.
    return {"session.intra_op_thread_affinities": ";".join(str(core + 1) for core in cores[1:])}


_shared: list[bool] = []


def _share_allocator() -> bool:
    """Register the process-wide arena at the first call. Returns whether there is one."""
    if not _shared:
        info = ort.OrtMemoryInfo(
            "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
        )
        with contextlib.suppress(Exception):  # another library may have registered one already
            ort.create_and_register_allocator(info, None)
        _shared.append(True)
    return _shared[0]
