"""Sessions as models to serve: the threads that compute requests, and where models come from."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, TypeVar

import numpy as np

from coexec.arrays import Array
from coexec.engines.detect import usable_cores
from coexec.errors import (
    BusyError,
    ClosedError,
    CoexecError,
    ExecutionError,
    InputError,
    ModelError,
    UsageError,
)
from coexec.exports import is_export
from coexec.serve.served import ServedTensor, check_name
from coexec.session import InferenceSession, NodeArg
from coexec.session.feeds import dtype_of

_log = logging.getLogger("coexec")
_SIZE_REASON = re.compile(
    r"Status Message: (.*(?:dimension|shape|broadcast|axis|channels).*)", re.IGNORECASE
)
"""ONNX Runtime's message where an operator does not take the sizes of its inputs. Its class is the
same for all failures of operators."""

_T = TypeVar("_T")


class Workers:
    """A thread for each credit: a request takes a credit when it begins, and returns it when its
    outputs are complete. Several served sessions may share them."""

    def __init__(self, credits: int | None = None) -> None:
        """
        Args:
            credits: most requests at the same time; by default one for each usable core.

        Raises:
            UsageError: there are no credits.
        """
        if credits is not None and credits < 1:
            raise UsageError(f"credits={credits} answer no request; give at least 1")
        self.credits = len(usable_cores()) if credits is None else credits
        self._left = BoundedSemaphore(self.credits)
        self._pool = ThreadPoolExecutor(self.credits, "coexec serve")

    def begin(self, work: Callable[[], _T]) -> Future[_T]:
        """Begin ``work`` in a thread.

        Raises:
            BusyError: no credit is left.
        """
        if not self._left.acquire(blocking=False):
            raise BusyError(f"no credit is left: {self.credits} requests are under way; try again")
        try:
            future = self._pool.submit(work)
        except BaseException:
            self._left.release()
            raise
        # The first callback returns the credit. So a client with an answer can send a new request.
        future.add_done_callback(lambda _: self._left.release())
        return future

    def close(self) -> None:
        """Return when all work is done, and end the threads."""
        self._pool.shutdown()


class SessionServed:
    """Answers requests with a session, at most as many at the same time as its workers have
    credits."""

    version = "1"

    def __init__(
        self,
        session: InferenceSession,
        name: str,
        *,
        credits: int | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Serve ``session``. `close` also closes the session.

        Args:
            name: the model's name in paths.
            credits: most requests at the same time; by default one for each usable core.
            workers: shared with other sessions, in place of ``credits``; the caller closes them.

        Raises:
            UsageError: the name or the number of credits is invalid.
            ModelError: the protocol has no type for an input, or no type for all of the outputs.
        """
        check_name(name)
        self.name = name
        self.inputs = tuple(_input(arg) for arg in session.get_inputs())
        self.outputs = _offered(session)
        self._session = session
        self._workers = Workers(credits) if workers is None else workers
        self._own_workers = self._workers if workers is None else None
        self._running: set[Future[Mapping[str, Array]]] = set()
        self.ready = True
        """Whether it is open."""

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        """Begin a request, see `Served.submit`."""
        if not self.ready:
            raise ClosedError("the session is closed; start the server again")
        future = self._workers.begin(partial(self._run, feeds))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        names = [tensor.name for tensor in self.outputs]
        try:
            return dict(zip(names, self._session.run(names, feeds), strict=True))
        except (ExecutionError, InputError) as error:
            if (refusal := _size_error(self.inputs, feeds, error)) is not None:
                raise refusal from error
            raise

    def close(self) -> None:
        """Finish the running requests, then close the session."""
        self.ready = False
        wait(list(self._running))
        if self._own_workers is not None:
            self._own_workers.close()
        self._session.close()


