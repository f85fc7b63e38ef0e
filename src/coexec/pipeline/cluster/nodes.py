"""Nodes of Ray: `ray start` with the labels of a machine, the cluster's token and quick health
checks.

Ray makes the token (`ray get-auth-token`), starts and supervises its processes (`ray start`), knows
the nodes of a cluster, and ends what runs on a machine (`ray stop`).

Security, by Ray's documentation: with the token one can run any program on all machines of
the cluster. The token is sent unencrypted, and Ray listens on all addresses of a machine. See
https://docs.ray.io/en/latest/ray-security/token-auth.html.
"""

import errno
import ipaddress
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from coexec.errors import DeviceError, PackageError, UsageError, first_line
from coexec.extras import install
from coexec.pipeline.cluster.build import build
from coexec.serve.tokens import read_token

MACHINE, BUILD = "coexec-machine", "coexec-build"
"""Labels of nodes: the machine's name, and its coexec."""
_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_REMEDY = (
    "`coexec cluster start` starts a cluster and makes one; on other machines, copy that file from "
    "the head's, and name it with --token-file if it lies elsewhere; or try several nodes on this "
    "machine with nodes=4 (--nodes 4)"
)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""Names that Ray accepts as a label."""
_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # the conductor reports lost machines, in one line
    # With these values Ray notices a dead machine in 3 s, with its default values in 15 to 65 s.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    # Messages up to 2 MiB are sent with the call. By default, Ray sends messages from 100 KiB on by
    # its object store, which takes 11 to 14 ms longer on 50 Mbit/s (benchmarks/testbed).
    "RAY_max_direct_call_object_size": str(2 << 20),
    # By default Ray's workers have a lower priority than all other processes: a busy machine would
    # seem dead.
    "RAY_worker_niceness": "0",
}
_OWN_SIGNALS = {"RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}
"""Variable of a process that enters a cluster: Ray's C++ code must not handle SIGTERM. Its handler
would end the process in any of its threads, before the nodes that were started for it. Nodes are
started without it: their workers would write no stack when they crash."""
_START_S, _STOP_S, _ANSWER_S = 60.0, 15.0, 5.0
_MOST_STORE_BYTES = 1_000_000_000
"""Maximum size of Ray's shared memory, which holds messages in transit."""
_LONGEST = 20
"""Maximum length of a folder's path in characters: Ray appends 80, and a socket's path has 107 at
most."""


class RayNode(NamedTuple):
    """A node as Ray reports it."""

    id: str
    name: str
    """"" for a node that only sends frames and receives answers."""
    build: str
    """Version of its coexec, see `coexec.pipeline.cluster.build`."""
    address: str
    host: str
    alive: bool
    is_head: bool


def check_installed() -> None:
    """
    Raises:
        PackageError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise PackageError(f"clusters need ray, not installed here: {install('cluster')}")


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


def token_file() -> Path | None:
    """File with the token of this user's clusters, where Ray looks for it: the one that
    RAY_AUTH_TOKEN_PATH names, or else Ray's own. None: RAY_AUTH_TOKEN holds the token."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return None
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def make_token() -> None:
    """Write a token to Ray's own file if there is none. Only the user can read it then. Nothing is
    written if the user has named a token by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.

    Raises:
        UsageError: it cannot be written.
    """
    file = token_file()
    if file is None or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    if not file.exists():
        command = [*_RAY, "get-auth-token", "--generate"]
        if subprocess.run(command, umask=0o077, capture_output=True, check=False).returncode:
            raise UsageError(
                f"cannot write the token file {str(file)!r}; set HOME to a folder that can be "
                f"written"
            )
    file.chmod(0o600)  # Ray's own command lets others of this machine read it


def environment(token: Path | None = None) -> dict[str, str]:
    """Environment variables for Ray's processes: the token, quick health checks, no reports of use.

    Args:
        token: file with the cluster's token; None: `token_file`.

    Raises:
        UsageError: there is no token.
    """
    file = token or token_file()
    text = os.environ["RAY_AUTH_TOKEN"] if file is None else read_token(file, _REMEDY)
    return {**_SETTINGS, "RAY_AUTH_TOKEN": text}


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


