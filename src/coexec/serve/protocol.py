"""Conversion of requests and answers of the Open Inference Protocol v2 from and to bytes.

The protocol: https://github.com/kserve/open-inference-protocol, ``inference_rest``, with the
extension for binary tensor data. A request is a JSON object, followed by the bytes of tensors in
the order in which the object names them. The header ``Inference-Header-Content-Length`` is the
length of the object.

Every invalid request raises `InputError`, before memory for its tensors is allocated.

A fast parser reads valid JSON, a strict one explains other. orjson reads numbers five times as fast
as Python's parser, and writes them twenty times as fast. It keeps one of two equal keys without an
error, and makes floats of integers beyond 64 bits. So its result counts only if no key is twice and
the request is accepted. Python's parser reads a request again that is refused, and its result and
errors count.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import orjson

from coexec.arrays import Array
from coexec.errors import InputError
from coexec.serve.served import Served, ServedTensor
from coexec.serve.tensors import KINDS, datatype_of, from_binary, from_json, to_binary, to_json

EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics")
JSON_BYTES = 32 * 2**20
"""Longest JSON of a request. Python may need thirty times as much memory for it."""
_PLATFORM = "onnx_onnxv1"
_MOST_AXES = 32
_SHOWN = 80
"""Most characters of a client's text that are repeated in an error."""
_ELSEWHERE = ("classification", "shared_memory_region")
"""Parameters of tensors that are refused, because the result would be wrong without them."""

_KEY = re.compile(rb'"\s*:')
"""Follows each key of an object, and may also be in a text."""
_NESTED = {dict, list}

_T = TypeVar("_T")


@dataclass(frozen=True)
class Wanted:
    """A requested output."""

    name: str
    binary: bool
    """Whether it is sent as binary data behind the JSON instead of in it."""


@dataclass(frozen=True)
class Inference:
    """A request."""

    id: str | None
    feeds: Mapping[str, Array]
    outputs: Sequence[Wanted]
    timeout_s: float | None = None
    """Seconds that the request may wait; None: as long as the server allows."""


def metadata(served: Served) -> dict[str, Any]:
    """The answer to a request for the model's metadata."""
    return {
        "name": served.name,
        "versions": [served.version],
        "platform": _PLATFORM,
        "inputs": [_described(tensor) for tensor in served.inputs],
        "outputs": [_described(tensor) for tensor in served.outputs],
    }


def _described(tensor: ServedTensor) -> dict[str, Any]:
    datatype = datatype_of(tensor.dtype)
    return {"name": tensor.name, "datatype": datatype, "shape": list(tensor.shape or ())}


def configuration(served: Served) -> dict[str, Any]:
    """The answer to a request for the model's configuration: the fields of Triton's ``ModelConfig``
    that have a meaning here."""
    return {
        "name": served.name,
        "platform": _PLATFORM,
        "backend": "coexec",
        "max_batch_size": 0,  # shapes are those of the model, with its axis of the batch
        "input": [_configured(tensor) for tensor in served.inputs],
        "output": [_configured(tensor) for tensor in served.outputs],
    }


def _configured(tensor: ServedTensor) -> dict[str, Any]:
    datatype = datatype_of(tensor.dtype)
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {"name": tensor.name, "data_type": kind, "dims": list(tensor.shape or ())}


def read_index_request(body: bytes | bytearray) -> bool:
    """Whether a request for the index of the repository wants ready models only.

    Raises:
        InputError: the request is not well-formed.
    """
    return _field(_document(body), "ready", bool, "the request", False)


def read_load_request(body: bytes | bytearray) -> None:
    """Check a request that loads or unloads a model.

    Raises:
        InputError: the request is not well-formed, or brings a configuration or files: models come
            from the server's own disk only.
    """
    for name in _parameters(_document(body), "the request"):
        if name == "config" or name.startswith("file:"):
            raise InputError(
                f"the parameter {_shown(name)} is refused: models and their settings come from the "
                f"server's own disk; leave it out"
            )


def _document(body: bytes | bytearray) -> dict[str, Any]:
    """The JSON object of a request, which may be empty."""
    document = parse_strictly(memoryview(body)) if body else {}
    if not isinstance(document, dict):
        raise InputError("the request is no JSON object")
    return document


def read_request(
    body: bytes | bytearray, header_length: str | None, served: Served, limit_bytes: int
) -> Inference:
    """The request in ``body``.

    Args:
        header_length: the header ``Inference-Header-Content-Length``; None: the whole body is JSON.
        limit_bytes: largest size of a tensor. An axis of size 0 counts as size 1, because outputs
            may have the size of the other axes.

    Raises:
        InputError: the request is not well-formed, or does not fit this model.
    """
    text, binary = _split(memoryview(body), header_length)
    if (request := parse_fast(text)) is not None:
        try:
            return _read(request, binary, served, limit_bytes)
        except (InputError, RecursionError):
            pass  # the error of the strict parser counts
    return _read(parse_strictly(text), binary, served, limit_bytes)


