"""Teams compute launches in tiles: each tile once, after all for which it waits."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.engines.tiles import Tile, TiledLaunch, TileRange
from coexec.errors import UnfinishedError
from coexec.runtime.loops import loop_classes, team_classes
from coexec.runtime.steps import ComputeTiles
from tests.helpers.examples import scaled
from tests.helpers.loop_team import SPIN_S, LoopTeam

KINDS = [*team_classes()]
KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_ssize_t), ctypes.c_void_p, *(ctypes.c_int64,) * 6
)
Name = tuple[int, int]


@dataclass(repr=False)
class Graph:
    """Launches of one row of tiles. Their kernel notes which tile begins and ends."""

    tiles: list[list[list[TileRange]]]
    log: list[tuple[str, Name]] = field(default_factory=list)
    tile_s: float = 0.0
    bases: set[int] = field(default_factory=set)

    def launches(self) -> list[TiledLaunch]:
        self.kernel = KERNEL(self._compute)
        address = ctypes.cast(self.kernel, ctypes.c_void_p).value or 0
        return [
            TiledLaunch(
                address,
                ((-1, number), (0, 100)),
                tuple(
                    Tile(((3 * i, 3 * i + 3), (0, 1), (0, 1)), tuple(waits))
                    for i, waits in enumerate(row)
                ),
            )
            for number, row in enumerate(self.tiles)
        ]

    def _compute(
        self, arguments: "ctypes._Pointer[ctypes.c_ssize_t]", memory: int, *box: int
    ) -> None:
        name = arguments[0], box[0] // 3
        assert box[1:] == (box[0] + 3, 0, 1, 0, 1)
        self.bases.add(arguments[1])
        self.log.append(("begin", name))
        if self.tile_s:
            time.sleep(self.tile_s)
        self.log.append(("end", name))

    def check(self, whole: bool = True) -> None:
        """The log of one request: each tile once, and after the end of those it waits for."""
        ended = set()
        for event, name in self.log:
            if event == "end":
                ended.add(name)
                continue
            for wait in self.tiles[name[0]][name[1]]:
                for index in range(wait.first, wait.last + 1):
                    assert (wait.launch, index) in ended
        names = [name for event, name in self.log if event == "begin"]
        assert len(names) == len(set(names)) == len(ended)
        if whole:
            assert len(names) == sum(map(len, self.tiles))
        self.log.clear()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    tiles: list[list[list[TileRange]]] = []
    for number, count in enumerate(counts):
        row: list[list[TileRange]] = []
        for _ in range(count):
            waits = []
            for earlier in draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else ():
                ends = st.integers(0, counts[earlier] - 1)
                first, last = sorted((draw(ends), draw(ends)))
                waits.append(TileRange(earlier, first, last))
            row.append(waits)
        tiles.append(row)
    return Graph(tiles)


def chain(launches: int, tiles: int) -> Graph:
    """Each tile waits for its neighbours in the launch before."""
    row = [[TileRange(0, max(0, i - 1), min(tiles - 1, i + 1))] for i in range(tiles)]
    rows = [[[TileRange(n - 1, w.first, w.last)] for (w,) in row] for n in range(1, launches)]
    return Graph([[[] for _ in range(tiles)], *rows])


def team(kind: str, threads: int = 3) -> "closing[LoopTeam]":
    cores = sorted(os.sched_getaffinity(0))
    return closing(LoopTeam(kind, [cores[i % len(cores)] for i in range(threads)]))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_each_tile_is_computed_once_after_those_it_waits_for(kind: str) -> None:
    with team(kind) as made:
        numbers: Iterator[int] = iter(range(10**9))

        @settings(max_examples=scaled(60), deadline=None)
        @given(graphs(), st.integers(1, 3))
        def check(graph: Graph, runs: int) -> None:
            number = made.add(graph.launches(), 1)
            for _ in range(runs):
                base = next(numbers)
                graph.bases.clear()
                made.run(number, [base])
                assert graph.bases == {base + 100}
                graph.check()

        check()


def test_thousands_of_requests_with_stops(kind: str) -> None:
    graph, other_graph = chain(3, 4), chain(2, 2)
    with team(kind) as made:
        numbers = [(g, made.add(g.launches(), 1)) for g in (graph, other_graph)]
        done = threading.Event()

        def stop() -> None:
            while not done.wait(0.003):
                made.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        ended = 0
        for run in range(3000):
            each, number = numbers[run // 5 % 2]
            try:
                made.run(number, [run])
                each.check()
                ended += 1
            except UnfinishedError:
                each.check(whole=False)
        done.set()
        stopper.join()
        assert ended > 0


def test_a_run_ends_with_the_error_of_look_and_the_next_one_is_right(kind: str) -> None:
    graph = chain(3, 4)
    graph.tile_s = 0.004

    def look() -> None:
        raise LookupError

    with team(kind) as made:
        number = made.add(graph.launches(), 1)
        with pytest.raises(LookupError):
            made.run(number, [0], look)
        made.run(number, [0], lambda: None)
        graph.log.clear()
        made.run(number, [0])
        graph.check()


def test_each_thread_has_memory_of_its_own(kind: str) -> None:
    threads: dict[int, set[int]] = {}

    def compute(arguments: "ctypes._Pointer[ctypes.c_ssize_t]", memory: int, *_: int) -> None:
        ctypes.memset(memory, 1, arguments[0])
        time.sleep(0.001)
        threads.setdefault(memory, set()).add(threading.get_ident())

    kernel = KERNEL(compute)
    address = ctypes.cast(kernel, ctypes.c_void_p).value or 0
    tiles = (Tile(((0, 1), (0, 1), (0, 1))),) * 20

    def launches(size: int) -> list[TiledLaunch]:
        return [TiledLaunch(address, ((-1, size),), tiles, memory_bytes=size)]

    with team(kind) as made:
        numbers = [made.add(launches(size), 0) for size in (8, 1 << 20, 16)]
        with pytest.raises(MemoryError):
            made.add(launches(1 << 60), 0)
        for number in numbers:
            made.run(number, [])
    assert all(len(own) == 1 and memory % 64 == 0 for memory, own in threads.items())


def test_an_interruption_ends_a_run(kind: str) -> None:
    """The kernel is nanosleep(arguments, memory of the thread): a signal handler runs in `look`
    only. Without one, the run would take minutes."""
    nanosleep = ctypes.cast(ctypes.CDLL(None).nanosleep, ctypes.c_void_p).value or 0
    tile = Tile(((0, 1), (0, 1), (0, 1)))
    long, short = ([TiledLaunch(nanosleep, ((-1, 0), (0, 0)), (tile,) * n)] for n in (60_000, 4))
    with team(kind) as made:
        numbers = [made.add(launches, 1) for launches in (long, short)]
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        # Python ignores it where the shell has started the tests in the background.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            made.run(numbers[0], [5_000_000])
        timer.join()
        signal.signal(signal.SIGINT, before)
        made.run(numbers[1], [1000])


def test_a_team_whose_cores_were_taken_away_computes(kind: str) -> None:
    graph = chain(3, 4)
    with closing(LoopTeam(kind, [10**4, 10**4 + 1])) as made:
        number = made.add(graph.launches(), 1)
        made.run(number, [0])
        graph.check()


def test_the_spans_of_a_timed_run_do_not_overlap_in_a_thread(kind: str) -> None:
    graph = chain(3, 4)
    graph.tile_s = 0.001
    with team(kind) as made:
        number = made.add(graph.launches(), 1)
        before_s = time.perf_counter()
        made.run(number, [0], timed=True)
        spans = made.spans(number)
        assert len(spans) == 12
        for thread in range(3):
            own = sorted(span[:2] for span in spans if span[2] == thread)
            ends = [before_s, *(time_s for span in own for time_s in span), time.perf_counter()]
            assert ends == sorted(ends)


def test_what_does_not_fit_is_refused(kind: str) -> None:
    with team(kind) as made:
        for tiles in ([[[TileRange(0, 0, 0)]]], [[[]], [[TileRange(0, 0, 1)]]]):
            with pytest.raises(IndexError):
                made.add(Graph(tiles).launches(), 1)
        with pytest.raises(IndexError):
            made.add(chain(1, 1).launches(), 0)
        number = made.team.add(chain(1, 1).launches(), 1)
        with pytest.raises(ValueError):
            made.team.run(number, [0, 1])
        step = ComputeTiles(made.team, number, np.zeros(2, np.int64))
        with pytest.raises(ValueError):
            loop_classes()[kind]([[step]], 0, 0, 0, SPIN_S).run([])
        with pytest.raises(ValueError):
            team(kind, 0)
    assert not made.team.run(number, [0])
