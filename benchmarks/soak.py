"""Whatever leaves `run` early: time-outs, Ctrl-C, forks and closes at random moments.

After each, the session has to answer rightly, or to say at once that it is closed. Counts what
happened; ends with 1 if an answer was wrong, something hung (nothing may take a minute), or an
exception did not come. ``--rounds`` says how many time-outs and Ctrl-C there are. Of forks and
closes there is a tenth.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from common import arguments, show, source, two_cores

import coexec
from coexec.engines.registry import open_devices
from coexec.errors import ClosedError, DegradedWarning, DeviceError
from coexec.workbench import Settings, Workbench

_HANG_S = 60.0


class _TimeOut(Exception):
    """What a user's handler of SIGALRM raises."""


class _Case:
    """A session with its feeds, right answers and usual duration."""

    def __init__(self, name: str, words: dict[str, Any], cache: str | None) -> None:
        self._make: Callable[[], coexec.InferenceSession] = lambda: coexec.InferenceSession(
            source(name), cache=cache, **words
        )
        self.session = self._make()
        rng = np.random.default_rng(0)
        self.feeds = {
            i.name: rng.standard_normal(i.shape).astype(np.float32)
            for i in self.session.get_inputs()
        }
        work = Workbench(source(name), Settings(devices=words["devices"], cache=cache))
        self.expected = list(work.given.reference(self.feeds).values())
        times = []
        for _ in range(10):
            start_s = time.perf_counter()
            self.answer()
            times.append(time.perf_counter() - start_s)
        self.usual_s = sorted(times)[5]
        self.affinity = os.sched_getaffinity(0)

    def answer(self) -> list[Any]:
        return self.session.run(None, self.feeds)

    def outcome(self) -> str:
        """Of a run that nothing disturbs."""
        try:
            found = self.answer()
        except ClosedError:
            return "closed"
        return "right" if self.is_right(found) else "WRONG"

    def is_right(self, found: list[Any]) -> bool:
        return all(
            float(np.abs(a - b).max()) <= 1e-4 * (float(np.abs(b).max()) or 1.0)
            for a, b in zip(found, self.expected, strict=True)
        )

    def again(self) -> None:
        self.session.close()
        self.session = self._make()


