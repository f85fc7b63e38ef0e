"""The race of a plan with its rivals: each device alone, and ONNX Runtime on the same cores."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.engines.registry import describe
from coexec.errors import DeviceError, InfeasibleError
from coexec.hardware.hardware import Place
from coexec.model.values import bound_run
from coexec.plan.schedule import Segment
from coexec.report.alternatives import alone_s
from coexec.report.energy import measured_energy
from coexec.report.peak import of_onnx_runtime, of_plan
from coexec.report.ways import Way
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.runner import Runner
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.quiet_moment import REAL, Rest
from coexec.selection.race import REQUESTS, race
from coexec.timing.simulate import simulate


@dataclass(frozen=True)
class RaceEntry:
    """A way to run the model that can be raced."""

    way: Way
    """Its figures before the race."""
    run: Callable[[], Any]
    peak: Callable[[], int | None]
    """Measures the peak memory in bytes."""
    segments: tuple[Segment, ...] | None = None
    """Segments in order; None if another program runs the model."""

    def is_same(self, other: "RaceEntry") -> bool:
        """Whether both run the same segments, so that their times differ by noise only."""
        return self.segments is not None and self.segments == other.segments


@dataclass(frozen=True)
class RacedWays:
    """Ways to run the model with the figures of their race."""

    ways: Sequence[Way]
    rounds_s: Mapping[str, Sequence[float]]
    """By name of a way, the median seconds of a request at 30 requests a second, in each round."""
    disturbed: int
    """Turns that began while other threads of this process were busy."""
    others: float
    """Share of the processors' time that other programs used meanwhile."""

    @property
    def fastest_s(self) -> float:
        """Least median seconds of all ways, of both figures."""
        figures_s = (figure_s for way in self.ways for figure_s in (way.paced_s, way.loop_s))
        return min(figure_s for figure_s in figures_s if figure_s is not None)


def race_rivals(rivals: Sequence[RaceEntry], rounds: int) -> RacedWays:
    """Race the rivals, each plan once; then measure energy and memory of each plan. One of them is
    the base of all ratios."""
    ran_for = {r.way.name: next(o for o in rivals if o is r or o.is_same(r)) for r in rivals}
    different = [rival for rival in rivals if ran_for[rival.way.name] is rival]
    warm_up_s: dict[str, float] = {}
    for rival in different:
        Rest().until_idle()  # threads of the previous rival may still spin for work
        warm_up_s[rival.way.name] = REAL.timed(rival.run)
        rival.run()
    runs = {rival.way.name: rival.run for rival in different}
    outcome, load = REAL.with_load(partial(race, runs, (rounds, rounds)))
    outcome = outcome.complete()
    base = next(rival.way.name for rival in rivals if rival.way.is_base)
    of_base_s = {each: outcome.samples_s(ran_for[base].way.name, each) for each in REQUESTS}
    measured: dict[str, Way] = {}
    for rival in different:
        name = rival.way.name
        Rest().until_idle()
        figures: dict[str, Any] = {"warm_up_s": warm_up_s[name]}
        figures |= measured_energy(rival.run)._asdict()
        for each in REQUESTS:
            samples_s = outcome.samples_s(name, each)
            median_s, p90_s, p99_s = map(float, np.percentile(samples_s, [50, 90, 99]))
            ratio = median_s / float(np.median(of_base_s[each]))
            figures |= {f"{each}_s": median_s, f"{each}_p90_s": p90_s, f"{each}_p99_s": p99_s}
            figures |= {f"{each}_ratio": ratio}
            if ratio > figures.get("share", 0.0):
                figures |= {"share": ratio, "requests": each}
        measured[name] = replace(
            rival.way,
            **figures,
            requests_per_s=1 / statistics.fmean(outcome.samples_s(name, "loop")),
            rounds=len(outcome.laps[name]),
            peak_bytes=rival.peak(),
        )
    ways = []
    for rival in rivals:
        way, own = measured[ran_for[rival.way.name].way.name], rival.way
        if way.name != own.name:
            way = replace(way, same_as=way.name, name=own.name, predicted_s=own.predicted_s)
            way = replace(way, is_base=own.is_base, is_plan=own.is_plan)
        ways.append(way)
    rounds_s = {name: outcome.rounds_s(each.way.name, "paced") for name, each in ran_for.items()}
    return RacedWays(ways, rounds_s, outcome.disturbed, load.share)


