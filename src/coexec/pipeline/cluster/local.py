"""Temporary nodes on this machine: a cluster for experiments."""

import shutil
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from coexec.pipeline.cluster.nodes import NodeProcess, join, start_head, stop_all

__all__ = ["LocalNodes", "folder_of_nodes"]

_LONGEST = 20
"""Maximum length of a folder's path in characters: Ray appends 80, and a socket's path has 107 at
most."""


def folder_of_nodes() -> Path:
    """New folder for Ray's sockets and logs, whose name is also valid as a machine's name."""
    temp_path = tempfile.gettempdir()
    return Path(
        tempfile.mkdtemp(prefix="coexec-", dir="/tmp" if len(temp_path) > _LONGEST else temp_path)
    )


class LocalNodes:
    """A head and other nodes, which end with this object.

    Another thread starts the nodes. Ctrl-C interrupts the main thread, so each node is then either
    not started or listed here.
    """

    def __init__(self, names: Sequence[str], folder: Path, port: int) -> None:
        """
        Args:
            names: names of the nodes, the head's first.
            folder: folder for Ray's files; it is removed at the end.

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
        """HOST:PORT of the head."""
        return self._nodes[0].node.address

    def stop(self) -> None:
        """End all nodes. May be called again."""
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
