"""Answers to requests for inference."""

import asyncio
import math
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coexec.arrays import Array
from coexec.errors import ClosedError, CoexecError, ExecutionError, first_line
from coexec.serve.intake import Holding, MemoryBudget, ServeLimits, read_body
from coexec.serve.metrics import Metrics
from coexec.serve.models import Models
from coexec.serve.protocol import Inference, read_request, write_answer
from coexec.serve.queues import Queues
from coexec.serve.served import Served

__all__ = ["Inferences", "refused_at_end", "requested_model"]

_T = TypeVar("_T")
_PART_BYTES = 2**20
"""An answer is sent in parts of this size, so that slow clients do not fill buffers."""
_JSON_LENGTH = "Inference-Header-Content-Length"


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
        self._models = models
        self._limits = limits
        self._budget = budget
        self._queues = queues
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        served = requested_model(request, self._models)
        with self._budget.request() as holding, self._models.use(served):
            with refused_at_end():
                head, binary = await self._answer(request, served, holding)
            holding.add(sum(map(len, binary)) + len(head))
            await _Answer(head, binary, self._limits.transfer_s)(scope, receive, send)

    async def _answer(
        self, request: Request, served: Served, holding: Holding
    ) -> tuple[bytes, list[bytes]]:
        if not served.ready:
            raise ClosedError(f"the model {served.name!r} is not ready; try again later")
        with self._metrics.phase(served.name, "read"):
            body = await read_body(request, self._limits, holding)
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
    working = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_disconnection(request))
    try:
        await asyncio.wait({working, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        disconnected.cancel()
        working.cancel()


async def _disconnection(request: Request) -> None:
    """Return when the client of a request, whose body has been read, disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Answer(Response):
    """An answer with its binary data, sent in parts."""

    def __init__(self, head: bytes, binary: Sequence[bytes], limit_s: float) -> None:
        size = sum(map(len, binary))
        headers = {"Content-Length": str(len(head) + size)}
        if binary:
            headers[_JSON_LENGTH] = str(len(head))
        super().__init__(headers=headers)
        self.headers["Content-Type"] = "application/octet-stream" if binary else "application/json"
        # A small answer is one message, and so one packet if it fits.
        whole = [head, *binary] if size > _PART_BYTES else [b"".join((head, *binary))]
        self._parts = [
            p[at : at + _PART_BYTES] for p in whole for at in range(0, len(p), _PART_BYTES)
        ]
        self._limit_s = limit_s

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        last = len(self._parts) - 1
        try:
            async with asyncio.timeout(self._limit_s):
                await send(start)
                for i, part in enumerate(self._parts):
                    await send({"type": "http.response.body", "body": part, "more_body": i < last})
        except (TimeoutError, asyncio.CancelledError):
            return  # the server closes the connection, because the answer is not complete
