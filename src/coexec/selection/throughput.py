"""mode="throughput": many requests at once, each on a device of its own.

With a plan, all devices work on one request, which has a short latency. If many requests come at
once, it is often better that each device runs whole requests, because no device waits for another.
The devices, or the engine's own session if it is as good, are chosen by running: more threads than
the machine has cores send requests in a loop, and the most requests per second win.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack

from coexec.arrays import Array
from coexec.engines import detect
from coexec.errors import CoexecError
from coexec.runtime.pool import Pool
from coexec.runtime.runner import Runner
from coexec.selection.prepared import Prepared

__all__ = ["requests_per_s", "started"]


def started(prepared: Prepared) -> Runner:
    """A runner for a plan and the plans beside it, which answer requests at the same time."""
    if not prepared.beside:
        return prepared.work.start(prepared)
    with ExitStack() as stack:
        runners = [
            stack.enter_context(plan.work.start(plan)) for plan in (prepared, *prepared.beside)
        ]
        stack.pop_all()
    return Pool(runners)


def requests_per_s(runner: Runner, feeds: Mapping[str, Array], seconds: float) -> float:
    """Requests per second that a runner answers if requests always wait for it.

    Args:
        seconds: how long `clients` threads send requests. Each thread sends at least one.

    Raises:
        CoexecError: a request failed.
    """
    done: list[float] = []
    failed: list[CoexecError] = []
    start_s = time.perf_counter()

    def send() -> None:
        try:
            while not failed:
                runner.run(feeds)
                done.append(time.perf_counter() - start_s)
                if done[-1] >= seconds:
                    return
        except CoexecError as error:
            failed.append(error)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(clients())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return len(done) / max(done)


def clients() -> int:
    """Number of threads that send requests in a race: more than the machine has cores."""
    return len(detect.usable_cores()) + 2
