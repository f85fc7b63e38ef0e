"""Sessions as models that a server loads by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coexec.errors import InputError
from coexec.exports import is_export
from coexec.serve.session import SessionServed
from coexec.serve.workers import Workers
from coexec.session import InferenceSession

__all__ = ["SessionSource"]


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
            keywords: of `InferenceSession`.
            folder: whose files NAME.onnx and exports NAME can be opened, too. It is read each time,
                so that a model that comes later can be opened.
        """
        self._named = dict(named)
        self._workers = workers
        self._keywords = dict(keywords)
        self._folder = folder

    def names(self) -> tuple[str, ...]:
        """Names of the models that can be opened now."""
        return tuple(self._sources())

    def open(self, name: str) -> SessionServed:
        """Open the model ``name``.

        Raises:
            CoexecError: it cannot be opened.
        """
        source = self._sources().get(name)
        if source is None:
            raise InputError(f"the file of the model {name!r} is gone; put it back")
        session = InferenceSession(source, **self._keywords)
        try:
            return SessionServed(session, name, workers=self._workers)
        except BaseException:
            session.close()
            raise

    def _sources(self) -> dict[str, str]:
        """The model behind each name. Names come from this machine, and never from a client."""
        return {**_models_in(self._folder), **self._named}


def _models_in(folder: Path | None) -> dict[str, str]:
    if folder is None or not folder.is_dir():
        return {}
    found = {}
    for path in sorted(folder.iterdir()):
        if is_export(path):
            found[path.name] = str(path)
        elif path.suffix == ".onnx" and path.is_file():
            found[path.stem] = str(path)
    return found
