"""JSON of requests and answers. A fast parser reads valid requests, a strict one explains others.

orjson reads numbers five times as fast as Python's parser, and writes them twenty times as fast. It
keeps one of two equal keys without an error, and makes floats of integers beyond 64 bits. So its
result counts only if no key is twice and the request is accepted. Python's parser reads a request
again that is refused, and its result and errors count.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from coexec.errors import InputError

_KEY = re.compile(rb'"\s*:')
"""Follows each key of an object, and may also be in a text."""
_NESTED = {dict, list}


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
