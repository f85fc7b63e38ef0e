"""OpenCL on CPU cores, by each runtime that works, against ONNX Runtime with as many threads.

On one core and on all. Every rival has a process of its own, as threads that spin for work disturb
others in theirs, and rivals take turns. A turn is one inference after 80 ms without any (a request
after idleness), then five more (a loop, of which the median counts). Times are from inputs in host
memory to outputs in host memory; ratios are over ONNX Runtime in the same round.

    python benchmarks/opencl_on_cpu.py [MODEL ...]
"""

import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from common import arguments, ratio, show, source

from coexec import InferenceSession
from coexec.engines.detect import usable_cores
from coexec.engines.names import cpu_name
from coexec.errors import CoexecError
from coexec.frontend.check import worst_difference
from coexec.frontend.load import random_inputs
from coexec.workbench import Workbench

MODELS = ["squeezenet", "mobilenet_v2", "resnet34", "inception_v3", "vgg16"]
RIVAL = "ONNX Runtime"
REST_S = 0.08
"""ONNX Runtime's threads spin for up to 50 ms after a run: longer than that."""
LOOP = 5
Times = tuple[float, float]
"""After a rest, and in a loop."""


@dataclass
class Contestant:
    """A process that runs one model in one way."""

    name: str
    connection: Connection
    outputs: list[Any]
    times: list[Times]

    def turn(self) -> None:
        time.sleep(REST_S)
        self.connection.send(True)
        self.times.append(self.connection.recv())


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
    """By title, the names of the runtimes that work: {"PoCL": "Portable Computing Language"}."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # here it would start threads
        return pool.apply(_listed)


def _listed() -> dict[str, str]:
    from coexec.engines.opencl.platforms import devices
    from coexec.engines.opencl.trial import unusable

    return {
        found.runtime.title: found.platform
        for found in devices()
        if found.runtime is not None and unusable(found) is None
    }


def _compare(
    model: str, cores: Sequence[int], runtimes: dict[str, str], options: Any
) -> Iterator[dict[str, Any]]:
    text = cpu_name(cores).removeprefix("cpu:")
    with _started(model, cores, {RIVAL: ""} | runtimes, options.cache) as contestants:
        for number in range(options.rounds):
            shift = number % len(contestants)
            for contestant in contestants[shift:] + contestants[:shift]:
                contestant.turn()
    reference = next(c for c in contestants if c.name == RIVAL)
    for contestant in contestants:
        yield {"model": model, "cores": text, "engine": contestant.name} | _row(
            contestant, reference
        )


def _row(contestant: Contestant, reference: Contestant) -> dict[str, Any]:
    rested, looped = zip(*contestant.times, strict=True)
    rested_rival, looped_rival = zip(*reference.times, strict=True)
    pairs = zip(contestant.outputs, reference.outputs, strict=True)
    return {
        "after a rest_s": statistics.median(rested),
        "loop_s": statistics.median(looped),
        "rest ratio": ratio(rested, rested_rival),
        "loop ratio": ratio(looped, looped_rival),
        "difference": f"{max(worst_difference(a, b) for a, b in pairs):.1e}",
    }


def _means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means of the ratios of each engine on each number of cores."""
    found = []
    for cores, engine in dict.fromkeys((row["cores"], row["engine"]) for row in rows):
        same = [row for row in rows if (row["cores"], row["engine"]) == (cores, engine)]
        means = {
            key: math.exp(statistics.mean(math.log(row[key]) for row in same))
            for key in ("rest ratio", "loop ratio")
        }
        found.append({"model": "geometric mean", "cores": cores, "engine": engine, **means})
    return found


@contextmanager
def _started(
    model: str, cores: Sequence[int], rivals: dict[str, str], cache: str | None
) -> Iterator[list[Contestant]]:
    """A process for each rival, ready to run. Rivals that cannot are left out, with the reason."""
    context = multiprocessing.get_context("spawn")
    found, processes = [], []
    for name, runtime in rivals.items():
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, model, tuple(cores), runtime, cache)
        )  # fmt: skip
        process.start()
        processes.append((process, ours))
        answer = ours.recv()
        if isinstance(answer, str):
            print(f"left out, {model} on {name}: {answer}")
        else:
            found.append(Contestant(name, ours, answer, []))
    try:
        yield found
    finally:
        for process, ours in processes:
            ours.close()
            process.join()


def _serve(
    connection: Connection, model: str, cores: Sequence[int], runtime: str, cache: str | None
) -> None:
    """Send the outputs, then times for each request, until the connection is closed."""
    os.sched_setaffinity(0, set(cores))
    try:
        session, feeds = _session(model, cores, runtime, cache)
        outputs = session.run(None, feeds)
    except CoexecError as error:
        connection.send(str(error))
        return
    for _ in range(3):
        session.run(None, feeds)
    connection.send(outputs)
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        times = []
        for _ in range(1 + LOOP):
            start_s = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - start_s)
        connection.send((times[0], statistics.median(times[1:])))


def _session(
    model: str, cores: Sequence[int], runtime: str, cache: str | None
) -> tuple[Any, dict[str, Any]]:
    """A session with an OpenCL runtime, or ONNX Runtime's own where ``runtime`` is empty."""
    work = Workbench(source(model), [cpu_name(cores)], cache=cache)
    feeds = random_inputs(work.model.graph)
    if not runtime:
        # 0: its own default of a thread for each core, bound to it.
        return work.onnx_runtime(threads=len(cores) if len(cores) == 1 else 0), feeds
    session = InferenceSession(
        source(model), devices=[f"{cpu_name(cores)}/opencl"], planner="single", cache=cache,
        engine_options={"opencl": {"runtime": runtime}},
    )  # fmt: skip
    return session, feeds


if __name__ == "__main__":
    main()
