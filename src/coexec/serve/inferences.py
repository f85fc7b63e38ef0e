"""Answers to requests for inference."""

import asyncio
import math
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from coexec.arrays import Array
from coexec.errors import ClosedError, CoexecError, ExecutionError, first_line
from coexec.serve.intake import Hold, MemoryBudget, ServeLimits, read_body
from coexec.serve.metrics import Metrics
from coexec.serve.models import Models
from coexec.serve.protocol import Inference, read_request, write_answer
from coexec.serve.queues import Queues
from coexec.serve.served import Served

_T = TypeVar("_T")
_PART_BYTES = 2**20
"""An answer is sent in parts of this size, so that slow clients do not fill buffers."""
_JSON_LENGTH = "inference-header-content-length"


def requested_model(request: Request, models: Models) -> Served:
    """The model that the path of a request names.

    Raises:
        HTTPException: there is no such model or version (404).
        ClosedError: the model is not loaded.
    """
    name, version = request.path_params["name"], request.path_params.get("version")
    try:
        served = models[name]
    except KeyError:
        listed = ", ".join(map(repr, models.names())) or "none"
        raise HTTPException(404, f"there is no model {name!r} here; there is {listed}") from None
    if version not in (None, served.version):
        raise HTTPException(
            404, f"model {name!r} has no version {version!r}; it has {served.version!r}"
        )
    return served


@contextmanager
def refused_at_end() -> Iterator[None]:
    """Context whose work is cancelled when the server ends and its time limit is over.

    Raises:
        ClosedError: it was cancelled.
    """
    try:
        yield
    except asyncio.CancelledError:
        raise ClosedError(
            "the server ends before this request could be answered; send it to another"
        ) from None


class Inferences:
    """Answers POST .../infer. It is an ASGI application, to release memory when the answer has been
    sent."""

    def __init__(
        self,
        models: Models,
        limits: ServeLimits,
        budget: MemoryBudget,
        queues: Queues,
        metrics: Metrics,
    ) -> None:
        self._models, self._limits, self._budget = models, limits, budget
        self._queues, self._metrics = queues, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        served = requested_model(request, self._models)
        with self._budget.request() as hold, self._models.use(served):
            with refused_at_end():
                head, binary = await self._answer(request, served, hold)
            hold(sum(map(len, binary)) + len(head))
            try:
                async with asyncio.timeout(self._limits.transfer_s):
                    await _send_answer(send, head, binary)
            except (TimeoutError, asyncio.CancelledError):
                return  # the server closes the connection, because the answer is not complete

    async def _answer(
        self, request: Request, served: Served, hold: Hold
    ) -> tuple[bytes, list[bytes]]:
        if not served.ready:
            raise ClosedError(f"the model {served.name!r} is not ready; try again later")
        with self._metrics.phase(served.name, "read"):
            body = await read_body(request, self._limits, hold)
            length = request.headers.get(_JSON_LENGTH)
            inference = read_request(body, length, served, self._limits.body_bytes)
        outputs = await _while_connected(request, self._outputs(served, inference))
        with self._metrics.phase(served.name, "write"):
            return write_answer(inference, served, outputs)

    async def _outputs(self, served: Served, inference: Inference) -> Mapping[str, Array]:
        wait_s = min(self._limits.wait_s, inference.timeout_s or math.inf)
        try:
            with self._metrics.phase(served.name, "queue"):
                running = await self._queues.begin(served, inference.feeds, wait_s)
            with self._metrics.phase(served.name, "compute"):
                return await asyncio.wrap_future(running)
        except CoexecError:
            raise
        except Exception as error:  # a model's own operators may raise any exception
            raise ExecutionError(
                f"the model {served.name!r} failed: {first_line(error)}"
            ) from error


async def _while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which is cancelled when the client disconnects.

    Raises:
        ClientDisconnect: the client has disconnected.
    """

    async def disconnection() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # the body has been read

    working, disconnected = asyncio.ensure_future(work), asyncio.ensure_future(disconnection())
    try:
        await asyncio.wait({working, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        disconnected.cancel()
        working.cancel()


async def _send_answer(send: Send, head: bytes, binary: list[bytes]) -> None:
    """Send an answer with its binary data in parts."""
    size = len(head) + sum(map(len, binary))
    headers = {"content-length": size, "content-type": "application/json"}
    if binary:
        headers |= {"content-type": "application/octet-stream", _JSON_LENGTH: len(head)}
    # A small answer is one message, and so one packet if it fits.
    whole = [head, *binary] if size > _PART_BYTES else [b"".join((head, *binary))]
    parts = [p[at : at + _PART_BYTES] for p in whole for at in range(0, len(p), _PART_BYTES)]
    encoded = [(name.encode(), str(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})
    for i, part in enumerate(parts):
        more = i < len(parts) - 1
        await send({"type": "http.response.body", "body": part, "more_body": more})
