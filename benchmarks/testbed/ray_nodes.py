"""Ray inside of a test bed: one node a machine."""

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import bandwidth
from bed import Testbed

from coexec.errors import ExecutionError
from coexec.pipeline.cluster.build import build
from coexec.pipeline.cluster.nodes import BUILD, MACHINE, environment

__all__ = ["start_node", "start_ray", "token_file"]

_PORT = 6379
_START_S = 90.0
_ALIVE = """
import sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.1)
"""


def start_ray(
    bed: Testbed,
    head: str | None = None,
    settings: Mapping[str, str] | None = None,
    machines: Sequence[str] | None = None,
) -> str:
    """Start one node in each machine, and wait until all are alive.

    Each node has the resource ``machine:NAME``, the labels of a machine of
    `coexec.pipeline.cluster`, and no CPUs. Nodes end with the test bed. What its processes need to
    find and enter the cluster is in ``bed.environment`` from then on, and the cluster's token in
    `token_file`.

    Args:
        head: the machine of the head node; by default the driver's.
        settings: more environment variables for all nodes.
        machines: only these, the head's among them.

    Returns:
        The address of the cluster.

    Raises:
        ExecutionError: a node did not start; the message has the end of what it said.
    """
    head = head or bed.driver
    address = f"{bed.address(head)}:{_PORT}"
    token_file(bed).write_text(secrets.token_hex(24))
    bed.environment |= {
        **environment(token_file(bed)),
        **(settings or {}),
        "RAY_ADDRESS": address,
    }
    bed.note()
    end_s = time.monotonic() + _START_S
    nodes = {head: start_node(bed, head, head)}
    _wait(bandwidth.end(bed, head, "await", str(_PORT), str(_START_S)), nodes, bed, end_s)
    nodes |= {
        name: start_node(bed, name, head) for name in machines or bed.machines if name != head
    }
    counting = bed.run(
        head,
        [sys.executable, "-c", _ALIVE, address, str(len(nodes))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait(counting, nodes, bed, end_s)
    return address


def token_file(bed: Testbed) -> Path:
    """Where the token of the cluster in a test bed lies."""
    return bed.folder / "token"


def start_node(bed: Testbed, machine: str, head: str) -> "subprocess.Popen[bytes]":
    """One node. This function is all that knows how a node is started."""
    index = bed.machines.index(machine)
    role = ["--head", f"--port={_PORT}", "--include-dashboard=false"]
    if machine != head:
        role = [f"--address={bed.address(head)}:{_PORT}"]
    words = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        *role,
        f"--node-ip-address={bed.address(machine)}",
        "--num-cpus=0",
        "--labels",
        f"{MACHINE}={machine},{BUILD}={build()}",
        "--resources",
        json.dumps({f"machine:{machine}": 1}),
        "--object-store-memory=200000000",
        # Short, because sockets are in it, whose paths may have 107 characters.
        f"--temp-dir={bed.folder / f'r{index}'}",
    ]
    # RAY_ADDRESS would tell a head to join.
    with _said(bed, machine).open("wb") as said:
        return bed.run(machine, ["env", "-u", "RAY_ADDRESS", *words], stdout=said, stderr=said)


def _wait(
    child: "subprocess.Popen[bytes] | subprocess.Popen[str]",
    nodes: "dict[str, subprocess.Popen[bytes]]",
    bed: Testbed,
    end_s: float,
) -> None:
    """Until ``child`` succeeds. No node may end meanwhile."""
    while (code := child.poll()) is None:
        ended = {name: node.returncode for name, node in nodes.items() if node.poll() is not None}
        if ended or time.monotonic() > end_s:
            child.kill()
            child.communicate()
            raise _failure(bed, nodes, ended)
        time.sleep(0.05)
    child.communicate()
    if code:
        raise _failure(bed, nodes, {})


def _failure(bed: Testbed, nodes: Iterable[str], ended: Mapping[str, int]) -> ExecutionError:
    """What the nodes said that ended, by their exit codes; if none did, what all said."""
    machines = list(ended or nodes)
    how = ", ".join(f"with code {code} on {name}" for name, code in ended.items())
    what = f"a node ended {how}" if how else f"no cluster after {_START_S:g} s"
    lines = [line for name in machines for line in _said(bed, name).read_text().splitlines()]
    end = " / ".join(line.strip() for line in lines[-5:]) or "nothing"
    return ExecutionError(f"Ray did not start: {what}; {', '.join(machines)} said: {end}")


def _said(bed: Testbed, machine: str) -> Path:
    return bed.folder / f"ray-{machine}.log"