def _read(request: Any, binary: memoryview, served: Served, limit_bytes: int) -> Inference:
    """The request of a JSON value and the binary data that follows it."""
    if not isinstance(request, dict):
        raise InputError("the request is no JSON object; give one with the key 'inputs'")
    parameters = _parameters(request, "the request")
    by_default = _field(parameters, "binary_data_output", bool, "parameters", False)
    feeds = _read_inputs(request, binary, served, limit_bytes)
    return Inference(
        _field(request, "id", str, "the request", None),
        feeds,
        _read_outputs(request, served, by_default),
        _read_timeout(parameters),
    )


def _split(body: memoryview, header_length: str | None) -> tuple[memoryview, memoryview]:
    """The JSON and the binary data of a request."""
    length = len(body)
    if header_length is not None:
        digits = header_length.strip()
        # isdecimal alone would accept digits of other scripts, and int any number of digits
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
            raise InputError(
                f"Inference-Header-Content-Length is {_shown(header_length)}; give "
                f"the length of the JSON in bytes"
            )
        length = int(digits)
    if length > len(body):
        raise InputError(
            f"Inference-Header-Content-Length is {length}, and the body has {len(body)} bytes"
        )
    if length > JSON_BYTES:
        raise InputError(
            f"the JSON has {length} bytes and may have {JSON_BYTES}; send large "
            f"tensors as binary data"
        )
    return body[:length], body[length:]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _field(of: Mapping[str, Any], key: str, kind: type[_T], where: str, default: Any = ...) -> _T:
    """The value of ``of`` under a key; ``default`` if it has no such key.

    Args:
        kind: type of the value.
        where: name of ``of`` in errors.
        default: ``...``: the key is required.
    """
    value = of.get(key, default)
    if value is ...:
        raise InputError(f"{where} has no {key!r}")
    # `type` and not `isinstance`, because True is an int in Python and no number in JSON
    if value is not default and type(value) is not kind:
        raise InputError(f"{key!r} of {where} is {_shown(value)}; give {KINDS[kind]}")
    return value  # type: ignore[no-any-return]


