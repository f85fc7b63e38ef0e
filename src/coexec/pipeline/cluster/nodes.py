"""Ray's processes on this machine: start, join and stop a node.

Ray's own command starts one node, which runs as long as the process of that command. A file records
each node that was started here, so that no other processes of Ray are ever touched.

Security, by Ray's documentation: anyone who has the token can run any program on all machines of
the cluster. The token is sent unencrypted, and Ray listens on all addresses of a machine. See
https://docs.ray.io/en/latest/ray-security/token-auth.html.
"""

import fcntl
import ipaddress
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec.codec import decode, encode
from coexec.errors import DeviceError, PackageError, UsageError, first_line
from coexec.extras import install
from coexec.pipeline.cluster.build import build
from coexec.pipeline.cluster.ray_ports import PORT
from coexec.pipeline.cluster.tokens import cluster_folder, make_token, read_token, token_file

if TYPE_CHECKING:
    import psutil

__all__ = [
    "BUILD",
    "CORES",
    "MACHINE",
    "MEMORY",
    "NodeProcess",
    "StartedNode",
    "check_answers",
    "check_installed",
    "check_name",
    "environment",
    "join",
    "known_nodes",
    "own_name",
    "prepare",
    "split_address",
    "start_head",
    "stop",
    "stop_all",
]  # fmt: skip

MACHINE, BUILD, CORES, MEMORY = "coexec-machine", "coexec-build", "coexec-cores", "coexec-memory"
"""Labels of nodes: the machine's name, its coexec, its usable cores, its memory in bytes."""
_DRIVER = "coexec-driver"
"""Label of nodes that only send frames and receive answers."""
_OWN_SIGNALS = {"RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}
"""Variable of a process that enters a cluster: Ray's C++ code must not handle SIGTERM. Its handler
would end the process in any of its threads, before the nodes that were started for it."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""Names that Ray accepts as a label."""
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""With these values Ray notices a dead machine in 3 s, with its default values in 15 to 65 s."""
_PRIORITY = {"RAY_worker_niceness": "0"}
"""By default Ray's workers have a lower priority than all other processes: a busy machine would
seem dead."""
_INLINE = {"RAY_max_direct_call_object_size": str(2 << 20)}
"""Messages up to 2 MiB are sent with the call. By default, Ray sends messages from 100 KiB on by
its object store, which takes 11 to 14 ms longer on 50 Mbit/s (benchmarks/testbed)."""
_START_S, _STOP_S, _ANSWER_S = 60.0, 15.0, 5.0
_MOST_STORE_BYTES = 1_000_000_000
"""Maximum size of Ray's shared memory, which holds messages in transit."""


@dataclass(frozen=True)
class StartedNode:
    """A node that was started on this machine."""

    name: str
    """Name of the machine, unique in its cluster."""
    address: str
    """HOST:PORT of the head."""
    process: int
    head: bool
    token: str = ""
    """File from which the cluster's token was read; "" for the user's file."""

    @property
    def token_file(self) -> Path:
        """File with the token of its cluster."""
        return Path(self.token) if self.token else token_file()


class NodeProcess:
    """A node that runs until `stop` is called."""

    def __init__(self, node: StartedNode, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.node, self.process, self.log = node, process, log

    def stop(self) -> None:
        """End the node and all its processes. May be called again."""
        _end(self.process.pid)
        self.process.wait()
        _note_of(self.node).unlink(missing_ok=True)


def check_installed() -> None:
    """
    Raises:
        PackageError: a package is missing that only clusters need.
    """
    missing = [name for name in ("ray", "psutil") if find_spec(name) is None]
    if missing:
        raise PackageError(
            f"clusters need {' and '.join(missing)}, not installed here: {install('cluster')}"
        )


def check_name(name: str) -> str:
    """
    Raises:
        UsageError: a machine cannot have this name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a machine: up to 63 letters, digits, '-', '_' "
            f"and '.', a letter or digit at both ends"
        )
    return name


def own_name() -> str:
    """This host's name, without characters that a machine's name cannot have."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", platform.node())[:63].strip("-_.") or "machine"


def environment(token: Path | None = None) -> dict[str, str]:
    """Environment variables for Ray's processes: the token, quick health checks, no reports of use.

    Raises:
        UsageError: there is no token.
    """
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": read_token(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # the conductor reports lost machines, in one line
        **_HEALTH,
        **_INLINE,
        **_PRIORITY,
    }


