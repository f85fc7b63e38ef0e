"""An ASGI application with the paths of the Open Inference Protocol v2 and of its extensions."""

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from coexec.__about__ import __version__
from coexec.errors import BusyError, ClosedError, CoexecError, DeadlineError, InputError
from coexec.serve.inferences import Inferences, refused_at_end, requested_model
from coexec.serve.intake import MemoryBudget, ServeLimits, read_body
from coexec.serve.metrics import Metrics
from coexec.serve.models import Models
from coexec.serve.protocol import (
    EXTENSIONS,
    configuration,
    metadata,
    read_index_request,
    read_load_request,
)
from coexec.serve.queues import Queues
from coexec.serve.tokens import authorization_error

LogForm = Literal["text", "json"]
"""Form of the lines that log requests."""

_log = logging.getLogger("coexec_access")

_RETRY_AFTER_S = 1
_DISCONNECTED = 499
"""The status that logs of HTTP servers have for a client that did not wait for its answer."""
_HEALTH = "/v2/health/live", "/v2/health/ready"
_CHANGES = "/v2/repository/models/"
"""Requests for paths below change the server."""
_STATUS: Mapping[type[CoexecError], HTTPStatus] = {
    InputError: HTTPStatus.BAD_REQUEST,
    BusyError: HTTPStatus.TOO_MANY_REQUESTS,
    ClosedError: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlineError: HTTPStatus.GATEWAY_TIMEOUT,
    CoexecError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


@dataclass
class _Tally:
    """Status and bytes of a request and its answer, until now."""

    start_s: float = field(default_factory=time.perf_counter)
    status: int = _DISCONNECTED
    complete: bool = False
    bytes_in: int = 0
    bytes_out: int = 0


class Application:
    """Answers requests for the models of a server, for any ASGI server."""

    def __init__(
        self,
        models: Models,
        limits: ServeLimits | None = None,
        token: str | None = None,
        access_log: LogForm | None = None,
    ) -> None:
        """
        Args:
            token: required in the header ``Authorization: Bearer TOKEN`` of all requests, except
                those for the health of the server; None: nothing is required.
            access_log: form of the lines that log requests, with the logger ``coexec_access`` at
                level INFO; None: requests are not logged.
        """
        self._models, self._token, self._access_log = models, token, access_log
        self._limits = limits or ServeLimits()
        self._metrics, self._queues = Metrics(), Queues(self._limits.queue)
        self._budget = MemoryBudget(self._limits.held_bytes)
        self._inferences = Inferences(
            models, self._limits, self._budget, self._queues, self._metrics
        )
        self._app = self._routed()
        self.stopping = False
        """Whether new requests are refused. The requests under way are answered."""
        self.under_way = 0
        """Number of requests that are not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = _Tally()

        async def counted_receive() -> Message:
            message = await receive()
            sent.bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent.status = message["status"]
            else:
                sent.bytes_out += len(message["body"])
                sent.complete = not message.get("more_body", False)
            await send(message)

        app = self._refusal(scope) or self._app
        self.under_way += 1
        try:
            await app(scope, counted_receive, counted_send)
        finally:
            self.under_way -= 1
            self._record(scope, sent)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that may not be answered otherwise."""
        path, headers = scope["path"], Headers(scope=scope)
        if path in _HEALTH:
            return None
        sent = headers.getlist("authorization")
        if self._token is not None and (error := authorization_error(sent, self._token)):
            challenge = {"WWW-Authenticate": "Bearer"}
            return _json({"error": error}, HTTPStatus.UNAUTHORIZED, challenge)
        # Browsers send Origin, also to servers on the loopback address.
        origin = headers.get("origin")
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
        if path.startswith(_CHANGES) and not is_own:
            message = (
                f"a web page of {origin!r} may not load or unload models of this server; send the "
                f"request from a program, without the header Origin"
            )
            return _json({"error": message}, HTTPStatus.FORBIDDEN)
        if self.stopping and path != "/metrics":
            message = "the server ends, and takes no new requests; send it to another"
            closing = {"Connection": "close"}
            return _json({"error": message}, HTTPStatus.SERVICE_UNAVAILABLE, closing)
        return None

    def _record(self, scope: Scope, sent: _Tally) -> None:
        """Count and log a request that has ended."""
        name = scope.get("path_params", {}).get("name")
        model = name if name is not None and name in self._models else None
        status = sent.status if sent.complete else _DISCONNECTED
        duration_s = time.perf_counter() - sent.start_s
        if model is not None and scope.get("endpoint") is self._inferences:
            self._metrics.count(model, status, duration_s, sent.bytes_in, sent.bytes_out)
        if self._access_log is None:
            return
        client, method = (scope.get("client") or ("-",))[0], scope["method"]
        path = scope["raw_path"].decode("ascii", "backslashreplace")
        if self._access_log == "json":
            facts = {"client": client, "method": method, "path": path, "status": status,
                     "bytes_in": sent.bytes_in, "bytes_out": sent.bytes_out,
                     "duration_s": duration_s, "model": model}  # fmt: skip
            _log.info(json.dumps(facts))
        else:
            _log.info(
                f"{client} {method} {path} {status} {sent.bytes_in} B in {sent.bytes_out} B out "
                f"{1e3 * duration_s:.1f} ms {model or '-'}"
            )

    def _routed(self) -> Starlette:
        routes = [
            Route("/v2", self._server),
            Route("/v2/", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/v2/models/stats", self._statistics),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/repository/models/{name}/load", self._load, methods=["POST"]),
            Route("/v2/repository/models/{name}/unload", self._unload, methods=["POST"]),
            Route("/metrics", self._prometheus),
        ]
        for model in "/v2/models/{name}", "/v2/models/{name}/versions/{version}":
            routes += [
                Route(model, self._metadata),
                Route(f"{model}/ready", self._model_ready),
                Route(f"{model}/config", self._configuration),
                Route(f"{model}/stats", self._model_statistics),
                Route(f"{model}/infer", self._inferences, methods=["POST"]),
            ]
        handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
            HTTPException: _say_http,
            ClientDisconnect: _say_nothing,
            **dict.fromkeys(_STATUS, _say),
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return app

    async def _server(self, _: Request) -> Response:
        repository = ["model_repository"] if self._models.can_load else []
        extensions = [*EXTENSIONS, *repository]
        return _json({"name": "coexec", "version": __version__, "extensions": extensions})

    async def _live(self, _: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, _: Request) -> Response:
        # The specification names the key "live" here, too; other servers and clients use "ready".
        return _readiness({"live": True}, self._models.ready and not self.stopping)

    async def _metadata(self, request: Request) -> Response:
        return _json(metadata(requested_model(request, self._models)))

    async def _model_ready(self, request: Request) -> Response:
        served = requested_model(request, self._models)
        return _readiness({"name": served.name}, served.ready)

    async def _configuration(self, request: Request) -> Response:
        return _json(configuration(requested_model(request, self._models)))

    async def _model_statistics(self, request: Request) -> Response:
        served = requested_model(request, self._models)
        return _json({"model_stats": [self._metrics.statistics(served.name, served.version)]})

    async def _statistics(self, _: Request) -> Response:
        loaded = self._models.loaded()
        return _json(
            {"model_stats": [self._metrics.statistics(each.name, each.version) for each in loaded]}
        )

    async def _prometheus(self, _: Request) -> Response:
        waiting = {name: self._queues.waiting(name) for name in self._models.names()}
        text = self._metrics.text(waiting)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _index(self, request: Request) -> Response:
        return _json(self._models.index(read_index_request(await self._body(request))))

    async def _load(self, request: Request) -> Response:
        return await self._changed(request, self._models.load)

    async def _unload(self, request: Request) -> Response:
        return await self._changed(request, self._models.unload)

    async def _changed(
        self, request: Request, change: Callable[[str], Awaitable[None]]
    ) -> Response:
        read_load_request(await self._body(request))
        with refused_at_end():
            await change(request.path_params["name"])
        return _json({})

    async def _body(self, request: Request) -> bytearray:
        with self._budget.request() as hold:
            return await read_body(request, self._limits, hold)


def _readiness(facts: dict[str, Any], ready: bool) -> Response:
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return _json(facts | {"ready": ready}, status)


def _json(content: Any, status: int = HTTPStatus.OK, headers: Any = None) -> Response:
    # ASCII, because names from clients may hold halves of surrogate pairs, which UTF-8 cannot hold
    return Response(json.dumps(content), status, headers, "application/json")


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
    return Response(status_code=_DISCONNECTED)  # not sent: the client has disconnected
