"""Sockets on which Ray's processes of this machine listen, and firewall rules that let only the own
network reach them."""

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

__all__ = ["PORT", "Socket", "firewall_lines", "network_of", "sockets_below"]

PORT = 6380
"""Default port of a head."""


class Socket(NamedTuple):
    """A socket on which a process of Ray listens."""

    address: str
    port: int
    process: str

    @property
    def is_everywhere(self) -> bool:
        """Whether it listens on all addresses of the machine."""
        return self.address in ("::", "0.0.0.0")


def sockets_below(processes: Iterable[int]) -> list[Socket]:
    """Sockets on which these processes and their descendants listen."""
    import psutil

    sockets = set()
    for number in processes:
        with suppress(psutil.Error):
            parent = psutil.Process(number)
            for process in (parent, *parent.children(recursive=True)):
                with suppress(psutil.Error):
                    for each in process.net_connections("inet"):
                        if each.status == psutil.CONN_LISTEN:
                            sockets.add(Socket(each.laddr.ip, each.laddr.port, process.name()))
    return sorted(sockets)


def network_of(address: str) -> str:
    """The network of one of this machine's addresses, such as "192.168.1.0/24"; any other address
    is returned unchanged."""
    import psutil

    for each in (each for addresses in psutil.net_if_addrs().values() for each in addresses):
        if each.family == socket.AF_INET and each.address == address and each.netmask:
            return str(ipaddress.ip_network(f"{address}/{each.netmask}", strict=False))
    return address


def firewall_lines(network: str) -> tuple[str, str, str]:
    """Commands that let only one network reach this machine's ports: one for ufw, where it is
    active; two for nftables, for IPv4 and for IPv6, as Ray listens on both.

    No command turns ufw on, as that would lock out users who are logged in by SSH.

    Ray chooses its ports freely, so all ports must be open to the other machines.
    """
    drop_rule = "nft add rule inet filter input iifname != lo"
    return (
        f"ufw allow from {network}",
        f"{drop_rule} ip saddr != {network} tcp dport 1024-65535 drop",
        f"{drop_rule} meta nfproto ipv6 tcp dport 1024-65535 drop",
    )
