"""Devices of several cores with the engine `cpp`: their cores compute as a team."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coexec.cache import Cache
from coexec.engines.cpp import program
from coexec.engines.cpp.device import CppCores
from coexec.engines.cpp.options import CppOptions
from coexec.engines.detect import usable_cores
from coexec.engines.opened import OpenDevice
from coexec.engines.tiles import TiledLaunch
from coexec.errors import DegradedWarning
from coexec.graph.graph import Graph, Piece
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive
from coexec.research import zoo
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.loops import team_classes
from coexec.runtime.recorder import RealRecorder
from coexec.session import InferenceSession
from coexec.timing.lanes import kernels_in_words
from tests.helpers.core_programs import cpp_name, opened_cpp
from tests.helpers.examples import scaled
from tests.helpers.gpu_networks import module_of
from tests.helpers.graphs import halves_by_rows, hand_made
from tests.helpers.loop_team import LoopTeam
from tests.helpers.small_models import branches

NETWORKS = [
    "squeezenet",
    "mobilenet_v2",
    "resnet34",
    "inception_v3",
    "mobilenet_v3",
    "mobilenet_v1",
]


def right(session: InferenceSession, proto: Any, seed: int = 0) -> None:
    feeds = random_inputs(load(proto).graph, seed)
    expected = plain_session(proto).run(None, feeds)
    for found, each in zip(session.run(None, feeds), expected, strict=True):
        assert worst_difference(found, each) < 1e-5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_right(name: str, tmp_path: Path) -> None:
    proto = zoo.build(name)
    with InferenceSession(
        proto, devices=[cpp_name(2)], planner="single", cache=tmp_path
    ) as session:
        for seed in range(3):
            right(session, proto, seed)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_tiles_make_the_numbers_of_whole_launches(name: str, tmp_path: Path) -> None:
    """With more threads than cores, from memory full of NaN."""
    model = load(zoo.build(name))
    module = module_of(model)
    engine = opened_cpp(tmp_path, cores=2)
    program = engine.compile(module)
    feeds = random_inputs(model.graph)
    made = {t.name: engine.allocate(t) for t in module.outputs}
    bound = program.bind(feeds, made)
    bound.run()
    expected = {name: array.copy() for name, array in made.items()}
    with closing(LoopTeam(next(iter(team_classes())), [*usable_cores()[:2]] * 2)) as team:
        number = team.add(bound.launches, len(bound.pointers))
        for _ in range(5):
            program._arena[...] = 255
            for array in made.values():
                array.view(np.uint8)[...] = 255
            team.run(number, bound.pointers.tolist())
            for output, array in made.items():
                np.testing.assert_array_equal(array, expected[output])


def test_a_bound_array_is_read_and_written(tmp_path: Path) -> None:
    """Each request has other arrays of the caller."""
    proto = branches(channels=18)
    with InferenceSession(
        proto, devices=[cpp_name(2)], planner="single", cache=tmp_path
    ) as session:
        for seed in range(20):
            right(session, proto, seed)


def teams(count: int, threads: int, folder: Path) -> list[OpenDevice]:
    """Devices of so many threads each, on cores that this machine may not have."""
    devices = []
    for number in range(count):
        engine = opened_cpp(folder)
        first = 1000 + number * threads
        cores = tuple(range(first, first + threads))
        name = f"cpu:{cores[0]}-{cores[-1]}"
        spec = replace(engine.device, name=name, cores=cores)
        devices.append(OpenDevice.of(CppCores(spec, engine.info, CppOptions(), folder)))
    return devices


def by_turns(graph: Graph, names: list[str]) -> dict[str, list[Piece]]:
    """Each task is another device's than the one before."""
    pieces = [graph.whole_piece(task) for task in graph.tasks]
    return {name: pieces[number :: len(names)] for number, name in enumerate(names)}


Order = Callable[[Graph, list[str]], dict[str, list[Piece]]]


@pytest.mark.parametrize(("count", "order"), [(2, halves_by_rows), (4, by_turns)])
def test_several_teams_share_a_plan(count: int, order: Order, tmp_path: Path, cache: Cache) -> None:
    """In strips and in branches. Each team computes several segments."""
    model = load(branches(width=4, channels=18))
    devices = teams(count, 4, tmp_path)
    names = [device.spec.name for device in devices]
    plan = hand_made(model.graph, order(model.graph, names), "cpp")
    compiled = Compiler(model, cache).compile(derive(plan, model.graph), devices)
    rival = plain_session(branches(width=4, channels=18))
    with Executor(compiled, devices) as executor:
        recorder = RealRecorder(compiled, names)
        for seed in range(scaled(20)):
            feeds = random_inputs(model.graph, seed)
            found = executor.run(feeds, recorder if seed % 2 else None)
            for made, each in zip(found.values(), rival.run(None, feeds), strict=True):
                assert worst_difference(made, each) < 1e-5
        trace = recorder.trace()
    spans = trace.of("compute")
    assert {d.device for d in trace.details} == set(names)
    for detail in trace.details:
        assert detail.kind == "tile"
        assert any(
            s.device == detail.device and s.start_s <= detail.start_s <= detail.end_s <= s.end_s
            for s in spans
        )
    assert "tile" in kernels_in_words(trace.kernels_of(names[0]))


def test_sessions_on_the_same_cores_in_several_threads(tmp_path: Path) -> None:
    proto = branches(channels=18)
    words: dict[str, Any] = {"devices": [cpp_name(2)], "planner": "single", "cache": tmp_path}
    with InferenceSession(proto, **words) as one, InferenceSession(proto, **words) as other:

        def work(thread: int) -> None:
            for seed in range(scaled(20)):
                right((one, other)[(thread + seed) % 2], proto, seed)

        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(work, range(4)):
                pass


@pytest.mark.long
def test_a_thousand_requests_beside_a_busy_process(tmp_path: Path) -> None:
    proto = branches(channels=18)
    feeds = random_inputs(load(proto).graph)
    expected = plain_session(proto).run(None, feeds)
    with InferenceSession(
        proto, devices=[cpp_name(2)], planner="single", cache=tmp_path
    ) as session:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            for _ in range(1000):
                for found, each in zip(session.run(None, feeds), expected, strict=True):
                    assert worst_difference(found, each) < 1e-5
        finally:
            for process in busy:
                process.kill()
                process.wait()


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        (
            "TiledLaunch",
            lambda *parts: TiledLaunch(*parts[:-1], memory_bytes=1 << 60),
            r"each of its threads needs 1\d+ GiB of memory for the kernel \w+, and there is not",
        ),
        (
            "aligned_bytes",
            lambda size: np.empty(size + (1 << 60), np.uint8),
            r"needs [\d.]+ \w+ of memory between kernels and its copies of the weights, and there",
        ),
    ],
)
def test_memory_that_is_missing_is_one_sentence(
    name: str, make: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime answers."""
    proto = branches(channels=18)
    words: dict[str, Any] = {"devices": [cpp_name(2)], "planner": "single", "cache": tmp_path}
    monkeypatch.setattr(program, name, make)
    with (
        pytest.warns(DegradedWarning, match=reason),
        InferenceSession(proto, **words) as session,
    ):
        assert session.devices == ()
        right(session, proto)
