"""A slow engine that launches ahead: its own thread computes in order, after random delays."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from coexec.engines.reference import ReferenceEngine
from coexec.errors import ExecutionError
from coexec.hardware.hardware import MAIN, Device, EngineInfo
from coexec.timing.trace import Detail


class Started:
    """Work that was submitted to the thread of the engine."""

    def __init__(self, work: "Future[tuple[float, float]]") -> None:
        self._work = work

    @property
    def ended(self) -> bool:
        return self._work.done()

    def wait(self) -> None:
        self._work.result()

    def span_s(self) -> tuple[float, float]:
        return self._work.result()


class AheadEngine(ReferenceEngine):
    """A reference engine that computes in a thread, on arrays in the host's memory."""

    launches_ahead = True

    def __init__(self, number: int, longest_s: float = 1e-3) -> None:
        """
        Args:
            number: the device is "ahead:NUMBER".
            longest_s: the longest random delay before any work.
        """
        info = EngineInfo("reference", memory=MAIN)
        super().__init__(Device(f"ahead:{number}", "ahead", info), info)
        self._longest_s = longest_s
        self._random = random.Random(number)
        self._thread = ThreadPoolExecutor(1)
        self.open = threading.Event()
        """Nothing is computed before this event is set."""
        self.open.set()
        self.fails = ""
        """The program that makes this tensor fails once."""
        self.launched_by: list[str] = []
        """The names of the threads that have launched a program."""

    def compile(self, module: Any) -> Any:
        return _Program(super().compile(module), self)

    def given(self, work: Callable[[], None]) -> "Future[tuple[float, float]]":
        """Append work to the queue of the engine's thread.

        Returns:
            The times at which the work begins and ends.
        """
        return self._thread.submit(self._does, work)

    def _does(self, work: Callable[[], None]) -> tuple[float, float]:
        self.open.wait()
        time.sleep(self._random.choice([0.0, self._random.uniform(0, self._longest_s)]))
        began_s = time.perf_counter()
        work()
        return began_s, time.perf_counter()

    def start_timing(self) -> None:
        pass

    def stop_timing(self) -> Sequence[Detail]:
        return []


class _Program:
    def __init__(self, program: Any, engine: AheadEngine) -> None:
        self._program, self._engine = program, engine

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        bound, engine = self._program.bind(inputs, outputs), self._engine

        def compute() -> None:
            if engine.fails in outputs:
                engine.fails = ""
                raise ExecutionError("out of magic")
            evaluate()

        def launch() -> Started:
            engine.launched_by.append(threading.current_thread().name)
            return Started(engine.given(compute))

        evaluate, bound.launch = bound.run, launch
        bound.run = lambda: launch().wait()
        return bound
