"""Servers on free ports, and served objects that need no model."""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from coexec.arrays import Array, numpy_type
from coexec.errors import BusyError
from coexec.serve.app import Application, LogForm
from coexec.serve.intake import ServeLimits
from coexec.serve.models import Models
from coexec.serve.served import Served, ServedTensor
from coexec.serve.server import Server, listen
from tests.helpers.patience import ENOUGH_S, until

TYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16",
    "BF16": "bfloat16", "FP32": "float32", "FP64": "float64", "BYTES": "object",
}  # fmt: skip
"""NumPy's name for each type of the protocol."""


def tensor_of(name: str, datatype: str, shape: Sequence[int] | None) -> ServedTensor:
    return ServedTensor(name, numpy_type(TYPES[datatype]), None if shape is None else tuple(shape))


class Echo:
    """Returns its feeds as outputs."""

    name = "echo"
    version = "1"
    ready = True

    def __init__(self, *tensors: ServedTensor) -> None:
        self.inputs: Sequence[ServedTensor] = tensors or (tensor_of("x", "FP32", (-1, 2)),)
        self.outputs = self.inputs

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        future: Future[Mapping[str, Array]] = Future()
        future.set_result(feeds)
        return future


class Stuck(Echo):
    """Answers when the test calls `answer`; accepts at most two requests before that."""

    def __init__(self, *tensors: ServedTensor) -> None:
        super().__init__(*tensors)
        self.submitted = 0
        self.waiting: list[tuple[Future[Mapping[str, Array]], Mapping[str, Array]]] = []

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        if len(self.waiting) == 2:
            raise BusyError("no credit is left: 2 requests are under way; try again")
        self.submitted += 1
        future: Future[Mapping[str, Array]] = Future()
        self.waiting.append((future, feeds))
        return future

    def until(self, count: int) -> None:
        """Wait until ``count`` requests are waiting."""
        until(lambda: len(self.waiting) >= count, f"{count} requests")

    def answer(self) -> None:
        """Answer all waiting requests."""
        while self.waiting:
            future, feeds = self.waiting.pop()
            future.set_result(feeds)


@contextmanager
def serving(
    served: Served | Models,
    limits: ServeLimits | None = None,
    token: str | None = None,
    access_log: LogForm | None = None,
) -> Iterator[str]:
    """Run a server in a thread; yields its address "127.0.0.1:PORT"."""
    models = served if isinstance(served, Models) else Models([served])
    with running(Server(Application(models, limits, token, access_log))) as address:
        yield address


@contextmanager
def running(server: Server) -> Iterator[str]:
    """Run a server in a thread until the end of the context; yields its address."""
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def ask(
    address: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers (names in lower case) and body of the answer to a request, which is sent on a
    connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=ENOUGH_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


def infer(
    address: str, request: Any, *, name: str = "echo", headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON of the answer to a request, which is bytes or an object for JSON."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    status, _, answer = ask(address, "POST", f"/v2/models/{name}/infer", body, headers)
    return status, json.loads(answer)


def fed(values: Sequence[float], shape: Sequence[int], name: str = "x") -> dict[str, Any]:
    """A request of one FP32 input."""
    data = np.asarray(values, np.float32).reshape(-1).tolist()
    tensor = {"name": name, "shape": list(shape), "datatype": "FP32", "data": data}
    return {"inputs": [tensor]}