def address_here() -> str:
    """HOST:PORT of the head of the cluster that this machine belongs to; of several clusters, the
    last one that `ray start` has started or joined. Call `prepare` before.

    Raises:
        UsageError: no node runs on this machine.
    """
    from ray._private import services  # Ray reads the token when it is imported

    addresses: frozenset[str] = services.find_gcs_addresses()  # type: ignore[no-untyped-call]
    last = services.find_bootstrap_address(None)
    if not addresses:
        raise UsageError(
            "no cluster is known here; start one with `coexec cluster start`, join one"
            " with `coexec cluster join HOST:PORT`, give its address, or try several "
            "nodes on this machine with nodes=4 (--nodes 4)"
        )
    return last if last is not None and last in addresses else min(addresses)


def nodes_of(address: str) -> tuple[RayNode, ...]:
    """Nodes of a cluster, including dead ones. This process does not enter it. Call `prepare`
    before.

    Raises:
        UsageError: the text is no address.
        DeviceError: no head answers there, or it does not take the token.
    """
    check_answers(address)
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError, RayError

    try:
        rows: dict[Any, Any] = GcsClient(address=address).get_all_node_info(timeout=_ANSWER_S)
    except AuthenticationError:
        raise DeviceError(
            f"the cluster at {address} does not take this token; copy the token "
            f"file from the head's machine"
        ) from None
    except RayError as error:
        raise DeviceError(
            f"the head at {address} does not say which machines it has: {first_line(error)}; look "
            f"whether it is one of Ray"
        ) from None
    return tuple(
        RayNode(
            key.hex(),
            row.labels.get(MACHINE, ""),
            row.labels.get(BUILD, ""),
            row.node_manager_address,
            row.node_manager_hostname,
            row.state == GcsNodeInfo.GcsNodeState.ALIVE,
            row.is_head_node,
        )
        for key, row in rows.items()
    )


def check_welcome(
    nodes: Sequence[RayNode], address: str, name: str, has_joined: bool = False
) -> None:
    """
    Args:
        has_joined: whether this machine is one of the nodes.

    Raises:
        DeviceError: the head runs another coexec than this machine, or another machine has the
            name.
    """
    head = next((node for node in nodes if node.alive and node.is_head), None)
    head_build = "none" if head is None else head.build or "none"
    if head_build != build():
        raise DeviceError(
            f"the head at {address} has coexec {head_build}, this machine {build()}; "
            f"install the same on both"
        )
    if sum(node.alive and node.name == name for node in nodes) > has_joined:
        raise DeviceError(
            f"the cluster at {address} has a machine {name!r} already; choose another name with "
            f"--name, or wait some seconds if it has just gone"
        )


def start(
    name: str,
    address: str | None = None,
    *,
    port: int = 0,
    host: str | None = None,
    token: Path | None = None,
    block: bool = False,
) -> str:
    """Start a node on this machine, which runs until `ray stop`.

    Args:
        address: HOST:PORT of the head of a cluster to join; None: the node is a head.
        port: at which a head listens; 0: a free one.
        host: address at which other machines reach this one; None: Ray chooses it.
        block: replace this process by Ray's, which runs as long as the node. Then two machines
            with one name that join at the same moment are not noticed.

    Returns:
        HOST:PORT of the head.

    Raises:
        UsageError: there is no token, or a name or address is invalid; Ray is not installed.
        DeviceError: the head does not answer or does not take the machine, the port is in use, or
            Ray did not start.
    """
    check_installed()
    check_name(name)
    if address is None:
        _check_free(host, port)
        make_token()
    else:
        _check_free(host, 0)
    prepare(token)
    if address is not None:
        check_welcome(nodes_of(address), address, name)
    words = ["--node-ip-address", host] if host else []
    if block:
        command = _start_command(name, address, port, [*words, "--block"])
        os.execve(command[0], command, _node_environment())
    with tempfile.TemporaryDirectory() as folder:
        process, head = _run(_start_command(name, address, port, words), Path(folder) / "log")
    try:
        process.wait()
        if address is not None:  # another machine may have joined by this name meanwhile
            check_welcome(nodes_of(address), address, name, has_joined=True)
    except BaseException:
        _end_group(process)
        raise
    return address or head


