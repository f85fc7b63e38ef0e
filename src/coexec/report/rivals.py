"""The rivals of a plan: each device alone, and ONNX Runtime on the same cores."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from coexec.arrays import Array
from coexec.errors import DeviceError
from coexec.model.values import bound_run
from coexec.report.alternatives import alone_s
from coexec.report.contents import RivalRow
from coexec.report.peak import of_onnx_runtime, of_plan
from coexec.report.standings import Row
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.runner import Runner
from coexec.selection.decision import Candidate, Decision
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.quiet_moment import Rest
from coexec.timing.simulate import simulate

__all__ = [
    "alone_rows",
    "candidate_rows",
    "predicted_time_s",
    "recorded_run",
    "row_of_onnx_runtime",
    "row_of_plan",
]


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
    known = plan.system.names
    planned = {str(place): place.device for place in plan.system.places}
    considered = {
        c.devices[0]: _single_s(plan, c, planned)
        for c in plan.candidates
        if len(c.devices) == 1 and c.is_able and c.status != "left out"
    }
    if considered:
        return considered
    return {name: alone_s(plan, name) for name in known} if len(known) > 1 else {}


def _single_s(plan: Prepared, candidate: Candidate, planned: Mapping[str, str]) -> float | None:
    """Predicted seconds of a candidate with one device: in the system of the plan, if that has the
    device with the same engine.

    Args:
        planned: devices of the plan's system by place.
    """
    (name,) = candidate.devices
    place = next((each for each in (name, f"{name}/onnxruntime") if each in planned), None)
    return candidate.predicted_s if place is None else alone_s(plan, planned[place])


def alone_rows(
    plan: Prepared, feeds: Mapping[str, Array], stack: ExitStack
) -> tuple[list[Row], dict[str, str]]:
    """Rows of single devices, and why a device is left out: it cannot be open beside the others."""
    work, rows, left_out = plan.work, [], {}
    for name, predicted_s in _alone(plan).items():
        try:
            alone = PlanningContext(
                work.given.source, replace(work.settings, devices=[name], pins={})
            )
            single = alone.prepared_by("single", {})
            rows.append(row_of_plan(single, f"{name} alone", predicted_s, feeds, stack)[0])
        except DeviceError as error:  # some engines can use only one set of cores at a time
            left_out[name] = str(error)
    return rows, left_out


def row_of_plan(
    plan: Prepared,
    name: str,
    predicted_s: float | None,
    feeds: Mapping[str, Array],
    stack: ExitStack,
) -> tuple[Row, Runner]:
    """The row of a plan, and its runner."""
    Rest().until_idle()
    start_s = time.perf_counter()
    executor = stack.enter_context(plan.work.start(plan))
    init_s = time.perf_counter() - start_s
    run, peak = partial(executor.run, feeds), partial(of_plan, plan.work, plan.plan, feeds)
    row = Row(name, predicted_s, run, peak, plan.compiled.segments, init_s=init_s)
    return row, executor


def row_of_onnx_runtime(work: PlanningContext, feeds: Mapping[str, Array]) -> Row:
    """The row of ONNX Runtime with as many threads as the devices have cores."""
    threads = max(1, sum(len(device.spec.cores) for device in work.devices))
    Rest().until_idle()
    start_s = time.perf_counter()
    session = work.given.onnx_runtime(threads)
    init_s = time.perf_counter() - start_s
    run = bound_run(session, feeds)
    peak = partial(of_onnx_runtime, work, threads, feeds)
    ending = "s" if threads > 1 else ""
    return Row(
        f"ONNX Runtime, {threads} thread{ending}", None, run, peak, init_s=init_s, is_base=True
    )


def candidate_rows(decision: Decision | None) -> Iterator[RivalRow]:
    """The candidates of planner "auto" with the figures of its race; no row if ONNX Runtime's own
    session or the taken plan did not run in it."""
    candidates = () if decision is None else decision.candidates
    sessions = [each for each in candidates if each.is_ort_session and each.ratio is not None]
    if not sessions or candidates[0].ratio is None:
        return
    base = min(sessions, key=lambda each: each.ratio or 0.0)
    for each in candidates:
        yield RivalRow(
            str(each),
            each.expected_s if each.predicted_s is None else each.predicted_s,
            each.paced_s,
            each.loop_s,
            each.ratio / base.ratio if each.ratio and base.ratio else None,
            each is base,
            each is candidates[0],
            each.requests,
            each.per_s,
            each.rounds,
            each.status,
            each.reason,
            each.planner,
        )
