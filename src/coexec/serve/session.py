"""An `InferenceSession` as something to serve."""

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
    """Answers requests with a session, as many at a time as there are credits.

    A request takes a credit when it is submitted and gives it back when its outputs are there.
    There are as many threads as usable cores; requests beyond those wait.
    """

    def __init__(
        self,
        session: InferenceSession,
        name: str,
        *,
        version: str = "1",
        credits: int | None = None,
    ) -> None:
        """Serve ``session``, which is closed with this.

        Args:
            name: the model's name in paths.
            credits: requests that may be under way; by default two for each usable core.

        Raises:
            UsageError: a name or a number of credits that makes no sense.
            ModelError: the protocol has no type for an input, or for none of the outputs.
        """
        if not name or "/" in name or not name.isprintable():
            raise UsageError(f"the name {name!r} cannot be a part of a URL; give one or more "
                             f"printable characters without '/'")  # fmt: skip
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
        """Whether it was not closed."""
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
        # It is the first of the callbacks: who has an answer may send the next request.
        future.add_done_callback(lambda _: self._left.release())
        return future

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))

    def close(self) -> None:
        """Answer what is under way, then close the session."""
        self._closed = True
        self._pool.shutdown()
        self._session.close()


def _input(arg: NodeArg) -> ServedTensor:
    found = _tensor(arg)
    if found is None:
        raise ModelError(f"input {arg.name!r} is a {arg.type}, which the Open Inference Protocol "
                         f"or ONNX Runtime's Python interface has no type for; --value may make it "
                         f"a constant, or change the model")  # fmt: skip
    return found


def _offered(session: InferenceSession) -> tuple[ServedTensor, ...]:
    """The outputs that the protocol has types for."""
    known = {arg.name: _tensor(arg) for arg in session.get_outputs()}
    offered = tuple(tensor for tensor in known.values() if tensor is not None)
    left_out = {arg.name: arg.type for arg in session.get_outputs() if known[arg.name] is None}
    listed = ", ".join(f"{name!r} {kind}" for name, kind in left_out.items())
    if not offered:
        raise ModelError(f"the Open Inference Protocol has no type for any output: {listed}; let "
                         f"the model give tensors")  # fmt: skip
    if left_out:
        _log.warning("outputs that the Open Inference Protocol has no type for are not served: %s",
                     listed)  # fmt: skip
    return offered


def _tensor(arg: NodeArg) -> ServedTensor | None:
    """None for what is no tensor, and for types that NumPy does not have."""
    dtype = np.dtype(object) if arg.type == "tensor(string)" else dtype_of(arg.type)
    if dtype is None:
        return None
    shape = tuple(size if isinstance(size, int) else -1 for size in arg.shape)
    # ONNX Runtime reports no dimensions for a scalar, and for a tensor of unknown rank.
    return ServedTensor(arg.name, dtype, shape or None)
