"""Cases that are judged in separate processes, which may die or hang."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from tests.helpers.campaign.judging import Verdict

_SLICE = 400
"""Number of cases of one process; limited, because its memory grows with each opened session."""


def judged(
    words: Sequence[str],
    indices: Sequence[int],
    jobs: int,
    batch: int,
    timeout_s: float,
    seconds: float = threading.TIMEOUT_MAX,
) -> Iterator[Verdict]:
    """The verdicts, in the order in which they are ready.

    Args:
        words: arguments for the command line of every process.
        timeout_s: timeout for one model.
        seconds: time after which no further verdicts are waited for.
    """
    size = max(batch, min(_SLICE, -(-len(indices) // jobs)))
    slices = deque((list(indices[at : at + size]), batch) for at in range(0, len(indices), size))
    ready: queue.Queue[Verdict | None] = queue.Queue()
    running: list[subprocess.Popen[str]] = []

    def work() -> None:
        while True:
            try:
                numbers, size = slices.popleft()
            except IndexError:
                break
            for verdict in _of_process(words, numbers, size, timeout_s, slices, running):
                ready.put(verdict)
        ready.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + seconds
    try:
        for _ in threads:
            while (verdict := ready.get(timeout=max(0.0, end_s - time.monotonic()))) is not None:
                yield verdict
    except queue.Empty:
        return
    finally:
        slices.clear()
        for process in running:
            process.kill()


def _of_process(
    words: Sequence[str],
    numbers: list[int],
    batch: int,
    timeout_s: float,
    slices: deque[Any],
    running: list["subprocess.Popen[str]"],
) -> Iterator[Verdict]:
    """The verdicts of one process. Cases without a verdict are put before the other slices."""
    command = [sys.executable, "-m", "tests.helpers.campaign", *words]
    worker_argument = f"{','.join(map(str, numbers))}/{batch}"
    process = subprocess.Popen(
        [*command, "--worker", worker_argument],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running.append(process)
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(process.stdout, lines.put), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, errors.append), daemon=True),
    ]
    for reader in readers:
        reader.start()
    left, under_way, ending = set(numbers), [], "died"
    while True:
        try:
            line = lines.get(timeout=timeout_s)
        except queue.Empty:
            ending = "timeout"
            process.kill()
            break
        if line is None:
            break
        if not line.startswith(("[", "{")):
            continue  # an engine's own output
        message = json.loads(line)
        if isinstance(message, list):
            under_way = message
        else:
            left.discard(message["index"])
            yield Verdict(**message)
    code = process.wait()
    readers[1].join()
    if not left or (code == 0 and ending == "died"):
        return
    at = [number for number in under_way if number in left]
    not_begun = [number for number in numbers if number in left and number not in at]
    if not_begun:
        slices.appendleft((not_begun, batch))
    if batch > 1 and at:
        slices.appendleft((at, 1))
        return
    error_text = " | ".join(line.strip() for line in errors if line)[-500:]
    for number in at or not_begun[:1]:
        yield Verdict(number, ending, why=f"exit {code}: {error_text}")
    if not at and not_begun:
        slices.popleft()
        slices.appendleft((not_begun[1:], batch))


def _read(stream: Any, take: Any) -> None:
    for line in stream:
        take(line)
    take(None)
