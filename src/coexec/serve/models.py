"""The models of a server by name: those that are loaded, and those that can be loaded."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from coexec.errors import ClosedError, CoexecError, ExecutionError, InputError, first_line
from coexec.serve.served import Served


class ClosableServed(Served, Protocol):
    """A served model that its server closes."""

    def close(self) -> None:
        """Finish the running requests, and free what the model uses."""


class ModelSource(Protocol):
    """Where a server finds the models that it may load. The names are the only paths to them."""

    def names(self) -> Sequence[str]:
        """Names of the models that can be loaded now."""

    def open(self, name: str) -> ClosableServed:
        """Open the model ``name``. May take minutes."""


@dataclass
class _ModelState:
    """A model with its state, in words of the model repository extension."""

    served: Served | None = None
    state: str = "UNAVAILABLE"
    reason: str = "not loaded"
    users: int = 0
    """Requests that use it."""
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    close: Callable[[], None] | None = None
    """Closes the model; None: its owner does."""

    async def closed(self) -> None:
        """Return when no request uses the model, and it is closed."""
        while self.users:
            self.unused.clear()
            await self.unused.wait()
        if self.close is not None:
            await asyncio.to_thread(self.close)


def _loaded(served: ClosableServed) -> _ModelState:
    return _ModelState(served, "READY", "", close=served.close)


async def _opened(source: ModelSource, name: str) -> ClosableServed:
    """The model ``name``, opened in a thread. If this call is cancelled, the model is closed as
    soon as it is open.

    The thread is a daemon, because an opening can take minutes, and the server has to end in time.
    """
    opening: Future[ClosableServed] = Future()
    opening.set_running_or_notify_cancel()  # then no caller can cancel it, and the result is kept

    def close(done: Future[ClosableServed]) -> None:
        if done.exception() is None:
            done.result().close()

    def run() -> None:
        try:
            opening.set_result(source.open(name))
        except BaseException as error:
            opening.set_exception(error)

    threading.Thread(target=run, name="coexec load", daemon=True).start()
    try:
        return await asyncio.wrap_future(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(close)
        raise


class Models:
    """Served models by name. Used by one thread, which runs the event loop."""

    def __init__(self, served: Iterable[Served] = (), source: ModelSource | None = None) -> None:
        """
        Args:
            served: models that stay as long as the server. The caller closes them.
            source: of models that clients may load and unload.
        """
        self._entries = {each.name: _ModelState(each, "READY", "") for each in served}
        self._fixed = frozenset(self._entries)
        self._source = source
        self._changing = asyncio.Lock()

    @property
    def can_load(self) -> bool:
        """Whether clients may load and unload models."""
        return self._source is not None

    @property
    def ready(self) -> bool:
        """Whether all loaded models answer requests."""
        entries = [entry for entry in self._entries.values() if entry.state != "UNLOADING"]
        return all(entry.served.ready for entry in entries if entry.served)

    def names(self) -> tuple[str, ...]:
        """Names of the models that are or were loaded, and of those that can be loaded."""
        loadable = () if self._source is None else self._source.names()
        return tuple(dict.fromkeys([*self._entries, *loadable]))

    def loaded(self) -> tuple[Served, ...]:
        """The models that are loaded."""
        return tuple(entry.served for entry in self._entries.values() if entry.served)

    def __contains__(self, name: object) -> bool:
        """Whether there is a model ``name``, loaded or not."""
        return name in self._entries or name in self.names()

    def __getitem__(self, name: str) -> Served:
        """The loaded model ``name``.

        Raises:
            KeyError: there is no such model.
            ClosedError: it is not loaded.
        """
        if name not in self:
            raise KeyError(name)
        entry = self._entries.get(name) or _ModelState()
        if entry.served is None or entry.state == "UNLOADING":
            raise ClosedError(
                f"the model {name!r} is {entry.state.lower()}: {entry.reason}; "
                f"POST /v2/repository/models/NAME/load loads it"
            )
        return entry.served

    @contextmanager
    def use(self, served: Served) -> Iterator[None]:
        """Context in which ``served`` is not closed."""
        entry = self._entries[served.name]
        entry.users += 1
        try:
            yield
        finally:
            entry.users -= 1
            entry.unused.set()

    def index(self, only_ready: bool = False) -> list[Mapping[str, str]]:
        """The answer to a request for the index of the repository."""
        rows = [_row(name, self._entries.get(name, _ModelState())) for name in self.names()]
        return [row for row in rows if row["state"] == "READY" or not only_ready]

    def open(self, names: Iterable[str]) -> None:
        """Load models before the server starts.

        Raises:
            CoexecError: one cannot be loaded.
        """
        assert self._source is not None
        for name in names:
            self._entries[name] = _loaded(self._source.open(name))

    async def load(self, name: str) -> None:
        """Load a model, or load it again. The old one answers until the new one is ready.

        Raises:
            InputError: it is none that can be loaded, or it cannot be opened.
            ExecutionError: opening it failed with an error of another package.
        """
        source = self._checked(name)
        async with self._changing:
            entry = self._entries.setdefault(name, _ModelState())
            if entry.served is None:
                entry.state, entry.reason = "LOADING", "being opened"
            try:
                opened = await _opened(source, name)
            except (Exception, asyncio.CancelledError) as error:
                reason = str(error) if isinstance(error, CoexecError) else first_line(error)
                if entry.served is None:
                    entry.state, entry.reason = "UNAVAILABLE", reason
                if isinstance(error, asyncio.CancelledError):
                    raise
                kind = InputError if isinstance(error, CoexecError) else ExecutionError
                raise kind(f"the model {name!r} cannot be loaded: {reason}") from error
            self._entries[name] = _loaded(opened)
            await entry.closed()

    async def unload(self, name: str) -> None:
        """Unload a model, when the requests that use it have been answered.

        Raises:
            InputError: it is none that can be unloaded.
        """
        self._checked(name)
        async with self._changing:
            entry = self._entries.setdefault(name, _ModelState())
            if entry.served is not None:
                entry.state, entry.reason = "UNLOADING", "its last requests are answered"
                await entry.closed()
                self._entries[name] = _ModelState(reason="unloaded")

    def _checked(self, name: str) -> ModelSource:
        """The source that has the model ``name``."""
        if self._source is None:
            raise InputError("this server loads and unloads no models; start it again with others")
        names = set(self._source.names()) - self._fixed
        if name not in names:
            raise InputError(
                f"this server has no model {name!r}; it has {', '.join(map(repr, sorted(names)))}"
            )
        return self._source

    def close(self) -> None:
        """Close the models that were loaded from the source."""
        for entry in self._entries.values():
            if entry.close is not None:
                entry.close()


def _row(name: str, entry: _ModelState) -> dict[str, str]:
    if entry.served is None:
        return {"name": name, "state": entry.state, "reason": entry.reason}
    not_ready = entry.state == "READY" and not entry.served.ready
    state = "UNAVAILABLE" if not_ready else entry.state
    reason = "it answers no requests now" if not_ready else entry.reason
    return {"name": name, "version": entry.served.version, "state": state, "reason": reason}
