"""Processes of `gpu_rivals.py`, and tables of the races of their rivals."""

import argparse
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from common import some_of, tell_disturbances
from gpu_exports import FOLDER, NETWORKS, Case, tell
from gpu_rivals import Rival, State

from coexec.engines.detect import usable_cores
from coexec.errors import ExecutionError
from coexec.selection.decision import Requests
from coexec.selection.quiet_moment import Stopwatch, cpu_clock
from coexec.selection.race import Outcome, Pacing, Run, race

_PACING = Pacing(discard=2, loop=5)
_ROUNDS = (5, 100)
REQUESTS: Sequence[Requests] = ("loop", "paced")
_PROGRAM = Path(__file__).with_name("gpu_rivals.py")
_RUN_S = 60.0
"""Limit of one run."""
_END_S = 30.0
"""Time in which a process has to end by itself."""


def leave_out(name: str, why: str) -> None:
    tell(f"{name} is left out: {why}")


def arguments(about: str, precisions: Sequence[str], seconds: float) -> argparse.ArgumentParser:
    """The command line of a benchmark of such rivals, with the options that all of them have.

    Args:
        seconds: of the race of a network.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=[*NETWORKS][:10], help=", ".join(NETWORKS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the exports")
    parser.add_argument("--jobs", type=int, default=max(1, len(usable_cores()) // 2))
    parser.add_argument("--ort-gpu", type=Path, help="folder with the package onnxruntime-gpu")
    parser.add_argument("--precisions", type=some_of(precisions), default=[*precisions])
    parser.add_argument("--seconds", type=float, default=seconds, help="of a network's race")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def with_onnxruntime(folder: Path | None) -> dict[str, str]:
    """Environment variables of a process that imports ONNX Runtime from a folder (None: from where
    this process imports it), and CUDA's libraries from the packages that bring them."""
    spec = find_spec("nvidia")
    packages = spec.submodule_search_locations if spec else None
    libraries = [str(lib) for package in packages or () for lib in Path(package).glob("*/lib")]
    own = os.environ.get("LD_LIBRARY_PATH", "")
    folders = os.pathsep.join(filter(None, [own, *sorted(libraries)]))
    environment = {**os.environ, "LD_LIBRARY_PATH": folders}
    if folder is None:
        return environment
    path = os.pathsep.join([str(folder.resolve()), os.environ.get("PYTHONPATH", "")])
    return {**environment, "PYTHONPATH": path}


class RivalsProcess:
    """A process of gpu_rivals.py with the rivals of one kind for one network."""

    def __init__(
        self,
        kind: str,
        case: Case,
        precisions: Iterable[str],
        words: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            words: further arguments of the kind.
            environment: by default that of this process.
        """
        self._name = f"{kind} for {case.name}"
        self._connection, child_end = Pipe()
        arguments = [kind, case.path, case.arrays, ",".join(precisions), *words]
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(child_end.fileno()), *arguments],
            pass_fds=[child_end.fileno()],
            stdout=sys.stderr,
            env=environment,
        )
        self.id = self._process.pid
        child_end.close()  # so that the end of the process ends the connection

    def is_ready(self, limit_s: float) -> bool:
        """Wait until it can use the GPU; False: it has failed, or the time was over."""
        return self._reported(lambda: self._received(limit_s)) is not None

    def rivals(self, limit_s: float) -> Mapping[Rival, State]:
        """Its rivals, warmed up; none, if the process fails or the time is over."""
        return self._reported(lambda: self._answer(None, limit_s)) or {}

    def seconds(self, rival: Rival) -> float:
        """Of one run.

        Raises:
            ExecutionError: it fails, takes too long, or the process has ended.
        """
        answer = self._answer(rival, _RUN_S)
        if isinstance(answer, str):
            raise ExecutionError(answer)
        return float(answer)

    def _reported(self, receive: Run) -> Any:
        try:
            return receive()
        except ExecutionError as error:
            leave_out(self._name, str(error))
            return None

    def _answer(self, request: Rival | None, limit_s: float) -> Any:
        try:
            self._connection.send(request)
        except OSError:
            raise ExecutionError(f"its process has ended, with {self._code()}") from None
        return self._received(limit_s)

    def _received(self, limit_s: float) -> Any:
        try:
            if self._connection.poll(limit_s):
                return self._connection.recv()
        except (EOFError, OSError):
            raise ExecutionError(f"its process has ended, with {self._code()}") from None
        self._process.kill()
        raise ExecutionError(f"its process has not answered within {limit_s:.0f} s")

    def _code(self) -> int:
        """The exit code of the process, which is killed if it does not end."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def close(self) -> None:
        self._connection.close()
        self._code()


class _OwnClocks(Stopwatch):
    """Each run returns its own seconds: by the clock of the GPU, or of another process."""

    def timed(self, run: Run) -> float:
        return float(run())


def in_turns(
    name: str, runs: Mapping[Rival, Run], processes: Sequence[RivalsProcess], budget_s: float
) -> Outcome[Rival]:
    """Race rivals of this process and of others; each run returns its seconds. A rival that fails
    is left out.

    Args:
        name: of the network.
    """
    tell(f"{name}: {len(runs)} rivals run in turns")
    watch = _OwnClocks(used_s=cpu_clock([process.id for process in processes]))
    outcome = race(runs, _ROUNDS, budget_s=budget_s, pacing=_PACING, watch=watch)
    for rival, failure in outcome.failed.items():
        leave_out(f"{' '.join(rival)} of {name}", str(failure))
    tell_disturbances(outcome)
    return outcome


def ms(outcome: Outcome[Rival], rival: Rival, requests: Requests) -> float:
    """Median milliseconds; NaN if it did not run."""
    return 1e3 * (outcome.median_s(rival, requests) or math.nan)


def raced(outcome: Outcome[Rival]) -> list[Rival]:
    """The rivals that have not failed."""
    return [rival for rival, laps in outcome.laps.items() if laps]


def times(
    outcome: Outcome[Rival], facts: Mapping[Rival, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """A row for each rival: milliseconds, the difference from the expected answer, other facts."""
    for rival in raced(outcome):
        yield {
            **dict(zip(("rival", "precision", "from"), rival, strict=True)),
            **{requests: ms(outcome, rival, requests) for requests in REQUESTS},
            **facts[rival],
            "difference": f"{facts[rival]['difference']:.1e}",
        }


def over_best(
    outcome: Outcome[Rival], ours: Rival, others: Sequence[Rival]
) -> Iterator[dict[str, Any]]:
    """By kind of requests, the time of ``ours`` over that of the fastest of ``others``; nothing
    without others."""
    for requests in REQUESTS if others else ():
        best = min(others, key=lambda rival: ms(outcome, rival, requests))
        yield {
            "requests": requests,
            ours[0]: ms(outcome, ours, requests),
            "best rival": best[0],
            "its": ms(outcome, best, requests),
            "ratio": outcome.ratio(ours, best, requests),
        }


def means(rows: Sequence[Mapping[str, Any]], group: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Geometric mean and largest of the ratios of rows that are equal in the columns ``group``."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in group)
        groups.setdefault(key, []).append(row["ratio"])
    for key, ratios in groups.items():
        yield dict(zip(group, key, strict=True)) | {
            "networks": len(ratios),
            "geometric mean": statistics.geometric_mean(ratios),
            "largest": max(ratios),
            "at most 1": sum(ratio <= 1 for ratio in ratios),
        }
