"""An HTTP server for an `Application`. It opens a port and answers requests until a signal."""

import ipaddress
import math
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from urllib.parse import quote

import uvicorn

from coexec.errors import UsageError, first_line
from coexec.serve.app import Application

_MOST_CONNECTIONS = 512
"""Fewer than the 1024 files that a process may open by default; the model has open files, too."""
STOP_S = 60.0
"""Seconds that the requests under way may take after the signal that ends the server."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0 means any free port.

    Raises:
        UsageError: the host is unknown, or the port cannot be opened.
    """
    if not 0 <= port < 2**16:
        raise UsageError(f"--port {port} is not between 0 and 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_MOST_CONNECTIONS)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UsageError(
            f"cannot listen at port {port} of {host!r}: {reason}; choose others with --host and "
            f"--port: 127.0.0.1 answers this machine alone, 0.0.0.0 others, too, a port above "
            f"1023 is open to every user, and port 0 is any free one"
        ) from None
    # Connections inherit this option. asyncio sets it only for a socket that names its protocol.
    # Without it, the body of a short answer waits 40 ms until the client confirms the header.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket, name: str | None = None) -> str:
    """The URL of the model ``name``; None: of the server."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/v2" + ("" if name is None else f"/models/{quote(name)}")


def serve(
    app: Application,
    listener: socket.socket,
    begun: Callable[[], None] = lambda: None,
    stop_s: float = STOP_S,
) -> None:
    """Answer requests until SIGINT or SIGTERM arrives. Then finish the requests under way, also
    those that wait, and return.

    To be called by the main thread. Meanwhile new connections are accepted, and new requests
    refused, so that a load balancer learns that the server is not ready. A second signal closes the
    port at once, and a third SIGINT ends the server without waiting for requests.

    Args:
        begun: called once, when the server is ready for requests and signals.
        stop_s: seconds for the requests under way. The others are refused then.
    """
    Server(app, stop_s, begun).run([listener])


class Server(uvicorn.Server):
    """The server that `serve` runs. It may also run in another thread; ``should_exit`` ends it."""

    def __init__(
        self, app: Application, stop_s: float = STOP_S, begun: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(_config(app, stop_s))
        self._app, self._stop_s, self._begun = app, stop_s, begun
        self._end_s = math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn, which handles signals by then."""
        await super().startup(sockets)
        self._begun()

    def stop(self) -> None:
        """End when the requests under way have been answered."""
        if self._app.stopping:
            self.should_exit = True
        self._app.stopping = True
        self._end_s = min(self._end_s, time.monotonic() + self._stop_s)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for a signal. A signal that uvicorn handles itself is raised again at
        the end, which would end the process."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.stop()

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn every 0.1 s. Returns whether the server ends now."""
        if self._app.stopping:
            late = time.monotonic() > self._end_s
            if late:
                self.config.timeout_graceful_shutdown = 1  # the time is over
            self.should_exit = self.should_exit or late or not self._app.under_way
        return await super().on_tick(counter)


def _config(app: Application, stop_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # a warning for each malformed request would let clients fill a disk
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=math.ceil(stop_s),
    )
