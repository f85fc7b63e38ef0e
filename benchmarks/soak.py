"""Interruptions of `run` at random moments: time-outs, Ctrl-C, forks and closes.

After each interruption, the session must return right outputs, or report at once that it is closed.
The outcomes are counted. The exit code is 1 if outputs were wrong, something hung (nothing may take
a minute), or an exception did not arrive. ``--rounds`` is the number of time-outs and of Ctrl-C;
forks and closes happen a tenth as often.
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
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

_HANG_S = 60.0


class _TimeOut(Exception):
    """The exception that a user's handler of SIGALRM raises."""


class _Case:
    """A session with its feeds, right outputs and usual duration."""

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
        work = PlanningContext(source(name), Settings(devices=words["devices"], cache=cache))
        self.expected = list(work.user_model.reference(self.feeds).values())
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
        """The outcome of a run without interruption."""
        try:
            outputs = self.answer()
        except ClosedError:
            return "closed"
        return "right" if self.is_right(outputs) else "WRONG"

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
    """End the program, and print the stacks of all threads, if the block hangs."""
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
    # A program that a shell starts in the background ignores Ctrl-C by default.
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
    """Outcomes of runs in which an exception of ``kind`` is raised at a random moment, and of an
    uninterrupted run after each of them."""
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
                # A late exception is raised during this pause, and not in the next run.
                time.sleep(1.2 * case.usual_s)
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
    """Outcomes in children of forks during a run of another thread. A child must return right
    outputs or an error."""
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
    """Outcomes of runs during which a signal handler or another thread closes the session."""
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


def _with_cpp(cores: list[str]) -> dict[str, dict[str, Any]]:
    """A CPU core with cpp on the other core, and cpp on both, if it works; otherwise the reason is
    printed."""
    names = [cores[0], f"{cores[1]}/cpp"]
    try:
        open_devices(names)
    except DeviceError as error:
        print(f"left out, {' + '.join(names)}: {error}")
        return {}
    team = f"cpu:{','.join(c.removeprefix('cpu:') for c in cores)}/cpp"
    return {
        "CPU beside cpp": {"devices": names, "planner": "hope_greedy"},
        "a team of cpp": {"devices": [team], "planner": "single"},
    }


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
            "devices": cores,
            "planner": "hope_greedy",
            "waiting": "active",
        },
    }
    disturbances = {
        "time-outs": (_time_outs, count),
        "Ctrl-C": (_control_c, count),
        "forks": (_forks, count // 10),
        "closes": (_closes, count // 10),
    }
    kinds |= _with_cpp(cores)
    rows = []
    for name in args.models:
        for kind, words in kinds.items():
            case = _Case(name, words, args.cache)
            for title, (disturb, times) in disturbances.items():
                seen = disturb(case, times)
                counts = ", ".join(f"{k} {v}" for k, v in sorted(seen.items()) if v)
                rows.append({"model": name, "session": kind, "way": title, "seen": counts})
            case.session.close()
    show("left early: what happened, and the answers after it", rows, args.json)
    words = ("WRONG", "HUNG", "BOUND", "OTHER", "missed")  # "missed" means that nothing was tested
    sys.exit(1 if any(word in str(row["seen"]) for row in rows for word in words) else 0)


if __name__ == "__main__":
    main()
