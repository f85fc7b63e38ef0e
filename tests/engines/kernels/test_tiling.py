"""Tiles wait for all tiles that they must follow, and not for all others."""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.engines.cpp.device import CppCores
from coexec.engines.cpp.program import CppProgram
from coexec.engines.kernels import tiling
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.building import Build, build
from coexec.engines.kernels.dependencies import uses_of
from coexec.engines.kernels.tiling import Place, tiles_of
from coexec.engines.tiles import Tile, calls_of, thread_memory
from coexec.lowering.module import Module
from coexec.model.load import load
from coexec.plan.memory import Record, offsets_by_size
from tests.helpers.core_programs import opened_cpp
from tests.helpers.examples import scaled
from tests.helpers.gpu_networks import mixed_network, module_of
from tests.helpers.network_cases import networks
from tests.helpers.small_models import from_nodes, tensor_info

CORES = Architecture("cpu", 4, compute_units=4)
THREADS = 3
Name = tuple[int, int]


@pytest.fixture(autouse=True)
def cuts_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of small networks are divided as if they took long."""
    monkeypatch.setattr(tiling, "seconds_of", lambda launch: 1e-3)


def arena_of(found: Build) -> dict[str, Place]:
    """Places of the tensors between launches in one memory, which they share."""
    records = [Record(-(-s.size_bytes // 64) * 64, s.first, s.last) for s in found.scratch]
    offsets = offsets_by_size(records).offsets
    return {s.name: ("arena", at) for s, at in zip(found.scratch, offsets, strict=True)}


def closure_of(tiles: Sequence[Sequence[Tile]]) -> dict[Name, set[Name]]:
    """All tiles that end before each starts."""
    before: dict[Name, set[Name]] = {}
    for number, row in enumerate(tiles):
        for index, tile in enumerate(row):
            direct = {(w.launch, other) for w in tile.waits for other in range(w.first, w.last + 1)}
            before[number, index] = direct.union(*(before[name] for name in direct))
    return before


def touched(found: Build, tiles: Sequence[Sequence[Tile]], places: dict[str, Place]) -> Any:
    """By tile, for each use of a memory: the memory, the bytes as a mask, whether it writes."""
    ends: dict[str, int] = {}
    uses: dict[Name, list[tuple[str, list[tuple[int, int]], bool]]] = {}
    for number, launch in enumerate(found.launches):
        for use in uses_of(launch, found.aliases):
            memory, base = places.get(use.root, (use.root, 0))
            start, stop = (base + at * use.scalar_bytes for at in (use.start, use.stop))
            ends[memory] = max(ends.get(memory, 0), stop)
            for index, tile in enumerate(tiles[number]):
                ranges = [(start, stop)]
                if use.touch is not None:
                    first, last, low, high = use.touch.part(tile.box)
                    bounds = [low * use.scalar_bytes, high * use.scalar_bytes]
                    plane = use.touch.plane * use.scalar_bytes
                    ranges = [
                        (start + p * plane + bounds[0], start + p * plane + bounds[1])
                        for p in range(first, last)
                    ]
                    assert all(start <= a and b <= stop for a, b in ranges if a < b)
                uses.setdefault((number, index), []).append((memory, ranges, use.writes))

    def mask(memory: str, ranges: Sequence[tuple[int, int]]) -> Any:
        touches = np.zeros(ends[memory], bool)
        for a, b in ranges:
            touches[a:b] = True
        return touches

    return {
        name: [(memory, mask(memory, ranges), writes) for memory, ranges, writes in each]
        for name, each in uses.items()
    }


def check_order(found: Build, places: dict[str, Place]) -> None:
    tiles = tiles_of(found, THREADS, places)
    before, uses = closure_of(tiles), touched(found, tiles, places)
    for name, other in product(uses, uses):
        if name[0] >= other[0] or name in before[other]:
            continue
        for (memory, mask, writes), (memory_2, mask_2, writes_2) in product(
            uses[name], uses[other]
        ):
            apart = memory != memory_2 or not (writes or writes_2) or not (mask & mask_2).any()
            assert apart, f"{other} has to wait for {name}"


@settings(max_examples=scaled(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(networks(), st.booleans())
def test_tiles_that_disturb_each_other_have_an_order(model: Any, shared: bool) -> None:
    found = build(module_of(model), CORES)
    check_order(found, arena_of(found) if shared else {})


def test_no_wait_follows_from_others() -> None:
    for module in (module_of(load(mixed_network())), rows_of_planes()):
        tiles = tiles_of(build(module, CORES), THREADS)
        before = closure_of(tiles)
        for tile in (tile for row in tiles for tile in row):
            each = [{(w.launch, i) for i in range(w.first, w.last + 1)} for w in tile.waits]
            for number, names in enumerate(each):
                others = set().union(*each[number + 1 :])
                assert names - others.union(*(before[name] for name in others))


def test_all_boxes_of_a_grid_are_computed_once() -> None:
    found = build(module_of(load(mixed_network())), CORES)
    for launch, tiles in zip(found.launches, tiles_of(found, THREADS), strict=True):
        counts = np.zeros(launch.grid, int)
        for tile in tiles:
            counts[tuple(slice(*axis) for axis in tile.box)] += 1
        assert (counts == 1).all()
        assert len(tiles) % THREADS == 0 or len(tiles) < THREADS


def chain(*kinds: str, size: int = 24) -> Module:
    """Convolutions of 28 channels, 1x1, 3x3 or depthwise, and pools, on ``size`` rows."""
    nodes, weights, source = [], {}, "x"
    for number, kind in enumerate(kinds):
        result = "y" if number == len(kinds) - 1 else f"t{number}"
        if kind == "pool":
            attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
            nodes.append(helper.make_node("MaxPool", [source], [result], **attributes))
        else:
            groups, edge = (28, 3) if kind == "depthwise" else (1, int(kind))
            shape = (28, 28 // groups, edge, edge)
            values = np.random.default_rng(number).standard_normal(shape) / 28
            weights[f"w{number}"] = values.astype(np.float32)
            attributes = {"pads": [edge // 2] * 4, "group": groups}
            read = [source, f"w{number}"]
            nodes.append(helper.make_node("Conv", read, [result], **attributes))
        source = result
    infos = ([tensor_info(name, [1, 28, size, size])] for name in "xy")
    return module_of(load(from_nodes(nodes, *infos, weights)))


def products() -> Module:
    """Sums and products of matrices, whose rows are rows of tiles."""
    nodes = [
        helper.make_node("Add", ["x", "x2"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["product"]),
        helper.make_node("MatMul", ["product", "w"], ["again"]),
        helper.make_node("Softmax", ["again"], ["shares"], axis=-1),
        helper.make_node("Mul", ["shares", "product"], ["y"]),
    ]
    weights = {"w": np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)}
    inputs, outputs = (
        [tensor_info(n, [6, 100, 40]) for n in names] for names in (("x", "x2"), "y")
    )
    return module_of(load(from_nodes(nodes, inputs, outputs, weights)))


def rows_of_planes() -> Module:
    """Pools of planes, joined channels, norms, sums, and products of computed matrices."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["means"]),
        helper.make_node("Mul", ["x", "means"], ["scaled"]),
        helper.make_node("Concat", ["scaled", "x", "scaled"], ["joined"], axis=1),
        helper.make_node("Softmax", ["joined"], ["shares"], axis=1),
        helper.make_node("LayerNormalization", ["shares", "scale"], ["norm"], axis=-1),
        helper.make_node("MatMul", ["norm", "joined"], ["products"]),
        helper.make_node("ReduceMax", ["products"], ["most"], axes=[2, 3], keepdims=0),
        helper.make_node("ReduceMean", ["x2"], ["sums"], axes=[-1]),
        helper.make_node("Sub", ["x2", "sums"], ["around"]),
        helper.make_node("Softmax", ["around"], ["softmax"], axis=-1),
        helper.make_node("MatMul", ["softmax", "x3"], ["values"]),
        helper.make_node("Concat", ["values", "x2"], ["y2"], axis=2),
    ]
    weights = {"scale": np.random.default_rng(0).standard_normal(14).astype(np.float32)}
    sizes = {"x": [2, 18, 14, 14], "x2": [6, 100, 40], "x3": [6, 40, 70]}
    inputs = [tensor_info(name, shape) for name, shape in sizes.items()]
    outputs = [tensor_info("most", [2, 54]), tensor_info("y2", [6, 100, 110])]
    return module_of(load(from_nodes(nodes, inputs, outputs, weights)))


