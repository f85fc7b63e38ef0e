"""The order in which waiting requests begin, and how they leave the queue."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future

import numpy as np
import pytest

from coexec.errors import BusyError, DeadlineError
from coexec.serve.queues import Queues
from tests.helpers.servers import Array, Echo

LONG_S = 1e4


class Device:
    """One credit that several models share."""

    def __init__(self) -> None:
        self.running: Future[Mapping[str, Array]] | None = None
        self.begun: list[str] = []

    async def end(self) -> None:
        """End the request that runs, and let the next one begin."""
        ended, self.running = self.running, None
        assert ended is not None
        ended.set_result({})
        await settled()


class OnDevice(Echo):
    def __init__(self, name: str, device: Device) -> None:
        super().__init__()
        self.name = name
        self.device = device

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        if self.device.running is not None:
            raise BusyError("no credit is left: 1 requests are under way; try again")
        if self.name == "broken":
            raise RuntimeError("broken")
        self.device.running = Future()
        self.device.begun.append(f"{self.name}{int(feeds['x'][0])}")
        return self.device.running


async def settled() -> None:
    """Return when the event loop has done what it could."""
    for _ in range(10):
        await asyncio.sleep(0)


def ask(
    queues: Queues, served: Echo, number: int, wait_s: float = LONG_S
) -> "asyncio.Task[object]":
    return asyncio.ensure_future(queues.begin(served, {"x": np.array([number])}, wait_s))


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**words: object) -> None:
        asyncio.run(test(**words))  # type: ignore[arg-type]

    return run


@in_a_loop
async def test_requests_of_a_model_begin_in_order_and_models_take_turns() -> None:
    """A model with one request does not wait for all requests of a busy model."""
    device, queues = Device(), Queues(10)
    busy, other, third = (OnDevice(name, device) for name in "abc")
    for number in range(6):
        ask(queues, busy, number)
    await settled()
    assert queues.waiting("a") == 5
    ask(queues, other, 0)
    ask(queues, third, 0)
    ask(queues, other, 1)
    await settled()
    for _ in range(9):
        await device.end()
    assert device.begun == ["a0", "a1", "b0", "c0", "a2", "b1", "a3", "a4", "a5"]


@in_a_loop
async def test_a_full_queue_refuses() -> None:
    device, queues = Device(), Queues(2)
    model = OnDevice("a", device)
    tasks = [ask(queues, model, number) for number in range(4)]
    await settled()
    with pytest.raises(BusyError, match=r"no credit is left for 'a'.*2 requests wait"):
        await tasks[3]
    ask(queues, OnDevice("b", device), 0)  # has a queue of its own
    await settled()
    assert (queues.waiting("a"), queues.waiting("b")) == (2, 1)


@in_a_loop
async def test_an_expired_request_is_never_begun() -> None:
    device, queues = Device(), Queues(2)
    model = OnDevice("a", device)
    ask(queues, model, 0)
    await settled()
    late = ask(queues, model, 1, wait_s=0.01)
    after = ask(queues, model, 2)
    with pytest.raises(DeadlineError, match=r"no credit for 'a' became free in 0\.01 s"):
        await late
    await device.end()
    await after
    assert device.begun == ["a0", "a2"]


@pytest.mark.parametrize("left", [True, False], ids=["it has left", "it is still in the queue"])
@in_a_loop
async def test_a_cancelled_request_does_not_stop_the_queue(left: bool) -> None:
    device, queues = Device(), Queues(2)
    model = OnDevice("a", device)
    tasks = [ask(queues, model, number) for number in range(3)]
    await settled()
    tasks[1].cancel()
    if left:
        await asyncio.wait([tasks[1]])
        assert queues.waiting("a") == 1
    await device.end()
    assert device.begun == ["a0", "a2"]


@in_a_loop
async def test_without_a_running_request_a_busy_model_refuses() -> None:
    """Nothing would begin the request later."""
    device, queues = Device(), Queues(2)
    device.running = Future()  # of another caller
    with pytest.raises(BusyError, match="no credit is left: 1 requests"):
        await ask(queues, OnDevice("a", device), 0)


@in_a_loop
async def test_an_error_of_submit_is_that_of_the_request() -> None:
    queues = Queues(2)
    with pytest.raises(RuntimeError, match="broken"):
        await ask(queues, OnDevice("broken", Device()), 0)
    assert queues.waiting("broken") == 0
