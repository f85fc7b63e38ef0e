"""Train a latency predictor: measure made-up networks, learn unit times, keep them.

Samples are measured as all tasks are (`Profiler`) and kept with them, so that training goes on
where it was stopped. Which networks are measured follows from their numbers alone.
"""

import statistics
import tempfile
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path

from coexec.cache import Cache
from coexec.compiling.compiler import Compiler
from coexec.costs.base import Workload
from coexec.costs.predictor import TrainedUnits, to_json, train
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice
from coexec.frontend.load import load
from coexec.ir.graph import Graph, Task
from coexec.profiling.profiler import Profiler, launch_in
from coexec.profiling.samples import sample_network
from coexec.profiling.steps import measured_as
from coexec.profiling.store import ProfileStore
from coexec.profiling.sweep import Effort, Progress

__all__ = ["LEAST_ROUNDS", "MOST_ROUNDS", "TrainingSample", "collect", "train_on"]

LEAST_ROUNDS, MOST_ROUNDS = 4, 10
"""Other programs, and other guests of a virtual machine's host, only add to the time of a task, for
seconds or for minutes: so all is measured again, and the least time counts. Few rounds may all meet
the same disturbance."""
_AGREED = 1.03
"""So far apart two rounds of a network may be that are both taken for undisturbed."""
_STEADY = 1.1
"""So far apart all rounds of a network are where nothing disturbs them. On a shared host processors
stay slow for minutes, so two slow rounds may agree; then there are all rounds."""
_LAYERS = 48
"""Of a network: its weights and tensors fill the caches a few times."""
_EFFORT = Effort(warm_up=1, least=5, most=7, stable=0.02, budget_s=5.0)


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
    device: OpenDevice, store: ProfileStore, count: int, progress: Progress | None = None
) -> list[TrainingSample]:
    """At least ``count`` different tasks, measured on a device with its first engine.

    All networks are measured in rounds, and the least time of a task counts. On a steady machine a
    network leaves when the best two rounds agree about it. What is in the store is not measured
    again. Where a device has a clock of its own, that is the time of the kernels, and all tasks are
    charged one launch: that of the median network. What a launch takes depends on what the tasks
    before have left in the caches, which nothing tells that a task does itself.
    """
    tell = progress or (lambda what, done, total: None)
    networks: list[_SampledNetwork] = []
    owned: set[str] = set()
    named: set[str] = set()
    while len(named) < count:
        network = _SampledNetwork(len(networks), owned)
        networks.append(network)
        network.take_part(device, store, 0)
        named |= network.seconds.keys()
        owned |= network.signatures
        tell(f"{device.first.place}: samples, round 1", min(len(named), count), count)
    for turn in range(1, MOST_ROUNDS):
        steady = statistics.median(network.spread for network in networks) <= _STEADY
        left = [network for network in networks if not (steady and network.is_settled)]
        for done, network in enumerate(left, start=1):
            network.take_part(device, store, turn)
            tell(f"{device.first.place}: samples, round {turn + 1}", done, len(left))
    launches_s = [min(network.launches_s) for network in networks if network.launches_s]
    launch_s = statistics.median(launches_s or [0.0])
    return [sample for network in networks for sample in network.samples(launch_s)]


class _SampledNetwork:
    """A made-up network, with what its tasks took in the rounds in which it took part."""

    def __init__(self, seed: int, others: Set[str]) -> None:
        """``others``: signatures of tasks that count in networks before this one."""
        self._seed = seed
        self._model = load(sample_network(seed, _LAYERS))
        graph = self._model.graph
        first = {task.signature: task for task in reversed(list(_typical(graph)))}
        self._own = [task for signature, task in first.items() if signature not in others]
        self.signatures = {task.signature for task in graph.tasks}
        self.seconds: dict[str, list[float]] = {}
        """Of each task, by its signature and what it was compiled to; without the launch."""
        self.launches_s: list[float] = []
        """Of each round; 0 where a task is measured launch and all."""
        self._samples: dict[str, TrainingSample] = {}

    def take_part(self, device: OpenDevice, store: ProfileStore, turn: int) -> None:
        """Measure it once more, unless the store holds that round."""
        engine, graph = device.first, self._model.graph
        purpose = f", kernels of round {turn + 1}"
        key = f"{_key(engine)}{purpose}"
        stored = store.read(key)
        known = measured_as(stored)
        if any(task.signature not in known for task in graph.tasks):
            with tempfile.TemporaryDirectory(prefix="coexec-samples-") as folder:
                profiler = Profiler([device], store, effort=_EFFORT, predictor=lambda task: None,
                                    purpose=purpose, launches_apart=True)  # fmt: skip
                profiler.cost(Compiler(self._model, Cache(Path(folder))))
            stored = store.read(key)
            known = measured_as(stored)
        if launch_in(graph.name) in stored:
            self.launches_s.append(stored[launch_in(graph.name)].seconds)
        for task in self._own:
            for compiled, seconds in known.get(task.signature, {}).items():
                name = f"{task.signature} {compiled}"
                self.seconds.setdefault(name, []).append(seconds)
                workload = engine.workload(task.operators, graph.tensors, compiled)
                self._samples[name] = TrainingSample(task, graph, compiled, workload, seconds)

    @property
    def is_settled(self) -> bool:
        """Whether the two least times of most tasks agree, after rounds enough."""
        two = [sorted(own)[:2] for own in self.seconds.values() if len(own) >= LEAST_ROUNDS]
        return bool(two) and statistics.median(b / a for a, b in two) <= _AGREED

    @property
    def spread(self) -> float:
        """How far apart the rounds are: the longest time of a task over the least, the median."""
        return statistics.median([max(own) / min(own) for own in self.seconds.values()] or [1.0])

    def samples(self, launch_s: float) -> Iterator[TrainingSample]:
        """Its tasks, each with its least time."""
        for name, sample in self._samples.items():
            yield replace(sample, seconds=launch_s + min(self.seconds[name]))


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
