"""Processes that a test has started with a home folder of their own."""

from contextlib import suppress
from pathlib import Path


def processes_of(home: str) -> list[str]:
    """Names of the processes whose HOME is ``home``."""
    names = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0"):
                names.append((process / "comm").read_text().strip())
    return names
