"""What many cores allow: `auto`, plans for 2, 4 and 8 clusters, and perfect division, over engines.

For each model all rivals run in turns in one process: ONNX Runtime with all threads, with half and
with a quarter of them, OpenVINO (f32) if it is installed, `auto`, and the plans of each planner for
2, 4 and 8 clusters of all cores, with the simulated time beside the measured one. Perfect division
is the time of narrow sessions that all run at once, one on each cluster, over their number. "busy"
is the share of a request, over all cores, in which tiles of the engine `cpp` are computed. Lines on
standard error say what is being done; the table of a model is printed when it is complete.

    python benchmarks/many_cores.py                                   # on a machine of 16 cores
    python benchmarks/many_cores.py ghostnet.onnx resnet34 --seconds 30 --rounds 5
    python benchmarks/many_cores.py --clusters none                   # only engines and auto

Goals on 16 cores: measured over predicted within 15 % in the median for 2, 4 and 8 devices; `auto`
over the better one of ONNX Runtime and OpenVINO with all threads: geometric mean at most 0.75,
worst 1.02; kernels busy for at least 80 % of the time.
"""

import argparse
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common import a_count, in_turns, show, some_of, source
from contest import openvino_run

from coexec.cli.decisions import format_candidate
from coexec.engines import detect
from coexec.engines.names import cpu_name, whole_cpu
from coexec.errors import CoexecError, first_line
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.planners import PLANNERS
from coexec.rules import RULES
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.runner import Runner
from coexec.selection.candidates import PlannerTimes
from coexec.selection.chooser import Chooser
from coexec.selection.configurations import core_sets
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.race import Outcome
from coexec.settings import Settings
from coexec.timing.simulate import simulate

MODELS = ["squeezenet", "mobilenet_v2", "mobilenet_v3", "resnet34", "inception_v3", "nasnet_large"]
NUMBERS = (2, 4, 8)
"""Numbers of clusters of plans."""
AUTO, OPENVINO, PERFECT = "auto", "OpenVINO", "perfect division"
_AT_ONCE = 5
"""Requests of each session in a round of perfect division."""
_TRACED = 21
"""Requests of which it is recorded when tiles were computed."""

Run = Callable[[], Any]
Row = dict[str, Any]


