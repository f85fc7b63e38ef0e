"""Network namespaces for machines, and the switch or the medium between them.

The switch has a namespace of its own. So no link is ever made in the host's, and all links go with
the namespaces.

    machine a                     switch
    eth0, tbf (sends)  == veth ==  a, tbf (receives) --+
                                                       bridge
    eth0, tbf (sends)  == veth ==  b, tbf (receives) --+

On a shared medium, what comes from any machine passes the device `medium` before the bridge
forwards it: one rate for all, of which machines that send at once get equal parts, as stations of a
Wi-Fi do. What a machine receives is not limited again.
"""

from pathlib import Path

from host_commands import command, in_namespace, succeeds

__all__ = [
    "BRIDGE", "MEDIUM", "SWITCH", "address", "connect", "cut", "inode", "make_medium",
    "make_switch", "mend", "shape", "to_medium",
]  # fmt: skip

SWITCH, MEDIUM, BRIDGE = "switch", "medium", "bridge"
_PORT = "eth0"
_BURST, _QUEUE = "16kb", "256kb"
"""What a bucket holds, 2.6 ms at 50 Mbit/s: with less, Linux's timers come too late to keep the
rate. And what waits at it before frames are dropped, 42 ms."""
_ALL = "1:ffff"
"""The class of the whole medium."""
_CONGESTION_CONTROLS = ("cubic", "reno")
"""That of Raspberry Pi OS; and what comes closest, where the host does not allow it in namespaces.
Others, like BBR, need the queueing discipline fq to send evenly."""


def address(index: int) -> str:
    """Of a machine. No route leads here from the host: test beds may have the same addresses."""
    return f"10.77.{index // 250}.{index % 250 + 1}"


def make_switch(switch: str) -> None:
    """The namespace of the switch, with a bridge."""
    command("ip", "netns", "add", switch)
    _ip(switch, "link", "add", "name", BRIDGE, "type", "bridge")
    _ip(switch, "link", "set", "dev", BRIDGE, "up")


def make_medium(switch: str, mbit: float) -> None:
    """What `to_medium` lets machines pass."""
    _ip(switch, "link", "add", "name", MEDIUM, "type", "ifb")
    _ip(switch, "link", "set", "dev", MEDIUM, "up")
    _tc(switch, "qdisc", "add", "dev", MEDIUM, "root", "handle", "1:", "htb", "default", "1")
    _tc(
        switch,
        "class",
        "add",
        "dev",
        MEDIUM,
        "parent",
        "1:",
        "classid",
        _ALL,
        "htb",
        "rate",
        _rate(mbit),
        "burst",
        _BURST,
        "cburst",
        _BURST,
    )


def connect(switch: str, namespace: str, machine: str, index: int) -> None:
    """A new namespace for a machine, with a link to the switch."""
    command("ip", "netns", "add", namespace)
    for name in _CONGESTION_CONTROLS:
        setting = f"echo {name} > /proc/sys/net/ipv4/tcp_congestion_control"
        if succeeds(*in_namespace(namespace, "sh", "-c", setting)):
            break
    _ip(
        switch,
        "link",
        "add",
        "name",
        machine,
        "type",
        "veth",
        "peer",
        "name",
        _PORT,
        "netns",
        namespace,
    )
    _ip(namespace, "address", "add", f"{address(index)}/16", "dev", _PORT)
    _ip(namespace, "link", "set", "dev", "lo", "up")
    _ip(namespace, "link", "set", "dev", _PORT, "up")
    _ip(switch, "link", "set", "dev", machine, "master", BRIDGE, "up")


def to_medium(switch: str, machine: str, index: int, part: float, mbit: float) -> None:
    """What comes from a machine passes the medium before the bridge sees it: at ``part`` Mbit/s if
    all send, at up to ``mbit`` if others do not."""
    own = f"1:{index + 1:x}"
    _tc(
        switch,
        "class",
        "add",
        "dev",
        MEDIUM,
        "parent",
        _ALL,
        "classid",
        own,
        "htb",
        "rate",
        _rate(part),
        "ceil",
        _rate(mbit),
        "burst",
        "2kb",
        "cburst",
        _BURST,
        "quantum",
        "1514",
    )
    _tc(switch, "qdisc", "add", "dev", MEDIUM, "parent", own, "bfifo", "limit", _QUEUE)
    _tc(
        switch,
        "filter",
        "add",
        "dev",
        MEDIUM,
        "parent",
        "1:",
        "protocol",
        "ip",
        "u32",
        "match",
        "ip",
        "src",
        address(index),
        "flowid",
        own,
    )
    _tc(switch, "qdisc", "add", "dev", machine, "ingress")
    # A filter that matches everything; few kernels lack u32, but some lack matchall.
    _tc(
        switch,
        "filter",
        "add",
        "dev",
        machine,
        "parent",
        "ffff:",
        "protocol",
        "all",
        "u32",
        "match",
        "u32",
        "0",
        "0",
        "action",
        "mirred",
        "egress",
        "redirect",
        "dev",
        MEDIUM,
    )


def shape(
    switch: str, namespace: str, machine: str, send: float | None, receive: float | None
) -> None:
    """The rates of a machine's link in Mbit/s; None: as fast as the host is."""
    for place, device, mbit in ((namespace, _PORT, send), (switch, machine, receive)):
        if mbit is not None:
            _tc(
                place,
                "qdisc",
                "replace",
                "dev",
                device,
                "root",
                "tbf",
                "rate",
                _rate(mbit),
                "burst",
                _BURST,
                "limit",
                _QUEUE,
            )
        elif "tbf" in _tc(place, "qdisc", "show", "dev", device):
            _tc(place, "qdisc", "delete", "dev", device, "root")


def cut(switch: str, machine: str) -> None:
    """Pull the cable: neither end gets an error, nothing arrives."""
    _ip(switch, "link", "set", "dev", machine, "down")


def mend(switch: str, machine: str) -> None:
    """Put the cable back."""
    _ip(switch, "link", "set", "dev", machine, "up")


def inode(namespace: str) -> int:
    """By which the processes in a namespace are recognised."""
    return Path("/run/netns", namespace).stat().st_ino


def _ip(namespace: str, *words: str) -> str:
    return command("ip", "-n", namespace, *words)


def _tc(namespace: str, *words: str) -> str:
    return command("tc", "-n", namespace, *words)


def _rate(mbit: float) -> str:
    return f"{round(mbit * 1e6)}bit"
