"""Rivals on an NVIDIA GPU, in a process that runs each of them on request.

The kinds "torch" and "onnxruntime", ONNX Runtime's CUDA provider, are for `gpu_on_nvidia.py`;
"drop-in", the provider beside coexec's session with it, for `gpu_providers.py`. They have a process
because the packages onnxruntime and onnxruntime-gpu have the same name and a process has one of
them. Through a pipe it sends True when it is ready to use the GPU, waits for any object, sends the
`State` of each rival, and then, for each rival that it receives, the seconds of one run, or the
error's text.
"""

import contextlib
import copy
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

Rival = tuple[str, str, str]
"""Its name; float32, tf32 or fp16; "device": inputs and outputs stay on the GPU, seconds by the
clock of the GPU; or "host": from array to array."""
State = dict[str, Any] | str
"""Its "difference" from the expected answer, and further facts; or why it does not run."""
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
PRECISIONS = ("float32", "tf32", "fp16")
_WARM_UP = 5
_CUDA = "CUDAExecutionProvider"


class Made(NamedTuple):
    """A rival that is warm."""

    run: Callable[[], float]
    """Runs once and returns the seconds."""
    outputs: Sequence[Array]
    """Of a run, in the order of the model's."""
    facts: Mapping[str, Any] = {}


Makers = Mapping[Rival, Callable[[], Made]]


def main() -> None:
    descriptor, kind, path, arrays, chosen, *words = sys.argv[1:]
    precisions = chosen.split(",")
    connection = Connection(int(descriptor))
    with np.load(arrays) as file:
        feeds, expected = (
            {name.removeprefix(prefix): file[name] for name in file if name.startswith(prefix)}
            for prefix in ("in:", "out:")
        )
    makers = _KINDS[kind](path, feeds, expected, precisions, *words)
    connection.send(True)
    connection.recv()
    runs: dict[Rival, Callable[[], float]] = {}
    states: dict[Rival, State] = {}
    for rival, make in makers.items():
        made = _tried(make)
        if isinstance(made, Made):
            runs[rival] = made.run
            states[rival] = {"difference": _difference(made.outputs, expected), **made.facts}
        else:
            states[rival] = made
    connection.send(states)
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(_tried(runs[connection.recv()]))


def _tried(work: Callable[[], Any]) -> Any:
    """Its result, or its error as text."""
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _difference(outputs: Sequence[Array], expected: Arrays) -> float:
    """The largest one, relative to the largest value of its output."""
    pairs = zip(outputs, expected.values(), strict=True)
    return float(np.max([abs(output - right).max() / abs(right).max() for output, right in pairs]))


