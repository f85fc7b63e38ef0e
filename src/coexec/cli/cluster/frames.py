"""Frames for a pipeline, the times of their answers, and a comparison with ONNX Runtime's."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from threading import Semaphore
from typing import Any

import numpy as np

from coexec.arguments import check_feeds
from coexec.arrays import Array
from coexec.cli.arrays import packed, read_inputs
from coexec.cli.checks import judged_by
from coexec.errors import InputError, UsageError
from coexec.graph.graph import Graph
from coexec.model.difference import tolerance_of, worst_difference
from coexec.model.inputs import random_inputs
from coexec.pipeline.cluster.session import ClusterSession
from coexec.pipeline.simulate import period_of
from coexec.selection.user_model import UserModel

_UNLIKE = 4
"""Number of different random frames, which are sent in turns."""
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Frames:
    """Frames that take their feeds from ``kinds`` in turns."""

    kinds: Sequence[Feeds]
    count: int

    def __iter__(self) -> Iterator[tuple[int, Feeds]]:
        """Index of the kind, and feeds, of each frame."""
        for index in range(self.count):
            kind = index % len(self.kinds)
            yield kind, self.kinds[kind]


def given_frames(graph: Graph, path: Path | None, count: int | None, default: int) -> Frames:
    """The frames of --inputs and --frames.

    Args:
        path: an .npz file with an array for each input: one for all frames, or with an additional
            first axis of frames. None: random numbers.
        count: number of frames; None: as many as the file has, or ``default``.

    Raises:
        UsageError: there would be no frame.
        InputError: the file cannot be read, or its arrays do not fit the model.
    """
    if count is not None and count < 1:
        raise UsageError(f"--frames {count}: send at least one")
    if path is None:
        count = count or default
        return Frames([random_inputs(graph, i) for i in range(min(count, _UNLIKE))], count)
    kinds = _unstacked(read_inputs(path), graph)
    inputs = {name: graph.tensors[name] for name in graph.inputs}
    checked = [check_feeds(inputs, feeds) for feeds in kinds]
    return Frames(checked, count or max(len(kinds), 1 if len(kinds) > 1 else default))


def _unstacked(read: Feeds, graph: Graph) -> list[Feeds]:
    stacked = {
        name: len(array)
        for name, array in read.items()
        if name in graph.inputs
        and array.shape[1:] == graph.tensors[name].shape
        and array.ndim
        and array.shape != graph.tensors[name].shape
    }
    counts = set(stacked.values())
    if len(counts) > 1 or 0 in counts:
        raise InputError(
            f"the inputs have different numbers of frames, or none: {stacked}; give "
            f"each input one frame for all, or as many as the others"
        )
    return [
        {name: array[index] if name in stacked else array for name, array in read.items()}
        for index in range(counts.pop() if counts else 1)
    ]


@dataclass
class Answered:
    """Times of answers, in seconds since the first frame was sent."""

    begun_s: float = field(default_factory=time.perf_counter)
    """Start, in seconds of `time.perf_counter`."""
    at_s: list[float] = field(default_factory=list)
    """Second of each answer, in the order of the answers."""
    latencies_s: list[float] = field(default_factory=list)
    """Seconds to each answer from admission; with a rate, from the second the frame was due."""

    def note(self, came_s: float) -> None:
        """Record an answer, now, to the frame that was admitted or due at ``came_s``."""
        now_s = time.perf_counter() - self.begun_s
        self.at_s.append(now_s)
        self.latencies_s.append(now_s - came_s)

    @property
    def period_s(self) -> float:
        """Seconds from one answer to the next, see `coexec.pipeline.simulate.period_of`; of a
        single answer, its second."""
        period_s = period_of(self.at_s)
        return self.at_s[0] if period_s is None else period_s

    @property
    def latency_s(self) -> float:
        """Median latency in seconds."""
        return median(self.latencies_s)

    @property
    def late_s(self) -> float:
        """95th percentile of the latencies in seconds."""
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
        rate: frames per second, at equal intervals; a frame without a credit waits for one.
        tell: called with the index of each frame's kind and its outputs, in order.

    Raises:
        CoexecError: a frame failed; the frames after it are cancelled.
    """
    answered, noted, most = Answered(), Semaphore(0), 2 * session.status().credits
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
                time.sleep(max(0.0, due_s - (time.perf_counter() - answered.begun_s)))
            answer = session.submit(feeds, wait=True)
            came_s = time.perf_counter() - answered.begun_s if rate is None else due_s
            answer.add_done_callback(partial(_note, answered, came_s, noted))
            under_way.append((kind, answer))
            if len(under_way) > most:  # do not let answers pile up behind a slow one
                kind, answer = under_way.popleft()
                tell(kind, answer.result())
        hand_on(True)
        for _ in range(frames.count):  # a result is available before its time is recorded
            noted.acquire()
    finally:
        for _, answer in under_way:
            answer.cancel()
    return answered


def _note(
    answered: Answered, came_s: float, noted: Semaphore, answer: "Future[dict[str, Any]]"
) -> None:
    if not answer.cancelled() and answer.exception() is None:
        answered.note(came_s)
        noted.release()


class Answers:
    """Differences of answers from ONNX Runtime's and, with ``keep``, also the answers."""

    def __init__(self, model: UserModel, frames: Frames, check: bool, keep: bool) -> None:
        self._model, self._kinds, self._keep = model, frames.kinds, keep
        self._expected = [model.reference(feeds) for feeds in frames.kinds] if check else []
        self._kept: dict[str, list[Array]] = {}
        self.differences: dict[str, float] = {}
        """Largest difference, by output."""
        self._worst_kind = 0

    def take(self, kind: int, outputs: Mapping[str, Any]) -> None:
        """Compare, and keep, an answer to a frame of kind ``kind``."""
        if self._expected:
            for name, array in outputs.items():
                differs = worst_difference(array, self._expected[kind][name])
                if not differs <= max(self.differences.values(), default=0.0):  # true for NaN, too
                    self._worst_kind = kind
                self.differences[name] = max(differs, self.differences.get(name, 0.0))
        if self._keep:
            for name, array in outputs.items():
                self._kept.setdefault(name, []).append(array)

    def packed(self) -> bytes:
        """The kept answers as an .npz file, with frames along the first axis."""
        return packed({name: np.stack(arrays) for name, arrays in self._kept.items()})

    def judged(self, facts: Mapping[str, Any] | None = None) -> str:
        """Text of the verdict on all answers.

        Args:
            facts: facts for the JSON document, printed with the error.

        Raises:
            CheckError: an answer differs by more than rounding.
        """
        worst = max(self.differences.values(), default=0.0)
        allowed = tolerance_of(self._model.model.graph)
        return judged_by(worst, allowed, self._model, self._kinds[self._worst_kind], facts or {})
