"""What the verbs of `coexec cluster` share: options, and how they end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from coexec.cli.console import err
from coexec.cluster.nodes import NodeProcess, check_name, own_name
from coexec.errors import DeviceError

__all__ = ["BlockOpt", "HostOpt", "NameOpt", "TokenOpt", "ended_by_signals", "hold", "named"]

NameOpt = Annotated[
    str | None, typer.Option(help="Of this machine in the cluster; by default its host name.")
]
HostOpt = Annotated[
    str | None, typer.Option(help="Address of this machine that others reach it at.")
]
TokenOpt = Annotated[
    Path | None, typer.Option("--token-file", help="File with the cluster's token.")
]
BlockOpt = Annotated[
    bool, typer.Option("--block", help="Stay until Ctrl-C or SIGTERM, and end the node then.")
]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def named(name: str | None) -> str:
    """The name that was given, or this host's.

    Raises:
        UsageError: a machine cannot be called so.
    """
    return own_name() if name is None else check_name(name)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is within as Ctrl-C does. Meanwhile further signals are ignored:
    nodes and machines are being ended.

    Libraries set handlers of their own (Ray, when it is entered), so that this may have to be
    entered again.
    """

    def end(number: int, frame: FrameType | None) -> Any:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, end) for each in _ENDING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def hold(node: NodeProcess) -> None:
    """Wait for Ctrl-C or SIGTERM, then end the node.

    Raises:
        DeviceError: the node has ended by itself.
    """
    with ended_by_signals():
        try:
            node.process.wait()
        except KeyboardInterrupt:
            err.print(f"ending machine {node.node.name}")
            return
        finally:
            node.stop()
    raise DeviceError(f"machine {node.node.name} has ended: the head at {node.node.address} is "
                      f"gone, or Ray has; {node.log} has what it said")  # fmt: skip
