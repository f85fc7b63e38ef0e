"""Training: what is measured, what is kept of it, and for whom."""

import functools
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from coexec.cache import Cache
from coexec.engines.opened import OpenDevice
from coexec.graph.graph import Operator, Tensor
from coexec.model.load import load
from coexec.profiling.profiler import Profiler
from coexec.profiling.store import ProfileStore
from coexec.profiling.sweep import SegmentTimes, SweepItem
from coexec.profiling.trained import trained_predictor, untrained
from coexec.research.predictor.samples import sample_network
from coexec.research.predictor.training import LEAST_ROUNDS, MOST_ROUNDS, collect, train_on
from coexec.research.predictor.workloads import Workload
from coexec.runtime.compiler import Compiler
from coexec.settings import Effort
from coexec.timing.trace import Detail
from tests.helpers.clocked import BYTE_S, Clocked

COUNT = 60
VERSION = "1"
"""Of the engine that is trained."""


class Written(Clocked):
    """Says that its kernels write bytes."""

    def workload(
        self, operators: Sequence[Operator], tensors: Mapping[str, Tensor], compiled: str
    ) -> Workload:
        made = tensors[operators[-1].outputs[0]].size_bytes
        return Workload("writing", {"launch": 1.0, "bytes": float(made)})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    with ProfileStore(tmp_path) as opened:
        yield opened


def trained(engine: Clocked, store: ProfileStore, count: int = COUNT) -> list[int]:
    """How many samples there were after each network."""
    told: list[int] = []
    train_on(OpenDevice.of(engine), store, count, lambda what, done, total: told.append(done))
    return told


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """The folder of a store after training, not to be changed; and what `trained` returned."""
    folder = tmp_path_factory.mktemp("training")
    with ProfileStore(folder) as opened:
        return folder, trained(Written(VERSION), opened)


@pytest.fixture
def known(training: tuple[Path, list[int]], tmp_path: Path) -> Iterator[ProfileStore]:
    """A copy of the store after training."""
    with ProfileStore(shutil.copytree(training[0], tmp_path / "known")) as opened:
        yield opened


@functools.cache
def networks_of(count: int) -> int:
    """How many of them have ``count`` tasks to learn from."""
    with tempfile.TemporaryDirectory() as folder, ProfileStore(Path(folder)) as store:
        return trained(Written(VERSION), store, count).index(count) + 1


@pytest.mark.long
def test_unit_times_are_learnt_from_measured_tasks(
    training: tuple[Path, list[int]], known: ProfileStore
) -> None:
    engine, told = Written(VERSION), training[1]
    networks = told.index(COUNT) + 1
    assert told[:networks] == sorted(told[:networks])
    again = list(range(1, networks + 1))  # all agree as soon as they may
    assert told[networks:] == again * (LEAST_ROUNDS - 1)
    predictor = trained_predictor(engine, known)
    assert predictor is not None
    assert predictor.kinds["writing"].units_s["bytes"] == pytest.approx(BYTE_S, rel=0.01)


class Disturbed(Written):
    """Takes ``slowness`` as long."""

    slowness = 1.0

    def ran(self, tensor: Tensor) -> None:
        end_s = tensor.size_bytes * BYTE_S * self.slowness
        self._ran.append(Detail("kernel", "null:0", "kernel", 0.0, 0.0, 0.0, end_s, tensor.name))


def collected(factors: Sequence[float], store: ProfileStore) -> tuple[list[float], list[str]]:
    """How much longer than undisturbed each task takes, and the names of the rounds, if the engine
    is as slow as ``factors`` say, one after the other from network to network."""
    engine, turns = Disturbed(), iter(factors)
    engine.slowness = next(turns)
    rounds: list[str] = []

    def next_network(what: str, done: int, total: int) -> None:
        rounds.append(what.rpartition(" ")[2])
        engine.slowness = next(turns)

    samples = collect(OpenDevice.of(engine), store, COUNT, next_network)
    found = [s.seconds / (s.workload.terms["bytes"] * BYTE_S) for s in samples]
    return found, rounds


@pytest.mark.long
def test_networks_are_measured_until_two_rounds_agree(store: ProfileStore) -> None:
    factors = np.repeat((1.08, 1.08, 1.04, 1.0, 1.0), networks_of(COUNT))
    found, rounds = collected([*factors, 1.0], store)
    assert found == pytest.approx([1.0] * len(found))
    assert rounds[-1] == "5"


