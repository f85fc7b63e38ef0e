"""An HTTP server for a `Served`: opens a port, answers until a signal ends it."""

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
"""Below the 1024 files that a process may have open by default; the model has some, too."""
_LAST_ANSWERS_S = 60
"""How long requests under way may take after the signal that ends the server."""
_HOSTS = "127.0.0.1 answers this machine alone, 0.0.0.0 others, too"
_SIGNALS = signal.SIGINT, signal.SIGTERM


def listen(host: str, port: int) -> socket.socket:
    """A socket at which connections may arrive. Port 0 is any free one.

    Raises:
        UsageError: host or port cannot be had.
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
        }  # fmt: skip
        said = f"cannot listen at port {port} of {host}: {error.strerror}; choose another with "\
               f"--host and --port"  # fmt: skip
        raise UsageError(remedies.get(error.errno or 0, said)) from None
    # Connections inherit it. asyncio sets it only where the socket names its protocol, and without
    # it the body of a short answer waits 40 ms for the client to confirm the header.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket, served: Served) -> str:
    """Where the model is."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/v2/models/{quote(served.name)}"


def serve(
    served: Served,
    listener: socket.socket,
    limits: ServeLimits | None = None,
    begun: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until SIGINT or SIGTERM comes; then those that are under way, and return.

    To be called by the main thread. A second SIGINT does not wait for requests under way.

    Args:
        begun: called once, when requests and signals may come.
    """
    server = uvicorn_server(served, limits)
    with _ended_by_signals(server):
        begun()
        server.run([listener])


def uvicorn_server(served: Served, limits: ServeLimits | None = None) -> uvicorn.Server:
    """The server that `serve` runs, for a thread of its own: ``should_exit`` ends it."""
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
    """Signals end the server, and nothing else, also before and after uvicorn looks for them.

    uvicorn raises them again when it has ended, and by default that would end the process.
    """

    def end(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
