"""A plan that takes part in a race in a process of its own.

Some engines have one set of threads in a process, so that two plans which want them on different
cores cannot be open together. Such a plan is started from the cache by another process.

    python -m coexec.choosing.rival       # told by its standard input what to start and when to run
"""

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from coexec.choosing.race import PACING, Lap, turn
from coexec.engines import child
from coexec.errors import CoexecError, ExecutionError
from coexec.frontend.module import Array
from coexec.plans.plan import Plan
from coexec.workbench import Settings, Workbench

__all__ = ["RivalProcess"]

_LIMIT_S = 10.0
"""For the process to end."""
_WARM_UP = 2


class RivalProcess:
    """A plan that another process runs, turn by turn."""

    def __init__(self, work: Workbench, plan: Plan, feeds: Mapping[str, Array]) -> None:
        """Start the plan there, and run it until it is warm.

        Raises:
            CoexecError: it does not run there either.
        """
        if not child.possible():
            raise ExecutionError("no process can be started for this plan")
        settings = replace(work.settings, cache=work.cache.root, progress=None, fresh=False)
        command = child.command("coexec.choosing.rival")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=child.variables(),
        )  # fmt: skip
        try:
            self._ask((work.given.source, settings, plan.to_json(), dict(feeds)))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def turn(self) -> Lap:
        """One turn of a race, timed there.

        Raises:
            CoexecError: the plan failed, or the process has ended.
        """
        lap: Lap = self._ask(True)
        return lap

    def _ask(self, question: Any) -> Any:
        told, answers = self._process.stdin, self._process.stdout
        assert told is not None and answers is not None
        try:
            pickle.dump(question, told)
            told.flush()
            answer = pickle.load(answers)
        except (OSError, EOFError, pickle.PickleError, TypeError, AttributeError) as error:
            raise ExecutionError(f"the process of this plan has ended or could not be told what "
                                 f"to run ({type(error).__name__})") from None  # fmt: skip
        if isinstance(answer, CoexecError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "RivalProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve() -> None:
    """Start what is asked for, then run a turn whenever asked, until the input ends."""
    answers = child.answer_pipe()

    def answer(value: Any) -> None:
        pickle.dump(value, answers)
        answers.flush()

    source, settings, plan, feeds = pickle.load(sys.stdin.buffer)
    try:
        executor = _started(source, settings, Plan.from_json(plan))
        for _ in range(_WARM_UP):
            executor.run(feeds)
    except CoexecError as error:
        answer(error)
        return
    answer(True)
    with contextlib.suppress(EOFError), executor:
        while pickle.load(sys.stdin.buffer):
            try:
                answer(turn(partial(executor.run, feeds), PACING))
            except CoexecError as error:
                answer(error)


def _started(source: Any, settings: Settings, plan: Plan) -> Any:
    work = Workbench(source, settings)
    return work.start(work.prepared(plan))


if __name__ == "__main__":
    _serve()