def prepare(token: Path | None = None) -> None:
    """Set Ray's environment variables in this process; Ray must not have been imported before.

    Raises:
        UsageError: there is no token, Ray is not installed, or was imported without the token.
    """
    check_installed()
    variables = environment(token)
    if "ray" in sys.modules and os.environ.get("RAY_AUTH_TOKEN") != variables["RAY_AUTH_TOKEN"]:
        raise UsageError(
            "ray was imported before the cluster's token was known to it; make the "
            "Cluster before you import ray, one cluster a process"
        )
    os.environ.update(variables | _OWN_SIGNALS)


def start_head(
    name: str, port: int = PORT, host: str | None = None, folder: Path | None = None
) -> NodeProcess:
    """Start a cluster whose head is this machine.

    Args:
        host: address at which other machines reach this one; None: the address that this machine
            uses for outgoing connections.
        folder: folder for Ray's sockets and logs; None: Ray's default.

    Raises:
        UsageError: a name, port or address is invalid; Ray is not installed.
        DeviceError: Ray did not start, or the port is in use.
    """
    check_installed()
    _check_own(host)
    make_token()
    _check_free(port)
    host = host or _own_address()
    words = ["--head", "--port", str(port), "--node-ip-address", host]
    words += ["--include-dashboard=false", *(["--temp-dir", str(folder)] if folder else [])]
    return _start(StartedNode(name, f"{host}:{port}", 0, head=True), words, environment())


def join(
    address: str,
    name: str,
    host: str | None = None,
    token: Path | None = None,
    machine: bool = True,
) -> NodeProcess:
    """Make this machine a node of a cluster.

    Args:
        address: HOST:PORT of its head.
        host: address at which other machines reach this one; None: Ray chooses it.
        machine: whether the node computes; otherwise it only sends frames and receives answers.

    Raises:
        UsageError: there is no token, or a name or address is invalid; Ray is not installed.
        DeviceError: the head does not answer, or does not take the token.
    """
    check_installed()
    _check_own(host)
    variables = environment(token)
    check_answers(address)
    words = ["--address", address, *(["--node-ip-address", host] if host else [])]
    path = "" if token is None else str(token.absolute())
    node = StartedNode(name, address, 0, head=False, token=path)
    return _start(node, words, variables, machine)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of a head.

    Raises:
        UsageError: the text is no address.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isdecimal() and port.isascii() and 0 < int(port) < 65536):
        raise UsageError(
            f"{address!r} is no address of a head; give HOST:PORT, as `coexec cluster "
            f"start` prints it"
        )
    return host, int(port)


def check_answers(address: str) -> None:
    """
    Raises:
        UsageError: the text is no address.
        DeviceError: no process listens there.
    """
    host, port = split_address(address)
    try:
        socket.create_connection((host, port), _ANSWER_S).close()
    except (OSError, UnicodeError) as error:
        raise DeviceError(
            f"no head answers at {address}: {error}; look whether it runs "
            f"(`coexec cluster status` there) and whether a firewall lets port "
            f"{port} through"
        ) from None


def stop(name: str | None = None) -> list[StartedNode]:
    """End the nodes that this user has started on this machine, or only the node ``name``.

    Returns:
        The nodes that were ended, workers before heads.
    """
    nodes = [node for node in known_nodes() if name is None or node.name == name]
    ended = []
    for heads in (False, True):
        group = [node for node in nodes if node.head == heads]
        _each(lambda node: _end(node.process), group)
        for node in group:
            _note_of(node).unlink(missing_ok=True)
        ended += group
    return ended


def stop_all(nodes: Iterable[NodeProcess]) -> None:
    """End several nodes, heads last."""
    node_processes = list(nodes)
    for heads in (False, True):
        _each(NodeProcess.stop, [node for node in node_processes if node.node.head == heads])


def known_nodes() -> list[StartedNode]:
    """Running nodes that this user has started on this machine."""
    nodes = []
    for path in sorted(_notes().glob("*.json")):
        try:
            node = decode(StartedNode, json.loads(path.read_text()))
        except (OSError, ValueError):
            node = None
        if node is not None and _is_ours(node):
            nodes.append(node)
        else:
            path.unlink(missing_ok=True)
    return nodes


def _each(work: Callable[[Any], None], nodes: Sequence[Any]) -> None:
    """Call ``work`` for all nodes in parallel, as ending a node takes one or two seconds."""
    if nodes:
        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(work, nodes))


def _check_own(host: str | None) -> None:
    """
    Raises:
        UsageError: this machine has no such address.
    """
    if host is None:
        return
    try:
        if ipaddress.IPv4Address(host).is_unspecified:
            raise ValueError
        with socket.socket() as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        raise UsageError(
            f"this machine has no address {host!r}; leave --host out, or give one "
            f"that `ip -4 address` lists"
        ) from None


