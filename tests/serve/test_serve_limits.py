"""How much of a server its clients can take: credits, memory, time."""

import json
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPResponse

import numpy as np
import pytest
from onnx import TensorProto, helper

import coexec
from coexec.errors import BusyError, ClosedError, InputError, ModelError, UsageError
from coexec.serve.intake import MemoryBudget, ServeLimits
from coexec.serve.session import SessionServed
from tests.helpers.patience import ENOUGH_S, until
from tests.helpers.servers import Array, Echo, Stuck, ask, fed, infer, serving, tensor_of
from tests.helpers.small_models import from_nodes, tensor_info

PATH = "/v2/models/echo/infer"
MIB = 2**20


def identity(kind: int = TensorProto.FLOAT) -> bytes:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    ends = [[tensor_info(name, ["n"], kind)] for name in "xy"]
    return from_nodes(nodes, *ends).SerializeToString()


def test_a_request_without_a_credit_is_told_when_to_try_again() -> None:
    served = Stuck()
    request = fed([1, 2], [1, 2])
    with serving(served, ServeLimits(queue=0)) as address, ThreadPoolExecutor(2) as pool:
        first = [pool.submit(infer, address, request) for _ in range(2)]
        served.until(2)
        status, headers, body = ask(address, "POST", PATH, json.dumps(request))
        assert status == 429 and int(headers["retry-after"]) >= 1
        assert (
            "no credit is left for 'echo', and its queue is full: 0 " in json.loads(body)["error"]
        )
        assert ask(address, "GET", "/v2/health/ready")[0] == 200
        served.answer()
        assert [each.result()[0] for each in first] == [200, 200]


def test_a_client_that_disconnects_leaves_the_queue() -> None:
    served = Stuck()
    request = fed([1, 2], [1, 2])
    quick = {**request, "parameters": {"timeout": 50_000}}
    with (
        serving(served, ServeLimits(queue=1)) as address,
        ThreadPoolExecutor(2) as pool,
    ):
        first = [pool.submit(infer, address, request) for _ in range(2)]
        served.until(2)
        body = json.dumps(request).encode()
        with connect(address) as gone:
            head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            gone.sendall(head.encode() + body)
            until(lambda: infer(address, quick)[0] == 429, "a full queue")
        # The quick request finds the place of the client that has gone, and waits there.
        until(lambda: infer(address, quick)[0] == 504, "a place in the queue")
        served.answer()
        assert [each.result()[0] for each in first] == [200, 200]
        assert served.submitted == 2  # nothing was computed for the client that has gone


@pytest.mark.parametrize("timeout", [-1, 1.5, "1", True, 10**30])
def test_a_timeout_is_a_number_of_microseconds(timeout: object) -> None:
    with serving(Echo()) as address:
        request = fed([1, 2], [1, 2]) | {"parameters": {"timeout": timeout}}
        status, answer = infer(address, request)
        assert status == 400 and "'timeout' of the parameters of the request" in answer["error"]


def test_a_session_has_as_many_credits_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    served = SessionServed(coexec.InferenceSession(identity()), "m", credits=3)
    run = coexec.InferenceSession.run

    def slow(*arguments: object) -> object:
        assert goes_on.wait(ENOUGH_S)
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(coexec.InferenceSession, "run", slow)
    feeds = {"x": np.ones(2, np.float32)}
    futures = [served.submit(feeds) for _ in range(3)]
    with pytest.raises(BusyError, match="no credit is left: 3 requests are under way; try again"):
        served.submit(feeds)
    goes_on.set()
    for future in futures:
        np.testing.assert_array_equal(future.result()["y"], feeds["x"])
    # An answer is there after its credit was given back: now as often as one likes.
    for _ in range(20):
        assert served.submit(feeds).result()["y"].shape == (2,)
    for _ in range(4):  # also after requests that fail
        with pytest.raises(InputError):
            served.submit({}).result()
    served.close()
    assert not served.ready
    with pytest.raises(ClosedError):
        served.submit(feeds)


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "\0"])
def test_a_name_that_no_url_can_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a part of a URL"):
        SessionServed(coexec.InferenceSession(identity()), name)


def test_types_that_the_protocol_does_not_have_are_told() -> None:
    with pytest.raises(ModelError, match=r"input 'x' is a tensor.bfloat16.*no type for"):
        SessionServed(coexec.InferenceSession(identity(TensorProto.BFLOAT16)), "m")


