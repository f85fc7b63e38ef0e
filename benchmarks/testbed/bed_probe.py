"""What a test bed needs of the machine, tried by doing it once and taking it down."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import bed_tags
import cpu_quota
import wires
from bed import Medium
from host_commands import command

from coexec.errors import ExecutionError

__all__ = ["Finding", "probe", "why_not", "why_not_quota"]


@dataclass(frozen=True)
class Finding:
    """One thing that a test bed needs."""

    need: str
    use: str
    """What does not work without it: "all", "shared", "quota" or "ray"."""
    reason: str = ""
    """Why it is not there; empty if it is."""


def probe() -> list[Finding]:
    """Everything that is needed, in the order in which it is needed. Leaves nothing behind."""
    tag = bed_tags.new_tag()
    found: list[Finding] = []
    try:
        for need, use, attempt in _attempts(tag):
            basis = next((f for f in found if f.reason and f.use == "all"), None)
            reason = f"needs {basis.need}" if basis and use != "ray" else _reason(attempt)
            found.append(Finding(need, use, reason))
    finally:
        bed_tags.remove(tag)
    return found


def why_not(medium: Medium = "ports") -> str:
    """Why this machine can have no test bed with that medium; empty if it can."""
    return _first_reason("all", medium)


def why_not_quota() -> str:
    """Why machines can have no CPU quota; empty if they can."""
    return _first_reason("all", "quota")


def _first_reason(*uses: str) -> str:
    lacking = (f"{f.need}: {f.reason}" for f in probe() if f.reason and f.use in uses)
    return next(lacking, "")


def _attempts(tag: bed_tags.Tag) -> Iterator[tuple[str, str, Callable[[], object]]]:
    switch, machine = tag.namespace(wires.SWITCH), tag.namespace("m0")
    limited = f"{tag.group}m0"
    yield "root", "all", _root
    yield "ip", "all", lambda: _installed("ip")
    yield "tc", "all", lambda: _installed("tc")
    yield "namespace, bridge", "all", lambda: wires.make_switch(switch)
    yield "veth", "all", lambda: wires.connect(switch, machine, "m0", 0)
    yield "token bucket (tbf)", "all", lambda: wires.shape(switch, machine, "m0", 50, 50)
    yield "ifb, htb", "shared", lambda: wires.make_medium(switch, 50)
    yield "u32, mirred", "shared", lambda: wires.to_medium(switch, "m0", 0, 50, 50)
    yield "CPU quota (cgroup v1)", "quota", lambda: cpu_quota.limit(limited, 0.5, (), tag.folder)
    yield "Ray", "ray", _ray


def _reason(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except ExecutionError as error:
        return str(error)
    return ""


def _root() -> None:
    if os.geteuid() != 0:
        raise ExecutionError(f"this process has user id {os.geteuid()}; run it with sudo")


def _installed(name: str) -> None:
    if shutil.which(name) is None:
        raise ExecutionError("not installed; on Debian: apt-get install iproute2")
    command(name, "-V")


def _ray() -> None:
    if find_spec("ray") is None:
        raise ExecutionError("not installed; pip install ray")
