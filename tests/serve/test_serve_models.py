"""Several models in a server: their names, loading and unloading, as tritonclient sees them."""

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.http as triton
from onnx import helper
from tritonclient.utils import InferenceServerException

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.errors import ExecutionError, ModelError, UsageError
from coexec.exports import MANIFEST
from coexec.serve.models import Models
from coexec.serve.session import SessionSource, Workers
from coexec.session import InferenceSession
from tests.helpers.patience import ENOUGH_S, until
from tests.helpers.servers import Echo, Stuck, ask, fed, infer, serving
from tests.helpers.small_models import from_nodes, tensor_info


class Closable(Stuck):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class Shelf:
    """A source of models; those named "broken" and "faulty" cannot be opened."""

    def __init__(self) -> None:
        self.opened: list[Closable] = []

    def names(self) -> tuple[str, ...]:
        return "a", "b", "broken", "faulty"

    def open(self, name: str) -> Closable:
        if name == "broken":
            raise ModelError("it is no model; take another")
        if name == "faulty":
            raise ZeroDivisionError("division by zero")
        self.opened.append(Closable(name))
        return self.opened[-1]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def server(shelf: Shelf) -> Iterator[str]:
    models = Models(source=shelf)
    models.open(["a"])
    with serving(models) as address:
        yield address


def states(client: triton.InferenceServerClient) -> dict[str, str]:
    return {row["name"]: row["state"] for row in client.get_model_repository_index()}


def ready_rows(server: str) -> list[dict[str, str]]:
    return json.loads(ask(server, "POST", "/v2/repository/index", b'{"ready": true}')[2])


def test_models_are_loaded_and_unloaded_by_name(server: str, shelf: Shelf) -> None:
    client = triton.InferenceServerClient(server)
    assert "model_repository" in client.get_server_metadata()["extensions"]
    assert states(client) == {
        "a": "READY",
        "b": "UNAVAILABLE",
        "broken": "UNAVAILABLE",
        "faulty": "UNAVAILABLE",
    }
    assert [row["name"] for row in ready_rows(server)] == ["a"]
    assert infer(server, fed([1, 2], [1, 2]), name="b") == (
        503,
        {
            "error": "the model 'b' is unavailable: not loaded; POST "
            "/v2/repository/models/NAME/load loads it"
        },
    )
    client.load_model("b")
    assert client.is_model_ready("b") and states(client)["b"] == "READY"
    client.unload_model("a")
    assert not client.is_model_ready("a") and states(client)["a"] == "UNAVAILABLE"
    assert shelf.opened[0].closed.is_set() and not shelf.opened[1].closed.is_set()
    client.load_model("a")
    assert client.is_model_ready("a") and len(shelf.opened) == 3


@pytest.mark.parametrize("name", ["c", "..", "%2e%2e%2fa", "%2fetc%2fpasswd", "zoo:squeezenet"])
def test_only_models_of_the_server_are_loaded(server: str, name: str, shelf: Shelf) -> None:
    status, _, body = ask(server, "POST", f"/v2/repository/models/{name}/load")
    assert status in (400, 404) and b"error" in body
    assert len(shelf.opened) == 1


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [("broken", "400", "it is no model; take another"), ("faulty", "500", "division by zero")],
)
def test_a_model_that_cannot_be_opened_says_why(
    server: str, name: str, status: str, reason: str
) -> None:
    client = triton.InferenceServerClient(server)
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(name)
    assert caught.value.status() == status
    assert f"{name!r} cannot be loaded: {reason}" in caught.value.message()
    [row] = [r for r in client.get_model_repository_index() if r["name"] == name]
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", reason)


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "null", "http://["])
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_web_pages_of_others_change_nothing(
    server: str, shelf: Shelf, verb: str, origin: str
) -> None:
    path = f"/v2/repository/models/a/{verb}"
    status, _, body = ask(server, "POST", path, headers={"Origin": origin})
    assert status == 403 and b"may not load or unload models" in body
    assert len(shelf.opened) == 1 and not shelf.opened[0].closed.is_set()
    assert ask(server, "POST", path, headers={"Origin": f"http://{server}"})[0] == 200


