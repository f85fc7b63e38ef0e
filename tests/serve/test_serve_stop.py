"""The end of a server: its last answers, its refusals, and its time limit."""

import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from coexec.serve.app import Application
from coexec.serve.models import Models
from coexec.serve.server import Server
from tests.helpers.patience import ENOUGH_S, until
from tests.helpers.servers import Stuck, ask, fed, infer, running

GOOD = fed([1, 2], [1, 2])


def waiting(address: str) -> bool:
    """Whether three requests wait in the queue."""
    return b'coexec_queue_length{model="echo"} 3.0' in ask(address, "GET", "/metrics")[2]


def ready(address: str) -> int:
    return ask(address, "GET", "/v2/health/ready")[0]


def test_requests_that_wait_are_answered_before_the_end() -> None:
    served = Stuck()  # has two credits
    server = Server(Application(Models([served])))
    with running(server) as address, ThreadPoolExecutor(5) as pool:
        asked: list[Future[tuple[int, Any]]] = []
        asked += [pool.submit(infer, address, GOOD) for _ in range(5)]
        until(lambda: waiting(address))
        assert ready(address) == 200
        server.stop()
        status, headers, body = ask(address, "POST", "/v2/models/echo/infer", json.dumps(GOOD))
        assert (status, headers["connection"]) == (503, "close")
        assert "the server ends, and takes no new requests" in json.loads(body)["error"]
        assert ready(address) == 503
        assert not server.should_exit
        until(lambda: served.answer() or all(each.done() for each in asked))
        assert [each.result()[0] for each in asked] == [200] * 5
        until(lambda: server.should_exit)


def test_after_the_time_limit_requests_are_refused() -> None:
    served = Stuck()
    server = Server(Application(Models([served])), stop_s=0.2)
    with running(server) as address, ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(infer, address, GOOD) for _ in range(5)]
        until(lambda: waiting(address))
        server.stop()
        found = [each.result(ENOUGH_S) for each in asked]
        assert {status for status, _ in found} == {503}
        assert {answer["error"] for _, answer in found} == {
            "the server ends before this request could be answered; send it to another"
        }


def test_a_second_signal_does_not_wait_for_load_balancers() -> None:
    served = Stuck()
    server = Server(Application(Models([served])))
    with running(server) as address, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(infer, address, GOOD)
        served.until(1)
        server.stop()
        assert not server.should_exit
        server.stop()
        assert server.should_exit
        served.answer()
        assert asked.result()[0] == 200


class Slow:
    """A source whose model is open when the test says so."""

    def __init__(self) -> None:
        self.may_open = threading.Event()
        self.closed = threading.Event()
        self.opening = threading.Event()

    def names(self) -> tuple[str, ...]:
        return ("echo",)

    def open(self, name: str) -> "SlowModel":
        self.opening.set()
        assert self.may_open.wait(ENOUGH_S)
        return SlowModel(self.closed)


class SlowModel(Stuck):
    def __init__(self, closed: threading.Event) -> None:
        super().__init__()
        self.close = closed.set


def test_a_load_does_not_delay_the_end_and_its_model_is_closed() -> None:
    source = Slow()
    server = Server(Application(Models(source=source)), stop_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        with running(server) as address:
            path = "/v2/repository/models/echo/load"
            asked = pool.submit(ask, address, "POST", path)
            assert source.opening.wait(ENOUGH_S)
            server.stop()
            status, _, body = asked.result(ENOUGH_S)
            assert status == 503 and b"the server ends before" in body
        assert not source.may_open.is_set()  # the server has ended before the model was open
        source.may_open.set()
        assert source.closed.wait(ENOUGH_S)
