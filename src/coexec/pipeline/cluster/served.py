"""Adapter that serves a cluster's session."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import ml_dtypes  # noqa: F401  gives NumPy the names of bfloat16 and 8-bit floats
import numpy as np

from coexec.arrays import Array
from coexec.errors import ModelError
from coexec.graph.graph import Tensor
from coexec.pipeline.cluster.session import ClusterSession
from coexec.serve.served import ServedTensor, check_name


class ClusterServed:
    """Answers requests with a pipeline, as many at a time as it has credits. See `serve.Served`.

    The caller owns the session and closes it.
    """

    def __init__(self, session: ClusterSession, name: str, version: str = "1") -> None:
        """
        Raises:
            UsageError: a model cannot have the name.
            ModelError: the protocol has no type for an input or output.
        """
        check_name(name)
        self.name, self.version = name, version
        self.inputs, self.outputs = _served(session.inputs), _served(session.outputs)
        self._session = session

    @property
    def ready(self) -> bool:
        """Whether the session is open and has machines."""
        return self._session.ready

    def submit(self, feeds: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        """Begin a request, see `Served.submit`."""
        answer: Future[Mapping[str, Array]] = self._session.submit(feeds)  # type: ignore[assignment]
        return answer


def _served(tensors: Iterable[Tensor]) -> tuple[ServedTensor, ...]:
    served_tensors = []
    for tensor in tensors:
        if tensor.opaque:
            raise ModelError(
                f"{tensor.name!r} is a {tensor.dtype or 'value of unknown type'} "
                f"without a fixed shape, which a pipeline does not serve; coexec "
                f"serve may"
            )
        served_tensors.append(ServedTensor(tensor.name, np.dtype(tensor.dtype), tensor.shape))
    return tuple(served_tensors)
