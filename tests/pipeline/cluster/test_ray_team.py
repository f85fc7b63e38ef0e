"""What a session on Ray does while the head of its cluster does not answer; no Ray is started."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from coexec.errors import ClosedError
from coexec.pipeline.cluster.nodes import RayNode

pytest.importorskip("ray", reason="ray is not installed: pip install ray")
from coexec.pipeline.cluster import ray_team


class FakeConnection:
    """Nobody is there, as far as the head says anything."""

    def __init__(self) -> None:
        self.asked: Callable[[], Mapping[str, RayNode]] = dict

    def machines(self) -> Mapping[str, RayNode]:
        return self.asked()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Set at the end: threads that hang then go on."""
    event = threading.Event()
    yield event
    event.set()


def refuses() -> Mapping[str, RayNode]:
    raise ConnectionError("refused")


def a_team(connection: Any, silence_s: float = 30.0) -> ray_team.RayTeam:
    return ray_team.RayTeam(connection, {}, only=False, silence_s=silence_s)


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "refuses"])
def test_a_head_that_is_silent_for_long_ends_the_session(
    hangs: bool, released: threading.Event
) -> None:
    connection = FakeConnection()
    team = a_team(connection, silence_s=0.2)

    def hang() -> Mapping[str, RayNode]:
        released.wait()
        return {}

    async def hiring() -> None:
        assert await team.hire() == {}
        connection.asked = hang if hangs else refuses
        while True:
            assert await team.hire() == {}
            await asyncio.sleep(0.01)

    with pytest.raises(ClosedError, match=r"has not answered for 0 s.*start it again"):
        asyncio.run(hiring())


def test_a_head_may_be_silent_for_a_while() -> None:
    connection = FakeConnection()
    team = a_team(connection, silence_s=60.0)

    async def hiring() -> None:
        for connection.asked in (refuses, dict, refuses):
            assert await team.hire() == {}

    asyncio.run(hiring())


def test_other_errors_are_not_taken_for_silence() -> None:
    connection = FakeConnection()
    connection.asked = lambda: {}["a slip"]
    with pytest.raises(KeyError, match="a slip"):
        asyncio.run(a_team(connection).hire())  # type: ignore[arg-type]
