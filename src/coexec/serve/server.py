"""An HTTP server for a `Served`. It opens a port and answers requests until a signal ends it."""

import contextlib
import errno
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from urllib.parse import quote

import uvicorn

from coexec.errors import UsageError, first_line
from coexec.serve.app import application
from coexec.serve.intake import ServeLimits
from coexec.serve.served import Served

__all__ = ["is_loopback", "listen", "serve", "url_of", "uvicorn_server"]

_MOST_CONNECTIONS = 512
"""Fewer than the 1024 files that a process may open by default; the model has open files, too."""
_LAST_ANSWERS_S = 60
"""Seconds that running requests may take after the signal that ends the server."""
_HOSTS = "127.0.0.1 answers this machine alone, 0.0.0.0 others, too"
_SIGNALS = signal.SIGINT, signal.SIGTERM


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
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: a name that no host can have
        raise UsageError(f"--host {host!r} is not known: {first_line(error)}; {_HOSTS}") from None
    except OSError as error:
        remedies = {
            errno.EADDRINUSE: f"port {port} of {host} is in use; choose another with --port, "
            f"or a free one with --port 0",
            errno.EADDRNOTAVAIL: f"--host {host!r} is no address of this machine; {_HOSTS}",
            errno.EACCES: f"port {port} of {host} may not be opened by this user; choose one "
            f"above 1023 with --port",
        }
        message = (
            f"cannot listen at port {port} of {host}: {error.strerror}; choose another with "
            f"--host and --port"
        )
        raise UsageError(remedies.get(error.errno or 0, message)) from None
    # Connections inherit this option. asyncio sets it only for a socket that names its protocol.
    # Without it, the body of a short answer waits 40 ms until the client confirms the header.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket, served: Served) -> str:
    """The URL of the model."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/v2/models/{quote(served.name)}"


def serve(
    served: Served,
    listener: socket.socket,
    limits: ServeLimits | None = None,
    begun: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until SIGINT or SIGTERM arrives. Then finish the running requests and return.

    To be called by the main thread. A second SIGINT ends the server without waiting for running
    requests.

    Args:
        begun: called once, when the server is ready for requests and signals.
    """
    server = uvicorn_server(served, limits)
    with _ended_by_signals(server):
        begun()
        server.run([listener])


def uvicorn_server(served: Served, limits: ServeLimits | None = None) -> uvicorn.Server:
    """The server that `serve` runs. It may also run in another thread; ``should_exit`` ends it."""
    config = uvicorn.Config(
        application(served, limits),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # a warning for each malformed request would let clients fill a disk
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Context in which signals end only the server, also before and after uvicorn handles them.

    uvicorn raises the signals again when it has ended. By default that would end the process.
    """

    def end(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