def _objects(of: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The tensors that a request lists under ``key``, checked that none is listed twice."""
    objects: list[dict[str, Any]] = _field(of, key, list, "the request", [])
    names = set()
    for each in objects:
        if not isinstance(each, dict):
            raise InputError(f"{key!r} of the request holds {_shown(each)}; give objects")
        name = _field(each, "name", str, f"an object in {key!r}")
        if name in names:
            raise InputError(f"{_shown(name)} is twice in {key!r}; give it once")
        names.add(name)
    return objects


def _parameters(of: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Parameters of a request or tensor. Unknown parameters are ignored, as the protocol says."""
    parameters: dict[str, Any] = _field(of, "parameters", dict, where, {})
    for name in _ELSEWHERE:
        if name in parameters:
            raise InputError(
                f"{where} has the parameter {name!r}, which this server does not know; leave it out"
            )
    return parameters


def _read_inputs(
    request: Mapping[str, Any], binary: memoryview, served: Served, limit_bytes: int
) -> dict[str, Array]:
    tensors = {tensor.name: tensor for tensor in served.inputs}
    feeds: dict[str, Array] = {}
    used = 0
    for entry in _objects(request, "inputs"):
        if entry["name"] not in tensors:
            raise InputError(
                f"the model has no input {_shown(entry['name'])}; it has {_listed(served.inputs)}"
            )
        tensor = tensors[entry["name"]]
        feeds[tensor.name], size = _read_input(entry, tensor, binary[used:], limit_bytes)
        used += size
    if missing := [name for name in tensors if name not in feeds]:
        raise InputError(
            f"input {missing[0]!r} is missing; the model takes {_listed(served.inputs)}"
        )
    if used != len(binary):
        raise InputError(
            f"the inputs have {used} bytes of binary data, and {len(binary)} follow the JSON"
        )
    return feeds


def _listed(tensors: Sequence[ServedTensor]) -> str:
    return ", ".join(f"{t.name!r} {datatype_of(t.dtype)} {list(t.shape or ())}" for t in tensors)


def _read_input(
    document: Mapping[str, Any], tensor: ServedTensor, binary: memoryview, limit_bytes: int
) -> tuple[Array, int]:
    """A tensor, and the number of bytes that it takes of the binary data."""
    where = f"input {tensor.name!r}"
    datatype = _field(document, "datatype", str, where)
    if datatype != datatype_of(tensor.dtype):
        raise InputError(
            f"{where} has datatype {_shown(datatype)}, the model takes {datatype_of(tensor.dtype)}"
        )
    shape = _field(document, "shape", list, where)
    _check_shape(where, shape, tensor, limit_bytes)
    parameters = _parameters(document, where)
    if ("binary_data_size" in parameters) == ("data" in document):
        raise InputError(
            f"{where} needs either 'data' or the parameter 'binary_data_size', and "
            f"has {'both' if 'data' in document else 'none'}"
        )
    if "data" in document:
        return from_json(tensor.name, tensor.dtype, shape, document["data"]), 0
    size = _field(parameters, "binary_data_size", int, where)
    if not 0 <= size <= len(binary):
        raise InputError(
            f"{where} has {_shown(size)} bytes of binary data, and {len(binary)} are "
            f"left for it in the body"
        )
    return from_binary(tensor.name, tensor.dtype, shape, binary[:size]), size


def _check_shape(where: str, shape: list[Any], tensor: ServedTensor, limit_bytes: int) -> None:
    """Refuse a shape that is invalid, that does not fit the model, or that is too large."""
    for size in shape:
        if type(size) is not int or size < 0:
            raise InputError(f"{where} has {_shown(size)} in its shape; give integers from 0")
    model_shape = tensor.shape
    if model_shape is not None and (
        len(shape) != len(model_shape)
        or any(w not in (-1, size) for w, size in zip(model_shape, shape, strict=True))
    ):
        raise InputError(
            f"{where} has shape {_shown(shape)}, the model is served for {list(model_shape)}"
        )
    if len(shape) > _MOST_AXES:
        raise InputError(f"{where} has {len(shape)} axes and may have {_MOST_AXES}")
    if math.prod(size or 1 for size in shape) * tensor.dtype.itemsize > limit_bytes:
        raise InputError(
            f"{where} has shape {_shown(shape)}, which takes more than the "
            f"{limit_bytes} bytes that a request may have"
        )


def _read_outputs(request: Mapping[str, Any], served: Served, by_default: bool) -> list[Wanted]:
    names = [tensor.name for tensor in served.outputs]
    outputs = []
    for entry in _objects(request, "outputs"):
        name = entry["name"]
        if name not in names:
            raise InputError(
                f"the model has no output {_shown(name)}; it has {', '.join(map(repr, names))}"
            )
        where = f"output {name!r}"
        binary = _field(_parameters(entry, where), "binary_data", bool, where, by_default)
        outputs.append(Wanted(name, binary))
    return outputs or [Wanted(name, by_default) for name in names]


def _read_timeout(parameters: Mapping[str, Any]) -> float | None:
    """The parameter ``timeout`` of the schedule policy extension, which is in microseconds; 0 means
    the default of the server."""
    timeout_us = _field(parameters, "timeout", int, "the parameters of the request", 0)
    if not 0 <= timeout_us < 2**63:
        raise InputError(
            f"'timeout' of the parameters of the request is {_shown(timeout_us)}; give "
            f"microseconds from 0"
        )
    return timeout_us / 1e6 if timeout_us else None


def write_answer(
    request: Inference, served: Served, outputs: Mapping[str, Array]
) -> tuple[bytes, list[bytes]]:
    """The JSON of an answer, and the binary data that follows it.

    Raises:
        InputError: an output cannot be written as JSON.
    """
    listed, binary = [], []
    for output in request.outputs:
        array = outputs[output.name]
        tensor: dict[str, Any] = {
            "name": output.name,
            "datatype": datatype_of(array.dtype),
            "shape": list(array.shape),
        }
        if output.binary:
            binary.append(to_binary(array))
            tensor["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            tensor["data"] = to_json(output.name, array)
        listed.append(tensor)
    answer: dict[str, Any] = {"model_name": served.name, "model_version": served.version}
    if request.id is not None:
        answer["id"] = request.id
    return write(answer | {"outputs": listed}), binary


def parse_fast(text: memoryview) -> Any | None:
    """The value of a JSON text; None if `parse_strictly` has to read it."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    # As many ends of keys as keys: then no key is twice.
    return value if sum(1 for _ in _KEY.finditer(text)) == _count_keys(value) else None


def _count_keys(value: Any) -> int:
    """Number of keys in all objects of a value."""
    count, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            count += len(one)
            left.extend(one.values())
        elif isinstance(one, list) and not _NESTED.isdisjoint(map(type, one)):
            left.extend(one)
    return count


def parse_strictly(text: memoryview) -> Any:
    """The value of a JSON text.

    Raises:
        InputError: it is no JSON, or has a key twice, NaN or infinity.
    """
    try:
        return json.loads(str(text, "utf-8"), parse_constant=_refuse, object_pairs_hook=_unique)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"the request is no JSON: byte {error.start} is not UTF-8; say with "
            f"Inference-Header-Content-Length where binary data begins"
        ) from None
    except ValueError as error:
        raise InputError(f"the request is no JSON: {error}") from None
    except RecursionError:
        raise InputError(
            "the request is nested too deeply; a tensor has a level for each axis"
        ) from None


def _refuse(constant: str) -> NoReturn:
    raise InputError(f"JSON has no {constant}; send the tensor as binary data")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InputError("a JSON object of the request has a key twice; remove one")
    return fields


def write(document: Mapping[str, Any]) -> bytes:
    """The JSON text of an answer, in which arrays are lists of finite numbers."""
    try:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # the request's id has half of a surrogate pair, which UTF-8 cannot hold
        return json.dumps(document, allow_nan=False, default=lambda array: array.tolist()).encode()