@pytest.mark.long
def test_slow_rounds_that_agree_are_not_believed_on_an_unsteady_machine(
    store: ProfileStore,
) -> None:
    factors = np.repeat(
        (2.0, 1.5, 1.5, 1.5, 1.5, 1.0, *[1.5] * (MOST_ROUNDS - 6)), networks_of(COUNT)
    )
    found, rounds = collected([*factors, 1.0], store)
    assert found == pytest.approx([1.0] * len(found))
    assert rounds[-1] == str(MOST_ROUNDS)


@pytest.mark.long
def test_networks_about_which_no_rounds_agree_are_left_after_a_while(store: ProfileStore) -> None:
    slower = [1.1**number for number in range((MOST_ROUNDS + 1) * networks_of(COUNT))]
    _, rounds = collected(slower[::-1], store)
    assert rounds[-1] == str(MOST_ROUNDS)


@pytest.mark.long
def test_all_tasks_are_charged_the_launch_of_the_median_network(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks, kernels_s, sweeps = networks_of(COUNT), 1e-3, 0

    def swept(part: SweepItem, *_: object, **__: object) -> list[SegmentTimes]:
        nonlocal sweeps
        turn, network = divmod(sweeps, networks)
        sweeps += 1
        launch_s = 1e-5 * (1 + network**2) * (2.0 if turn == 0 else 1.0)
        return [SegmentTimes([kernels_s] * len(part.tasks), [launch_s] * len(part.tasks))] * 3

    monkeypatch.setattr("coexec.profiling.profiler.sweep", swept)
    samples = collect(OpenDevice.of(Written()), store, COUNT)
    launch_s = float(np.median([1e-5 * (1 + number**2) for number in range(networks)]))
    assert sweeps == LEAST_ROUNDS * networks and networks > 2
    assert [s.seconds for s in samples] == pytest.approx([kernels_s + launch_s] * len(samples))


def test_a_trained_place_predicts_what_was_never_measured(
    known: ProfileStore, cache: Cache
) -> None:
    engine = Written(VERSION)
    other = Compiler(load(sample_network(1000, 48)), cache)
    cost = Profiler([OpenDevice.of(engine)], known, effort=Effort(0, 2, 2)).cost(other)
    bases = cost.bases[engine.place]
    assert list(bases.values()).count("predicted") > len(bases) / 2
    assert set(cost.predictors) == {engine.place}


def test_training_goes_on_where_it_stopped(store: ProfileStore) -> None:
    engine = Written()
    trained(engine, store, COUNT // 3)
    engine.compiled.clear()
    trained(engine, store, COUNT // 3)
    assert not engine.compiled
    trained(engine, store)
    assert engine.compiled


def test_another_version_has_no_predictor_and_is_told_how_to_get_one(known: ProfileStore) -> None:
    newer = Written("2")
    assert trained_predictor(newer, known) is None
    (line,) = untrained([newer], known)
    assert "coexec profile --train --devices null:0/null" in line and "null 1" in line
    assert untrained([Written(VERSION)], known) == []


def test_damaged_numbers_are_not_used(known: ProfileStore) -> None:
    engine = Written(VERSION)
    key = engine.device.key
    with closing(sqlite3.connect(known.path)) as db, db:
        db.execute("UPDATE predictor SET numbers = replace(numbers, 'e-', 'e+')")
    assert known.read_predictor(key) == {} and trained_predictor(engine, known) is None


def test_numbers_of_another_form_are_not_used(store: ProfileStore) -> None:
    engine = Written()
    store.write_predictor(engine.device.key, {"writing": '{"units": []}'})
    assert trained_predictor(engine, store) is None
    store.write_predictor(engine.device.key, {})
    assert store.trained() == []


def test_a_store_from_before_predictors_gets_the_table(tmp_path: Path) -> None:
    with ProfileStore(tmp_path) as store:
        path = store.path
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE predictor")
    with ProfileStore(tmp_path) as store:
        store.write_predictor("device", {"kind": "{}"})
        assert store.read_predictor("device") == {"kind": "{}"}


@pytest.mark.parametrize("seed", range(4))
def test_sample_networks_are_the_same_each_time_and_sound(seed: int) -> None:
    first, again, other = (ir.to_proto(sample_network(s, 30)) for s in (seed, seed, seed + 10))
    assert first == again and first != other
    graph = load(first, check=False).graph
    assert not any(task.opaque for task in graph.tasks)
    convolutions = [t.macs for t in graph.tasks if t.operators[0].op_type == "Conv"]
    assert (
        len(convolutions) >= len(graph.tasks) / 5
        and min(convolutions) >= 1e5
        and max(convolutions) <= 2e9
    )
