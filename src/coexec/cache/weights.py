"""Weights, each stored once under the checksum of its content.

Each weight is a file, ``weights/<2 hexadecimal digits>/<xxh3-128>-<length>``. Models of different
shapes, models lowered for different plans, and the plans share it. Its name is the
checksum of its content, so each weight can be verified when it is mapped. A file that has its name
is never changed.
"""

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from coexec.arrays import aligned_bytes
from coexec.cache.files import Disk, warn_once
from coexec.errors import StoreError

Bytes = npt.NDArray[np.uint8]

_READ_BYTES = 65536
"""Smaller files are read: that is faster than mapping them, and takes no mapping of the process."""
_THREADS = 4
"""Threads that compare checksums: with more of them, memory is not faster."""
_WORTH_THREADS_BYTES = 8 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


def name_of(data: Bytes) -> str:
    """The name of a weight with these bytes."""
    return f"{xxhash.xxh3_128_hexdigest(data.data)}-{data.nbytes:x}"


def file_of(root: Path, name: str) -> Path:
    """The file of a weight in the cache ``root``."""
    return root / "weights" / name[:2] / name


class Weights:
    """The weights of one cache, in one or several folders."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.used: set[str] = set()
        """Names of the weights that this process has stored or mapped."""

    def add(self, arrays: Iterable[npt.NDArray[Any]]) -> list[str] | None:
        """Store the bytes of arrays that are not stored yet, and return their names; None if not
        all can be stored."""
        flats = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        names = [name_of(flat) for flat in flats]
        contents = dict(zip(names, flats, strict=True))
        new = [name for name in contents if not self._has(name)]
        if self._disk.write({file_of(Path(), name): contents[name].data for name in new}) is None:
            return None
        self.used.update(names)
        return names

    def _has(self, name: str) -> bool:
        """Whether a weight is stored and undamaged; it counts as new then."""
        try:
            self.fetch([name])
        except StoreError:
            return False
        with suppress(OSError):
            os.utime(self._file(name))
        return True

    def fetch(self, names: Iterable[str]) -> dict[str, Bytes]:
        """The bytes of weights by name, verified and read-only.

        Raises:
            StoreError: a weight is missing or damaged; damaged weights are removed.
        """
        contents = {name: self._contents(name) for name in names}
        damaged = _damaged(contents)
        for name in damaged:
            with suppress(OSError):
                self._file(name).unlink()
        if damaged:
            problem = f"weight {damaged[0]} was damaged, its content has another checksum"
            warn_once(self._disk.root, problem)
            raise StoreError(problem)
        self.used.update(contents)
        return contents

    def _file(self, name: str) -> Path:
        """The file of a weight in the first folder that has it."""
        files = [file_of(root, name) for root in self._disk.roots]
        return next((file for file in files if file.is_file()), files[0])

    def _contents(self, name: str) -> Bytes:
        """The bytes of a weight.

        Raises:
            StoreError: the weight is missing, or cannot be read.
        """
        try:
            return _contents(self._file(name))
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(f"weight {name} is not in the cache any more") from None
        except (OSError, ValueError) as error:
            warn_once(self._disk.root, f"weight {name} cannot be read: {error}")
            raise StoreError(f"weight {name} cannot be read: {error}") from None


def _damaged(contents: Mapping[str, Bytes]) -> list[str]:
    """Names of the weights whose bytes do not match; several threads compare large amounts."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _THREADS
    threads = min(_THREADS, cores)
    if threads < 2 or sum(data.nbytes for data in contents.values()) < _WORTH_THREADS_BYTES:
        return [name for name, data in contents.items() if name_of(data) != name]
    ordered = sorted(contents, key=lambda name: contents[name].nbytes)
    right: set[str] = set()

    def check(first: int) -> None:
        right.update(name for name in ordered[first::threads] if name_of(contents[name]) == name)

    # Plain threads: for most networks, importing a thread pool takes longer than the comparison.
    helpers = [threading.Thread(target=check, args=(n,), daemon=True) for n in range(1, threads)]
    for helper in helpers:
        helper.start()
    check(0)
    for helper in helpers:
        helper.join()
    return [name for name in contents if name not in right]


def _contents(path: Path) -> Bytes:
    """The bytes of a file: read if it is small, else mapped.

    Raises:
        OSError, ValueError: they cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        if size >= _READ_BYTES:
            return _mapped(handle, size)
        data = aligned_bytes(size)
        if size and os.readv(handle, [data.data]) != size:
            raise ValueError("it ends early")
        data.flags.writeable = False
        return data
    finally:
        os.close(handle)


class _Mapping:
    """Mapped memory in numpy's array interface. Python's own ``mmap`` would keep a file open for
    each weight."""

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size, self._unmap = address, size, _libc.munmap
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, True),
        }

    def __del__(self) -> None:
        self._unmap(self._address, self._size)

    def rest(self) -> None:
        """Take its pages out of this process."""
        _libc.madvise(self._address, self._size, mmap.MADV_DONTNEED)


_mappings: "weakref.WeakValueDictionary[tuple[int, ...], _Mapping]" = weakref.WeakValueDictionary()
"""The mappings in use, by device, inode and size of the file. Models and plans share them. A file
that replaces a damaged one has another inode, and a mapping of its own."""


def _mapped(handle: int, size: int) -> Bytes:
    status = os.fstat(handle)
    file = status.st_dev, status.st_ino, size
    mapping = _mappings.get(file)
    if mapping is None:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, handle, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot be mapped: {os.strerror(number)}")
        mapping = _mappings[file] = _Mapping(address, size)
    return np.asarray(mapping)


def rest(arrays: Iterable[npt.NDArray[Any]] | None = None) -> None:
    """Take the pages of mapped weights out of this process, for example when an engine has made its
    own copies. Pages that are used again are read from their files again.

    Args:
        arrays: of these weights; None: of all.
    """
    mappings = _mappings.values() if arrays is None else map(_mapping_of, arrays)
    for mapping in list(mappings):
        if mapping is not None:
            mapping.rest()


def _mapping_of(array: Any) -> _Mapping | None:
    """The mapping that an array is a part of."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, _Mapping) else None
