"""PyTorch, or ONNX Runtime's CUDA provider, in a process that runs each of its rivals on request.

`gpu_on_nvidia.py` starts it; it imports nothing of coexec, because the packages onnxruntime and
onnxruntime-gpu have the same name and a process has one of them. Through a pipe it sends True when
it is ready to use the GPU, waits for any object, sends for each rival its difference from the
expected answer, or the reason why it is left out, and then, for each rival that it receives, the
seconds of one run.
"""

import contextlib
import copy
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

Rival = tuple[str, str, str]
"""Its name; float32, tf32 or fp16; "device": inputs and outputs stay on the GPU, seconds by the
clock of the GPU; or "host": from array to array."""
Made = tuple[Callable[[], float], Any]
"""A run, which returns its seconds, and the output of a run before."""
PRECISIONS = ("float32", "tf32", "fp16")
_WARM_UP = 5


def main() -> None:
    descriptor, kind, path, arrays, chosen, compile_mode, limit_s = sys.argv[1:]
    precisions = chosen.split(",")
    connection = Connection(int(descriptor))
    with np.load(arrays) as file:  # one input and one output
        (x,) = (file[name] for name in file if name.startswith("in:"))
        (expected,) = (file[name] for name in file if name.startswith("out:"))
    if kind == "torch":
        makers = _torch(path, x, precisions, compile_mode, float(limit_s))
    else:
        makers = _provider(path, x, precisions)
    connection.send(True)
    connection.recv()
    runs: dict[Rival, Callable[[], float]] = {}
    states: dict[Rival, float | str] = {}
    for rival, make in makers.items():
        try:
            runs[rival], output = make()
            states[rival] = float(abs(output - expected).max() / abs(expected).max())
        except Exception as error:
            states[rival] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    connection.send(states)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(runs[connection.recv()]())


def _torch(
    path: str,
    x: "np.ndarray[Any, Any]",
    precisions: Sequence[str],
    compile_mode: str,
    limit_s: float,
) -> dict[Rival, Callable[[], Made]]:
    """Two CUDA graphs in each precision: of PyTorch's own kernels, and of what torch.compile makes.

    Compiling happens here and does not measure convolutions: other processes use the GPU now.
    """
    import torch

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
        return timed, y.float().cpu().numpy()

    def own(precision: str) -> Made:
        """The faster layout; exact float32 is sometimes faster in the layout of ONNX."""
        names = layouts if precision == "float32" else ["channels_last"]
        made = [graph(precision, *placed(precision, layout)) for layout in names]
        return min(made, key=lambda one: statistics.median(one[0]() for _ in range(20)))

    def compiled(precision: str) -> Callable[[], Made]:
        start_s = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, limit_s)
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


def _provider(
    path: str, x: "np.ndarray[Any, Any]", precisions: Sequence[str]
) -> dict[Rival, Callable[[], Made]]:
    """ONNX Runtime's CUDA provider in each precision, as it is and as a CUDA graph. As it is, it
    also runs in TF32, its default."""
    import onnx
    import onnxruntime as ort
    import torch  # loads CUDA's libraries, which the provider needs; streams and marks

    def session(precision: str, **options: Any) -> Any:
        model: Any = path
        if precision == "fp16":
            from onnxruntime.transformers.float16 import convert_float_to_float16

            model = convert_float_to_float16(onnx.load(path), keep_io_types=True)
            model = model.SerializeToString()
        options["use_tf32"] = int(precision != "float32")
        providers = [("CUDAExecutionProvider", {k: str(v) for k, v in options.items()})]
        opened = ort.InferenceSession(model, providers=providers)
        if opened.get_providers()[0] != "CUDAExecutionProvider":
            raise RuntimeError("the CUDA provider does not start; ONNX Runtime's log says why")
        return opened

    def as_it_is(precision: str) -> Made:
        opened = session(precision)
        (entry,) = opened.get_inputs()

        def run() -> float:
            start_s = time.perf_counter()
            opened.run(None, {entry.name: x})
            return time.perf_counter() - start_s

        for _ in range(_WARM_UP):
            run()
        return run, opened.run(None, {entry.name: x})[0]

    def graph(precision: str) -> Made:
        stream = torch.cuda.Stream()
        opened = session(precision, enable_cuda_graph=1, user_compute_stream=stream.cuda_stream)
        (entry,), (leaving,) = opened.get_inputs(), opened.get_outputs()
        there = ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
        y = ort.OrtValue.ortvalue_from_shape_and_type(leaving.shape, np.float32, "cuda", 0)
        binding = opened.io_binding()
        binding.bind_ortvalue_input(entry.name, there)
        binding.bind_ortvalue_output(leaving.name, y)
        for _ in range(_WARM_UP):  # the first ones capture
            opened.run_with_iobinding(binding)
        torch.cuda.synchronize()
        options = ort.RunOptions()  # the marks wait, so that ONNX Runtime need not
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        run = _between_marks(lambda: opened.run_with_iobinding(binding, options), stream)
        run()
        return run, y.numpy()

    makers: dict[Rival, Callable[[], Made]] = {}
    for precision in precisions:
        makers["CUDA provider graph", precision, "device"] = partial(graph, precision)
    for precision in dict.fromkeys([*precisions, "tf32"]):
        makers["CUDA provider", precision, "host"] = partial(as_it_is, precision)
    return makers


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


if __name__ == "__main__":
    main()
