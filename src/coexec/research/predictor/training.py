"""Train a latency predictor: measure generated networks, learn unit times, store them.

Samples are measured in the same way as other tasks (`Profiler`) and are in the same store, so that
training continues where it was stopped. The number of a network is its random seed, so the same
networks are measured each time.
"""

import statistics
import tempfile
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path

from coexec.cache import Cache
from coexec.engines.base import OpenEngine
from coexec.engines.names import default_names
from coexec.engines.opened import OpenDevice
from coexec.engines.registry import check_options, open_devices
from coexec.graph.graph import Graph, Task
from coexec.hardware.hardware import Place
from coexec.model.load import load
from coexec.profiling.coverage import measured_as
from coexec.profiling.profiler import Profiler, launch_in
from coexec.profiling.store import ProfileStore
from coexec.progress import ReportProgress
from coexec.research.predictor.latency import TrainedUnits, describe, to_json, train
from coexec.research.predictor.samples import sample_network
from coexec.research.predictor.workloads import Workload
from coexec.runtime.compiler import Compiler
from coexec.selection.user_model import opened_cache
from coexec.settings import Effort, Settings

LEAST_ROUNDS, MOST_ROUNDS = 4, 10
"""Number of rounds. Other programs, and other guests of a virtual machine's host, only add to the
time of a task, for seconds or for minutes. So everything is measured in several rounds, and the
least time counts. If there are only a few rounds, one disturbance may affect all of them."""
_AGREED = 1.03
"""Largest ratio of the two best rounds of a network at which both count as undisturbed."""
_STEADY = 1.1
"""Largest ratio of the worst to the best round of a network on an undisturbed machine. On a shared
host, processors stay slow for minutes, so two slow rounds may agree; above this ratio, all rounds
are run."""
_LAYERS = 48
"""Number of layers of a network: its weights and tensors are a few times as large as the caches."""
_EFFORT = Effort(warm_up=1, least=5, most=7, stable=0.02, budget_s=5.0)


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A measured task, for training."""

    task: Task
    graph: Graph
    compiled: str
    """Types of the engine's operators, with spaces between."""
    workload: Workload
    seconds: float


def trained_on(settings: Settings, count: int) -> dict[Place, TrainedUnits]:
    """Train a predictor for each device with its engine, and store it with the profiles.

    Args:
        settings: only devices, engine options, cache and progress are used.
        count: least number of tasks to train on.

    Raises:
        DeviceError: a device cannot be used.
        InfeasibleError: an engine does not run the measured tasks.
    """
    check_options(settings.engine_options)
    cache = opened_cache(settings.cache)
    names = settings.devices or default_names()
    devices = open_devices(names, settings.engine_options, cache.root)
    units_by_place: dict[Place, TrainedUnits] = {}
    with ProfileStore(cache.root) as store:
        for device in devices:
            units_by_place[device.engine.place] = train_on(device, store, count, settings.progress)
            device.close()
    return units_by_place


def train_on(
    device: OpenDevice, store: ProfileStore, count: int, progress: ReportProgress | None = None
) -> TrainedUnits:
    """Measure samples that are not in the store, train on ``count`` samples, store the result.

    Raises:
        InfeasibleError: the engine does not run the operators of convolutional networks.
    """
    samples = collect(device, store, count, progress)
    kinds = train((sample.workload, sample.seconds) for sample in samples)
    store.write_predictor(_key(device.engine), to_json(kinds))
    return kinds


