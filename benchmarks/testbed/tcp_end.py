"""One end of a TCP connection; a program that runs in the machines of a test bed.

| call | what it does |
|---|---|
| `tcp_end.py receive` | prints the bits a second that arrived |
| `tcp_end.py send ADDRESS SECONDS` | sends for so long |
| `tcp_end.py echo` | answers each message of `ask` with one byte, until it is killed |
| `tcp_end.py ask ADDRESS ROUNDS SIZE ...` | prints the median seconds of messages of each size |
| `tcp_end.py knock ADDRESS SECONDS` | succeeds if the machine answers, also by a refusal |
| `tcp_end.py await PORT SECONDS` | succeeds when a program of this machine listens there |
"""

import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable

PORT = 5201
CONNECT_S = 5.0
_HEADER = struct.Struct("!Q")
_BLOCK = bytes(1 << 16)


def receive() -> None:
    """The bits that arrive after the first ones, over the time until the last."""
    with socket.create_server(("", PORT)) as server:
        server.settimeout(2 * CONNECT_S)
        connection, _ = server.accept()
    connection.settimeout(CONNECT_S)
    connection.recv(len(_BLOCK))
    start_s = end_s = time.perf_counter()
    count = 0
    while data := connection.recv(len(_BLOCK)):
        count += len(data)
        end_s = time.perf_counter()
    print(8 * count / (end_s - start_s))


def send(address: str, seconds: str) -> None:
    with connected(address) as connection:
        connection.settimeout(CONNECT_S)
        # What waits here when the time is over has to be sent, too.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(_BLOCK))
        end_s = time.perf_counter() + float(seconds)
        while time.perf_counter() < end_s:
            connection.sendall(_BLOCK)


def echo() -> None:
    with socket.create_server(("", PORT)) as server:
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                while header := connection.recv(_HEADER.size, socket.MSG_WAITALL):
                    left = _HEADER.unpack(header)[0]
                    while left:
                        left -= len(connection.recv(min(left, 1 << 20)))
                    connection.sendall(b"!")


def ask(address: str, rounds: str, *sizes: str) -> None:
    with connected(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in map(int, sizes):
            message = _HEADER.pack(size) + bytes(size)
            laps_s = []
            for _ in range(int(rounds) + 1):
                start_s = time.perf_counter()
                connection.sendall(message)
                connection.recv(1)
                laps_s.append(time.perf_counter() - start_s)
                time.sleep(0.02)  # the token bucket fills
            print(statistics.median(laps_s[1:]), flush=True)


def knock(address: str, seconds: str) -> None:
    try:
        socket.create_connection((address, PORT), float(seconds)).close()
    except ConnectionRefusedError:
        return
    except OSError as error:
        sys.exit(str(error))


def wait_for(port: str, seconds: str) -> None:
    end_s = time.monotonic() + float(seconds)
    while time.monotonic() < end_s:
        try:
            return socket.create_connection(("127.0.0.1", int(port)), 1).close()
        except OSError:
            time.sleep(0.05)
    sys.exit(f"no program listens at port {port} after {seconds} s")


def connected(address: str) -> socket.socket:
    """The other end may still be starting."""
    end_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection((address, PORT), CONNECT_S)
        except ConnectionRefusedError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {
        "receive": receive,
        "send": send,
        "echo": echo,
        "ask": ask,
        "knock": knock,
        "await": wait_for,
    }
    roles[sys.argv[1]](*sys.argv[2:])
