"""Ray's processes on this machine: start, join and stop a node, and who listens where.

Ray is started by its own command, one node a call, and stays as long as that process does. What was
started here is noted in a file, so that nothing else of Ray is ever touched.

Security, as Ray's documentation says: whoever has the token may run any program on all machines of
the cluster. The token is sent unencrypted, and Ray listens on all addresses of a machine. See
https://docs.ray.io/en/latest/ray-security/token-auth.html.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import platformdirs

from coexec.cluster.build import build
from coexec.errors import DeviceError, UsageError, first_line

__all__ = [
    "BUILD",
    "MACHINE",
    "PORT",
    "NodeProcess",
    "Socket",
    "StartedNode",
    "join",
    "known_nodes",
    "prepare",
    "sockets",
    "start_head",
    "stop",
    "token_file",
]  # fmt: skip

PORT = 6380
"""Of a head, unless another is said."""
MACHINE, BUILD = "coexec-machine", "coexec-build"
"""Labels of nodes: the machine's name, and its coexec."""
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray notices a dead machine in 3 s with these, in 15 to 65 s with its own."""
_INLINE = {"RAY_max_direct_call_object_size": str(2 << 20)}
"""Messages up to 2 MiB travel with the call. By Ray's object store, which takes those from 100 KiB
on unless it is told otherwise, they take 11 to 14 ms longer on 50 Mbit/s (benchmarks/testbed)."""
_START_S, _STOP_S = 60.0, 15.0
_MOST_STORE_BYTES = 1_000_000_000
"""Of Ray's shared memory, where messages lie while they are under way."""


@dataclass(frozen=True)
class StartedNode:
    """A node that was started on this machine."""

    name: str
    """Of the machine, unique in its cluster."""
    address: str
    """HOST:PORT of the head."""
    process: int
    head: bool


class Socket(NamedTuple):
    """Where a process of Ray listens."""

    address: str
    port: int
    process: str


class NodeProcess:
    """A node as long as this object is not stopped."""

    def __init__(self, node: StartedNode, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.node, self.process, self.log = node, process, log

    def stop(self) -> None:
        """End the node and all that it runs. May be called again."""
        _end(self.process.pid)
        self.process.wait()


def token_file() -> Path:
    """Where the token of this user's clusters lies."""
    return _folder() / "token"


def _environment(token: Path | None = None) -> dict[str, str]:
    """What processes of Ray need to be told: the token, quick health checks, no reports of use.

    Raises:
        UsageError: there is no token.
    """
    path = token or token_file()
    try:
        text = path.read_text().strip()
    except OSError:
        text = ""
    if not text:
        raise UsageError(
            f"there is no token in {path}; `coexec cluster start` makes one: copy that file from "
            f"the head's machine, and name it with --token-file if it lies elsewhere"
        )
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": text,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **_HEALTH,
        **_INLINE,
    }


def prepare(token: Path | None = None) -> None:
    """Give this process what Ray needs to be told; Ray must not have been imported before.

    Raises:
        UsageError: there is no token, or Ray was imported without it.
    """
    wanted = _environment(token)
    if "ray" in sys.modules and os.environ.get("RAY_AUTH_TOKEN") != wanted["RAY_AUTH_TOKEN"]:
        raise UsageError("ray was imported before the cluster's token was known to it; make the "
                         "Cluster before you import ray, one cluster a process")  # fmt: skip
    os.environ.update(wanted)


def _make_token() -> Path:
    """The user's token, a new one if there is none. Only the user can read it."""
    path = token_file()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
    return path


def start_head(
    name: str, port: int = PORT, host: str | None = None, folder: Path | None = None
) -> NodeProcess:
    """Start a cluster whose head is this machine.

    Args:
        host: the address that others reach this machine at; None: Ray finds out.
        folder: for Ray's sockets and logs; None: its own.

    Raises:
        DeviceError: Ray did not start, or the port is in use.
    """
    _make_token()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            raise DeviceError(f"port {port} is in use on this machine; end what uses it, or choose "
                              f"another with --port") from None  # fmt: skip
    words = ["--head", "--port", str(port), "--include-dashboard=false"]
    words += ["--node-ip-address", host] if host else []
    words += ["--temp-dir", str(folder)] if folder else []
    address = f"{host or _own_address()}:{port}"
    return _start(StartedNode(name, address, 0, head=True), words, _environment())