def _size_error(
    inputs: Sequence[ServedTensor], feeds: Mapping[str, Array], error: CoexecError
) -> InputError | None:
    """The error for feeds whose open sizes the model does not take; None for another failure."""
    open_inputs = [tensor for tensor in inputs if tensor.shape is None or -1 in tensor.shape]
    reason = _SIZE_REASON.search(str(error))
    if not open_inputs or reason is None:
        return None
    sizes = ", ".join(f"input {t.name!r} has {list(feeds[t.name].shape)}" for t in open_inputs)
    return InputError(
        f"the model does not take these sizes: {sizes}; send other sizes for the axes that are -1 "
        f"in its metadata (ONNX Runtime: {reason[1]})"
    )


def _input(arg: NodeArg) -> ServedTensor:
    tensor = _tensor(arg)
    if tensor is None:
        raise ModelError(
            f"input {arg.name!r} is a {arg.type}, which the Open Inference Protocol "
            f"or ONNX Runtime's Python interface has no type for; --value may make it "
            f"a constant, or change the model"
        )
    return tensor


def _offered(session: InferenceSession) -> tuple[ServedTensor, ...]:
    """The outputs for which the protocol has types."""
    tensors = [(arg, _tensor(arg)) for arg in session.get_outputs()]
    offered = tuple(tensor for _, tensor in tensors if tensor is not None)
    left_out = [f"{arg.name!r} {arg.type}" for arg, tensor in tensors if tensor is None]
    if not offered:
        raise ModelError(
            f"the Open Inference Protocol has no type for any output: {', '.join(left_out)}; let "
            f"the model give tensors"
        )
    if left_out:
        _log.warning(
            "outputs that the Open Inference Protocol has no type for are not served: %s",
            ", ".join(left_out),
        )
    return offered


def _tensor(arg: NodeArg) -> ServedTensor | None:
    """The input or output ``arg``; None if it is no tensor, or has a type that NumPy lacks."""
    dtype = np.dtype(object) if arg.type == "tensor(string)" else dtype_of(arg.type)
    if dtype is None:
        return None
    shape = tuple(size if isinstance(size, int) else -1 for size in arg.shape)
    # ONNX Runtime reports no dimensions for a scalar, and for a tensor of unknown rank.
    return ServedTensor(arg.name, dtype, shape or None)


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
        self._named, self._workers, self._keywords = dict(named), workers, dict(keywords)
        self._folder = folder
        self._warned: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """Names of the models that can be opened now. They come from this machine, and never from a
        client."""
        return tuple(dict.fromkeys([*(name for name, _ in self._in_folder()), *self._named]))

    def open(self, name: str) -> SessionServed:
        """Open the model ``name``.

        Raises:
            CoexecError: it cannot be opened.
        """
        check_name(name)
        keywords = dict(self._keywords)
        if name in self._named:
            sources = [self._named[name]]
        else:
            keywords.pop("plan", None)
            sources = [str(path) for each, path in self._in_folder() if each == name]
        if not sources:
            raise InputError(f"the file of the model {name!r} is gone; put it back")
        if len(sources) > 1:
            listed = " and ".join(repr(Path(source).name) for source in sources)
            raise UsageError(
                f"the repository has {listed}, which have the same name {name!r}; rename or remove "
                f"one"
            )
        session = InferenceSession(sources[0], **keywords)
        try:
            return SessionServed(session, name, workers=self._workers)
        except BaseException:
            session.close()
            raise

    def _in_folder(self) -> Iterator[tuple[str, Path]]:
        """Names and paths of the models in the folder; none, with a warning, if it cannot be
        read."""
        try:
            paths = [] if self._folder is None else sorted(self._folder.iterdir())
        except OSError as error:
            folder = str(self._folder)
            self._warn(f"cannot read the repository {folder!r}: {error.strerror}; make it readable")
            return
        for path in paths:
            # os.path.isfile and not Path.is_file, which raises if the folder cannot be searched
            is_file = path.suffix == ".onnx" and os.path.isfile(path)
            name = path.stem if is_file else path.name
            if not is_file and not is_export(path):
                continue
            if name.isprintable():
                yield name, path
            else:
                self._warn(f"{str(path)!r} is left out: its name is not printable UTF-8; rename it")

    def _warn(self, message: str) -> None:
        """Log a warning once, because the folder is read for each request."""
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s", message)
