"""Messages between two machines by calls of a Ray actor; a program for one of them.

    ray_end.py MACHINE ROUNDS SIZE ...

MACHINE is the other one. For each size, in bytes, prints median seconds as JSON: "ask", a call with
a message; "answer", a call that returns one; and "stream", the time from message to message with
four calls under way.
"""

import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import ray

WINDOW = 4
_REST_S = 0.03
"""Between calls, so that the token bucket is full again."""


class Other:
    """The other end."""

    async def take(self, message: np.ndarray) -> int:
        return len(message)

    async def give(self, size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)


async def main(machine: str, rounds: int, sizes: list[int]) -> None:
    place = {f"machine:{machine}": 0.01}
    other: Any = ray.remote(Other).options(num_cpus=0, resources=place).remote()

    async def ask(message: np.ndarray) -> None:
        assert await other.take.remote(message) == len(message)

    async def answer(message: np.ndarray) -> None:
        assert len(await other.give.remote(len(message))) == len(message)

    await ask(np.zeros(8, np.uint8))  # the actor has started
    for size in sizes:
        message = np.zeros(size, np.uint8)
        asking, answering = partial(ask, message), partial(answer, message)
        row = {
            "bytes": size,
            "ask": await lap_s(asking, rounds),
            "answer": await lap_s(answering, rounds),
            "stream": await stream_s(asking, rounds),
        }
        print(json.dumps(row), flush=True)


async def lap_s(call: Callable[[], Awaitable[None]], rounds: int) -> float:
    """The median of single calls, the first two not counted."""
    laps_s = []
    for _ in range(rounds + 2):
        start_s = time.perf_counter()
        await call()
        laps_s.append(time.perf_counter() - start_s)
        await asyncio.sleep(_REST_S)
    return statistics.median(laps_s[2:])


async def stream_s(call: Callable[[], Awaitable[None]], rounds: int) -> float:
    """The mean time between the ends of calls, when a new one begins as soon as one ends."""
    left = max(rounds, 10)

    async def keep_calling() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    count, start_s = left, time.perf_counter()
    await asyncio.gather(*(keep_calling() for _ in range(WINDOW)))
    return (time.perf_counter() - start_s) / count


if __name__ == "__main__":
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), list(map(int, sys.argv[3:]))))
