"""Frames for a pipeline, one after the other, and when they were answered."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import linear_regression, median, quantiles
from threading import Semaphore
from typing import Any

from coexec.arguments import check_feeds
from coexec.arrays import Array
from coexec.cli.arrays import read_inputs
from coexec.cluster.session import ClusterSession
from coexec.errors import InputError, UsageError
from coexec.frontend.inputs import random_inputs
from coexec.ir.graph import Graph

__all__ = ["Answered", "Frames", "feed", "given_frames"]

_UNLIKE = 4
"""Random frames that differ; they come in turns."""
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Frames:
    """Frames of some kinds, in turns."""

    kinds: Sequence[Feeds]
    count: int

    def __iter__(self) -> Iterator[tuple[int, Feeds]]:
        """Each with its kind."""
        for index in range(self.count):
            kind = index % len(self.kinds)
            yield kind, self.kinds[kind]


def given_frames(graph: Graph, path: Path | None, count: int | None, default: int) -> Frames:
    """The frames of --inputs and --frames.

    Args:
        path: an .npz file with an array for each input, for all frames, or with one more axis in
            front, along which frames lie. None: random numbers.
        count: None: as many as the file has, or the default.

    Raises:
        UsageError: no frame.
        InputError: the file cannot be read, or what it has is not what the model takes.
    """
    if count is not None and count < 1:
        raise UsageError(f"--frames {count}: send at least one")
    if path is None:
        count = count or default
        return Frames([random_inputs(graph, i) for i in range(min(count, _UNLIKE))], count)
    kinds = _unstacked(read_inputs(path), graph)
    wanted = {name: graph.tensors[name] for name in graph.inputs}
    checked = [check_feeds(wanted, feeds) for feeds in kinds]
    return Frames(checked, count or max(len(kinds), 1 if len(kinds) > 1 else default))


def _unstacked(read: Feeds, graph: Graph) -> list[Feeds]:
    stacked = {
        name: len(array)
        for name, array in read.items()
        if name in graph.inputs and array.shape[1:] == graph.tensors[name].shape and array.ndim
        and array.shape != graph.tensors[name].shape
    }  # fmt: skip
    counts = set(stacked.values())
    if len(counts) > 1 or 0 in counts:
        raise InputError(f"the inputs have different numbers of frames, or none: {stacked}; give "
                         f"each input one frame for all, or as many as the others")  # fmt: skip
    return [
        {name: array[index] if name in stacked else array for name, array in read.items()}
        for index in range(counts.pop() if counts else 1)
    ]


@dataclass
class Answered:
    """When frames were let in and answered, in seconds since the first was sent."""

    begun_s: float = field(default_factory=time.perf_counter)
    """Of `time.perf_counter`."""
    at_s: list[float] = field(default_factory=list)
    """In the order in which answers came."""
    latencies_s: list[float] = field(default_factory=list)
    """From admission; with a rate, from when the frame was due."""

    def note(self, came_s: float) -> None:
        """An answer is there, to a frame that came then."""
        now_s = time.perf_counter() - self.begun_s
        self.at_s.append(now_s)
        self.latencies_s.append(now_s - came_s)

    @property
    def period_s(self) -> float:
        """From one answer to the next: the slope over the middle half, as for a simulated run. Of
        fewer than four the mean."""
        ordered = sorted(self.at_s)
        cut = len(ordered) // 4
        middle = ordered[cut : len(ordered) - cut]
        if len(middle) < 2:
            return ordered[-1] / len(ordered)
        return linear_regression(range(len(middle)), middle).slope

    @property
    def latency_s(self) -> float:
        """The median."""
        return median(self.latencies_s)

    @property
    def late_s(self) -> float:
        """What 95 % of latencies are below."""
        if len(self.latencies_s) < 2:
            return self.latency_s
        return quantiles(self.latencies_s, n=20, method="inclusive")[-1]


def feed(
    session: ClusterSession,
    frames: Frames,
    rate: float | None = None,
    tell: Callable[[int, dict[str, Any]], None] = lambda kind, outputs: None,
) -> Answered:
    """Send frames as credits allow, or at a rate, and wait for all answers.

    Args:
        rate: frames a second, evenly; one that finds no credit waits for it.
        tell: is called with each frame's kind and outputs, in order.

    Raises:
        CoexecError: a frame failed; those behind it are given up.
    """
    found, noted, most = Answered(), Semaphore(0), 2 * session.status().credits
    under_way: deque[tuple[int, Future[dict[str, Any]]]] = deque()

    def hand_on(all_of_them: bool) -> None:
        while under_way and (all_of_them or under_way[0][1].done()):
            kind, answer = under_way.popleft()
            tell(kind, answer.result())

    try:
        for index, (kind, feeds) in enumerate(frames):
            hand_on(False)
            due_s = math.nan
            if rate is not None:
                due_s = index / rate
                time.sleep(max(0.0, due_s - (time.perf_counter() - found.begun_s)))
            answer = session.submit(feeds, wait=True)
            came_s = time.perf_counter() - found.begun_s if rate is None else due_s
            answer.add_done_callback(partial(_note, found, came_s, noted))
            under_way.append((kind, answer))
            if len(under_way) > most:  # answers are not to pile up behind a slow one
                kind, answer = under_way.popleft()
                tell(kind, answer.result())
        hand_on(True)
        for _ in range(frames.count):  # a result is there before it is noted when
            noted.acquire()
    finally:
        for _, answer in under_way:
            answer.cancel()
    return found


def _note(
    found: Answered, came_s: float, noted: Semaphore, answer: "Future[dict[str, Any]]"
) -> None:
    if not answer.cancelled() and answer.exception() is None:
        found.note(came_s)
        noted.release()
