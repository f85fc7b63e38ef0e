"""The protocol's requests and answers, without a server: what is written is read as the same."""

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coexec.errors import InputError
from coexec.serve import protocol
from coexec.serve.protocol import read_request, write_answer
from coexec.serve.served import ServedTensor
from coexec.serve.tensors import from_binary, from_json, to_binary, to_json
from tests.helpers.servers import TYPES, Echo, tensor_of

Array = np.ndarray[Any, Any]
LIMIT = 2**20
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def tensors(draw: st.DrawFn, finite: bool = False) -> Array:
    """Arrays of all types of the protocol."""
    name = draw(st.sampled_from(sorted(TYPES.values())))
    shape = draw(SHAPES)
    if name == "object":
        texts = draw(st.lists(TEXT, min_size=math.prod(shape), max_size=math.prod(shape)))
        return np.array(texts, object).reshape(shape)
    numbers = st.floats(width=16, allow_nan=not finite, allow_infinity=not finite)
    if name == "bfloat16":
        return draw(arrays.arrays(np.float32, shape, elements=numbers)).astype(ml_dtypes.bfloat16)
    floats = np.issubdtype(np.dtype(name), np.floating)
    return draw(arrays.arrays(name, shape, elements=numbers if floats else None))


def equal(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = a.dtype.name in ("float16", "bfloat16", "float32", "float64")
    return np.array_equal(a, b, equal_nan=nan)


def spec(name: str, array: Array) -> ServedTensor:
    return ServedTensor(name, array.dtype, array.shape)


@given(tensors())
def test_binary_data_is_read_as_it_was_written(array: Array) -> None:
    data = to_binary(array)
    assert array.dtype == object or len(data) == array.nbytes
    for offset in (0, 1):  # an address that suits the elements, and one that does not
        within = memoryview(bytes(offset) + data)[offset:]
        found = from_binary("x", array.dtype, array.shape, within)
        assert equal(found, array) and found.flags.aligned


@given(tensors(finite=True), st.booleans())
def test_json_is_read_as_it_was_written(array: Array, nested: bool) -> None:
    written = array.astype(float) if array.dtype == ml_dtypes.bfloat16 else array
    data = written.tolist() if nested and array.ndim else to_json("x", array)
    data = json.loads(protocol.write({"data": data}))["data"]
    assert equal(from_json("x", array.dtype, array.shape, data), array)


@given(
    st.lists(tensors(finite=True), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4),
    st.none() | st.text(max_size=4),
)
def test_an_echo_gives_back_what_it_was_sent(
    sent: list[Array], binary: list[bool], request_id: str | None
) -> None:
    served = Echo(*(spec(f"t{i}", a) for i, a in enumerate(sent)))
    every = [spec(f"t{i}", a) for i, a in enumerate(sent)]
    described = {each["name"]: each for each in protocol.metadata(served)["inputs"]}
    request: dict[str, Any] = {"inputs": [], "outputs": []}
    if request_id is not None:
        request["id"] = request_id
    behind = b""
    for tensor, array, apart in zip(every, sent, binary, strict=False):
        one = {**described[tensor.name], "shape": list(array.shape)}
        if apart:
            one["parameters"] = {"binary_data_size": len(to_binary(array))}
            behind += to_binary(array)
        else:
            one["data"] = list(to_json(tensor.name, array))
        request["inputs"].append(one)
        request["outputs"].append({"name": tensor.name, "parameters": {"binary_data": apart}})
    text = json.dumps(request, default=lambda number: number.item()).encode()
    read = read_request(text + behind, str(len(text)), served, LIMIT)
    assert read.id == request_id and list(read.feeds) == [t.name for t in every]
    head, data = write_answer(read, served, read.feeds)
    # An answer has the form of a request: the same function reads it.
    answer = json.loads(head)
    assert answer.get("id") == request_id
    back = json.dumps({"inputs": answer["outputs"]}).encode()
    again = read_request(back + b"".join(data), str(len(back)), served, LIMIT)
    for tensor, array in zip(every, sent, strict=True):
        assert equal(again.feeds[tensor.name], array)


MIXED = Echo(
    tensor_of("x", "FP32", (-1, 2)), tensor_of("t", "BYTES", (2,)), tensor_of("b", "BOOL", None)
)
VALID = {
    "id": "1",
    "inputs": [
        {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
        {"name": "t", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 11}},
        {"name": "b", "shape": [1, 1], "datatype": "BOOL", "data": [[True]]},
    ],
    "outputs": [{"name": "x", "parameters": {"binary_data": True}}],
}
VALID_JSON = json.dumps(VALID).encode()
VALID_BINARY = to_binary(np.ones((1, 2), np.float32)) + to_binary(np.array(["a", "bc"], object))


def reads_or_refuses(body: bytes, length: str | None) -> None:
    """A request is read, or refused in one line; nothing else happens."""
    try:
        read_request(body, length, MIXED, LIMIT)
    except InputError as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 1000


@given(st.binary(max_size=200), st.none() | st.text(max_size=6) | st.integers(0, 300).map(str))
def test_any_bytes_are_read_or_refused(body: bytes, length: str | None) -> None:
    reads_or_refuses(body, length)


@given(st.data())
def test_a_damaged_request_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(VALID_JSON + VALID_BINARY)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    reads_or_refuses(bytes(body), str(len(VALID_JSON)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(st.data(), JSON)
def test_a_value_of_another_kind_is_read_or_refused(data: st.DataObject, other: Any) -> None:
    request = json.loads(VALID_JSON)
    where: Any = request
    while True:  # go down to some place, and put the other value there
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(where[key], dict | list) and where[key] and data.draw(st.booleans()):
            where = where[key]
            continue
        where[key] = other
        break
    text = json.dumps(request).encode()
    reads_or_refuses(text + VALID_BINARY, str(len(text)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_answers_hold_no_nan(value: float) -> None:
    with pytest.raises(InputError, match="NaN or infinity, which JSON does not have"):
        to_json("y", np.array([1.0, value], np.float16))


def bits(value: Any) -> Any:
    """The value, with -0.0 and 0.0 and with 1 and 1.0 apart."""
    return repr(value)


SMALL = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(SMALL, st.booleans(), st.none() | st.integers(0, 2))
def test_both_parsers_read_the_same(value: Any, ascii_only: bool, indent: int | None) -> None:
    try:
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        return  # half of a surrogate pair, which has no bytes
    try:
        strict = protocol.parse_strictly(memoryview(text))
    except InputError:
        assert protocol.parse_fast(memoryview(text)) is None
        return
    fast = protocol.parse_fast(memoryview(text))
    assert fast is None or bits(fast) == bits(strict)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a" : 1, "b": {"c": 0}, "a"\n: 2}',
        '[[], {"a": 1, "a": 1}]',
        '{"\\u0061": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        '{"a": 1} x',
        "[" * 1100 + "]" * 1100,
    ],
)
def test_the_fast_parser_leaves_doubtful_texts_to_the_strict_one(text: str) -> None:
    assert protocol.parse_fast(memoryview(text.encode())) is None


def test_the_fast_parser_reads_usual_requests() -> None:
    assert protocol.parse_fast(memoryview(VALID_JSON)) == VALID


@pytest.mark.parametrize("depth", [500, 990, 1010, 1023])
def test_a_deep_request_is_read_or_refused(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    for key in b"inputs", b"parameters", b"other":
        reads_or_refuses(VALID_JSON[:-1] + b', "%s": %s}' % (key, deep) + VALID_BINARY, None)
        reads_or_refuses(b'{"%s": %s}' % (key, deep), None)


@pytest.mark.parametrize(
    ("dtype", "number", "said"),
    [
        (np.int64, 2**63, "beyond the range of INT64"),
        (np.int64, -(2**70), "beyond the range of INT64"),
        (np.uint64, 2**64, "beyond the range of UINT64"),
        (np.float32, 10**40, "beyond the range of FP32"),
    ],
)
def test_large_integers_are_told_as_integers(dtype: Any, number: int, said: str) -> None:
    """The fast parser makes floats of those beyond 64 bits."""
    served = Echo(ServedTensor("x", np.dtype(dtype), (1,)))
    tensor = {**protocol.metadata(served)["inputs"][0], "data": [number]}
    with pytest.raises(InputError, match=said):
        read_request(json.dumps({"inputs": [tensor]}).encode(), None, served, LIMIT)
