"""What starting and crossing takes, measured on devices that take time of a clock of their own.

Real time would also count what other programs do meanwhile.
"""

import math
import threading
from typing import Any

import numpy as np
import pytest

from coexec.engines.null import NullEngine
from coexec.hardware.hardware import MAIN, Device, EngineInfo
from coexec.lowering.dialect import Dialect
from coexec.lowering.layout import PLAIN, Layout, blocks_of
from coexec.profiling import launch_and_transfer
from coexec.profiling.launch_and_transfer import (
    changing_layout,
    crossing,
    joining,
    launch_overhead,
    own_layout,
    reading,
    stitching,
    wake_up,
)
from coexec.runtime import loops, recorder, twin

BYTE_S = 5e-9


class ToldClock:
    """Stands still but for what devices take, and a moment for each look at it: nothing happens at
    the same time as something else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_s = 0.0

    def take(self, seconds: float) -> None:
        with self._lock:
            self._now_s += seconds

    def perf_counter(self) -> float:
        self.take(1e-9)
        return self._now_s


CLOCK = ToldClock()


@pytest.fixture
def told_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loops.VARIABLE, "twin")  # the loop whose clock can be replaced
    for module in (launch_and_transfer, recorder):
        monkeypatch.setattr(module, "time", CLOCK)
    monkeypatch.setattr(twin, "perf_counter", CLOCK.perf_counter)


told = pytest.mark.usefixtures("told_clock")


def null(number: int, memory: str = MAIN) -> tuple[Device, EngineInfo]:
    """What a null engine is opened on."""
    info = EngineInfo("null", memory=memory)
    return Device(f"null:{number}", "null", info), info


HERE = NullEngine(*null(0))


class Starting(NullEngine):
    """Takes a millisecond for every program, whatever is in it."""

    def run(self) -> None:
        CLOCK.take(1e-3)


class Far(NullEngine):
    """Copies what it receives, and lays it out anew in the program that reads it: both take time
    for each byte."""

    def upload(self, array: Any, into: Any = None) -> Any:
        CLOCK.take(0.5e-3 + array.nbytes * BYTE_S)
        return np.copy(array)

    def compile(self, module: Any) -> Any:
        return _Rearranging()


class _Rearranging:
    def bind(self, inputs: Any, outputs: Any) -> "_Rearranging":
        return self

    read_bytes = 0

    def set_input(self, name: str, tensor: Any) -> None:
        """Called in each run for what comes from elsewhere, and only for that."""
        self.read_bytes = tensor.nbytes

    def run(self) -> None:
        CLOCK.take(self.read_bytes * BYTE_S)


def far() -> Far:
    return Far(*null(1, memory="far away"))


@told
def test_a_launch_is_what_joining_saves() -> None:
    assert launch_overhead(Starting(*null(0))).seconds == pytest.approx(1e-3, rel=0.02)
    assert launch_overhead(HERE).seconds < 1e-4


@told
def test_reading_is_told_for_each_byte() -> None:
    one, other = Starting(*null(0)), Starting(*null(1))
    read_bytes = 24 << 20
    (alone,) = reading([one], "passive")
    assert alone.seconds == pytest.approx(1e-3 / read_bytes, rel=0.02)
    # The clock of both goes on while one of them takes its time.
    for together in reading([one, other], "passive"):
        assert 0.98e-3 < together.seconds * read_bytes < 2.02e-3

    class Refusing(Starting):
        def why_not_operator(self, op: Any, tensors: Any) -> str:
            return "no products"

    assert [m.seconds for m in reading([one, Refusing(*null(1))], "passive")] == [0.0, 0.0]


@told
def test_a_crossing_counts_the_copy_and_the_change_of_layout() -> None:
    latency, byte = crossing(HERE, far(), "passive")
    assert byte.seconds == pytest.approx(2 * BYTE_S, rel=0.02)
    assert 0.4e-3 < latency.seconds < 0.6e-3


@told
def test_a_way_that_costs_nothing_is_free_for_each_byte() -> None:
    _, byte = crossing(far(), HERE, "passive")
    assert byte.seconds < BYTE_S / 5


def test_waking_up_takes_time() -> None:
    found = wake_up(HERE, NullEngine(*null(1)), "passive")
    handovers = launch_and_transfer._CHAIN - 1  # from each product of the chain to the next
    assert found.seconds > 0.0 and found.samples == launch_and_transfer._RUNS * handovers


@told
def test_putting_together_counts_the_tensor_and_each_byte() -> None:
    class Slow(NullEngine):
        def allocate(self, tensor: Any, leaving: bool = False) -> Any:
            return np.empty(tensor.shape, np.float32)

        def fill(self, into: Any, boxes: Any, layout: Layout = PLAIN) -> None:
            CLOCK.take(0.2e-3 + sum(array.nbytes for array, _ in boxes) * BYTE_S)

    tensor, byte = stitching(Slow(*null(0)))
    assert tensor.seconds == pytest.approx(0.2e-3, rel=0.02)
    assert byte.seconds == pytest.approx(BYTE_S, rel=0.02)


def test_each_joined_byte_takes_time() -> None:
    assert joining().seconds > 0.0


_BLOCKS = Dialect(
    block=16,
    domain="made.up",
    enter=("made.up", "Enter"),
    leave=("made.up", "Leave"),
    inner=lambda tensor: blocks_of(16),
)


class InBlocks(NullEngine):
    """Has its tensors in blocks."""

    dialect = _BLOCKS


class Blocked(InBlocks):
    """Takes time for each byte that it reads or hands on otherwise, too."""

    def compile(self, module: Any) -> Any:
        plain = [
            t
            for t in (*module.inputs, *module.outputs)
            if module.layouts.get(t.name, PLAIN) == PLAIN
        ]
        return _Changing(sum(4 * math.prod(t.shape) for t in plain))


class _Changing:
    def __init__(self, changed_bytes: int) -> None:
        self._changed_bytes = changed_bytes

    def bind(self, inputs: Any, outputs: Any) -> "_Changing":
        return self

    def set_input(self, name: str, tensor: Any) -> None:
        pass

    def set_output(self, name: str, tensor: Any) -> None:
        pass

    def run(self) -> None:
        CLOCK.take(self._changed_bytes * BYTE_S)


def another() -> tuple[Device, EngineInfo]:
    """Engines of another version are not written alike: they hand blocks on if these are filled."""
    info = EngineInfo("null", version="another")
    return Device("null:1", "null", info), info


@told
def test_a_change_of_layout_is_what_a_handover_takes_longer() -> None:
    one, other = Blocked(*null(0)), Blocked(*another())
    _, byte = changing_layout(one, other, "passive")
    assert byte.seconds == pytest.approx(2 * BYTE_S, rel=0.02), "it leaves blocks and enters others"
    _, byte = changing_layout(HERE, other, "passive")
    assert byte.seconds == pytest.approx(BYTE_S, rel=0.02)
    _, filled = crossing(one, other, "passive")
    assert filled.seconds < BYTE_S / 5


@told
def test_what_is_put_together_leaves_its_blocks_and_enters_them() -> None:
    own = Blocked(*null(0))
    found = own_layout(own, InBlocks(*another()), "passive").seconds
    assert found == pytest.approx(2 * BYTE_S, rel=0.03), "with the row that a filter reads beyond"
    assert own_layout(HERE, InBlocks(*another()), "passive").seconds < BYTE_S / 5