@contextmanager
def _watched() -> Iterator[None]:
    """Ends the program with all stacks if what is inside hangs."""
    faulthandler.dump_traceback_later(_HANG_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _time_outs(case: _Case, count: int) -> Counter[str]:
    def handler(*_: object) -> None:
        raise _TimeOut

    before = signal.signal(signal.SIGALRM, handler)
    try:
        return _disturbed(case, count, _TimeOut, lambda s: signal.setitimer(signal.ITIMER_REAL, s))
    finally:
        signal.signal(signal.SIGALRM, before)


def _control_c(case: _Case, count: int) -> Counter[str]:
    def later(delay_s: float) -> None:
        timers.append(threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()

    timers: list[threading.Timer] = []
    # A shell that starts a program in the background lets it ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _disturbed(case, count, KeyboardInterrupt, later, lambda: timers.pop().join())
    finally:
        for timer in timers:
            timer.join()
        signal.signal(signal.SIGINT, before)


def _disturbed(
    case: _Case,
    count: int,
    kind: type[BaseException],
    disturb: Callable[[float], object],
    settle: Callable[[], object] = lambda: None,
) -> Counter[str]:
    """Runs that an exception of ``kind`` hits at a random moment, each followed by a quiet one."""
    seen: Counter[str] = Counter()
    for _ in range(count):
        with _watched():
            hit = "missed"
            try:
                try:
                    disturb(random.uniform(1e-5, 1.1 * case.usual_s))
                    if not case.is_right(case.answer()):
                        seen["WRONG"] += 1
                finally:
                    settle()
                time.sleep(1.2 * case.usual_s)  # a late one comes here, not in the quiet run
            except kind:
                hit = "hit"
            except Exception as error:
                hit = f"OTHER {type(error).__name__}"
            signal.setitimer(signal.ITIMER_REAL, 0)
            seen[hit] += 1
            seen[case.outcome()] += 1
            if os.sched_getaffinity(0) != case.affinity:
                seen["BOUND"] += 1
                os.sched_setaffinity(0, case.affinity)
    return seen


def _forks(case: _Case, count: int) -> Counter[str]:
    """The process forks while another thread runs; the child has to answer, or to say no."""
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def keep_running() -> None:
        while not stop.is_set():
            if not case.is_right(case.answer()):
                seen["WRONG"] += 1

    thread = threading.Thread(target=keep_running)
    thread.start()
    try:
        for _ in range(count):
            time.sleep(random.uniform(0, case.usual_s))
            child = os.fork()
            if child == 0:
                signal.alarm(int(_HANG_S))  # a child that hangs is killed
                words = {"right": 0, "closed": 1, "WRONG": 2}
                warnings.simplefilter("ignore", DegradedWarning)  # without OpenCL, on the CPU
                os._exit(words[case.outcome()])
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            seen[{0: "right", 1: "closed", 2: "WRONG"}.get(code, f"HUNG OR DIED {code}")] += 1
    finally:
        stop.set()
        thread.join(_HANG_S)
    seen["HUNG"] += thread.is_alive()
    return seen


def _closes(case: _Case, count: int) -> Counter[str]:
    """Closed by a signal handler during the run, or by another thread."""
    seen: Counter[str] = Counter()
    before = signal.signal(signal.SIGALRM, lambda *_: case.session.close())
    try:
        for number in range(count):
            with _watched():
                delay_s = random.uniform(1e-5, 1.1 * case.usual_s)
                timer = threading.Timer(delay_s, lambda: case.session.close())
                if number % 2:
                    signal.setitimer(signal.ITIMER_REAL, delay_s)
                else:
                    timer.start()
                seen[case.outcome()] += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                timer.cancel()
                if number % 2 == 0:
                    timer.join()
                case.session.close()
                seen[f"then {case.outcome()}"] += 1
                case.again()
    finally:
        signal.signal(signal.SIGALRM, before)
    return seen


def _beside_opencl(cores: list[str]) -> dict[str, dict[str, Any]]:
    """A CPU core and OpenCL on the other, where that works; else the reason is printed."""
    names = [cores[0], f"{cores[1]}/opencl"]
    try:
        open_devices(names)
    except DeviceError as error:
        print(f"left out, {' + '.join(names)}: {error}")
        return {}
    return {"CPU beside OpenCL": {"devices": names, "planner": "hope_greedy"}}


def main() -> None:
    args = arguments(__doc__ or "", ["squeezenet"], rounds=2000)
    count = args.rounds
    cores = two_cores()
    kinds: dict[str, dict[str, Any]] = {
        "one device": {"devices": cores[:1], "planner": "single"},
        "one device of two cores": {
            "devices": ["cpu:" + ",".join(c.removeprefix("cpu:") for c in cores)],
            "planner": "single",
        },
        "two devices": {"devices": cores, "planner": "hope_greedy"},
        "two, waiting actively": {
            "devices": cores, "planner": "hope_greedy", "waiting": "active",
        },
    }  # fmt: skip
    ways = {"time-outs": (_time_outs, count), "Ctrl-C": (_control_c, count),
            "forks": (_forks, count // 10), "closes": (_closes, count // 10)}  # fmt: skip
    kinds |= _beside_opencl(cores)
    rows = []
    for name in args.models:
        for kind, words in kinds.items():
            case = _Case(name, words, args.cache)
            for way, (disturb, times) in ways.items():
                seen = disturb(case, times)
                told = ", ".join(f"{k} {v}" for k, v in sorted(seen.items()) if v)
                rows.append({"model": name, "session": kind, "way": way, "seen": told})
            case.session.close()
    show("left early: what happened, and the answers after it", rows, args.json)
    words = ("WRONG", "HUNG", "BOUND", "OTHER", "missed")  # what is not hit was not tried
    sys.exit(1 if any(word in str(row["seen"]) for row in rows for word in words) else 0)


if __name__ == "__main__":
    main()