def test_outputs_that_the_protocol_has_no_types_for_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("SequenceConstruct", ["x", "y"], ["s"]),
    ]
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["n"])
    x, y = (tensor_info(name, ["n"]) for name in "xy")
    model = from_nodes(nodes, [x], [sequence, y]).SerializeToString()
    served = SessionServed(coexec.InferenceSession(model), "m")
    assert "not served: 's' seq(tensor(float))" in caplog.text
    assert [tensor.name for tensor in served.outputs] == ["y"]
    assert list(served.submit({"x": np.ones(2, np.float32)}).result()) == ["y"]
    served.close()
    only = from_nodes(nodes, [x], [sequence]).SerializeToString()
    with pytest.raises(ModelError, match="no type for any output: 's' seq"):
        SessionServed(coexec.InferenceSession(only), "m")


class Broken(Echo):
    """Fails in one way or another."""

    def __init__(self, error: Exception, at_once: bool = False) -> None:
        super().__init__()
        self.error = error
        self.at_once = at_once

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        if self.at_once:
            raise self.error
        found: Future[Mapping[str, Array]] = Future()
        found.set_exception(self.error)
        return found


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InputError("not so"), 400, "not so"),
        (ClosedError("the session is\nclosed"), 503, "the session is closed"),
        (coexec.CoexecError("broken"), 500, "broken"),
        (RuntimeError("oops\nand more"), 500, "the model 'echo' failed: oops"),
    ],
)
def test_errors_of_what_is_served_are_told(
    error: Exception, status: int, said: str, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Broken(error, at_once)) as address:
        assert infer(address, fed([1, 2], [1, 2])) == (status, {"error": said})
    assert caplog.records == []


def test_what_is_not_ready_says_so() -> None:
    served = Echo()
    served.ready = False
    with serving(served) as address:
        for path in ("/v2/health/ready", "/v2/models/echo/ready"):
            status, _, body = ask(address, "GET", path)
            assert status == 503 and json.loads(body)["ready"] is False
        assert ask(address, "GET", "/v2/health/live")[0] == 200
        status, answer = infer(address, fed([1, 2], [1, 2]))
        assert status == 503 and "not ready" in answer["error"]


def test_held_bytes_are_counted_and_given_back() -> None:
    budget = MemoryBudget(100)
    with budget.request() as first:
        first(500)  # it is alone
        with budget.request() as second, pytest.raises(BusyError, match="hold 500 B of 100 B"):
            second(1)
    with budget.request() as first, budget.request() as second:
        first(60)
        second(40)
        with pytest.raises(BusyError):
            second(1)
        assert budget.now_bytes == 100
    assert budget.now_bytes == 0


def test_requests_together_hold_no_more_than_they_may() -> None:
    served = Stuck(tensor_of("x", "FP32", (-1,)))
    limits = ServeLimits(body_bytes=MIB, held_bytes=5 * MIB // 4)
    request = fed(np.zeros(150_000, np.float32), [150_000])  # 0.75 MB of JSON
    with serving(served, limits) as address, ThreadPoolExecutor(1) as pool:
        first = pool.submit(infer, address, request)
        served.until(1)
        status, headers, body = ask(address, "POST", PATH, json.dumps(request))
        assert status == 429 and "retry-after" in headers
        assert "the requests under way hold " in json.loads(body)["error"]
        served.answer()
        assert first.result()[0] == 200
        # Whatever became of a request, it holds nothing afterwards.
        for number in range(12):
            bad = {**request, "outputs": [{"name": "z"}]} if number % 2 else {"inputs": []}
            assert infer(address, {**request, **bad})[0] == 400
        again = pool.submit(infer, address, request)
        served.until(1)
        served.answer()
        assert again.result()[0] == 200


def connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), timeout=ENOUGH_S)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with serving(Echo(), ServeLimits(transfer_s=1.0)) as address, connect(address) as slow:
        head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        slow.sendall(head.encode() + b'{"inputs":')
        answer = HTTPResponse(slow)
        answer.begin()
        assert answer.status == 408 and b"did not come within 1 s" in answer.read()
        answer.close()
        assert infer(address, fed([1, 2], [1, 2]))[0] == 200


@pytest.mark.long
def test_an_answer_that_is_not_taken_is_given_up() -> None:
    """Its memory is free again, though its client has not read it."""
    served = Echo(tensor_of("x", "INT8", (-1,)))
    size = 32 * MIB
    limits = ServeLimits(body_bytes=2 * size, held_bytes=2 * size + MIB, transfer_s=4)
    tensor = {
        "name": "x",
        "shape": [size],
        "datatype": "INT8",
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text) + size}\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\n\r\n"
    ).encode()
    small = {**tensor, "shape": [MIB], "data": [0] * MIB, "parameters": {}}
    with serving(served, limits) as address, connect(address) as slow:
        slow.sendall(head + text + bytes(size))
        assert slow.recv(12) == b"HTTP/1.1 200"
        statuses: list[int] = []

        def is_taken() -> bool:
            statuses.append(infer(address, {"inputs": [small]})[0])
            return statuses[-1] == 200

        until(is_taken, "the memory of the answer that is not taken")
        assert set(statuses) == {429, 200}  # held at first, then given up
