"""Where Ray's processes of this machine listen, and how to let only the own network reach them."""

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

__all__ = ["PORT", "Socket", "firewall_lines", "network_of", "sockets_below"]

PORT = 6380
"""Of a head, unless another is said."""


class Socket(NamedTuple):
    """Where a process of Ray listens."""

    address: str
    port: int
    process: str

    @property
    def is_everywhere(self) -> bool:
        """Whether it listens on all addresses of the machine."""
        return self.address in ("::", "0.0.0.0")


def sockets_below(processes: Iterable[int]) -> list[Socket]:
    """Where these processes and all below them listen."""
    import psutil

    found = set()
    for number in processes:
        with suppress(psutil.Error):
            parent = psutil.Process(number)
            for process in (parent, *parent.children(recursive=True)):
                with suppress(psutil.Error):
                    for each in process.net_connections("inet"):
                        if each.status == psutil.CONN_LISTEN:
                            found.add(Socket(each.laddr.ip, each.laddr.port, process.name()))
    return sorted(found)


def network_of(address: str) -> str:
    """The network of one of this machine's addresses: "192.168.1.0/24"; of others, that address."""
    import psutil

    for each in (each for addresses in psutil.net_if_addrs().values() for each in addresses):
        if each.family == socket.AF_INET and each.address == address and each.netmask:
            return str(ipaddress.ip_network(f"{address}/{each.netmask}", strict=False))
    return address


def firewall_lines(network: str) -> tuple[str, str, str]:
    """Let a network reach this machine's ports, and nobody else: with ufw, where it is active; with
    nftables, for IPv4 and for IPv6, by which Ray can be reached, too.

    No line turns ufw on: whoever is logged in by SSH would be shut out.

    Ray takes ports as it likes, so that all of them have to be open to the other machines.
    """
    others = "nft add rule inet filter input iifname != lo"
    return (
        f"ufw allow from {network}",
        f"{others} ip saddr != {network} tcp dport 1024-65535 drop",
        f"{others} meta nfproto ipv6 tcp dport 1024-65535 drop",
    )