def _torch(
    path: str,
    feeds: Arrays,
    expected: Arrays,
    precisions: Sequence[str],
    compile_mode: str,
    limit_s: str,
) -> Makers:
    """Two CUDA graphs in each precision: of PyTorch's own kernels, and of what torch.compile makes.

    Compiling happens here and does not measure convolutions: other processes use the GPU now.
    """
    import torch

    (x,) = feeds.values()
    layouts = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}

    def compute_in(precision: str) -> None:
        torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
        torch.backends.cudnn.allow_tf32 = precision != "float32"

    def placed(precision: str, layout: str = "channels_last") -> tuple[Any, Any]:
        """Module and input on the GPU."""
        kind = torch.float16 if precision == "fp16" else torch.float32
        to = {"device": "cuda", "dtype": kind, "memory_format": layouts[layout]}
        return copy.deepcopy(module).to(**to), torch.from_numpy(x).to(**to)

    def graph(precision: str, run: Callable[[Any], Any], data: Any) -> Made:
        compute_in(precision)
        with torch.no_grad():
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(_WARM_UP):
                    run(data)
            torch.cuda.synchronize()
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                y = run(data)

        def replay(_kept: Any = (run, data, y)) -> None:  # the graph uses their memory
            captured.replay()

        timed = _between_marks(replay, torch.cuda.current_stream())
        timed()
        return Made(timed, [y.float().cpu().numpy()])

    def own(precision: str) -> Made:
        """The faster layout; exact float32 is sometimes faster in the layout of ONNX."""
        names = layouts if precision == "float32" else ["channels_last"]
        made = [graph(precision, *placed(precision, layout)) for layout in names]
        return min(made, key=lambda one: statistics.median(one.run() for _ in range(20)))

    def compiled(precision: str) -> Callable[[], Made]:
        start_s = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, float(limit_s))
        try:
            compute_in(precision)
            inner, data = placed(precision)
            run = torch.compile(inner, mode=None if compile_mode == "default" else compile_mode)
            with torch.no_grad():
                run(data)
        except (Exception, _TooSlowError) as error:
            return partial(_raise, RuntimeError(f"{type(error).__name__} {error}"))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        took_s = time.perf_counter() - start_s
        print(f"{path}: torch.compile {precision} {took_s:.0f} s", file=sys.stderr, flush=True)

        return partial(graph, precision, run, data)

    signal.signal(signal.SIGALRM, _stop)
    module = torch.load(path.removesuffix(".onnx") + ".pt", weights_only=False)
    makers: dict[Rival, Callable[[], Made]] = {}
    for precision in precisions:
        makers["PyTorch graph", precision, "device"] = partial(own, precision)
        if compile_mode != "none":
            makers["torch.compile", precision, "device"] = compiled(precision)
    torch.backends.cudnn.benchmark = True
    return makers


class _TooSlowError(BaseException):
    """The time limit is reached. PyTorch handles exceptions of other classes itself."""


def _stop(*_: Any) -> None:
    raise _TooSlowError("(--compile-limit)")


def _raise(error: Exception) -> Made:
    raise error


def _provider(path: str, feeds: Arrays, expected: Arrays, precisions: Sequence[str]) -> Makers:
    """ONNX Runtime's CUDA provider in each precision, as it is and as a CUDA graph. As it is, it
    also runs in TF32, its default."""
    import onnxruntime as ort
    import torch  # loads CUDA's libraries, which the provider needs; streams and marks

    def graph(precision: str) -> Made:
        stream = torch.cuda.Stream()
        bound = _Bound(path, feeds, expected, precision, user_compute_stream=stream.cuda_stream)
        torch.cuda.synchronize()
        options = ort.RunOptions()  # the marks wait, so that ONNX Runtime need not
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        run = _between_marks(lambda: bound.replay(options), stream)
        run()
        return Made(run, bound.outputs())

    makers: dict[Rival, Callable[[], Made]] = {}
    for precision in precisions:
        makers["CUDA provider graph", precision, "device"] = partial(graph, precision)
    for precision in dict.fromkeys([*precisions, "tf32"]):
        make = partial(_as_it_is, path, feeds, precision)
        makers["CUDA provider", precision, "host"] = make
    return makers


def _drop_in(
    path: str,
    feeds: Arrays,
    expected: Arrays,
    precisions: Sequence[str],
    seconds: str,
    cache: str,
) -> Makers:
    """coexec's session with the CUDA provider, ONNX Runtime's own one, and that as a CUDA graph,
    all from array to array."""
    import onnxruntime as ort

    import coexec

    ort.preload_dlls()

    def auto(precision: str) -> Made:
        start_s = time.perf_counter()
        opened = coexec.InferenceSession(
            path,
            providers=_providers(precision),
            background=False,
            planner_options={"seconds": float(seconds)},
            cache=cache,
        )
        opened.wait()
        took_s = time.perf_counter() - start_s
        made = _from_host(partial(opened.run, None, feeds))
        decision = opened.decision
        for candidate in decision.candidates if decision else ():
            print(f"  {candidate}: {candidate.status}, {candidate.reason}", file=sys.stderr)
        plan = str(decision.taken) if decision else ""
        facts = {"choice, s": took_s, "plan": plan, "degraded": opened.degraded or ""}
        return made._replace(facts=facts)

    def graph(precision: str) -> Made:
        bound = _Bound(path, feeds, expected, precision)

        def run() -> Sequence[Array]:
            bound.upload(feeds)
            bound.replay()
            return bound.outputs()

        return _from_host(run)

    makers: dict[Rival, Callable[[], Made]] = {}
    for precision in precisions:
        makers["auto", precision, "host"] = partial(auto, precision)
        make = partial(_as_it_is, path, feeds, precision)
        makers["CUDA provider", precision, "host"] = make
        makers["CUDA provider graph", precision, "host"] = partial(graph, precision)
    return makers