def join(
    address: str, name: str, host: str | None = None, token: Path | None = None,
    machine: bool = True,
) -> NodeProcess:  # fmt: skip
    """Make this machine a node of a cluster.

    Args:
        address: HOST:PORT of its head.
        host: the address that others reach this machine at; None: Ray finds out.
        machine: whether it computes; otherwise it only sends frames and takes answers.

    Raises:
        UsageError: there is no token, or the address is none.
        DeviceError: the head does not answer, or does not take the token.
    """
    head, _, port = address.rpartition(":")
    if not head or not port.isdigit():
        raise UsageError(f"{address!r} is no address of a head; give HOST:PORT, as `coexec cluster "
                         f"start` prints it")  # fmt: skip
    surroundings = _environment(token)
    try:
        socket.create_connection((head, int(port)), 5.0).close()
    except (OSError, OverflowError) as error:
        raise DeviceError(f"no head answers at {address}: {error}; look whether it runs "
                          f"(`coexec cluster status` there) and whether a firewall lets port "
                          f"{port} through") from None  # fmt: skip
    words = ["--address", address, *(["--node-ip-address", host] if host else [])]
    return _start(StartedNode(name, address, 0, head=False), words, surroundings, machine)


def stop(name: str | None = None) -> list[StartedNode]:
    """End the nodes that this user has started on this machine, or the one of a name.

    Returns:
        Those that were ended, workers before heads.
    """
    ended = []
    for node in sorted(known_nodes(), key=lambda node: node.head):
        if name is None or node.name == name:
            _end(node.process)
            _note_of(node).unlink(missing_ok=True)
            ended.append(node)
    return ended


def known_nodes() -> list[StartedNode]:
    """The nodes that this user has started on this machine and that run."""
    found = []
    for path in sorted((_folder() / "nodes").glob("*.json")):
        try:
            node = StartedNode(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            node = None
        if node is not None and _is_ours(node):
            found.append(node)
        else:
            path.unlink(missing_ok=True)
    return found


def sockets() -> list[Socket]:
    """Where processes below this user's nodes listen."""
    import psutil

    found = set()
    for node in known_nodes():
        with suppress(psutil.Error):
            parent = psutil.Process(node.process)
            for process in (parent, *parent.children(recursive=True)):
                with suppress(psutil.Error):
                    for each in process.net_connections("inet"):
                        if each.status == psutil.CONN_LISTEN:
                            found.add(Socket(each.laddr.ip, each.laddr.port, process.name()))
    return sorted(found)


def _start(
    node: StartedNode, words: list[str], surroundings: Mapping[str, str], machine: bool = True
) -> NodeProcess:
    """Run Ray's command, and wait until it says that it has started."""
    if any(known.name == node.name for known in known_nodes()):
        raise UsageError(f"machine {node.name!r} runs here already; end it with `coexec cluster "
                         f"stop`, or choose another name with --name")  # fmt: skip
    labels = f"{MACHINE}={node.name},{BUILD}={build()}" if machine else "coexec-driver=yes"
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", *words, "--num-cpus", "0",
        "--num-gpus", "0", "--labels", labels, "--object-store-memory", str(_store_bytes()),
        "--disable-usage-stats", "--block",
    ]  # fmt: skip
    log = _folder() / "logs" / f"{node.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **surroundings}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        _await_start(process, log, node.address)
    except BaseException:
        _end(process.pid)
        process.wait()
        raise
    noted = StartedNode(node.name, node.address, process.pid, node.head)
    note = _note_of(noted)
    note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    note.write_text(json.dumps(asdict(noted)))
    return NodeProcess(noted, process, log)


def _await_start(process: "subprocess.Popen[bytes]", log: Path, address: str) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        text = log.read_text(errors="replace")
        if "Ray runtime started" in text:
            return
        if "InvalidAuthToken" in text or "AuthenticationError" in text:
            raise DeviceError(f"the cluster at {address} does not take this token; copy the token "
                              f"file from the head's machine")  # fmt: skip
        if process.poll() is not None:
            raise DeviceError(f"Ray did not start: {_reason(text)}; {log} has all that it said")
        time.sleep(0.1)
    raise DeviceError(f"Ray did not start within {_START_S:.0f} s; {log} has what it said")


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "error" in line]
    return first_line(Exception((telling or lines or ["it said nothing"])[-1]))


def _store_bytes() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(100_000_000, min(_MOST_STORE_BYTES, memory // 10))


def _own_address() -> str:
    """The address of this machine by which it would reach others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _folder() -> Path:
    return Path(platformdirs.user_state_dir("coexec")) / "cluster"


def _note_of(node: StartedNode) -> Path:
    return _folder() / "nodes" / f"{node.name}.json"


def _is_ours(node: StartedNode) -> bool:
    """Whether the process is still the one that was started, not another of its number."""
    try:
        return b"ray.scripts.scripts" in Path(f"/proc/{node.process}/cmdline").read_bytes()
    except OSError:
        return False


def _end(process: int) -> None:
    """End a node's process and those below it: politely, then by force."""
    import psutil

    try:
        parent = psutil.Process(process)
        everything = [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    _, left = psutil.wait_procs(everything, _STOP_S)
    for each in left:
        with suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(left, _STOP_S)
