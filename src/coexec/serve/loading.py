"""Sessions as models that a server loads by name."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coexec.errors import InputError, UsageError
from coexec.exports import is_export
from coexec.serve.served import check_name
from coexec.serve.session import SessionServed
from coexec.serve.workers import Workers
from coexec.session import InferenceSession

__all__ = ["SessionSource"]

_log = logging.getLogger("coexec")


class SessionSource:
    """Opens sessions of models that have a name, or that lie in a folder. All sessions share the
    same devices and workers."""

    def __init__(
        self,
        named: Mapping[str, str],
        workers: Workers,
        keywords: Mapping[str, Any],
        folder: Path | None = None,
    ) -> None:
        """
        Args:
            named: files, folders of exports or "zoo:NAME", by name.
            keywords: of `InferenceSession`. A plan among them is for the named model only.
            folder: whose files NAME.onnx and exports NAME can be opened, too. It is read each time,
                so that a model that comes later can be opened.
        """
        self._named = dict(named)
        self._workers = workers
        self._keywords = dict(keywords)
        self._folder = folder
        self._warned: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """Names of the models that can be opened now."""
        return tuple(self._sources())

    def open(self, name: str) -> SessionServed:
        """Open the model ``name``.

        Raises:
            CoexecError: it cannot be opened.
        """
        check_name(name)
        sources = self._sources().get(name)
        if not sources:
            raise InputError(f"the file of the model {name!r} is gone; put it back")
        if len(sources) > 1:
            listed = " and ".join(repr(Path(source).name) for source in sources)
            raise UsageError(
                f"the repository has {listed}, which have the same name {name!r}; rename or remove "
                f"one"
            )
        keywords = dict(self._keywords)
        if name not in self._named:
            keywords.pop("plan", None)
        session = InferenceSession(sources[0], **keywords)
        try:
            return SessionServed(session, name, workers=self._workers)
        except BaseException:
            session.close()
            raise

    def _sources(self) -> dict[str, list[str]]:
        """The models of each name; several: the name is ambiguous. Names come from this machine,
        and never from a client."""
        sources = {} if self._folder is None else self._in_folder(self._folder)
        return sources | {name: [source] for name, source in self._named.items()}

    def _in_folder(self, folder: Path) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in _content(folder, self._warn):
            # os.path.isfile and not Path.is_file, which raises if the folder cannot be searched
            is_file = path.suffix == ".onnx" and os.path.isfile(path)
            if not is_file and not is_export(path):
                continue
            name = path.stem if is_file else path.name
            if name.isprintable():
                found.setdefault(name, []).append(str(path))
            else:
                self._warn(f"{str(path)!r} is left out: its name is not printable UTF-8; rename it")
        return found

    def _warn(self, message: str) -> None:
        """Log a warning once, because the folder is read for each request."""
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s", message)


def _content(folder: Path, warn: Callable[[str], None]) -> list[Path]:
    """The files and folders in ``folder``; none, with a warning, if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        warn(f"cannot read the repository {str(folder)!r}: {error.strerror}; make it readable")
        return []
