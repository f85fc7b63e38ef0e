"""Which tensors are said to change their layout between engines, and which do in modules."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coexec.cache import Cache
from coexec.costs.table import LayoutChange
from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from coexec.engines.null import NullEngine
from coexec.engines.opened import OpenDevice
from coexec.engines.registry import open_devices
from coexec.graph.graph import Tensor
from coexec.hardware.hardware import MAIN, Device, EngineInfo, Place
from coexec.lowering.dialect import Dialect
from coexec.lowering.layout import PLAIN, Layout, blocks_of
from coexec.model.load import load
from coexec.model.model import Model
from coexec.plan.derive import stepwise
from coexec.profiling import engines
from coexec.profiling.engines import EngineTimes
from coexec.profiling.store import Measurement, ProfileStore
from coexec.research.zoo.layers import Layers
from coexec.runtime.compiler import Compiler
from coexec.settings import Waiting
from tests.helpers.examples import scaled
from tests.helpers.network_cases import BLOCKS, networks

_ORT = open_devices([f"cpu:{usable_cores()[0]}"])[0]
_BLOCK = _ORT.engine.dialect.block or 8
"""As wide as ONNX Runtime's: then filled blocks are handed on."""


def _held(tensor: Tensor) -> Layout:
    return blocks_of(_BLOCK if len(tensor.shape) == 4 and 2 * tensor.shape[1] > _BLOCK else 0)


class Blocked(NullEngine):
    """Has feature maps in blocks, as OpenCL has."""

    dialect = Dialect(
        block=_BLOCK,
        domain="made.up",
        enter=("made.up", "Enter"),
        leave=("made.up", "Leave"),
        inner=_held,
    )


def _blocked(name: str = "null:0", memory: str = MAIN) -> OpenDevice:
    info = EngineInfo("null", memory=memory)
    return OpenDevice.of(Blocked(Device(name, "null", info), info))


@settings(
    max_examples=scaled(30),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(networks(filters=BLOCKS), st.integers(0, 1))
def test_what_is_read_otherwise_than_it_is_held_is_named(
    cache: Cache, model: Model, first: int
) -> None:
    """Tasks take turns on two engines; each module tells in which layout it reads what."""
    devices = [_ORT, _blocked()]
    places = [device.engine.place for device in devices]
    graph, compiler = model.graph, Compiler(model, cache)
    changing = compiler.changing_layout(places, devices)
    turn = {task.name: places[(i + first) % 2] for i, task in enumerate(graph.tasks)}
    compiled = compiler.compile(stepwise(graph, turn), devices)
    for task, module in zip(graph.tasks, compiled.modules, strict=True):
        target = turn[task.name]
        for name in (n for n in task.inputs if n in graph.producer):
            source = turn[graph.producer[name].name]
            if source == target:
                continue
            read = {
                module.layouts.get(t.name, PLAIN)
                for t in module.inputs
                if t.name in (name, f"{name} in blocks of {_BLOCK}")
            }
            if _held(graph.tensors[name]).is_blocked and PLAIN in read:
                assert name in changing[source, target]
            if name in changing[source, target] and read == {blocks_of(_BLOCK)}:
                # Another task reads it otherwise, or how this one reads it depends on its other
                # inputs, as in a Concat, which are held elsewhere in this plan.
                computed = [n for n in task.inputs if n in graph.producer]
                assert len(graph.readers[name]) > 1 or len(computed) > 1
            if name in changing[places[0], places[1]] and _held(graph.tensors[name]).is_blocked:
                assert name in changing[places[1], places[1]]


def convolutions(*channels: int) -> Model:
    """A chain with so many channels behind each."""
    builder = Layers("chain", (1, channels[0], 8, 8))
    value = builder.input
    for number, count in enumerate(channels[1:]):
        value = builder.conv(value, f"layer{number}", count, 1)
    return load(builder.finish(value, "y"))


def test_engines_that_are_alike_change_nothing(cache: Cache) -> None:
    devices = [_blocked("null:0"), _blocked("null:1")]
    places = [device.engine.place for device in devices]
    compiler = Compiler(convolutions(16, 24, 40, 16), cache)
    assert not any(compiler.changing_layout(places, devices).values())


def test_changes_are_measured_where_a_model_has_some(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one memory, between engines that are unlike, and once."""
    asked: list[tuple[str, Place, Place]] = []
    told = {"wake_up": [0.5], "changing_layout": [2.0, 4.0], "own_layout": [8.0]}

    def measure(what: str, a: OpenEngine, b: OpenEngine, waiting: Waiting) -> Any:
        asked.append((what, a.place, b.place))
        found = [Measurement(seconds, 0.0, 1) for seconds in told[what]]
        return found if what == "changing_layout" else found[0]

    for what in told:
        monkeypatch.setattr(engines, what, partial(measure, what))
    near, far = _blocked("null:0"), _blocked("null:1", memory="far away")
    here, there = _ORT.engine.place, near.engine.place
    filled = Compiler(convolutions(_BLOCK, 2 * _BLOCK, _BLOCK), cache)
    others = Compiler(convolutions(_BLOCK, _BLOCK + 4, _BLOCK + 4, _BLOCK), cache)
    with ProfileStore(tmp_path) as store:
        times = EngineTimes([_ORT, near], store, "passive", _key, True, lambda *_: None)
        apart = EngineTimes([_ORT, far], store, "passive", _key, True, lambda *_: None)
        assert apart.layout_changes(others) == {} and not asked
        if _ORT.engine.dialect.block:
            assert times.layout_changes(filled) == {} and not asked
        found = times.layout_changes(others)
        assert times.layout_changes(others) == found
    names = {"layer0", "layer1"}
    assert found[here, there] == found[there, here] == LayoutChange(names, 1.5, 4.0)
    assert found[there, there] == LayoutChange(names, 0.0, 8.0)
    assert len(asked) == len(set(asked)), "each is measured once"


def _key(engine: OpenEngine) -> str:
    return engine.device.key
