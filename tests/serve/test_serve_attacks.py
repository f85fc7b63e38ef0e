"""Requests that are malformed on purpose: each gets one sentence, and the server goes on."""

import gzip
import json
import logging
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from coexec.serve.intake import ServeLimits
from coexec.serve.protocol import JSON_BYTES
from coexec.serve.tensors import MOST_TEXTS
from tests.helpers.patience import ENOUGH_S
from tests.helpers.servers import Echo, ask, fed, infer, serving, tensor_of

LIMITS = ServeLimits(body_bytes=40 * 2**20)
GOOD = fed([1, 2], [1, 2])
LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    served = Echo(tensor_of("x", "FP32", (-1, 2)))
    with serving(served, LIMITS) as address:
        yield address


@pytest.fixture(autouse=True)
def _goes_on(server: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After each attack the server answers as before, and has logged nothing."""
    with caplog.at_level(logging.INFO):
        yield
    assert infer(server, GOOD)[0] == 200
    assert caplog.records == []


def refused(answer: tuple[int, Any], status: int, said: str) -> None:
    assert answer[0] == status, answer
    assert list(answer[1]) == ["error"]
    sentence = answer[1]["error"]
    assert said in sentence
    assert "\n" not in sentence and "Traceback" not in sentence and len(sentence) < 400


def changed(**fields: Any) -> dict[str, Any]:
    """The good request with other fields of its input; None takes one away."""
    tensor = {**GOOD["inputs"][0], **fields}
    return {"inputs": [{name: value for name, value in tensor.items() if value is not None}]}


NOT_REQUESTS: list[tuple[bytes, str]] = [
    (b"", "the request is no JSON"),
    (b"\x00\xff" * 100, "the request is no JSON: byte 1 is not UTF-8"),
    (json.dumps(GOOD).encode("utf-16"), "is not UTF-8"),
    (b"{", "the request is no JSON"),
    (b"[]", "the request is no JSON object"),
    (b"null", "the request is no JSON object"),
    (b"{}", "input 'x' is missing"),
    (b'{"inputs": []}', "input 'x' is missing"),
    (b'{"inputs": {}}', "'inputs' of the request is {}; give an array"),
    (b'{"inputs": [1]}', "'inputs' of the request holds 1; give objects"),
    (b'{"inputs": [{}]}', "an object in 'inputs' has no 'name'"),
    (b'{"inputs": [{"name": 1}]}', "'name' of an object in 'inputs' is 1; give a string"),
    (b'{"inputs": [], "inputs": []}', "has a key twice"),
    (b'{"id": 7, "inputs": []}', "input 'x' is missing"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"a":' * 100_000, "nested too deeply"),
    (b'{"inputs": [' + b"9" * 10_000 + b"]}", "the request is no JSON: Exceeds the limit"),
    (b'{"inputs": NaN}', "JSON has no NaN; send the tensor as binary data"),
]


@pytest.mark.parametrize(("body", "said"), NOT_REQUESTS)
def test_what_is_no_request_is_refused(server: str, body: bytes, said: str) -> None:
    refused(infer(server, body), 400, said)


BAD_INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"name": "y"}, "the model has no input 'y'; it has 'x' FP32 [-1, 2]"),
    ({"name": "y" * 10**6}, "the model has no input 'yyyy"),
    ({"name": "\ud800"}, "the model has no input '\\ud800'"),
    ({"datatype": None}, "input 'x' has no 'datatype'"),
    ({"datatype": "FP16"}, "has datatype 'FP16', the model takes FP32"),
    ({"datatype": "float32"}, "has datatype 'float32'"),
    ({"datatype": ["FP32"]}, "'datatype' of input 'x' is ['FP32']; give a string"),
    ({"shape": None}, "input 'x' has no 'shape'"),
    ({"shape": 2}, "'shape' of input 'x' is 2; give an array"),
    ({"shape": [1, 2.0]}, "has 2.0 in its shape; give integers from 0"),
    ({"shape": [True, 2]}, "has True in its shape"),
    ({"shape": ["1", 2]}, "has '1' in its shape"),
    ({"shape": [-1, 2]}, "has -1 in its shape"),
    ({"shape": [-(10**30), 2]}, "in its shape"),
    ({"shape": [2]}, "has shape [2], the model is served for [-1, 2]"),
    ({"shape": [1, 3]}, "has shape [1, 3], the model is served for [-1, 2]"),
    ({"shape": [1] * 10_000}, "the model is served for [-1, 2]"),
    ({"shape": [10**30, 2]}, "which takes more than the 41943040 bytes"),
    ({"shape": [2**62, 2]}, "which takes more than the 41943040 bytes"),
    ({"shape": [2**31, 2]}, "which takes more than the 41943040 bytes"),
    ({"shape": [2, 2]}, "shape [2, 2] has 4 elements, and its data has 2"),
    ({"data": None}, "needs either 'data' or the parameter 'binary_data_size', and has none"),
    ({"data": "AAAA"}, "its data is a string; give an array"),
    ({"data": {}}, "its data is an object; give an array"),
    ({"data": [1, "2"]}, "is FP32, and its data holds a string"),
    ({"data": [True, None]}, "its data holds null, true or false"),
    ({"data": [[1, 2], [3]]}, "nested in another way than shape [1, 2] says for axis 0"),
    ({"data": [[1], [2]]}, "nested in another way"),
    ({"data": [[1, [2]]]}, "its data holds an array"),
    ({"data": [[[1, 2]]]}, "nested in another way than shape [1, 2] says for axis 1"),
    ({"data": [[1, 2], 3]}, "nested in another way"),
    ({"data": [1, 1e39]}, "beyond the range of FP32"),
    ({"data": [1, 10**400]}, "beyond the range of FP32"),
    ({"parameters": []}, "'parameters' of input 'x' is []; give an object"),
    ({"parameters": {"binary_data_size": 8}}, "and has both"),
    ({"parameters": {"shared_memory_region": "a"}}, "has the parameter 'shared_memory_region'"),
]


@pytest.mark.parametrize(("fields", "said"), BAD_INPUTS)
def test_a_bad_input_is_refused(server: str, fields: dict[str, Any], said: str) -> None:
    refused(infer(server, changed(**fields)), 400, said)


def test_an_infinite_number_is_refused(server: str) -> None:
    body = json.dumps(GOOD).replace("1.0", "1e999").encode()
    refused(infer(server, body), 400, "beyond the range of FP32")


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"id": 7}, "'id' of the request is 7; give a string"),
    ({"parameters": 1}, "'parameters' of the request is 1"),
    ({"parameters": {"binary_data_output": 1}}, "is 1; give true or false"),
    ({"inputs": GOOD["inputs"] * 2}, "'x' is twice in 'inputs'; give it once"),
    ({"outputs": [{"name": "x"}] * 2}, "'x' is twice in 'outputs'; give it once"),
    ({"outputs": [{"name": "y"}]}, "the model has no output 'y'; it has 'x'"),
    ({"outputs": {"name": "x"}}, "give an array"),
    ({"outputs": [{"name": "x", "parameters": {"binary_data": "yes"}}]}, "give true or false"),
    ({"outputs": [{"name": "x", "parameters": {"classification": 1}}]}, "'classification'"),
]


@pytest.mark.parametrize(("fields", "said"), BAD_REQUESTS)
def test_a_bad_request_is_refused(server: str, fields: dict[str, Any], said: str) -> None:
    refused(infer(server, {**GOOD, **fields}), 400, said)


@pytest.mark.parametrize(
    ("size", "data", "said"),
    [
        (8, b"", "has 8 bytes of binary data, and 0 are left for it in the body"),
        (8, b"\0" * 7, "has 8 bytes of binary data, and 7 are left"),
        (7, b"\0" * 7, "FP32 of shape [1, 2] takes 8 bytes, and its binary data has 7"),
        (8, b"\0" * 9, "the inputs have 8 bytes of binary data, and 9 follow the JSON"),
        (0, b"", "takes 8 bytes, and its binary data has 0"),
        (-8, b"\0" * 8, "has -8 bytes of binary data"),
        (2**63, b"\0" * 8, "has 9223372036854775808 bytes of binary data"),
        (10**100, b"\0" * 8, "bytes of binary data"),
        (8.0, b"\0" * 8, "is 8.0; give an integer"),
        (True, b"\0", "is True; give an integer"),
        ("8", b"\0" * 8, "is '8'; give an integer"),
    ],
)
def test_bad_binary_data_is_refused(server: str, size: Any, data: bytes, said: str) -> None:
    text = json.dumps(changed(data=None, parameters={"binary_data_size": size})).encode()
    refused(infer(server, text + data, headers={LENGTH: str(len(text))}), 400, said)


@pytest.mark.parametrize(
    "length", ["-1", "+5", "1e3", "0x10", "", "nine", "²", "9" * 30, "9" * 5000]
)
def test_a_bad_length_of_the_json_is_refused(server: str, length: str) -> None:
    headers = {LENGTH: length.encode("latin-1").decode("latin-1")}
    refused(infer(server, GOOD, headers=headers), 400, "Inference-Header-Content-Length is ")


@pytest.mark.parametrize(("length", "said"), [("100000", "and the body has "), ("5", "is no JSON")])
def test_a_wrong_length_of_the_json_is_refused(server: str, length: str, said: str) -> None:
    refused(infer(server, GOOD, headers={LENGTH: length}), 400, said)


@pytest.mark.parametrize(
    ("shape", "data", "said"),
    [
        ([1], b"\4\0\0\0abc", "ends within element 0 of 1"),
        ([1], b"\4\0", "ends within element 0 of 1"),
        ([1], b"\xff\xff\xff\xffabc", "ends within element 0 of 1"),
        ([2], b"\1\0\0\0a", "ends within element 1 of 2"),
        ([1], b"\1\0\0\0ab", "its 1 elements take 5 bytes, and its binary data has 6"),
        ([1], b"\2\0\0\0\xff\xfe", "element 0 is not UTF-8"),
        ([MOST_TEXTS + 1], b"", f"a tensor of BYTES may have {MOST_TEXTS}"),
    ],
)
def test_bad_texts_are_refused(shape: list[int], data: bytes, said: str) -> None:
    tensor = {
        "name": "t",
        "shape": shape,
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(data)},
    }
    text = json.dumps({"inputs": [tensor]}).encode()
    with serving(Echo(tensor_of("t", "BYTES", None))) as address:
        refused(infer(address, text + data, headers={LENGTH: str(len(text))}), 400, said)
        half = {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["\ud800"]}
        refused(infer(address, {"inputs": [half]}), 400, "a half of a surrogate pair")


def test_other_types_refuse_what_does_not_fit() -> None:
    served = Echo(tensor_of("i", "INT8", (1,)), tensor_of("b", "BOOL", (1,)))
    good_i = {"name": "i", "shape": [1], "datatype": "INT8", "data": [1]}
    good_b = {"name": "b", "shape": [1], "datatype": "BOOL", "data": [True]}
    with serving(served) as address:
        for data, said in (
            ([128], "beyond the range of INT8"),
            ([1.0], "a number with a fraction"),
            ([True], "true or false"),
        ):
            refused(infer(address, {"inputs": [{**good_i, "data": data}, good_b]}), 400, said)
        refused(infer(address, {"inputs": [good_i, {**good_b, "data": [1]}]}), 400, "an integer")
        apart = {k: v for k, v in good_b.items() if k != "data"}
        text = json.dumps({"inputs": [good_i, {**apart, "parameters": {"binary_data_size": 1}}]})
        headers = {LENGTH: str(len(text))}
        refused(infer(address, text.encode() + b"\2", headers=headers), 400, "a byte of 0 or 1")


def test_an_empty_tensor_cannot_ask_for_a_huge_result() -> None:
    tensor = {"name": "x", "shape": [0, 10**6, 10**6], "datatype": "FP32", "data": []}
    with serving(Echo(tensor_of("x", "FP32", None))) as address:
        refused(infer(address, {"inputs": [tensor]}), 400, "which takes more than")
        deep = {**tensor, "shape": [1] * 33, "data": [1]}
        refused(infer(address, {"inputs": [deep]}), 400, "has 33 axes and may have 32")
        status, answer = infer(address, {"inputs": [{**tensor, "shape": [0, 5]}]})
        assert status == 200 and answer["outputs"][0]["shape"] == [0, 5]


def test_a_large_body_is_refused_before_and_while_it_comes(server: str) -> None:
    path = "/v2/models/echo/infer"
    status, _, body = ask(server, "POST", path, None, {"Content-Length": str(2**40)})
    refused((status, json.loads(body)), 413, "the body has more than 40.0 MiB")
    parts = (bytes(2**20) for _ in range(41))  # without a length: in chunks
    status, _, body = ask(server, "POST", path, parts)
    refused((status, json.loads(body)), 413, "the body has more than 40.0 MiB")


def test_json_has_a_limit_of_its_own(server: str) -> None:
    refused(infer(server, b" " * (JSON_BYTES + 1)), 400, "send large tensors as binary data")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_refused_where_it_grows_too_large(server: str, encoding: str) -> None:
    packed = (gzip.compress if encoding == "gzip" else zlib.compress)(bytes(2**26))
    assert len(packed) < 2**20
    answer = infer(server, packed, headers={"Content-Encoding": encoding})
    refused(answer, 413, "the body has more than 40.0 MiB")


GOOD_GZIP = gzip.compress(json.dumps(GOOD).encode(), mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body", "status", "said"),
    [
        ("br", b"", 415, "is not gzip, deflate or identity"),
        ("gzip, gzip", GOOD_GZIP, 415, "is not gzip, deflate or identity"),
        ("gzip", b"no gzip", 400, "cannot be decompressed"),
        ("gzip", b"", 400, "it ends too early"),
        ("gzip", GOOD_GZIP[:-1], 400, "it ends too early"),
        ("gzip", GOOD_GZIP[:30] + b"\xff\xff\xff" + GOOD_GZIP[33:], 400, "cannot be decompressed"),
        ("gzip", GOOD_GZIP * 2, 400, "something follows its end"),
        ("deflate", GOOD_GZIP, 400, "cannot be decompressed"),
    ],
)
def test_a_bad_encoding_is_refused(
    server: str, encoding: str, body: bytes, status: int, said: str
) -> None:
    refused(infer(server, body, headers={"Content-Encoding": encoding}), status, said)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/other/ready", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("GET", "/v2/models/echo/versions/2", 404),
        ("GET", "/v2/models/echo/versions/2/ready", 404),
        ("GET", "/v2/models/..%2fecho", 404),
        ("POST", "/v2/models/echo/versions/2/infer", 404),
        ("GET", "/v2/models/%ff%00", 404),
        ("GET", "/v2/models/echo/infer", 405),
        ("DELETE", "/v2/models/echo", 405),
        ("POST", "/v2", 405),
    ],
)
def test_other_paths_are_refused(server: str, method: str, path: str, status: int) -> None:
    found, headers, body = ask(server, method, path)
    assert headers["content-type"] == "application/json"
    refused((found, json.loads(body)), status, "")


def raw(server: str, *parts: bytes) -> bytes:
    """What comes back for these bytes, until the server closes the connection or nothing comes."""
    host, _, port = server.partition(":")
    with socket.create_connection((host, int(port)), timeout=ENOUGH_S) as connection:
        for part in parts:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while chunk := connection.recv(2**16):
            found += chunk
        return found


HEAD = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        HEAD + b"A: " + b"b" * 100_000,
        HEAD + b"Content-Length: 100\r\n\r\n{",  # and the client is gone
    ],
)
def test_what_is_not_http_gets_no_answer_or_400(server: str, head: bytes) -> None:
    found = raw(server, head)
    assert found == b"" or found.startswith(b"HTTP/1.1 400 ")