def test_a_client_cannot_bring_a_model(server: str) -> None:
    client = triton.InferenceServerClient(server)
    with pytest.raises(InferenceServerException, match="the server's own disk"):
        client.load_model("b", config="{}", files={"file:1/model.onnx": b"x"})


def test_requests_under_way_are_answered_before_a_model_is_closed(
    server: str, shelf: Shelf
) -> None:
    [model] = shelf.opened
    path = "/v2/repository/models/a/unload"
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(infer, server, fed([i, 0], [1, 2]), name="a") for i in range(3)]
        model.until(2)
        until(lambda: b'coexec_queue_length{model="a"} 1.0' in ask(server, "GET", "/metrics")[2])
        client = triton.InferenceServerClient(server)
        unloading = pool.submit(ask, server, "POST", path)
        until(lambda: states(client)["a"] == "UNLOADING")
        assert infer(server, fed([1, 2], [1, 2]), name="a")[0] == 503
        assert not model.closed.is_set()
        until(lambda: model.answer() or all(each.done() for each in asked))
        assert [each.result()[0] for each in asked] == [200, 200, 200]
        assert unloading.result()[0] == 200 and model.closed.is_set()


def test_the_old_model_answers_until_the_new_one_is_loaded(server: str, shelf: Shelf) -> None:
    triton.InferenceServerClient(server).load_model("a")
    old, new = shelf.opened
    assert old.closed.is_set() and not new.closed.is_set()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(infer, server, fed([1, 2], [1, 2]), name="a")
        new.until(1)
        new.answer()
        assert asked.result()[0] == 200


def test_a_server_of_given_models_loads_nothing() -> None:
    with serving(Echo()) as address:
        assert "model_repository" not in ask(address, "GET", "/v2")[2].decode()
        for verb in "load", "unload":
            status, _, body = ask(address, "POST", f"/v2/repository/models/echo/{verb}")
            assert status == 400 and b"loads and unloads no models" in body
        assert infer(address, fed([1, 2], [1, 2]))[0] == 200