class Progress:
    """Lines on standard error about what is being done, each with the seconds since the start."""

    def __init__(self) -> None:
        self._start_s, self._last = time.monotonic(), ""

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        """Print a step, once. It is also the progress of `Settings`."""
        if what != self._last:
            self._last = what
            seconds = time.monotonic() - self._start_s
            print(f"[{seconds:6.0f} s] {what}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Bench:
    """One model on this machine."""

    model: str
    options: argparse.Namespace
    progress: Progress

    def settings(self, devices: Sequence[str] | None = None) -> Settings:
        return Settings(
            devices, cache=self.options.cache, fresh=self.options.fresh, progress=self.progress
        )

    def rows(self) -> Iterator[Row]:
        """A row for each rival, the best engine with all threads first in ratios."""
        work = PlanningContext(source(self.model), self.settings([whole_cpu()]))
        feeds = random_inputs(work.model.graph)
        with ExitStack() as stack:
            runs, facts = self._engines(work, feeds)
            engines = [name for name in runs if name in (_threads(_cores()), OPENVINO)]
            self._auto(runs, facts, feeds, stack)
            for names in self._clusters():
                self._plans(names, runs, facts, feeds, stack)
            for name, difference in self._differences(work, runs).items():
                facts[name]["difference"] = difference
            self.progress(f"{self.model}: race of {len(runs)} rivals")
            outcome = in_turns(runs, self.options.rounds)
        best = min(engines, key=lambda name: _loop_s(outcome, name))
        for name in runs:
            yield self._row(name, facts[name], outcome, best)
        for names in self._clusters(one_core=True):
            self.progress(f"{self.model}: {len(names)} sessions at once")
            seconds = self._at_once_s(names, feeds)
            yield {"model": _stem(self.model), "with": f"{PERFECT}, {_title(names)}"} | {
                "loop_s": seconds,
                f"over {best}": seconds / _loop_s(outcome, best),
            }

    def _engines(
        self, work: PlanningContext, feeds: Mapping[str, Any]
    ) -> tuple[dict[str, Run], dict[str, Row]]:
        """The rivals, and facts for their rows: ONNX Runtime by number of threads, and OpenVINO."""
        runs: dict[str, Run] = {}
        cores = _cores()
        for threads in sorted({cores, max(1, cores // 2), max(1, cores // 4)}, reverse=True):
            self.progress(f"{self.model}: {_threads(threads)}")
            session = work.user_model.onnx_runtime(threads=threads)
            names = [output.name for output in session.get_outputs()]
            runs[_threads(threads)] = partial(_named_outputs, session, names, feeds)
        try:
            self.progress(f"{self.model}: {OPENVINO}")
            runs[OPENVINO] = openvino_run(self.model, feeds, cores)
        except ImportError:
            print("OpenVINO is not installed (pip install openvino)", file=sys.stderr)
        return runs, {name: {} for name in runs}

    def _auto(
        self,
        runs: dict[str, Run],
        facts: dict[str, Row],
        feeds: Mapping[str, Any],
        stack: ExitStack,
    ) -> None:
        settings = replace(self.settings(), planner_options={"seconds": self.options.seconds})
        start_s = time.monotonic()
        chosen = Chooser(source(self.model), settings).make()
        took_s = time.monotonic() - start_s
        assert chosen.decision is not None  # planner "auto" has chosen
        for candidate in chosen.decision.candidates:
            print(f"    {candidate.status:10} {format_candidate(candidate)}", file=sys.stderr)
        runner = stack.enter_context(chosen.work.start(chosen))
        runs[AUTO] = partial(runner.run, feeds)
        facts[AUTO] = {"plan": str(chosen.decision.taken), "planning": f"{took_s:.1f} s"}
        facts[AUTO]["busy"] = _busy(chosen, runner, feeds)
        if not chosen.plan.as_given:  # a plan of one device is chosen without a profile
            self.progress(f"{self.model}: prediction of {chosen.decision.taken}")
            places = [*map(str, chosen.plan.places)]
            work = PlanningContext(source(self.model), self.settings(places))
            trace = simulate(work.schedule(chosen.plan), *work.measured)
            facts[AUTO]["predicted_s"] = trace.makespan_s

    def _plans(
        self,
        names: Sequence[str],
        runs: dict[str, Run],
        facts: dict[str, Row],
        feeds: Mapping[str, Any],
        stack: ExitStack,
    ) -> None:
        """Add the plans for some clusters. A planner that would take too long is left out."""
        title = _title(names)
        self.progress(f"{self.model}: profile of {title}")
        work = PlanningContext(source(self.model), self.settings(names))
        cost, system = work.measured
        for planner in self.options.planners:
            expected_s = _TIMES.expected_s(f"{self.model} {planner}", len(names))
            if len(names) > RULES.quick_devices and expected_s > self.options.limit:
                print(
                    f"left out: {planner} for {title} is expected to take {expected_s:.0f} s",
                    file=sys.stderr,
                )
                continue
            self.progress(f"{self.model}: {planner} for {title}")
            start_s = time.monotonic()
            plan = _TIMES.timed(f"{self.model} {planner}", len(names), partial(work.plan, planner))
            took_s = time.monotonic() - start_s
            name = f"{planner}, {title}"
            runner = stack.enter_context(work.start(work.prepared(plan)))
            runs[name] = partial(runner.run, feeds)
            facts[name] = {
                "plan": f"{len(plan.used)} devices, {len(work.schedule(plan).segments)} segments",
                "planning": f"{took_s:.1f} s",
                "predicted_s": simulate(work.schedule(plan), cost, system).makespan_s,
            }

    def _clusters(self, one_core: bool = False) -> list[tuple[str, ...]]:
        if not (numbers := self.options.clusters):
            return []
        return [names for names in clusters(one_core) if len(names) in (*numbers, _cores())]

    def _differences(self, work: PlanningContext, runs: Mapping[str, Run]) -> dict[str, str]:
        """The largest difference of the outputs of each rival from those of ONNX Runtime."""
        expected = runs[_threads(_cores())]()
        differences = {}
        for name, run in runs.items():
            if name == OPENVINO:
                continue  # its outputs have names of their own
            found = run()
            worst = max(worst_difference(found[output], expected[output]) for output in expected)
            differences[name] = f"{worst:.1e}"
        return differences

    def _row(self, name: str, facts: Row, outcome: Outcome[str], best: str) -> Row:
        loop_s, predicted_s = _loop_s(outcome, name), facts.get("predicted_s")
        row = {
            "model": _stem(self.model),
            "with": name,
            "paced_s": outcome.median_s(name, "paced"),
            "loop_s": loop_s,
            f"over {best}": outcome.ratio(name, best, "loop"),
            "predicted_s": predicted_s or "",
            "over predicted": loop_s / predicted_s if predicted_s else "",
        }
        return row | {key: facts.get(key, "") for key in ("busy", "plan", "planning", "difference")}

    def _at_once_s(self, names: Sequence[str], feeds: Mapping[str, Any]) -> float:
        """Seconds of a request of sessions that run at once, over their number; the median of the
        rounds."""
        with ExitStack() as stack:
            runners = []
            for name in names:
                work = PlanningContext(source(self.model), self.settings([name]))
                single = work.prepared(work.plan("single"))
                runners.append(stack.enter_context(work.start(single)))
            rounds = [_round_s(runners, feeds) for _ in range(self.options.rounds + 1)]
        return statistics.median(rounds[1:]) / len(names)


_TIMES = PlannerTimes()


def _round_s(runners: Sequence[Any], feeds: Mapping[str, Any]) -> float:
    """Mean seconds of a request while all runners run requests."""
    barrier = threading.Barrier(len(runners))
    seconds: list[float] = []

    def requests(runner: Any) -> None:
        barrier.wait()
        start_s = time.perf_counter()
        for _ in range(_AT_ONCE):
            runner.run(feeds)
        seconds.append((time.perf_counter() - start_s) / _AT_ONCE)

    threads = [threading.Thread(target=requests, args=(runner,)) for runner in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(seconds) < len(runners):
        raise RuntimeError("a session that ran beside others failed; see the traceback above")
    return statistics.fmean(seconds)


def _busy(chosen: Prepared, runner: Runner, feeds: Mapping[str, Any]) -> str:
    """The share of a request, over all cores, in which tiles were computed: the median of some
    requests in a loop; "" if the plan has none."""
    shares = []
    for _ in range(_TRACED):
        recorder = RealRecorder(chosen.compiled, chosen.work.names)
        runner.run(feeds, recorder)
        trace = recorder.trace()
        tiles_s = math.fsum(d.duration_s for d in trace.details if d.kind == "tile")
        if not tiles_s:
            return ""
        shares.append(tiles_s / (trace.makespan_s * _cores()))
    return f"{statistics.median(shares):.2f}"


def _named_outputs(session: Any, names: Sequence[str], feeds: Mapping[str, Any]) -> Row:
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def clusters(one_core: bool = False) -> Iterator[tuple[str, ...]]:
    """Names of the clusters of all cores, for each number of clusters that this machine allows;
    with ``one_core`` also single cores."""
    sets = core_sets([members for members, _ in detect.clusters()], detect.partitions())
    for number in (*NUMBERS, *([_cores()] if one_core and _cores() not in NUMBERS else [])):
        for devices in sets:
            if len(devices) == number and sum(map(len, devices)) == _cores():
                yield tuple(map(cpu_name, devices))
                break


def _cores() -> int:
    return len(detect.usable_cores())


def _threads(count: int) -> str:
    return f"ONNX Runtime {count}"


def _title(names: Sequence[str]) -> str:
    return f"{len(names)} x {_cores() // len(names)} cores"


def _stem(model: str) -> str:
    return Path(model).stem


def _loop_s(outcome: Outcome[str], name: str) -> float:
    seconds = outcome.median_s(name, "loop")
    assert seconds is not None  # every rival runs in every round
    return seconds


def _summary(rows: Sequence[Row]) -> list[Row]:
    """The figures of the goals, over all models."""
    over = {}
    for row in rows:
        ratios = [value for key, value in row.items() if key.startswith("over ")]
        over.setdefault(row["with"], []).append(ratios[0])
    summary = [
        {"with": name, "models": len(ratios), "geometric mean": _mean(ratios), "worst": max(ratios)}
        for name, ratios in over.items()
    ]
    for title in dict.fromkeys(row["with"] for row in rows if row.get("predicted_s")):
        errors = [row["over predicted"] for row in rows if row["with"] == title]
        middle = statistics.median(error for error in errors if error)
        summary.append(
            {"with": f"{title}, over predicted", "models": len(errors), "median": middle}
        )
    return summary


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def main() -> None:
    options, progress = _arguments(), Progress()
    rows: list[Row] = []
    for model in options.models:
        try:
            found = list(Bench(model, options, progress).rows())
        except CoexecError as error:
            print(f"left out, {model}: {first_line(error)}", file=sys.stderr)
            continue
        show(f"{_stem(model)}, {_cores()} cores", found, options.json)
        rows += found
    if rows:
        show(
            f"{_cores()} cores, over the better engine with all threads",
            _summary(rows),
            options.json,
        )


def _numbers(text: str) -> list[int]:
    """The type of the option for some of `NUMBERS`, or "none"."""
    return [] if text == "none" else list(map(int, some_of(map(str, NUMBERS))(text)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="files or zoo names")
    parser.add_argument("--rounds", type=a_count, default=10, help="turns of each")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of auto")
    parser.add_argument(
        "--planners",
        type=some_of(PLANNERS),
        default=["codl", "hope_greedy"],
        help="planners of clusters, separated by commas",
    )
    parser.add_argument(
        "--clusters", type=_numbers, default=NUMBERS, help='numbers of clusters, or "none"'
    )
    parser.add_argument(
        "--limit", type=float, default=30.0, help="longest expected seconds of a planner"
    )
    parser.add_argument("--cache", default=None, help="folder for profiles and plans")
    parser.add_argument("--fresh", action="store_true", help="profile and plan anew")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