def _check_free(port: int) -> None:
    """
    Raises:
        DeviceError: the port is in use, or this user may not listen there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except PermissionError:
            raise DeviceError(
                f"this user may not listen at port {port}; choose one from 1024 on with --port"
            ) from None
        except (OSError, OverflowError):
            raise DeviceError(
                f"port {port} is in use on this machine, or is none; end what uses "
                f"it, or choose another with --port"
            ) from None


def _start(
    node: StartedNode, words: list[str], surroundings: Mapping[str, str], machine: bool = True
) -> NodeProcess:
    """Run Ray's command, and wait until its log reports the start."""
    check_name(node.name)
    if any(other.name == node.name for other in known_nodes()):
        raise UsageError(
            f"machine {node.name!r} runs here already; end it with `coexec cluster "
            f"stop`, or choose another name with --name"
        )
    labels = _labels(node.name) if machine else f"{_DRIVER}={node.name}"
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        *words,
        "--num-cpus",
        "0",
        "--num-gpus",
        "0",
        "--labels",
        labels,
        "--object-store-memory",
        str(_store_bytes()),
        "--disable-usage-stats",
        "--block",
    ]
    log = cluster_folder() / "logs" / f"{node.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _one_at_a_time(), log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **surroundings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _await_start(process, log, node.address)
        except BaseException:
            _end(process.pid)
            process.wait()
            raise
    running_node = replace(node, process=process.pid)
    _write_note(running_node)
    return NodeProcess(running_node, process, log)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lock the start of nodes: two nodes that start on one machine at the same time would choose
    the same socket names."""
    with (cluster_folder() / "starting").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _await_start(process: "subprocess.Popen[bytes]", log: Path, address: str) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        text = log.read_text(errors="replace")
        if "Ray runtime started" in text:
            return
        if "InvalidAuthToken" in text or "AuthenticationError" in text:
            raise DeviceError(
                f"the cluster at {address} does not take this token; copy the token "
                f"file from the head's machine"
            )
        if process.poll() is not None:
            raise DeviceError(f"Ray did not start: {_reason(text)}; {log} has all that it said")
        time.sleep(0.1)
    raise DeviceError(
        f"Ray did not start within {_START_S:.0f} s; look whether {address} is the "
        f"address of a head; {log} has what Ray said"
    )


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    error_lines = [line for line in lines if "Error" in line or "error" in line]
    return first_line(Exception((error_lines or lines or ["it said nothing"])[-1]))


def _labels(name: str) -> str:
    facts = {MACHINE: name, BUILD: build(), CORES: len(os.sched_getaffinity(0)), MEMORY: _memory()}
    return ",".join(f"{key}={value}" for key, value in facts.items())


def _memory() -> int:
    """Memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _store_bytes() -> int:
    return max(100_000_000, min(_MOST_STORE_BYTES, _memory() // 10))


def _own_address() -> str:
    """Address that this machine uses for outgoing connections."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _notes() -> Path:
    return cluster_folder() / "nodes"


def _note_of(node: StartedNode) -> Path:
    return _notes() / f"{node.name}.json"


def _write_note(node: StartedNode) -> None:
    """Write the file of a node at once, as other processes may read it meanwhile."""
    note = _note_of(node)
    note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = note.with_name(f"{note.name}.draft")
    draft.write_text(json.dumps(encode(node)))
    draft.replace(note)


def _is_ours(node: StartedNode) -> bool:
    """Whether the process is still the node, and not another process with the same number."""
    try:
        words = Path(f"/proc/{node.process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    begins = tuple(f"{label}={node.name}".encode() for label in (MACHINE, _DRIVER))
    return any(word.split(b",")[0] in begins for word in words)


def _end(process: int) -> None:
    """End a node: its main process by SIGTERM, which ends the others, and the processes that are
    left by SIGKILL."""
    import psutil

    processes = _session_of(process)
    if process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
        psutil.wait_procs(processes.values(), _STOP_S)
    survivors = list(_session_of(process).values())
    for each in survivors:
        with suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(survivors, _STOP_S)


def _session_of(process: int) -> "dict[int, psutil.Process]":
    """Processes of the session whose leader is ``process``, by number, including those whose
    parents have died."""
    import psutil

    processes = {}
    for number in psutil.pids():
        with suppress(ProcessLookupError, psutil.Error):
            if os.getsid(number) == process:
                processes[number] = psutil.Process(number)
    return processes
