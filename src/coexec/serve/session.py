"""An `InferenceSession` as a model to serve."""

import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial

import numpy as np

from coexec.arrays import Array
from coexec.errors import ClosedError, CoexecError, ExecutionError, InputError, ModelError
from coexec.serve.served import ServedTensor, check_name
from coexec.serve.workers import Workers
from coexec.session import InferenceSession, NodeArg
from coexec.session.feeds import dtype_of

__all__ = ["SessionServed"]

_log = logging.getLogger("coexec")
_SIZE_REASON = re.compile(
    r"Status Message: (.*(?:dimension|shape|broadcast|axis|channels).*)", re.IGNORECASE
)
"""ONNX Runtime's message where an operator does not take the sizes of its inputs. Its class is the
same for all failures of operators."""


class SessionServed:
    """Answers requests with a session, at most as many at the same time as its workers have
    credits."""

    def __init__(
        self,
        session: InferenceSession,
        name: str,
        *,
        version: str = "1",
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
        self.version = version
        self.inputs = tuple(_input(arg) for arg in session.get_inputs())
        self.outputs = _offered(session)
        self._names = [tensor.name for tensor in self.outputs]
        self._session = session
        self._workers = Workers(credits) if workers is None else workers
        self._owns_workers = workers is None
        self._running: set[Future[Mapping[str, Array]]] = set()
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether it is open."""
        return not self._closed

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        """Begin a request, see `Served.submit`."""
        if self._closed:
            raise ClosedError("the session is closed; start the server again")
        future = self._workers.begin(partial(self._run, feeds))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        try:
            outputs = self._session.run(self._names, feeds)
        except (ExecutionError, InputError) as error:
            if (refusal := _size_error(self.inputs, feeds, error)) is not None:
                raise refusal from error
            raise
        return dict(zip(self._names, outputs, strict=True))

    def close(self) -> None:
        """Finish the running requests, then close the session."""
        self._closed = True
        wait(list(self._running))
        if self._owns_workers:
            self._workers.close()
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