def added(folder: Path, name: str, number: float) -> None:
    """A model that adds a number, as the file ``name``.onnx."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value_float=float(number)),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    model = from_nodes(nodes, [tensor_info("x", ["n"])], [tensor_info("y", ["n"])])
    onnx.save(model, str(folder / f"{name}.onnx"))


def test_sessions_of_a_folder_share_workers(tmp_path: Path, cache: Cache) -> None:
    added(tmp_path, "one", 1)
    workers = Workers(1)
    keywords: dict[str, Any] = {
        "devices": [f"cpu:{usable_cores()[0]}"],
        "planner": "single",
        "cache": cache,
    }
    source = SessionSource({}, workers, keywords, tmp_path)
    models = Models(source=source)
    models.open(["one"])
    with serving(models) as address:
        added(tmp_path, "two", 2)  # it comes later
        (tmp_path / "damaged.onnx").write_bytes(b"damaged")
        client = triton.InferenceServerClient(address)
        assert states(client) == {"one": "READY", "damaged": "UNAVAILABLE", "two": "UNAVAILABLE"}
        client.load_model("two")
        with pytest.raises(InferenceServerException, match="'damaged' cannot be loaded"):
            client.load_model("damaged")

        def answers(name: str) -> list[float]:
            tensor = triton.InferInput("x", [2], "FP32")
            tensor.set_data_from_numpy(np.zeros(2, np.float32))
            mine = triton.InferenceServerClient(address)
            return [float(mine.infer(name, [tensor]).as_numpy("y")[0]) for _ in range(20)]

        with ThreadPoolExecutor(4) as pool:
            asked = {pool.submit(answers, n): n for n in ("one", "two", "one", "two")}
        for future, name in asked.items():
            assert future.result(ENOUGH_S) == [{"one": 1.0, "two": 2.0}[name]] * 20
    models.close()
    workers.close()


def test_a_future_of_a_closed_model_is_finished_first(tmp_path: Path, cache: Cache) -> None:
    added(tmp_path, "one", 1)
    workers = Workers(1)
    model = SessionSource({}, workers, {"cache": cache, "planner": "single"}, tmp_path).open("one")
    future: Future[Any] = model.submit({"x": np.zeros(3, np.float32)})
    model.close()
    np.testing.assert_array_equal(future.result(0)["y"], np.ones(3))
    assert workers.begin(lambda: 7).result(ENOUGH_S) == 7  # shared workers stay
    workers.close()


def folder_of(tmp_path: Path, keywords: dict[str, Any], named: dict[str, str]) -> SessionSource:
    return SessionSource(named, Workers(1), keywords, tmp_path)


def test_a_plan_is_not_for_the_models_of_the_folder(tmp_path: Path, cache: Cache) -> None:
    added(tmp_path, "one", 1)
    added(tmp_path, "two", 2)
    keywords = {"plan": str(tmp_path / "none.json"), "planner": "single", "cache": cache}
    source = folder_of(tmp_path, keywords, {"one": str(tmp_path / "one.onnx")})
    source.open("two").close()
    with pytest.raises(Exception, match=r"none\.json"):
        source.open("one")


def test_names_that_paths_cannot_have_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    added(tmp_path, "one", 1)
    (tmp_path / os.fsdecode(b"\xff.onnx")).write_bytes(b"")
    models = Models(source=folder_of(tmp_path, {}, {}))
    with serving(models) as address:
        assert ask(address, "GET", "/metrics")[0] == 200
        status, _, body = ask(address, "POST", "/v2/repository/index")
    assert status == 200 and [row["name"] for row in json.loads(body)] == ["one"]
    assert [r.message for r in caplog.records if "is not printable UTF-8" in r.message][1:] == []


def test_a_folder_that_cannot_be_read_has_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    source = folder_of(tmp_path, {}, {"one": "one.onnx"})
    monkeypatch.setattr(Path, "iterdir", refused)
    assert source.names() == ("one",)


def test_a_folder_and_a_file_of_one_name_are_refused(tmp_path: Path) -> None:
    added(tmp_path, "one", 1)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / MANIFEST).write_text("{}")
    with pytest.raises(
        UsageError, match=r"has 'one' and 'one\.onnx', which have the same name 'one'"
    ):
        folder_of(tmp_path, {}, {}).open("one")


def test_sizes_that_the_model_does_not_take_are_the_clients_error(
    tmp_path: Path, cache: Cache
) -> None:
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
    model = from_nodes(nodes, [tensor_info("x", ["a", "b"])], [tensor_info("y", ["a", "b"])])
    onnx.save(model, str(tmp_path / "square.onnx"))
    models = Models(source=folder_of(tmp_path, {"planner": "single", "cache": cache}, {}))
    models.open(["square"])
    with serving(models) as address:
        assert infer(address, fed([1, 2, 3, 4], [2, 2]), name="square")[0] == 200
        status, answer = infer(address, fed([1, 2, 3, 4, 5, 6], [2, 3]), name="square")
    models.close()
    assert status == 400
    assert "does not take these sizes: input 'x' has [2, 3]; send other sizes" in answer["error"]


def test_a_failure_of_the_engine_is_no_error_of_the_client(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(tmp_path, "one", 1)
    models = Models(source=folder_of(tmp_path, {"planner": "single", "cache": cache}, {}))
    models.open(["one"])

    def run(*_: Any) -> None:
        raise ExecutionError("running Add node. Name:'shape' Status Message: no memory is left")

    monkeypatch.setattr(InferenceSession, "run", run)
    with serving(models) as address:
        assert infer(address, fed([1, 2], [2]), name="one")[0] == 500
    models.close()