def collect(
    device: OpenDevice, store: ProfileStore, count: int, progress: ReportProgress | None = None
) -> list[TrainingSample]:
    """At least ``count`` different tasks, measured on a device.

    All networks are measured in rounds, and the least time of a task counts. On a steady machine,
    no more rounds are run for a network when its best two rounds agree. Results that are in the
    store are not measured again.

    If the device has a clock of its own, the time of a task is the time of its kernels plus one
    launch, which is the same for all tasks: the launch of the median network. The time of a launch
    depends on the data that earlier tasks have left in the caches, so it is no property of a task.
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
        tell(f"{device.engine.place}: samples, round 1", min(len(named), count), count)
    for turn in range(1, MOST_ROUNDS):
        steady = statistics.median(network.spread for network in networks) <= _STEADY
        left = [network for network in networks if not (steady and network.is_settled)]
        for done, network in enumerate(left, start=1):
            network.take_part(device, store, turn)
            tell(f"{device.engine.place}: samples, round {turn + 1}", done, len(left))
    launches_s = [min(network.launches_s) for network in networks if network.launches_s]
    launch_s = statistics.median(launches_s or [0.0])
    return [sample for network in networks for sample in network.samples(launch_s)]


class _SampledNetwork:
    """A generated network, with the times of its tasks in the rounds in which it was measured."""

    def __init__(self, seed: int, counted: Set[str]) -> None:
        """``counted``: signatures of tasks that were counted for earlier networks."""
        self._seed = seed
        self._model = load(sample_network(seed, _LAYERS))
        graph = self._model.graph
        first = {task.signature: task for task in reversed(list(_typical(graph)))}
        self._own = [task for signature, task in first.items() if signature not in counted]
        self.signatures = {task.signature for task in graph.tasks}
        self.seconds: dict[str, list[float]] = {}
        """Seconds without the launch, by signature and compiled operators of the task; a value for
        each round."""
        self.launches_s: list[float] = []
        """Seconds of a launch in each round; 0 if the times of tasks include the launch."""
        self._samples: dict[str, TrainingSample] = {}

    def take_part(self, device: OpenDevice, store: ProfileStore, turn: int) -> None:
        """Measure the network once more, unless that round is in the store."""
        engine, graph = device.engine, self._model.graph
        work_of = describe(engine)
        purpose = f", kernels of round {turn + 1}"
        key = f"{_key(engine)}{purpose}"
        stored = store.read(key)
        seconds_by_task = measured_as(stored)
        if any(task.signature not in seconds_by_task for task in graph.tasks):
            with tempfile.TemporaryDirectory(prefix="coexec-samples-") as folder:
                profiler = Profiler(
                    [device],
                    store,
                    effort=_EFFORT,
                    predictor=lambda task: None,
                    purpose=purpose,
                    launches_apart=True,
                )
                profiler.cost(Compiler(self._model, Cache(Path(folder))))
            stored = store.read(key)
            seconds_by_task = measured_as(stored)
        if launch_in(graph.name) in stored:
            self.launches_s.append(stored[launch_in(graph.name)].seconds)
        for task in self._own:
            for compiled, seconds in seconds_by_task.get(task.signature, {}).items():
                name = f"{task.signature} {compiled}"
                self.seconds.setdefault(name, []).append(seconds)
                workload = work_of(task.operators, graph.tensors, compiled)
                self._samples[name] = TrainingSample(task, graph, compiled, workload, seconds)

    @property
    def is_settled(self) -> bool:
        """Whether the two least times of most tasks agree, after enough rounds."""
        two = [sorted(own)[:2] for own in self.seconds.values() if len(own) >= LEAST_ROUNDS]
        return bool(two) and statistics.median(b / a for a, b in two) <= _AGREED

    @property
    def spread(self) -> float:
        """Median over the tasks of the longest time of a task, divided by its least time."""
        return statistics.median([max(own) / min(own) for own in self.seconds.values()] or [1.0])

    def samples(self, launch_s: float) -> Iterator[TrainingSample]:
        """The samples of the network, each with its least time plus the launch."""
        for name, sample in self._samples.items():
            yield replace(sample, seconds=launch_s + min(self.seconds[name]))


def _typical(graph: Graph) -> Iterator[Task]:
    """The tasks that read the result of the task directly before them, or an input of the model.

    For other tasks, it is unknown which cache has their inputs, if any. Tasks that make outputs of
    the model are left out, because outputs are written to memory that is new in each run.
    """
    made: set[str] = set()
    for task in graph.tasks:
        near = task.inputs[:1] and (task.inputs[0] in made or task.inputs[0] in graph.inputs)
        if near and not set(task.outputs) & set(graph.outputs):
            yield task
        made = set(task.outputs)


def _key(engine: OpenEngine) -> str:
    return engine.device.key
