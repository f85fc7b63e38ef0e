"""OpenCL on CPU cores, by each runtime that works, against ONNX Runtime with as many threads.

The models run on one core and on all cores. Every engine has a separate process, because an OpenCL
runtime binds its threads once for a process. The processes run in turns. A turn is one request
after 80 ms of idle time, two requests at 30 a second, and five in a loop; medians count. Times are
from inputs in host memory to outputs in host memory; ratios are over ONNX Runtime in the same
round.

    python benchmarks/opencl_on_cpu.py [MODEL ...]
"""

import math
import multiprocessing
import os
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from common import arguments, show, source
from contestants import Ready, started, watch_of

from coexec import InferenceSession
from coexec.engines.detect import usable_cores
from coexec.engines.names import cpu_name
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.selection.decision import Requests
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import Outcome, Pacing, compete, turn
from coexec.settings import Settings

MODELS = ["squeezenet", "mobilenet_v2", "resnet34", "inception_v3", "vgg16"]
BASELINE = "ONNX Runtime"
PACING = Pacing(rest_s=0.08, paced=2, loop=5)
FIGURES: dict[Requests, str] = {"rested": "after a rest", "paced": "30 a second", "loop": "loop"}


def main() -> None:
    options = arguments(__doc__, MODELS)
    cores = usable_cores()
    runtimes = _runtimes()
    groups = [cores[-1:], cores] if len(cores) > 1 else [cores]
    rows = [
        row
        for model in options.models
        for group in groups
        for row in _compare(model, group, runtimes, options)
    ]
    show("OpenCL on CPU cores against ONNX Runtime", rows + _means(rows), options.json)


def _runtimes() -> dict[str, str]:
    """Names of the runtimes that work, by title: {"PoCL": "Portable Computing Language"}."""
    # In this process, the search would start threads of the runtimes.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_listed)


def _listed() -> dict[str, str]:
    from coexec.engines.opencl.platforms import devices
    from coexec.engines.opencl.tried import unusable

    return {
        handle.runtime.title: handle.platform
        for handle in devices()
        if handle.runtime is not None and unusable(handle) is None
    }


def _compare(
    model: str, cores: Sequence[int], runtimes: dict[str, str], options: Any
) -> Iterator[dict[str, Any]]:
    text = cpu_name(cores).removeprefix("cpu:")
    engines = {BASELINE: ""} | runtimes
    makers = {
        name: partial(_ready, model, tuple(cores), runtime, options.cache)
        for name, runtime in engines.items()
    }
    with started(makers, partial(_left_out, model)) as contestants:
        turns = {contestant.name: contestant.turn for contestant in contestants}
        watch = watch_of(contestants)
        outcome = compete(turns, (options.rounds, options.rounds), watch=watch).complete()
    outputs = {c.name: c.outputs for c in contestants}
    for name in outputs:
        pairs = zip(outputs[name], outputs[BASELINE], strict=True)
        difference = f"{max(worst_difference(a, b) for a, b in pairs):.1e}"
        head = {"model": model, "cores": text, "engine": name}
        yield head | _figures(outcome, name) | {"difference": difference}


def _figures(outcome: Outcome[str], name: str) -> dict[str, Any]:
    medians = {f"{words}_s": outcome.median_s(name, figure) for figure, words in FIGURES.items()}
    ratios = {
        f"{words} ratio": outcome.ratio(name, BASELINE, figure) for figure, words in FIGURES.items()
    }
    return medians | ratios


def _means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the geometric means of the ratios of each engine on each number of cores."""
    mean_rows = []
    for cores, engine in dict.fromkeys((row["cores"], row["engine"]) for row in rows):
        same = [row for row in rows if (row["cores"], row["engine"]) == (cores, engine)]
        means = {
            key: math.exp(statistics.mean(math.log(row[key]) for row in same))
            for key in (f"{words} ratio" for words in FIGURES.values())
        }
        mean_rows.append({"model": "geometric mean", "cores": cores, "engine": engine, **means})
    return mean_rows


def _left_out(model: str, name: str, why: str) -> None:
    print(f"left out, {model} on {name}: {why}")


def _ready(model: str, cores: Sequence[int], runtime: str, cache: str | None) -> Ready:
    os.sched_setaffinity(0, set(cores))
    session, feeds = _session(model, cores, runtime, cache)
    run = partial(session.run, None, feeds)
    outputs = run()
    for _ in range(3):
        run()
    return Ready(outputs, partial(turn, run, PACING))


def _session(
    model: str, cores: Sequence[int], runtime: str, cache: str | None
) -> tuple[Any, dict[str, Any]]:
    """A session with an OpenCL runtime, or ONNX Runtime's own session if ``runtime`` is empty."""
    work = PlanningContext(source(model), Settings(devices=[cpu_name(cores)], cache=cache))
    feeds = random_inputs(work.model.graph)
    if not runtime:
        # 0 is ONNX Runtime's default: one thread for each core, bound to the core.
        return work.user_model.onnx_runtime(threads=len(cores) if len(cores) == 1 else 0), feeds
    session = InferenceSession(
        source(model),
        devices=[f"{cpu_name(cores)}/opencl"],
        planner="single",
        cache=cache,
        engine_options={"opencl": {"runtime": runtime}},
    )
    return session, feeds


if __name__ == "__main__":
    main()
