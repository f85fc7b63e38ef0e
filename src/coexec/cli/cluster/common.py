"""What the verbs of `coexec cluster` share: options, and how they end."""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coexec.cli.console import err
from coexec.cluster.nodes import NodeProcess, check_name, own_name
from coexec.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from coexec.cluster.cluster import Cluster
    from coexec.cluster.settings import ClusterSettings

__all__ = [
    "AddressOpt",
    "BlockOpt",
    "ClusterOpt",
    "HostOpt",
    "NameOpt",
    "NodesOpt",
    "PipelineOpt",
    "TokenOpt",
    "ended_by_signals",
    "entered",
    "hold",
    "named",
    "numbers",
]

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
ClusterOpt = Annotated[
    Path | None, typer.Option("--cluster", help="A cluster.toml: what is known of the machines.")
]
AddressOpt = Annotated[
    str | None, typer.Option(help="HOST:PORT of a head; by default of the node that runs here.")
]
NodesOpt = Annotated[
    int | None, typer.Option(help="Start so many on this machine for the time being.")
]
PipelineOpt = Annotated[str, typer.Option("--planner", help="Of pipelines: what makes the plan.")]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def named(name: str | None) -> str:
    """The name that was given, or this host's.

    Raises:
        UsageError: a machine cannot be called so.
    """
    return own_name() if name is None else check_name(name)


def numbers(option: str, text: str) -> list[float]:
    """ "2,2,1" as [2.0, 2.0, 1.0].

    Raises:
        UsageError: something is no number above 0.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value < math.inf for value in found):
        raise UsageError(f"{option} {text!r} is not of the form 8 or 2,2,1, numbers above 0")
    return found


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """SIGTERM and SIGHUP end what is within as Ctrl-C does. From then on further signals are
    ignored, as nodes and machines are being ended.

    What is given out sets the handlers again, after a library has set its own.
    """
    ending = False

    def end(number: int, frame: FrameType | None) -> Any:
        nonlocal ending
        if not ending:
            ending = True
            raise KeyboardInterrupt

    def install() -> None:
        for each in _ENDING:
            signal.signal(each, end)

    before = {each: signal.getsignal(each) for each in _ENDING}
    install()
    try:
        yield install
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def entered(
    known: "ClusterSettings", address: str | None, nodes: int | None, token: Path | None,
    cache: Path | None,
) -> "Iterator[Cluster]":  # fmt: skip
    """A cluster that is left, and whose nodes are ended, whatever happens.

    Raises:
        CoexecError: as `Cluster`.
    """
    from coexec.cluster.cluster import Cluster

    with (
        ended_by_signals() as install,
        Cluster(known, address=address, nodes=nodes, token=token, cache=cache) as cluster,
    ):
        install()  # Ray has set a handler of its own
        yield cluster


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
