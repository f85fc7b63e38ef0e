"""The threads of `InferenceSession.run_async`."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from coexec.engines.detect import usable_cores
from coexec.errors import CoexecError

__all__ = ["CallbackThreads"]

_log = logging.getLogger("coexec")


class CallbackThreads:
    """Runs requests in threads of its own. The threads start with the first request, and again in a
    forked child."""

    def __init__(self) -> None:
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def submit(
        self,
        run: Callable[[], list[Any]],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
    ) -> None:
        """Begin a request. Its thread calls ``callback(outputs, user_data, error)`` at the end."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(len(usable_cores()), "coexec run_async")
        self._pool[1].submit(_call_back, run, callback, user_data)

    def close(self) -> None:
        """Accept no more requests. Running requests go on to their end."""
        if self._pool is not None:
            self._pool[1].shutdown(wait=False)


def _call_back(
    run: Callable[[], list[Any]], callback: Callable[[list[Any], Any, str], None], user_data: Any
) -> None:
    """Run a request of `InferenceSession.run_async`, and call its callback."""
    try:
        outputs, error = run(), ""
    except CoexecError as failed:
        outputs, error = [], str(failed)
    try:
        callback(outputs, user_data, error)
    except Exception:
        _log.exception("the callback of run_async has failed")