def _providers(precision: str, **options: Any) -> list[Any]:
    """The CUDA provider with options, before that of the CPU, as ONNX Runtime takes them.

    Raises:
        RuntimeError: this ONNX Runtime does not have it.
    """
    import onnxruntime as ort

    if _CUDA not in ort.get_available_providers():
        raise RuntimeError(f"no CUDA provider in {ort.__file__}: install onnxruntime-gpu")
    options["use_tf32"] = int(precision != "float32")
    return [(_CUDA, {k: str(v) for k, v in options.items()}), "CPUExecutionProvider"]


def _session(path: str, precision: str, **options: Any) -> Any:
    """ONNX Runtime's session with the CUDA provider and these options of it.

    Raises:
        RuntimeError: the provider is missing or does not start.
    """
    import onnxruntime as ort

    model: Any = path
    if precision == "fp16":
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16

        model = convert_float_to_float16(onnx.load(path), keep_io_types=True)
        model = model.SerializeToString()
    opened = ort.InferenceSession(model, providers=_providers(precision, **options))
    if opened.get_providers()[0] != _CUDA:
        raise RuntimeError("the CUDA provider does not start; ONNX Runtime's log says why")
    return opened


def _as_it_is(path: str, feeds: Arrays, precision: str) -> Made:
    return _from_host(partial(_session(path, precision).run, None, feeds))


def _from_host(request: Callable[[], Sequence[Array]]) -> Made:
    """A rival that goes from array to array."""

    def run() -> float:
        start_s = time.perf_counter()
        request()
        return time.perf_counter() - start_s

    for _ in range(_WARM_UP):
        run()
    return Made(run, request())


class _Bound:
    """A session as a CUDA graph, which is captured, with inputs and outputs on the GPU."""

    def __init__(
        self, path: str, feeds: Arrays, expected: Arrays, precision: str, **options: Any
    ) -> None:
        """
        Args:
            expected: outputs, for their shapes and types.
            options: of the provider.
        """
        import onnxruntime as ort

        self._session = _session(path, precision, enable_cuda_graph=1, **options)
        self._binding = self._session.io_binding()
        self._inputs = {
            name: ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
            for name, array in feeds.items()
        }
        self._outputs = {
            name: ort.OrtValue.ortvalue_from_shape_and_type(
                array.shape, array.dtype.type, "cuda", 0
            )
            for name, array in expected.items()
        }
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)
        for _ in range(_WARM_UP):  # the first ones capture
            self.replay()

    def upload(self, feeds: Arrays) -> None:
        for name, array in feeds.items():
            self._inputs[name].update_inplace(array)

    def replay(self, options: Any = None) -> None:
        """``options``: of ONNX Runtime's run."""
        self._session.run_with_iobinding(self._binding, options)

    def outputs(self) -> Sequence[Array]:
        return [value.numpy() for value in self._outputs.values()]


def _between_marks(launch: Callable[[], Any], stream: Any) -> Callable[[], float]:
    """A function that launches something into a stream and returns its seconds on the GPU."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> float:
        start.record(stream)
        launch()
        end.record(stream)
        end.synchronize()
        return 1e-3 * float(start.elapsed_time(end))

    return run


_KINDS: Mapping[str, Callable[..., Makers]] = {
    "torch": _torch,
    "onnxruntime": _provider,
    "drop-in": _drop_in,
}


if __name__ == "__main__":
    main()
