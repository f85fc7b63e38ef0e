"""Several nodes on this machine for the time being: a cluster to try things on."""

import shutil
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from coexec.cluster.nodes import NodeProcess, join, start_head, stop_all

__all__ = ["LocalNodes", "folder_of_nodes"]

_LONGEST = 20
"""Characters of a folder's path: behind it Ray puts 80, and a socket's path has 107 at most."""


def folder_of_nodes() -> Path:
    """A new folder for Ray's sockets and logs, whose name is a name for machines, too."""
    found = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="coexec-", dir="/tmp" if len(found) > _LONGEST else found))


class LocalNodes:
    """A head and others, which end with this object.

    They are started by another thread, so that Ctrl-C, which reaches the main thread, finds every
    node either not started or known here.
    """

    def __init__(self, names: Sequence[str], folder: Path, port: int) -> None:
        """
        Args:
            names: of the nodes, the head's first.
            folder: becomes theirs, and is removed at the end.

        Raises:
            CoexecError: a node does not start.
        """
        self._folder = folder
        self._nodes: list[NodeProcess] = []
        self._given_up = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            started = thread.submit(self._start, names, port)
            try:
                started.result()
            except BaseException:
                self._given_up.set()
                with suppress(Exception):
                    started.result()
                self.stop()
                raise

    @property
    def address(self) -> str:
        """Of the head."""
        return self._nodes[0].node.address

    def stop(self) -> None:
        """End them all. May be called again."""
        stop_all(self._nodes)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, names: Sequence[str], port: int) -> None:
        for name in names:
            if self._given_up.is_set():
                return
            if self._nodes:
                self._nodes.append(join(self.address, name))
            else:
                self._nodes.append(start_head(name, port, folder=self._folder / "ray"))
