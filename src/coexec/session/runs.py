"""Recorded runs for the profile of ``SessionOptions.enable_profiling``."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from coexec.timing.trace import Trace

_MOST_SPANS = 1_000_000
"""Most spans that are kept. ONNX Runtime keeps as many events, and drops later ones."""


class RecordedRuns:
    """The traces of the runs of a session, until they are written. Used by several threads."""

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()
        self._lock = threading.Lock()
        self._runs: list[tuple[float, Trace]] = []
        self._spans = 0

    def __bool__(self) -> bool:
        """Whether any run was recorded."""
        return bool(self._runs)

    def add(self, trace: Trace) -> None:
        """Add a run that has just ended."""
        start_s = (time.monotonic_ns() - self.start_ns) / 1e9 - trace.makespan_s
        with self._lock:
            if self._spans < _MOST_SPANS:
                self._runs.append((start_s, trace))
                self._spans += len(trace.spans)

    def write(self, prefix: str) -> str:
        """Write Chrome's trace events. Returns the name of the file: ``prefix`` and the time.

        Raises:
            OSError: the file cannot be written.
        """
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")
        path = Path(f"{prefix}_{stamp[:-3]}.json")
        path.write_text(joined(self._runs).to_chrome(), encoding="utf-8")
        return str(path)


def joined(runs: Sequence[tuple[float, Trace]]) -> Trace:
    """One trace of several runs, numbered as requests.

    Args:
        runs: start in seconds and trace of each run.
    """
    devices = dict.fromkeys(name for _, trace in runs for name in trace.devices)
    spans: list[Any] = []
    flows: list[Any] = []
    details: list[Any] = []
    for number, (at_s, trace) in enumerate(runs):
        spans += [
            replace(s, start_s=s.start_s + at_s, end_s=s.end_s + at_s, request=number)
            for s in trace.spans
        ]
        flows += [replace(flow, request=number) for flow in trace.flows]
        details += [
            replace(
                d,
                queued_s=d.queued_s + at_s,
                submitted_s=d.submitted_s + at_s,
                start_s=d.start_s + at_s,
                end_s=d.end_s + at_s,
            )
            for d in trace.details
        ]
    return Trace(tuple(devices), tuple(spans), tuple(flows), tuple(details))