def recorded_run(
    executor: Runner, feeds: Mapping[str, Array], recorder: RealRecorder
) -> Mapping[str, Array]:
    """Outputs of a recorded run, after a run to warm up."""
    Rest().until_idle()
    executor.run(feeds)
    return executor.run(feeds, recorder)


def predicted_time_s(plan: Prepared) -> float | None:
    """Seconds of the plan, simulated with the profile. For a plan from a file, the prediction of
    its planner, because nothing is profiled for it."""
    if plan.work.settings.plan is not None:
        return plan.plan.provenance.predicted_s
    return simulate(plan.schedule, plan.cost, plan.system).makespan_s


def _alone(plan: Prepared) -> dict[str, float | None]:
    """Predicted seconds of single devices to compare with, by name: devices that "auto" considered;
    else the devices of the plan, if there are several."""
    if plan.work.settings.plan is not None:
        return dict.fromkeys(plan.work.device_names) if len(plan.work.device_names) > 1 else {}
    planned = {str(place): place for place in plan.system.places}
    alone: dict[str, float | None] = {}
    for candidate in plan.candidates:
        if len(candidate.devices) == 1 and candidate.is_able and candidate.status != "left out":
            (name,) = candidate.devices
            # The system of the plan predicts it, if that has the device with the same engine.
            place = next((p for p in (name, f"{name}/onnxruntime") if p in planned), None)
            predicted_s = candidate.predicted_s
            alone[name] = predicted_s if place is None else alone_s(plan, planned[place])
    known = plan.system.places if len(plan.system.places) > 1 else ()
    return alone or {_name(place): alone_s(plan, place) for place in known}


def _name(place: Place) -> str:
    """The shortest name that opens a device of this machine."""
    return place.device if describe(place.device).place == place else str(place)


def alone_rivals(
    plan: Prepared, feeds: Mapping[str, Array], stack: ExitStack
) -> tuple[list[RaceEntry], dict[str, str]]:
    """The single devices, and why one is left out: it cannot be open beside the others, or does not
    run the whole model."""
    work, rivals, left_out = plan.work, [], {}
    raced = {row.devices for row in plan.candidates if row.is_able}
    for name, predicted_s in _alone(plan).items():
        try:
            alone = work.with_settings(devices=[name], pins={})
            alone, single = alone.completed() if (name,) in raced else (alone, alone.plan("single"))
            how = "with onnxruntime" if len(single.places) > 1 else "alone"
            way = Way(name=f"{name} {how}", predicted_s=predicted_s)
            rivals.append(plan_rival(alone.prepared(single), way, feeds, stack)[0])
        except (DeviceError, InfeasibleError) as error:
            # Some engines use one set of cores at a time, and some lack an operator of the model.
            left_out[name] = str(error)
    return rivals, left_out


def plan_rival(
    plan: Prepared, way: Way, feeds: Mapping[str, Array], stack: ExitStack
) -> tuple[RaceEntry, Runner]:
    """A plan that was started, and its runner."""
    Rest().until_idle()
    start_s = time.perf_counter()
    executor = stack.enter_context(plan.work.start(plan))
    way = replace(way, init_s=time.perf_counter() - start_s)
    run, peak = partial(executor.run, feeds), partial(of_plan, plan.work, plan.plan, feeds)
    return RaceEntry(way, run, peak, plan.compiled.segments), executor


def onnx_runtime_rival(work: PlanningContext, feeds: Mapping[str, Array]) -> RaceEntry:
    """ONNX Runtime, the base, with as many threads as the devices have cores."""
    threads = max(1, len({core for device in work.devices for core in device.spec.cores}))
    name = f"ONNX Runtime, {threads} thread{'s' if threads > 1 else ''}"
    Rest().until_idle()
    start_s = time.perf_counter()
    session = work.user_model.onnx_runtime(threads)
    way = Way(name=name, is_base=True, init_s=time.perf_counter() - start_s)
    return RaceEntry(way, bound_run(session, feeds), partial(of_onnx_runtime, work, threads, feeds))