@pytest.mark.parametrize("kind", ["1", "3", "depthwise", "pool"])
def test_the_first_rows_do_not_wait_for_the_last_rows_of_the_layer_before(kind: str) -> None:
    tiles = tiles_of(build(chain("depthwise", kind, "depthwise"), CORES), THREADS)
    assert len(tiles) >= 3 and all(len(row) >= THREADS for row in tiles)
    before = closure_of(tiles)
    last_rows = {(number, len(row) - 1) for number, row in enumerate(tiles[:-1])}
    assert before[len(tiles) - 1, 0] and not before[len(tiles) - 1, 0] & last_rows


class _Program:
    """A program of the engine `cpp`, whose tiles are computed one by one."""

    def __init__(self, engine: CppCores, module: Module) -> None:
        found = build(module, CORES, on_arrays=True)
        functions = engine.libraries.functions(found.launches, found.tasks)
        ends = {tensor.name for tensor in (*module.inputs, *module.outputs)}
        self._program = CppProgram(found, functions, ends, THREADS)
        rng = np.random.default_rng(0)
        feeds = {t.name: rng.standard_normal(t.shape).astype(t.dtype) for t in module.inputs}
        self._outputs = {t.name: engine.allocate(t) for t in module.outputs}
        self._bound = self._program.bind(feeds, self._outputs)
        self._tiles = [launch.tiles for launch in self._program.launches]

    def in_order(self) -> list[Any]:
        self._bound.run()
        return [np.array(array) for array in self._outputs.values()]

    def in_some_order(self, rng: random.Random) -> list[Any]:
        self._program._arena[...] = 255
        slots = self._bound.pointers.tolist()
        memory = thread_memory(self._program.launches)
        calls = [[*calls_of(launch, slots, memory)] for launch in self._program.launches]
        for number, index in orders(self._tiles, rng):
            calls[number][index]()
        return [np.array(array) for array in self._outputs.values()]