class LocalNodes:
    """Nodes on this machine that end with this object. Call `prepare` before."""

    def __init__(self) -> None:
        temp_path = tempfile.gettempdir()
        self.folder = Path(
            tempfile.mkdtemp(
                prefix="coexec-", dir="/tmp" if len(temp_path) > _LONGEST else temp_path
            )
        )
        """Folder for Ray's sockets and logs, whose name is also valid as a machine's name."""
        self._processes: list[subprocess.Popen[bytes]] = []

    def add(self, name: str | None, address: str | None = None) -> str:
        """Start a node: the head of a cluster, or one that joins it.

        Args:
            name: name of the machine; None: the node only sends frames and receives answers.

        Returns:
            HOST:PORT of the head.

        Raises:
            DeviceError: Ray did not start.
        """
        words = ["--block", *([] if address else ["--temp-dir", str(self.folder / "ray")])]
        command, log = (
            _start_command(name, address, 0, words),
            self.folder / f"{name or 'driver'}.log",
        )
        # Ctrl-C interrupts this thread, and not the other one: each node is then either not started
        # or in the list of `stop`.
        with ThreadPoolExecutor(1) as thread:
            _, head = thread.submit(_run, command, log, self._processes.append).result()
        return address or head

    def stop(self) -> None:
        """End all nodes, the head last. May be called again."""
        for group in (self._processes[1:], self._processes[:1]):
            for process in group:
                process.terminate()
            for process in group:
                try:
                    process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()  # its processes end with it
                    process.wait()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def is_own(host: str) -> bool:
    """Whether this machine has the address."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _start_command(
    name: str | None, address: str | None, port: int, words: Sequence[str]
) -> list[str]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    head = ["--head", "--port", str(port), "--include-dashboard=false"]
    return [
        *(*_RAY, "start", *(["--address", address] if address else head), *words),
        *([] if name is None else ["--labels", f"{MACHINE}={name},{BUILD}={build()}"]),
        *("--num-cpus", "0", "--num-gpus", "0", "--disable-usage-stats", "--object-store-memory"),
        str(max(100_000_000, min(_MOST_STORE_BYTES, memory_bytes // 10))),
    ]


def _node_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in _OWN_SIGNALS}


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End `ray start` and what it has started, also if it has ended itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run(
    command: Sequence[str],
    log: Path,
    begun: Callable[["subprocess.Popen[bytes]"], None] = lambda process: None,
) -> "tuple[subprocess.Popen[bytes], str]":
    """Run `ray start` until it reports the start. Returns its process, and the address that a head
    names for further nodes. Whatever prevents the start, no process of it is left."""
    process = None
    try:
        with log.open("wb") as output, _interrupts_later():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_node_environment(),
            )
        begun(process)
        end_s = time.monotonic() + _START_S
        while "To terminate the Ray runtime" not in (text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > end_s:
                lines = [line.strip() for line in text.splitlines() if line.strip()]
                errors = [line for line in lines if "Error" in line or "error" in line]
                reason = first_line(Exception((errors or lines or ["it said nothing"])[-1]))
                raise DeviceError(f"Ray did not start within {_START_S:.0f} s: {reason}")
            time.sleep(0.1)
        found = re.search(r"ray start --address='([^']+)'", text)
        if found is None and "--head" in command:
            raise DeviceError(
                f"Ray did not say at which address its head listens; install the version of ray "
                f"that coexec needs: {install('cluster')}"
            )
    except BaseException:
        if process is not None:
            _end_group(process)
        raise
    return process, found[1] if found else ""


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Signals to end this process count after the block: a process that it starts is known then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _check_free(host: str | None, port: int) -> None:
    """
    Raises:
        UsageError: this machine has no such address, or there is no such port.
        DeviceError: the port is in use, or this user may not listen there.
    """
    if not 0 <= port < 65536:
        raise UsageError(f"{port} is no port; give one from 1 to 65535, or 0 for a free one")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if host and ipaddress.IPv4Address(host).is_unspecified:
                raise ValueError(host)
            probe.bind((host or "", port))
        except PermissionError:
            raise DeviceError(
                f"this user may not listen at port {port}; choose one from 1024 on with --port"
            ) from None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise DeviceError(
                    f"port {port} is in use on this machine; end what uses it, or choose another "
                    f"with --port"
                ) from None
            raise UsageError(
                f"this machine has no address {host!r}; leave --host out, or give one "
                f"that `ip -4 address` lists"
            ) from None
