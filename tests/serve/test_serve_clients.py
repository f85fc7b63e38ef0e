"""Answers that somebody else's client, tritonclient, gets from a server; against ONNX Runtime's."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as triton
from onnx import helper
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import coexec
from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.serve.session import SessionServed
from tests.helpers.servers import Stuck, serving
from tests.helpers.small_models import branches, from_nodes, tensor_info

Array = np.ndarray[Any, Any]
KINDS = {
    "half": onnx.TensorProto.FLOAT16,
    "ids": onnx.TensorProto.INT64,
    "texts": onnx.TensorProto.STRING,
    "flags": onnx.TensorProto.BOOL,
}


@dataclass(frozen=True)
class Running:
    """A server with a model, and ONNX Runtime with the same."""

    address: str
    name: str
    reference: onnxruntime.InferenceSession

    def client(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.address)


def running(model: onnx.ModelProto, name: str, cache: Cache) -> Iterator[Running]:
    proto = model.SerializeToString()
    session = coexec.InferenceSession(
        proto, devices=[f"cpu:{usable_cores()[0]}"], planner="single", cache=cache
    )
    served = SessionServed(session, name, credits=16)
    with serving(served) as address:
        yield Running(address, name, onnxruntime.InferenceSession(proto))
    served.close()


def mixed_model() -> onnx.ModelProto:
    """An element-wise operator for each of several types, on vectors of any length."""
    nodes = [
        helper.make_node("Add", ["half", "half"], ["half2"]),
        helper.make_node("Mul", ["ids", "ids"], ["ids2"]),
        helper.make_node("Identity", ["texts"], ["texts2"]),
        helper.make_node("Not", ["flags"], ["flags2"]),
    ]
    inputs = [tensor_info(name, ["n"], kind) for name, kind in KINDS.items()]
    outputs = [tensor_info(f"{name}2", ["n"], kind) for name, kind in KINDS.items()]
    return from_nodes(nodes, inputs, outputs)


def mixed_feeds(count: int) -> dict[str, Array]:
    rng = np.random.default_rng(count)
    texts = ["", "grün", "日本\0", "x" * 300]
    return {
        "half": rng.standard_normal(count).astype(np.float16),
        "ids": rng.integers(-(2**31), 2**31, count),
        "texts": np.array([texts[i % 4] for i in range(count)], object),
        "flags": rng.random(count) > 0.5,
    }


@pytest.fixture(scope="module")
def mixed(cache: Cache) -> Iterator[Running]:
    yield from running(mixed_model(), "mixed", cache)


@pytest.fixture(scope="module")
def network(cache: Cache) -> Iterator[Running]:
    yield from running(branches(), "a network", cache)


def asked(feeds: Mapping[str, Array], binary: bool = True) -> list[triton.InferInput]:
    return [
        triton.InferInput(n, list(a.shape), np_to_triton_dtype(a.dtype)).set_data_from_numpy(
            a, binary_data=binary
        )
        for n, a in feeds.items()
    ]


def image(seed: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, 20, 20), dtype=np.float32)}


def decoded(array: Array) -> Array:
    """tritonclient gives texts as bytes where they came as binary data."""
    if array.dtype != object:
        return array
    return np.array([t.decode() if isinstance(t, bytes) else t for t in array], object)


def test_what_server_and_model_say_of_themselves(mixed: Running) -> None:
    client = mixed.client()
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("mixed") and client.is_model_ready("mixed", "1")
    assert not client.is_model_ready("other") and not client.is_model_ready("mixed", "2")
    assert client.get_server_metadata() == {
        "name": "coexec",
        "version": coexec.__version__,
        "extensions": ["binary_tensor_data", "model_configuration", "statistics"],
    }
    found = client.get_model_metadata("mixed")
    datatypes = {"half": "FP16", "ids": "INT64", "texts": "BYTES", "flags": "BOOL"}
    assert found["versions"] == ["1"] and found["platform"] == "onnx_onnxv1"
    assert found["inputs"] == [
        {"name": name, "datatype": datatypes[name], "shape": [-1]} for name in KINDS
    ]
    assert [each["name"] for each in found["outputs"]] == [f"{name}2" for name in KINDS]


@pytest.mark.parametrize("answered", ["binary", "json"])
@pytest.mark.parametrize("sent", ["binary", "json"])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_types_and_any_length(mixed: Running, count: int, sent: str, answered: str) -> None:
    feeds = mixed_feeds(count)
    names = [f"{name}2" for name in KINDS]
    wanted = [triton.InferRequestedOutput(n, binary_data=answered == "binary") for n in names]
    found = mixed.client().infer("mixed", asked(feeds, sent == "binary"), outputs=wanted)
    for name, expected in zip(names, mixed.reference.run(names, feeds), strict=True):
        result = decoded(found.as_numpy(name))
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("encoding", [None, "gzip", "deflate"])
def test_a_network_answers_as_onnx_runtime(network: Running, encoding: str | None) -> None:
    found = network.client().infer(
        network.name,
        asked(image(0)),
        request_id="seven",
        request_compression_algorithm=encoding,
        response_compression_algorithm=encoding,
    )
    response = found.get_response()
    assert response["id"] == "seven"
    assert (response["model_name"], response["model_version"]) == ("a network", "1")
    for name, expected in zip(("y", "joined"), network.reference.run(None, image(0)), strict=True):
        np.testing.assert_allclose(found.as_numpy(name), expected, rtol=1e-4, atol=1e-5)


def test_only_requested_outputs_come(network: Running) -> None:
    wanted = [triton.InferRequestedOutput("joined"), triton.InferRequestedOutput("y", False)]
    found = network.client().infer(network.name, asked(image(1)), "1", outputs=wanted)
    assert [each["name"] for each in found.get_response()["outputs"]] == ["joined", "y"]
    assert "data" in found.get_output("y") and "data" not in found.get_output("joined")
    [expected] = network.reference.run(["y"], image(1))
    np.testing.assert_allclose(found.as_numpy("y"), expected, rtol=1e-4, atol=1e-5)


def test_several_clients_at_once_get_their_own_answers(network: Running) -> None:
    def client(seed: int) -> None:
        mine = network.client()
        [expected] = network.reference.run(["y"], image(seed))
        for _ in range(10):
            found = mine.infer(network.name, asked(image(seed))).as_numpy("y")
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(client, range(8))) == [None] * 8


def test_wrong_feeds_are_told(network: Running) -> None:
    with pytest.raises(InferenceServerException) as caught:
        network.client().infer(network.name, asked({"x": np.zeros((1, 3, 20, 21), np.float32)}))
    assert caught.value.status() == "400"
    assert "has shape [1, 3, 20, 21], the model is served for " in caught.value.message()


def test_a_client_may_say_how_long_its_request_waits() -> None:
    served = Stuck()
    feeds = {"x": np.ones((1, 2), np.float32)}

    def request(timeout_us: int | None = None) -> Array:
        client = triton.InferenceServerClient(address)
        return client.infer("echo", asked(feeds), timeout=timeout_us).as_numpy("x")

    with serving(served) as address, ThreadPoolExecutor(2) as pool:
        first = [pool.submit(request) for _ in range(2)]
        served.until(2)
        with pytest.raises(InferenceServerException, match=r"became free in 0\.02 s") as caught:
            request(timeout_us=20_000)
        assert caught.value.status() == "504"
        served.answer()
        for each in first:
            np.testing.assert_array_equal(each.result(), feeds["x"])
        assert served.submitted == 2  # the expired request was not computed
