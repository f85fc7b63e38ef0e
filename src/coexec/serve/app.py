"""An ASGI application with the paths of the Open Inference Protocol v2."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from coexec.__about__ import __version__
from coexec.arrays import Array
from coexec.errors import (
    BusyError,
    ClosedError,
    CoexecError,
    DeadlineError,
    ExecutionError,
    InputError,
    first_line,
)
from coexec.serve.intake import Holding, MemoryBudget, ServeLimits, read_body
from coexec.serve.protocol import (
    EXTENSIONS,
    Inference,
    metadata,
    read_request,
    write_answer,
)
from coexec.serve.queues import Queues
from coexec.serve.served import Served

__all__ = ["application"]

_T = TypeVar("_T")
_RETRY_AFTER_S = 1
_PART_BYTES = 2**20
"""An answer is sent in parts of this size, so that slow clients do not fill buffers."""
_JSON_LENGTH = "Inference-Header-Content-Length"
_STATUS: Mapping[type[CoexecError], HTTPStatus] = {
    InputError: HTTPStatus.BAD_REQUEST,
    BusyError: HTTPStatus.TOO_MANY_REQUESTS,
    ClosedError: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlineError: HTTPStatus.GATEWAY_TIMEOUT,
    CoexecError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def application(served: Served, limits: ServeLimits | None = None) -> Starlette:
    """The application that answers requests for ``served``, for any ASGI server."""
    described = _Descriptions(served)
    infer = _Inferences(served, limits or ServeLimits())
    models = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
    routes = [
        Route("/v2", described.server),
        Route("/v2/", described.server),
        Route("/v2/health/live", described.live),
        Route("/v2/health/ready", described.ready),
    ]
    for model in models:
        routes += [
            Route(model, described.model),
            Route(f"{model}/ready", described.model_ready),
            Route(f"{model}/infer", infer, methods=["POST"]),
        ]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        HTTPException: _say_http,
        ClientDisconnect: _say_nothing,
        **dict.fromkeys(_STATUS, _say),
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


class _Descriptions:
    """Answers requests about the server and the model."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def server(self, _: Request) -> Response:
        return _json({"name": "coexec", "version": __version__, "extensions": EXTENSIONS})

    async def live(self, _: Request) -> Response:
        return _json({"live": True})

    async def ready(self, _: Request) -> Response:
        # The specification names the key "live" here, too; other servers and clients use "ready".
        return self._readiness({"live": True})

    async def model(self, request: Request) -> Response:
        _check_path(request, self._served)
        return _json(metadata(self._served))

    async def model_ready(self, request: Request) -> Response:
        _check_path(request, self._served)
        return self._readiness({"name": self._served.name})

    def _readiness(self, facts: dict[str, Any]) -> Response:
        ready = self._served.ready
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(facts | {"ready": ready}, status)


class _Inferences:
    """Answers POST .../infer. It is an ASGI application, to release memory when the answer has been
    sent."""

    def __init__(self, served: Served, limits: ServeLimits) -> None:
        self._served = served
        self._limits = limits
        self._budget = MemoryBudget(limits.held_bytes)
        self._queues = Queues(limits.queue)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        _check_path(request, self._served)
        with self._budget.request() as holding:
            try:
                head, binary = await self._answer(request, holding)
            except asyncio.CancelledError:  # the server ends, and its time limit is over
                raise ClosedError(
                    "the server ends before this request could be answered; send it to another"
                ) from None
            holding.add(sum(map(len, binary)) + len(head))
            await _Answer(head, binary, self._limits.transfer_s)(scope, receive, send)

    async def _answer(self, request: Request, holding: Holding) -> tuple[bytes, list[bytes]]:
        if not self._served.ready:
            raise ClosedError(f"the model {self._served.name!r} is not ready; try again later")
        body = await read_body(request, self._limits, holding)
        length = request.headers.get(_JSON_LENGTH)
        inference = read_request(body, length, self._served, self._limits.body_bytes)
        try:
            outputs = await _while_connected(request, self._outputs(inference))
        except CoexecError:
            raise
        except ClientDisconnect:
            raise
        except Exception as error:  # a model's own operators may raise any exception
            raise ExecutionError(
                f"the model {self._served.name!r} failed: {first_line(error)}"
            ) from error
        return write_answer(inference, self._served, outputs)

    async def _outputs(self, inference: Inference) -> Mapping[str, Array]:
        wait_s = min(self._limits.wait_s, inference.timeout_s or math.inf)
        running = await self._queues.begin(self._served, inference.feeds, wait_s)
        return await asyncio.wrap_future(running)


async def _while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which is cancelled when the client disconnects.

    Raises:
        ClientDisconnect: the client has disconnected.
    """
    working = asyncio.ensure_future(work)
    connected = asyncio.ensure_future(_disconnection(request))
    try:
        await asyncio.wait({working, connected}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        connected.cancel()
        working.cancel()


async def _disconnection(request: Request) -> None:
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
        self.headers["Content-Type"] = "application/octet-stream" if binary else _JSON
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


def _check_path(request: Request, served: Served) -> None:
    """Answer 404 for a model or version that is not served."""
    name, version = request.path_params["name"], request.path_params.get("version")
    if name != served.name:
        raise HTTPException(404, f"there is no model {name!r} here; there is {served.name!r}")
    if version not in (None, served.version):
        raise HTTPException(
            404, f"model {name!r} has no version {version!r}; it has {served.version!r}"
        )


_JSON = "application/json"


def _json(content: Any, status: int = HTTPStatus.OK, headers: Any = None) -> Response:
    # ASCII, because names from clients may hold halves of surrogate pairs, which UTF-8 cannot hold
    return Response(json.dumps(content), status, headers, _JSON)


async def _say(_: Request, error: CoexecError) -> Response:
    """The answer for an error, in the form of the protocol."""
    status = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
    again = {"Retry-After": str(_RETRY_AFTER_S)} if isinstance(error, BusyError) else None
    return _json({"error": " ".join(str(error).split())}, status, again)


async def _say_http(request: Request, error: HTTPException) -> Response:
    message = error.detail
    if message == HTTPStatus(error.status_code).phrase:  # Starlette's own message for unknown paths
        path = f"{request.method} {request.url.path}"
        message = (
            f"{path} is not in the Open Inference Protocol v2; requests are POST "
            f"/v2/models/NAME/infer"
        )
    return _json({"error": message}, error.status_code, error.headers)


async def _say_nothing(_: Request, __: ClientDisconnect) -> Response:
    return Response(status_code=HTTPStatus.BAD_REQUEST)  # not sent: the client has disconnected
