"""Read the bodies of requests, with limits of time, of size, and of the size of all bodies."""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from coexec.errors import BusyError
from coexec.units import format_bytes

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""By name of a content encoding, the argument ``wbits`` of zlib."""

Hold = Callable[[int], None]
"""Adds bytes to the memory that one request holds."""


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
    def request(self) -> Iterator[Hold]:
        """Context of one request, whose memory is released at the end.

        The function adds memory. It raises `BusyError` if all requests together would hold more
        than the limit; a request may hold any size if no other request holds memory.
        """
        own_bytes = 0

        def hold(size_bytes: int) -> None:
            nonlocal own_bytes
            is_alone = self.now_bytes == own_bytes
            if not is_alone and self.now_bytes + size_bytes > self.limit_bytes:
                raise BusyError(
                    f"the requests under way hold {format_bytes(self.now_bytes)} of "
                    f"{format_bytes(self.limit_bytes)}; try again"
                )
            self.now_bytes += size_bytes
            own_bytes += size_bytes

        try:
            yield hold
        finally:
            self.now_bytes -= own_bytes


async def read_body(request: Request, limits: ServeLimits, hold: Hold) -> bytearray:
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
    too_large = HTTPException(
        413,
        f"the body has more than {format_bytes(limits.body_bytes)}; send less, or start the server "
        f"with a larger --max-request",
    )
    if int(request.headers.get("content-length", "0")) > limits.body_bytes:
        raise too_large
    bits = _WINDOW_BITS.get(encoding)
    decoder = None if bits is None else zlib.decompressobj(bits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.transfer_s):
            async for part in request.stream():
                # one byte more than the limit, to detect a body that is too large
                room = limits.body_bytes - len(body) + 1
                if decoder is not None:
                    if decoder.eof and part:
                        raise zlib.error("something follows its end")
                    # In a thread, so that other requests go on: 64 KiB may decompress to 64 MiB.
                    part = await asyncio.to_thread(decoder.decompress, part, room)
                if len(part) >= room:
                    raise too_large
                hold(len(part))
                body += part
        if decoder is not None and (decoder.unused_data or not decoder.eof):
            raise zlib.error("something follows its end" if decoder.eof else "it ends too early")
    except TimeoutError:
        raise HTTPException(
            408, f"the body did not come within {limits.transfer_s:g} s; send it again"
        ) from None
    except zlib.error as error:
        raise HTTPException(400, f"the body cannot be decompressed: {error}") from None
    return body
