"""What machines did when, on one clock: that of this process.

A machine notes spans by its own clock. How far that is off is told from the quickest of some calls:
it was read in the middle between asking and answer, give or take half of the time between. That is
done at both ends of a recording; in between clocks are taken to run apart evenly.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from coexec.cluster.handles import MachineHandle, MachineLostError, News

__all__ = ["ClusterRecording", "ClusterTrace", "FrameSpan", "MachineSpan"]

_PINGS = 8
"""Calls of which the quickest tells a clock."""
_PATIENCE_S = 2.0
"""For machines to tell the last of what they did."""
_COMPUTE = "compute"
_CALLER = 0
"""Process number of the frames in a trace file; machines come behind it."""


class MachineSpan(NamedTuple):
    """What a machine did. Seconds since the recording began."""

    machine: str
    kind: str
    """"compute", or "to NAME" for a message."""
    stage: int
    frame: int
    start_s: float
    end_s: float


class FrameSpan(NamedTuple):
    """A frame from its admission to its answer. Seconds since the recording began."""

    number: int
    start_s: float
    end_s: float
    failed: bool


@dataclass(frozen=True)
class ClusterTrace:
    """A recording. Machines are in the order of their first span."""

    spans: tuple[MachineSpan, ...]
    frames: tuple[FrameSpan, ...]
    clock_error_s: Mapping[str, float]
    """By machine, by how much its times may be off."""

    @property
    def machines(self) -> tuple[str, ...]:
        """All that were recorded, also those that did nothing."""
        return tuple(dict.fromkeys([*(span.machine for span in self.spans), *self.clock_error_s]))

    def to_chrome(self) -> str:
        """Chrome's trace event format, for ui.perfetto.dev: a process for each machine, with a
        track for what it computes and tracks for messages, and one for the frames."""
        events = [_named("process_name", _CALLER, 0, "frames")]
        for span in self.frames:
            events += _frame_events(span)
        for process, machine in enumerate(self.machines, _CALLER + 1):
            error_ms = 1e3 * self.clock_error_s.get(machine, 0.0)
            title = f"{machine} (clock within {error_ms:.2f} ms)"
            events.append(_named("process_name", process, 0, title))
            events += _machine_events(process, [s for s in self.spans if s.machine == machine])
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


class _Traced(Protocol):
    name: str
    handle: MachineHandle


class _Tick(NamedTuple):
    """A look at another clock."""

    own_s: float
    ahead_s: float
    error_s: float


class ClusterRecording:
    """Collects what machines note. Its coroutines run in the loop that also hears the news."""

    def __init__(self) -> None:
        self._begin_s = perf_counter()
        self._ticks: dict[str, list[_Tick]] = {}
        self._noted: dict[str, list[tuple[str, int, int, float, float]]] = {}
        self._heard_s: dict[str, float] = {}
        """By machine, its own clock at its last news."""
        self._frames: list[FrameSpan] = []

    async def begin(self, member: _Traced) -> None:
        """Let a machine note what it does."""
        self._noted.setdefault(member.name, [])
        await self._look(member, True)

    async def begin_all(self, members: Iterable[_Traced]) -> None:
        """Let machines note what they do."""
        await asyncio.gather(*map(self.begin, members))

    def hear(self, name: str, news: News) -> None:
        """Keep what a machine has told."""
        self._noted.setdefault(name, []).extend(news.spans)
        self._heard_s[name] = news.at_s

    def frame(self, number: int, start_s: float, end_s: float, failed: bool) -> None:
        """Keep when a frame was inside, by this process's `time.perf_counter`."""
        begin_s = self._begin_s
        self._frames.append(FrameSpan(number, start_s - begin_s, end_s - begin_s, failed))

    async def end(self, members: Iterable[_Traced]) -> ClusterTrace:
        """What was recorded up to now, once machines have told all of it."""
        now = perf_counter()
        there = [member for member in members if self._ticks.get(member.name)]
        until = now + _PATIENCE_S
        while perf_counter() < until and not all(self._has_told(m.name, now) for m in there):
            await asyncio.sleep(0.05)
        await asyncio.gather(*(self._look(member, False) for member in there))
        spans = [
            MachineSpan(name, kind, stage, frame, self._own(name, begin), self._own(name, end))
            for name, noted in self._noted.items()
            if self._ticks.get(name)
            for kind, stage, frame, begin, end in noted
        ]
        spans.sort(key=lambda span: span.start_s)
        errors = {n: max(tick.error_s for tick in ticks) for n, ticks in self._ticks.items()}
        return ClusterTrace(tuple(spans), tuple(self._frames), errors)

    async def _look(self, member: _Traced, on: bool) -> None:
        """Note how far a machine's clock is ahead."""
        found = []
        with suppress(MachineLostError, TimeoutError):  # its spans so far are good
            async with asyncio.timeout(_PATIENCE_S):
                for _ in range(_PINGS):
                    asked_s = perf_counter()
                    theirs_s: float = await member.handle.call("trace", on)
                    half_s = (perf_counter() - asked_s) / 2
                    own_s = asked_s + half_s
                    found.append(_Tick(own_s, theirs_s - own_s, half_s))
        if found:
            best = min(found, key=lambda tick: tick.error_s)
            self._ticks.setdefault(member.name, []).append(best)

    def _has_told(self, name: str, now: float) -> bool:
        return self._heard_s.get(name, 0.0) - self._ticks[name][-1].ahead_s >= now

    def _own(self, name: str, theirs_s: float) -> float:
        """Seconds since the recording began, of a machine's own time."""
        first, last = self._ticks[name][0], self._ticks[name][-1]
        passed = theirs_s - first.ahead_s - first.own_s
        whole = last.own_s - first.own_s
        drift_s = (last.ahead_s - first.ahead_s) * (passed / whole if whole > 0 else 0.0)
        return theirs_s - first.ahead_s - drift_s - self._begin_s


