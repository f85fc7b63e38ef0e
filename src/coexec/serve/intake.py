"""Read the bodies of requests, with limits of time, of size, and of the size of all bodies."""

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from coexec.errors import BusyError
from coexec.units import format_bytes

__all__ = ["Holding", "MemoryBudget", "ServeLimits", "read_body"]

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""By name of a content encoding, the argument ``wbits`` of zlib."""


@dataclass(frozen=True)
class ServeLimits:
    """Limits of memory and time for requests."""

    body_bytes: int = 256 * 2**20
    """Largest size of one body, and of one tensor, after decompression."""
    held_bytes: int = 2**30
    """Largest size of the bodies and answers of all running requests."""
    transfer_s: float = 60.0
    """Seconds in which a body has to arrive, and in which an answer has to be received."""
    queue: int = 100
    """Most requests of a model that wait for a credit."""
    wait_s: float = 60.0
    """Seconds that a request may wait for a credit. A request may ask for less."""


class MemoryBudget:
    """Memory of all running requests. Used by one thread, which runs the event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.now_bytes = 0

    @contextmanager
    def request(self) -> Iterator["Holding"]:
        """The memory of one request. It is released at the end of the context."""
        holding = Holding(self)
        try:
            yield holding
        finally:
            self.now_bytes -= holding.held_bytes


class Holding:
    """The share of one request in `MemoryBudget`."""

    def __init__(self, of: MemoryBudget) -> None:
        self._of = of
        self.held_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Add memory. A request may hold any size if no other request holds memory.

        Raises:
            BusyError: all requests together would hold more than the limit.
        """
        alone = self._of.now_bytes == self.held_bytes
        if not alone and self._of.now_bytes + size_bytes > self._of.limit_bytes:
            raise BusyError(
                f"the requests under way hold {format_bytes(self._of.now_bytes)} of "
                f"{format_bytes(self._of.limit_bytes)}; try again"
            )
        self._of.now_bytes += size_bytes
        self.held_bytes += size_bytes


async def read_body(request: Request, limits: ServeLimits, holding: Holding) -> bytearray:
    """The body of a request, decompressed.

    Raises:
        HTTPException: the body is too large (413), too slow (408), in another encoding than gzip or
            deflate (415), or damaged (400).
        BusyError: other requests hold too much memory.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in _WINDOW_BITS:
        message = "the body's Content-Encoding is not gzip, deflate or identity; use one of these"
        raise HTTPException(415, message, {"Accept-Encoding": "gzip, deflate"})
    announced = request.headers.get("content-length", "0")
    if int(announced) > limits.body_bytes:
        raise _too_large(limits)
    decoder = None if encoding == "identity" else _Decoder(_WINDOW_BITS[encoding])
    body = bytearray()
    try:
        async with asyncio.timeout(limits.transfer_s):
            async for chunk in request.stream():
                # one byte more than the limit, to detect a body that is too large
                room = limits.body_bytes - len(body) + 1
                part = chunk if decoder is None else await decoder.decode(chunk, room)
                if len(part) >= room:
                    raise _too_large(limits)
                holding.add(len(part))
                body += part
    except TimeoutError:
        raise HTTPException(
            408, f"the body did not come within {limits.transfer_s:g} s; send it again"
        ) from None
    if decoder is not None:
        decoder.end()
    return body


def _too_large(limits: ServeLimits) -> HTTPException:
    return HTTPException(
        413,
        f"the body has more than {format_bytes(limits.body_bytes)}; send "
        f"less, or start the server with a larger --max-request",
    )


class _Decoder:
    """Decompresses a body in parts of limited size."""

    def __init__(self, window_bits: int) -> None:
        self._zlib = zlib.decompressobj(window_bits)

    async def decode(self, chunk: bytes, room: int) -> bytes:
        """The next decompressed bytes, at most ``room``."""
        if self._zlib.eof and chunk:
            raise _damaged("something follows its end")
        try:
            # In a thread, so that other requests go on: 64 KiB may decompress to 64 MiB.
            return await asyncio.to_thread(self._zlib.decompress, chunk, room)
        except zlib.error as error:
            raise _damaged(str(error)) from None

    def end(self) -> None:
        """Check that the body was complete."""
        if not self._zlib.eof:
            raise _damaged("it ends too early")
        if self._zlib.unused_data:
            raise _damaged("something follows its end")


def _damaged(reason: str) -> HTTPException:
    return HTTPException(400, f"the body cannot be decompressed: {reason}")
