"""A serialized model without the bytes of its weights: the rest is a thousandth of its size.

Decoding copies every weight. To read names, shapes and nodes, the weights are left out first, by
the encoding of protocol buffers (https://protobuf.dev/programming-guides/encoding). A message is a
sequence of fields. A field is a key, which is its number and wire type, and its content.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coexec.errors import ModelError
from coexec.units import format_bytes

_MOST_BYTES = (1 << 31) - 1
"""The largest message of protocol buffers."""

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Numbers of fields: in a ModelProto, a GraphProto and a TensorProto."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""
_MOST_KEY_BITS = 32


def require_encodable(size_bytes: int, what: str) -> None:
    """
    Raises:
        ModelError: protocol buffers do not encode a model of this size.
    """
    if size_bytes > _MOST_BYTES:
        raise ModelError(
            f"{what} has {format_bytes(size_bytes)}, and protobuf encodes less than 2 GiB in one "
            f"message; save it with onnx.save(model, path, save_as_external_data=True), which "
            f"writes the weights to a file beside it, and open that path"
        )


class Hollow(NamedTuple):
    """A serialized ModelProto without the raw data of its graph's large initializers."""

    content: bytes
    raw: tuple[slice | None, ...] | None
    """For each initializer, the position of the raw data that was left out; None for one that is
    complete. None instead of the tuple: nothing was left out. Then nothing is large, or the content
    is not encoded as expected, and decoding it reports the error."""

    @property
    def raw_bytes(self) -> tuple[int | None, ...]:
        """Lengths of the raw data that was left out, in the order of the initializers."""
        return tuple(None if part is None else part.stop - part.start for part in self.raw or ())


class _Field(NamedTuple):
    number: int
    wire: int
    begin: int
    """Start of the key."""
    start: int
    """Start of the content, behind its length."""
    stop: int


def hollow(content: memoryview, large_bytes: int = 0) -> Hollow:
    """``content``, a serialized ModelProto, without its large part. It is mapped or in memory.

    Args:
        large_bytes: initializers with smaller messages are left as they are.
    """
    parts: list[bytes] = []
    left_out: list[slice | None] = []
    try:
        for field in _fields(content, 0, len(content)):
            if (field.number, field.wire) == (_GRAPH, _BYTES):
                parts += _message(_GRAPH, _without_weights(content, field, left_out, large_bytes))
            else:
                parts.append(bytes(content[field.begin : field.stop]))
    except ValueError:
        return Hollow(bytes(content), None)
    if not any(left_out):
        return Hollow(bytes(content), None)
    return Hollow(b"".join(parts), tuple(left_out))


def _without_weights(
    content: memoryview, graph: _Field, left_out: list[slice | None], large_bytes: int
) -> list[bytes]:
    """A GraphProto, in parts, without the raw data of initializers, whose positions go to
    ``left_out``."""
    parts: list[bytes] = []
    kept_from = graph.start  # all bytes up to the next large one are copied at once
    for field in _fields(content, graph.start, graph.stop):
        if (field.number, field.wire) != (_INITIALIZER, _BYTES):
            continue
        if field.stop - field.start < large_bytes:
            left_out.append(None)
            continue
        kept, raw = [], None
        for entry in _fields(content, field.start, field.stop):
            if (entry.number, entry.wire) == (_RAW_DATA, _BYTES):
                raw = slice(entry.start, entry.stop)  # the last one counts
            else:
                kept.append(bytes(content[entry.begin : entry.stop]))
        left_out.append(raw)
        parts += bytes(content[kept_from : field.begin]), *_message(_INITIALIZER, kept)
        kept_from = field.stop
    return [*parts, bytes(content[kept_from : graph.stop])]


def _fields(content: memoryview, start: int, stop: int) -> Iterator[_Field]:
    """The fields of the message between ``start`` and ``stop``.

    Raises:
        ValueError: a field ends behind the message, or is a group, which ONNX does not have.
    """
    at = start
    while at < stop:
        key, content_at = content[at], at + 1
        if key > 0x7F:
            key, content_at = _varint(content, at, stop)
        wire = key & 7
        if wire == _BYTES:
            length, content_at = _varint(content, content_at, stop)
            end = content_at + length
        elif wire == _VARINT:
            end = _varint(content, content_at, stop)[1]
        elif wire in (_FIXED64, _FIXED32):
            end = content_at + (8 if wire == _FIXED64 else 4)
        else:
            raise ValueError("a group")
        if end > stop or key.bit_length() > _MOST_KEY_BITS:
            raise ValueError("a field that ends behind its message")
        yield _Field(key >> 3, wire, at, content_at, end)
        at = end


def _varint(content: memoryview, at: int, stop: int) -> tuple[int, int]:
    """The number at ``at``, seven bits a byte, the lowest first; and the position behind it."""
    value = shift = 0
    while at < stop and shift < 64:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number without an end")


def _message(number: int, parts: Sequence[bytes]) -> list[bytes]:
    """A message as a field of another one: its key, its length and its content."""
    key, length = number << 3 | _BYTES, sum(map(len, parts))
    encoded = bytearray([key])
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return [bytes(encoded), *parts]
