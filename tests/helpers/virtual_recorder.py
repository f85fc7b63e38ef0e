"""A recorder whose times are those of the simulator: to compare the traces of both."""

import threading

from coexec.engines.base import InFlight
from coexec.runtime.recorder import Recorder
from coexec.timing.simulate import VirtualClock
from coexec.timing.trace import Trace


class VirtualRecorder(Recorder):
    """Records virtual seconds of the simulator's clock, independent of the threads' real times."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()

    def end(self, node: int, work: InFlight | None = None) -> None:
        with self._lock:
            self._clock.run(node)

    def ran(self, node: int, begin_s: float, end_s: float, work: InFlight | None = None) -> None:
        self._clock.run(node)

    def trace(self) -> Trace:
        return self._clock.trace(requests=1)