def _frame_events(span: FrameSpan) -> Iterator[dict[str, Any]]:
    common = {"cat": "frame", "name": f"frame {span.number}", "id": span.number,
              "pid": _CALLER, "tid": 0}  # fmt: skip
    yield common | {"ph": "b", "ts": span.start_s * 1e6, "args": {"failed": span.failed}}
    yield common | {"ph": "e", "ts": span.end_s * 1e6}


def _machine_events(process: int, spans: Sequence[MachineSpan]) -> Iterator[dict[str, Any]]:
    """Computations on the first track; messages, several of which may be under way, behind it."""
    computed = [span for span in spans if span.kind == _COMPUTE]
    tracks = [("compute", computed)]
    tracks += [("messages", lane) for lane in _lanes(s for s in spans if s.kind != _COMPUTE)]
    for number, (name, track) in enumerate(tracks):
        yield _named("thread_name", process, number, name)
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": number,
               "args": {"sort_index": number}}  # fmt: skip
        for span in track:
            is_message = span.kind != _COMPUTE
            yield {
                "ph": "X", "pid": process, "tid": number,
                "name": f"frame {span.frame} {span.kind}" if is_message else f"stage {span.stage}",
                "cat": "message" if is_message else _COMPUTE,
                "ts": span.start_s * 1e6, "dur": (span.end_s - span.start_s) * 1e6,
                "args": {"frame": span.frame, "stage": span.stage},
            }  # fmt: skip


def _lanes(spans: Iterable[MachineSpan]) -> list[list[MachineSpan]]:
    """Spans in order of start in as few rows as hold them without overlap."""
    lanes: list[list[MachineSpan]] = []
    for span in spans:
        lane = next((lane for lane in lanes if lane[-1].end_s <= span.start_s), None)
        if lane is None:
            lanes.append(lane := [])
        lane.append(span)
    return lanes


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
