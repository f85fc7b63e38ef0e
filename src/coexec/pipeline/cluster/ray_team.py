"""Machines that are Ray's actors: the only module that calls Ray.

Each machine is one actor, placed on its node. Ray does not retry: the conductor decides what is
sent again. See https://docs.ray.io/en/latest/ray-core/actors.html.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from coexec.errors import ClosedError, DeviceError, first_line
from coexec.pipeline.cluster.build import build
from coexec.pipeline.cluster.handles import MachineLostError, within
from coexec.pipeline.cluster.machine import Machine, MachineOptions
from coexec.pipeline.cluster.nodes import RayNode, nodes_of

T = TypeVar("T")

_log = logging.getLogger("coexec.pipeline.cluster")
_HEAD_S = 30.0
"""Longest silence of a head. After twice this time, Ray ends every process that has entered."""
_MOST_CALLS = 1000
"""Maximum number of concurrent calls on one machine."""
_MOST_REST_S = 60.0  # longest pause before a dismissed machine is hired again
_OUTSIDE = "the door"
"""Name of the source of frames, if it is no machine of the cluster."""
_LEAVE_S = 10.0
"""Time limit to leave a cluster; with a running head it takes a fraction of a second."""
_GOODBYE_S = 2.0
"""Time limit for a machine to remove its files, before it is ended."""


class Connection:
    """Connection of this process to a cluster, by a node on this machine."""

    def __init__(self, address: str) -> None:
        """Call `nodes.prepare` before this module is imported: Ray reads the token during its
        import.

        Raises:
            DeviceError: the cluster cannot be reached from here.
        """
        self._head = address
        # In another thread, Ray sets no signal handlers, and Ctrl-C does not interrupt Ray's start,
        # which would end in a segmentation fault.
        log = logging.getLogger("ray")  # Ray warns that it cannot set signal handlers
        level = log.level
        log.setLevel(logging.ERROR)
        with ThreadPoolExecutor(1) as thread:
            start = thread.submit(
                ray.init,
                address=address,
                namespace="coexec",
                logging_level=logging.ERROR,
                log_to_driver=False,
                configure_logging=False,
            )
            try:
                start.result()
            except (RayError, ConnectionError, RuntimeError, ValueError) as error:
                raise DeviceError(
                    f"cannot enter the cluster at {address}: {first_line(error)}; "
                    f"this machine has to be one of its nodes (`coexec cluster "
                    f"join`)"
                ) from None
            except BaseException:
                wait([start])
                ray.shutdown()
                raise
            finally:
                log.setLevel(level)

    @property
    def address(self) -> str:
        """Address of the node by which this process has entered."""
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def machines(self) -> Mapping[str, RayNode]:
        """Nodes with machines that are alive, by name."""
        return {node.name: node for node in nodes_of(self._head) if node.alive and node.name}

    def close(self) -> None:
        """Leave the cluster. Ray ends the actors of this process."""
        leaving = threading.Thread(target=ray.shutdown, name="coexec-leave", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S)  # with a dead head, `ray.shutdown` does not return


class _RayHandle:
    """Handle of a machine that is a Ray actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call(self, method: str, *args: Any) -> Any:
        """See `MachineHandle.call`."""
        try:
            return await getattr(self._actor, method).remote(*args)
        except RayTaskError as error:
            raise error.cause from None
        except (RayActorError, RayError) as error:
            raise MachineLostError(first_line(error)) from None

    def end(self) -> None:
        """End the actor at once."""
        ray.kill(self._actor, no_restart=True)


class RayTeam:
    """Hires the machines of a cluster for one session."""

    def __init__(
        self,
        connection: Connection,
        options: Mapping[str, MachineOptions],
        only: bool,
        silence_s: float = _HEAD_S,
    ) -> None:
        """
        Args:
            options: options by machine; other machines have the default options.
            only: hire only machines that ``options`` names.
            silence_s: longest silence of the head.
        """
        self._connection, self._options, self._only = connection, options, only
        self._silence_s = silence_s
        self._hired: dict[str, _RayHandle] = {}
        self._resting: dict[str, tuple[float, float]] = {}
        """Time until which a dismissed machine is not hired again, and the length of this pause, by
        name. The pause doubles with each dismissal, as the machine may fail each time."""
        self._door: str | None = None
        self._heard_s = time.monotonic()
        """`time.monotonic` of the head's last answer."""
        self._refused: set[str] = set()
        """Nodes that cannot be hired, and for which a warning was logged."""

    async def hire(self) -> Mapping[str, _RayHandle]:
        """See `Team.hire`."""
        visible_nodes = await self._machines()
        handles: dict[str, _RayHandle] = {}
        for name, node in visible_nodes.items():
            if name in self._hired or node.id in self._refused:
                continue
            if self._resting.get(name, (0.0, 0.0))[0] > time.monotonic():
                continue
            if self._only and name not in self._options:
                continue
            if node.build != build():
                self._refused.add(node.id)
                _log.warning(
                    "machine %s has coexec %s, this one %s: it is not used; install the "
                    "same on all",
                    name,
                    node.build,
                    build(),
                )
                continue
            actor = (
                ray.remote(Machine)
                .options(
                    num_cpus=0,
                    max_restarts=0,
                    max_task_retries=0,
                    max_concurrency=_MOST_CALLS,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
                )
                .remote(name, self._options.get(name, MachineOptions()))
            )
            handles[name] = handle = _RayHandle(actor)
            self._hired[name] = handle
        if handles:
            here = self._connection.address
            own = [
                n for n, node in visible_nodes.items() if n in self._hired and node.address == here
            ]
            self._door = own[0] if own else _OUTSIDE
        return handles

    async def _machines(self) -> Mapping[str, RayNode]:
        """Nodes with machines that are alive, by name; empty while the head does not answer."""
        end_s = self._heard_s + self._silence_s
        try:
            nodes = await within(_aside(self._connection.machines), end_s - time.monotonic())
        except (TimeoutError, RayError, DeviceError, RuntimeError, OSError):
            if time.monotonic() < end_s:
                return {}
            raise ClosedError(
                f"the head of the cluster has not answered for {self._silence_s:.0f} s, and "
                f"a cluster ends with its head; end what is left by `ray stop` on each "
                f"machine, and start it again"
            ) from None
        self._heard_s = time.monotonic()
        return nodes

    @property
    def door(self) -> str | None:
        """See `Team.door`."""
        return self._door

    async def dismiss(self, name: str) -> None:
        """See `Team.dismiss`."""
        handle = self._hired.pop(name, None)
        if handle is None:
            return
        rest_s = min(_MOST_REST_S, 2 * self._resting.get(name, (0.0, 1.0))[1])
        self._resting[name] = time.monotonic() + rest_s, rest_s
        with suppress(TimeoutError, MachineLostError):
            await asyncio.wait_for(handle.call("close"), _GOODBYE_S)
        with suppress(TimeoutError):  # without a head no actor can be ended
            await within(_aside(handle.end), _GOODBYE_S)


def _aside(work: Callable[[], T]) -> Awaitable[T]:
    """Awaitable result of ``work``, which runs in a new thread. A call to a dead head does not
    return before Ray ends the process; a caller that leaves the cluster must not wait for that."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled from now on

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="coexec-head", daemon=True).start()
    return asyncio.wrap_future(future)
