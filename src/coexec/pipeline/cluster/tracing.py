"""Spans of all machines on one clock, the clock of this process.

A machine records spans by its own clock. The offset of that clock is estimated from the quickest of
several calls: the machine read its clock in the middle between request and reply, with an error of
at most half the time between. The offset is measured at both ends of a recording and interpolated
linearly in between.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from coexec.pipeline.cluster.handles import MachineLostError, News
from coexec.pipeline.cluster.team import Member

_PINGS = 8
"""Calls that measure a clock; the quickest one is used."""
_PATIENCE_S = 2.0
"""Time limit for machines to send their last spans."""
_COMPUTE = "compute"
_CALLER = 0
"""Process number of the frames in a trace file; the machines follow it."""


class MachineSpan(NamedTuple):
    """A computation or message of a machine. Times are seconds since the recording began."""

    machine: str
    kind: str
    """"compute", or "to NAME" for a message."""
    stage: int
    frame: int
    start_s: float
    end_s: float


class FrameSpan(NamedTuple):
    """A frame from its admission to its answer. Times are seconds since the recording began."""

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
    """Largest error of a machine's times, by machine."""

    @property
    def machines(self) -> tuple[str, ...]:
        """All machines that were recorded, including those without spans."""
        return tuple(dict.fromkeys([*(span.machine for span in self.spans), *self.clock_error_s]))

    def to_chrome(self) -> str:
        """Chrome's trace event format, for ui.perfetto.dev: a process for each machine, with a
        track for its computations and its messages, and a process for the frames."""
        events = [_named("process_name", _CALLER, 0, "frames")]
        for span in self.frames:
            name, facts = f"frame {span.number}", {"failed": span.failed}
            events += _asynchronous(_CALLER, "frame", name, span.number, span, facts)
        for process, machine in enumerate(self.machines, _CALLER + 1):
            error_ms = 1e3 * self.clock_error_s.get(machine, 0.0)
            title = f"{machine} (clock within {error_ms:.2f} ms)"
            events.append(_named("process_name", process, 0, title))
            events += _machine_events(process, (s for s in self.spans if s.machine == machine))
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


class _Tick(NamedTuple):
    """One measurement of another clock's offset."""

    own_s: float
    ahead_s: float
    error_s: float


class ClusterRecording:
    """Collects the spans of machines. Its coroutines run in the loop that also receives the
    news."""

    def __init__(self) -> None:
        self._begin_s = perf_counter()
        self._ticks: dict[str, list[_Tick]] = {}
        self._noted: dict[str, list[tuple[str, int, int, float, float]]] = {}
        self._heard_s: dict[str, float] = {}
        """Time of a machine's last news on its own clock, by machine."""
        self._frames: list[FrameSpan] = []

    async def begin(self, member: Member) -> None:
        """Start the recording on a machine."""
        self._noted.setdefault(member.name, [])
        await self._look(member, True)

    async def begin_all(self, members: Iterable[Member]) -> None:
        """Start the recording on several machines."""
        await asyncio.gather(*map(self.begin, members))

    def hear(self, name: str, news: News) -> None:
        """Store the spans of a machine's news."""
        self._noted.setdefault(name, []).extend(news.spans)
        self._heard_s[name] = news.at_s

    def frame(self, number: int, start_s: float, end_s: float, failed: bool) -> None:
        """Store when a frame was in flight, by this process's `time.perf_counter`."""
        begin_s = self._begin_s
        self._frames.append(FrameSpan(number, start_s - begin_s, end_s - begin_s, failed))

    async def end(self, members: Iterable[Member]) -> ClusterTrace:
        """The recording up to now, after machines have sent all their spans."""
        now = perf_counter()
        recorded_members = [member for member in members if self._ticks.get(member.name)]
        until = now + _PATIENCE_S
        while perf_counter() < until and not all(
            self._has_told(m.name, now) for m in recorded_members
        ):
            await asyncio.sleep(0.05)
        await asyncio.gather(*(self._look(member, False) for member in recorded_members))
        spans = [
            MachineSpan(name, kind, stage, frame, self._own(name, begin), self._own(name, end))
            for name, recorded_spans in self._noted.items()
            if self._ticks.get(name)
            for kind, stage, frame, begin, end in recorded_spans
        ]
        spans.sort(key=lambda span: span.start_s)
        errors = {n: max(tick.error_s for tick in ticks) for n, ticks in self._ticks.items()}
        return ClusterTrace(tuple(spans), tuple(self._frames), errors)

    async def _look(self, member: Member, on: bool) -> None:
        """Switch the recording of a machine on or off, and measure the offset of its clock."""
        ticks = []
        with suppress(MachineLostError, TimeoutError):  # spans received so far stay valid
            async with asyncio.timeout(_PATIENCE_S):
                for _ in range(_PINGS):
                    sent_s = perf_counter()
                    machine_s: float = await member.handle.call("trace", on)
                    half_s = (perf_counter() - sent_s) / 2
                    own_s = sent_s + half_s
                    ticks.append(_Tick(own_s, machine_s - own_s, half_s))
        if ticks:
            best = min(ticks, key=lambda tick: tick.error_s)
            self._ticks.setdefault(member.name, []).append(best)

    def _has_told(self, name: str, now: float) -> bool:
        return self._heard_s.get(name, 0.0) - self._ticks[name][-1].ahead_s >= now

    def _own(self, name: str, theirs_s: float) -> float:
        """A machine's time, converted to seconds since the recording began."""
        first, last = self._ticks[name][0], self._ticks[name][-1]
        passed = theirs_s - first.ahead_s - first.own_s
        whole = last.own_s - first.own_s
        drift_s = (last.ahead_s - first.ahead_s) * (passed / whole if whole > 0 else 0.0)
        return theirs_s - first.ahead_s - drift_s - self._begin_s


def _machine_events(process: int, spans: Iterable[MachineSpan]) -> Iterator[dict[str, Any]]:
    """Computations on one track; messages, of which several may be in transit at the same time, as
    asynchronous events."""
    yield _named("thread_name", process, 0, "compute")
    for number, span in enumerate(spans):
        facts = {"frame": span.frame, "stage": span.stage}
        if span.kind != _COMPUTE:
            key, name = f"{process}-{number}", f"frame {span.frame} {span.kind}"
            yield from _asynchronous(process, "message", name, key, span, facts)
            continue
        yield {
            "ph": "X",
            "pid": process,
            "tid": 0,
            "name": f"stage {span.stage}",
            "cat": _COMPUTE,
            "ts": span.start_s * 1e6,
            "dur": (span.end_s - span.start_s) * 1e6,
            "args": facts,
        }


def _asynchronous(
    process: int,
    category: str,
    name: str,
    key: int | str,
    span: FrameSpan | MachineSpan,
    facts: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    common = {"cat": category, "name": name, "id": key, "pid": process, "tid": 0}
    yield common | {"ph": "b", "ts": span.start_s * 1e6, "args": facts}
    yield common | {"ph": "e", "ts": span.end_s * 1e6}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
