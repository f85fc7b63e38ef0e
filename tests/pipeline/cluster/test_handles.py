"""Waiting for a machine with a limit."""

import asyncio
from contextlib import suppress

import pytest

from coexec.pipeline.cluster.handles import within


@pytest.mark.parametrize("turns", range(6))
def test_what_is_cancelled_while_the_answer_comes_is_cancelled(turns: int) -> None:
    """Whatever stands between the answer and the one who waits for it."""

    async def answer(coming: "asyncio.Future[int]") -> int:
        return await coming

    async def main() -> bool:
        coming = asyncio.get_running_loop().create_future()
        waits = asyncio.create_task(within(answer(coming), 60.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        coming.set_result(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        told = waits.cancel()
        with suppress(asyncio.CancelledError):
            await waits
        return told == waits.cancelled()

    assert asyncio.run(main())


def test_a_limit_is_kept() -> None:
    async def main() -> None:
        await within(asyncio.get_running_loop().create_future(), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
