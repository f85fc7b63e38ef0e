"""Plans on this machine against other engines with all cores, all in turns in one run.

For each model: one core alone, the best single device, every planner on two one-core clusters,
"auto", ONNX Runtime and OpenVINO with two threads (OpenVINO where it is installed: pip install
openvino). Goals: on nasnet_large and pnasnet_large "auto" at least 1.75 times faster than one core
and ahead of both engines; on every model "auto" at most 1.02 times the best single device.

    python benchmarks/hope_here.py [MODEL ...]
"""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx_ir as ir
from common import REST_S, arguments, in_turns, ratio, show, source, two_cores

from coexec import zoo
from coexec.auto import Auto, Choice
from coexec.execute import Executor
from coexec.frontend.load import random_inputs
from coexec.frontend.module import Array
from coexec.pipeline import Pipeline
from coexec.simulate import simulate

MODELS = ["inception_v3", "inception_v4", "pnasnet_mobile", "pnasnet_large", "nasnet_large"]
PLANNERS = ["hope_greedy", "heft"]
Run = Callable[[], Any]


def main() -> None:
    options = arguments(__doc__, MODELS)
    rows = [_compare(name, options) for name in options.models]
    show(f"on {', '.join(two_cores())}", rows, options.json)


def _compare(name: str, options: Any) -> dict[str, Any]:
    cores = two_cores()
    choice = Auto(source(name), cache=options.cache, fresh=options.fresh).choose()
    single = next(c.devices for c in choice.candidates if len(c.devices) == 1)
    work = Pipeline(source(name), cores, cache=options.cache)
    feeds = random_inputs(work.model.graph)
    with ExitStack() as stack:
        rivals: dict[str, Run] = {
            "auto": _plan(stack, choice.work, choice, feeds),
            "one core": _planned(stack, cores[:1], "single", name, options, feeds),
            "single": _planned(stack, list(single), "single", name, options, feeds),
        }
        for planner in PLANNERS:
            rivals[planner] = _planned(stack, cores, planner, name, options, feeds)
        session = work.onnx_runtime(threads=2)
        rivals["ORT 2"] = lambda: session.run(None, dict(feeds))
        rivals |= _openvino(name, feeds)
        times = in_turns(rivals, options.rounds, REST_S)
    cost, system = choice.work.measured
    predicted_s = simulate(choice.work.schedule(choice.plan), cost, system).makespan_s
    auto = times["auto"]
    row: dict[str, Any] = {"model": name, "auto is": "+".join(choice.work.names)}
    row |= {f"{rival}_s": statistics.median(t) for rival, t in times.items()}
    row["one core / auto"] = ratio(times["one core"], auto)
    row["auto / single"] = ratio(auto, times["single"])
    row["simulated / measured"] = predicted_s / statistics.median(auto)
    return row


def _plan(stack: ExitStack, work: Pipeline, choice: Choice, feeds: dict[str, Array]) -> Run:
    executor = stack.enter_context(Executor(choice.compiled, work.devices))
    return lambda: executor.run(feeds)


def _planned(
    stack: ExitStack, devices: list[str], planner: str, name: str, options: Any,
    feeds: dict[str, Array],
) -> Run:  # fmt: skip
    work = Pipeline(source(name), devices, cache=options.cache)
    executor = stack.enter_context(Executor(work.compiled_for(planner, {}), work.devices))
    return lambda: executor.run(feeds)


def _openvino(name: str, feeds: dict[str, Array]) -> dict[str, Run]:
    try:
        import openvino
    except ImportError:
        print("openvino is not installed; it is left out")
        return {}
    with TemporaryDirectory() as folder:
        path = name
        if name in zoo.MODELS:
            path = str(Path(folder) / "model.onnx")
            ir.save(zoo.build(name), path)
        settings = {
            "INFERENCE_NUM_THREADS": 2, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # by default it computes in 16 bits where it can
        }  # fmt: skip
        compiled = openvino.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()
    return {"OpenVINO 2": lambda: request.infer(list(feeds.values()))}


if __name__ == "__main__":
    main()