def orders(tiles: Sequence[Sequence[Tile]], rng: random.Random) -> Iterator[Name]:
    """An order that the waits allow: a tile of each launch, then all, each right behind those that
    it waits for and that were not computed yet."""
    before = closure_of(tiles)
    firsts = [(number, rng.randrange(len(row))) for number, row in enumerate(tiles) if row]
    names = rng.sample(firsts, len(firsts)) + sorted(before)
    done: set[Name] = set()
    for name in names:
        for needed in sorted(before[name] | {name}, key=lambda each: (each[0], rng.random())):
            if needed not in done:
                done.add(needed)
                yield needed


def check_orders(engine: CppCores, module: Module, seed: int, runs: int) -> None:
    made = _Program(engine, module)
    expected = made.in_order()
    rng = random.Random(seed)
    for _ in range(runs):
        for wanted, got in zip(expected, made.in_some_order(rng), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CppCores]:
    made = opened_cpp(tmp_path_factory.mktemp("kernels"), CORES)
    yield made
    made.close()


def test_any_order_of_tiles_that_waits_allow_gives_the_same_answers(engine: CppCores) -> None:
    modules = (
        module_of(load(mixed_network())),
        chain("depthwise", "3", "depthwise"),
        chain("depthwise", "1", "pool"),
        chain("depthwise", "1", "depthwise", size=72),
        products(),
        rows_of_planes(),
    )
    for seed, module in enumerate(modules):
        check_orders(engine, module, seed, scaled(15))


def test_any_order_on_random_networks(engine: CppCores) -> None:
    @settings(max_examples=scaled(8), deadline=None, suppress_health_check=list(HealthCheck))
    @given(networks(), st.integers(0, 99))
    def check(model: Any, seed: int) -> None:
        check_orders(engine, module_of(model), seed, 3)

    check()
