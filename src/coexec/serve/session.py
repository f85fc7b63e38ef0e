"""An `InferenceSession` as a model to serve."""

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from coexec.arrays import Array
from coexec.engines.detect import usable_cores
from coexec.errors import BusyError, ClosedError, ModelError, UsageError
from coexec.serve.served import ServedTensor
from coexec.session import InferenceSession, NodeArg
from coexec.session.feeds import dtype_of

__all__ = ["SessionServed"]

_log = logging.getLogger("coexec")


class SessionServed:
    """Answers requests with a session, at most as many at the same time as there are credits.

    A request takes a credit when it is submitted and returns it when its outputs are complete.
    There are as many threads as usable cores; further requests wait for a thread.
    """

    def __init__(
        self,
        session: InferenceSession,
        name: str,
        *,
        version: str = "1",
        credits: int | None = None,
    ) -> None:
        """Serve ``session``. `close` also closes the session.

        Args:
            name: the model's name in paths.
            credits: most requests at the same time; by default two for each usable core.

        Raises:
            UsageError: the name or the number of credits is invalid.
            ModelError: the protocol has no type for an input, or no type for all of the outputs.
        """
        if not name or "/" in name or not name.isprintable():
            raise UsageError(
                f"the name {name!r} cannot be a part of a URL; give one or more "
                f"printable characters without '/'"
            )
        threads = len(usable_cores())
        if credits is not None and credits < 1:
            raise UsageError(f"credits={credits} answer no request; give at least 1")
        self.name = name
        self.version = version
        self.credits = 2 * threads if credits is None else credits
        self.inputs = tuple(_input(arg) for arg in session.get_inputs())
        self.outputs = _offered(session)
        self._names = [tensor.name for tensor in self.outputs]
        self._session = session
        self._left = threading.BoundedSemaphore(self.credits)
        self._pool = ThreadPoolExecutor(min(threads, self.credits), "coexec serve")
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether it is open."""
        return not self._closed

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        """Begin a request, see `Served.submit`."""
        if self._closed:
            raise ClosedError("the session is closed; start the server again")
        if not self._left.acquire(blocking=False):
            raise BusyError(f"no credit is left: {self.credits} requests are under way; try again")
        try:
            future = self._pool.submit(self._run, feeds)
        except BaseException:
            self._left.release()
            raise
        # The first callback returns the credit. So a client with an answer can send a new request.
        future.add_done_callback(lambda _: self._left.release())
        return future

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))

    def close(self) -> None:
        """Finish the running requests, then close the session."""
        self._closed = True
        self._pool.shutdown()
        self._session.close()


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
    tensors = {arg.name: _tensor(arg) for arg in session.get_outputs()}
    offered = tuple(tensor for tensor in tensors.values() if tensor is not None)
    left_out = {arg.name: arg.type for arg in session.get_outputs() if tensors[arg.name] is None}
    listed = ", ".join(f"{name!r} {kind}" for name, kind in left_out.items())
    if not offered:
        raise ModelError(
            f"the Open Inference Protocol has no type for any output: {listed}; let "
            f"the model give tensors"
        )
    if left_out:
        _log.warning(
            "outputs that the Open Inference Protocol has no type for are not served: %s", listed
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
