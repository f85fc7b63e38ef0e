"""Train a latency predictor: measure made-up networks, learn unit times, keep them.

Samples are measured as all tasks are (`Profiler`) and kept with them, so that training goes on
where it was stopped. Which networks are measured follows from their numbers alone.
"""

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from coexec.cache import Cache
from coexec.compiling.compiler import Compiler
from coexec.costs.base import Workload
from coexec.costs.predictor import TrainedUnits, to_json, train
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice
from coexec.frontend.load import load
from coexec.frontend.model import Model
from coexec.ir.graph import Graph, Task
from coexec.profiling.profiler import Profiler
from coexec.profiling.samples import sample_network
from coexec.profiling.steps import measured_as
from coexec.profiling.store import Measurement, ProfileStore
from coexec.profiling.sweep import Effort, Progress
from coexec.profiling.yardstick import Yardstick

__all__ = ["ROUNDS", "TrainingSample", "collect", "train_on"]

ROUNDS = 2
"""Other programs only add to the time of a task, some seconds long: so all is measured again, and
the least time counts."""
_LAYERS = 48
"""Of a network: its weights and tensors fill the caches a few times."""
_EFFORT = Effort(warm_up=1, least=7, most=15, stable=0.02, budget_s=5.0)


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A task that was measured to learn from."""

    task: Task
    graph: Graph
    compiled: str
    """Types of the engine's operators, with spaces between."""
    workload: Workload
    seconds: float


def train_on(
    device: OpenDevice, store: ProfileStore, count: int, progress: Progress | None = None
) -> TrainedUnits:
    """Measure what is not in the store, learn from ``count`` samples, and keep what was learnt.

    Raises:
        InfeasibleError: the engine does not run what networks of convolutions are made of.
    """
    samples = collect(device, store, count, progress)
    kinds = train((sample.workload, sample.seconds) for sample in samples)
    store.write_predictor(_key(device.first), to_json(kinds))
    return kinds


def collect(
    device: OpenDevice, store: ProfileStore, count: int, progress: Progress | None = None,
    rounds: Sequence[int] = range(ROUNDS),
) -> list[TrainingSample]:  # fmt: skip
    """At least ``count`` different tasks, measured on a device with its first engine.

    Args:
        rounds: in each, all networks are measured once, and the least time of a task counts, at
            the usual speed of the device.
    """
    found: dict[str, list[_Sampled]] = {}
    networks: list[Model] = []
    measured_in: dict[str, int] = {}
    """By signature of a task, the first network that has it."""
    yardstick = Yardstick(device)
    for turn in rounds:
        what = f"{device.first.place}: samples, round {turn + 1}"
        seed = 0
        seen: set[str] = set()
        while len(seen) < count:
            if seed == len(networks):
                networks.append(load(sample_network(seed, _LAYERS)))
                for task in networks[seed].graph.tasks:
                    measured_in.setdefault(task.signature, seed)
            for sampled in _measured(networks[seed], seed, device, store, turn, yardstick):
                if measured_in[sampled.sample.task.signature] == seed and sampled.name not in seen:
                    seen.add(sampled.name)
                    found.setdefault(sampled.name, []).append(sampled)
            seed += 1
            if progress is not None:
                progress(what, min(len(seen), count), count)
    return _compared(found)


class _Sampled(NamedTuple):
    """A task with what it took, and what the yardstick took then, in seconds."""

    name: str
    sample: TrainingSample
    yardstick_s: float


def _compared(found: Mapping[str, Sequence[_Sampled]]) -> list[TrainingSample]:
    """What each task takes at the usual speed of the device, at least."""
    usual_s = statistics.median(sampled.yardstick_s for own in found.values() for sampled in own)
    samples = []
    for own in found.values():
        least_s = min(sampled.sample.seconds * usual_s / sampled.yardstick_s for sampled in own)
        samples.append(replace(own[0].sample, seconds=least_s))
    return samples


def _measured(
    model: Model, seed: int, device: OpenDevice, store: ProfileStore, turn: int,
    yardstick: Yardstick,
) -> Iterator[_Sampled]:  # fmt: skip
    """The tasks of a network that are alike in all but what they are."""
    engine, graph = device.first, model.graph
    purpose = f", samples of round {turn + 1}"
    key = f"{_key(engine)}{purpose}"
    by_yardstick = f"yardstick of network {seed}"
    stored = store.read(key)
    known = measured_as(stored)
    if by_yardstick not in stored or any(task.signature not in known for task in graph.tasks):
        before = yardstick.measure()
        with tempfile.TemporaryDirectory(prefix="coexec-samples-") as folder:
            profiler = Profiler([device], store, effort=_EFFORT, predictor=lambda task: None,
                                purpose=purpose)  # fmt: skip
            profiler.cost(Compiler(model, Cache(Path(folder))))
        after = yardstick.measure()
        store.write(key, {by_yardstick: Measurement.of([before.seconds, after.seconds])})
        stored = store.read(key)
        known = measured_as(stored)
    yardstick_s = stored[by_yardstick].seconds
    for task in _typical(graph):
        for compiled, seconds in known.get(task.signature, {}).items():
            workload = engine.workload(task.operators, graph.tensors, compiled)
            sample = TrainingSample(task, graph, compiled, workload, seconds)
            yield _Sampled(f"{task.signature} {compiled}", sample, yardstick_s)


def _typical(graph: Graph) -> Iterator[Task]:
    """The tasks that read what the task before has made, or an input of the model.

    What others read lies in any cache or in none. The model's outputs are written to memory that
    is new in each run.
    """
    made: set[str] = set()
    for task in graph.tasks:
        near = task.inputs[:1] and (task.inputs[0] in made or task.inputs[0] in graph.inputs)
        if near and not set(task.outputs) & set(graph.outputs):
            yield task
        made = set(task.outputs)


def _key(engine: OpenEngine) -> str:
    return engine.device.key(engine.info.name)
