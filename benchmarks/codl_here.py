"""CoDL's tables on this machine: two cores, each alone, mulayer, codl by dimension, codl.

The engine cpp on a core represents the GPU, and two clusters represent big and little cores. The
first of two clusters is also slowed to a half and a third of its speed (`slow_device`, "stretch").
For each model and case all rivals run in turns, with a wide device (both cores, ONNX Runtime) as
another rival. Goals: codl reaches at least 0.85 of perfect division, and on two equal clusters it
takes at most 1.03 times as long as the wide device.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from codl_tables import DIVIDED, MULAYER, OURS, by_case, dividing, latencies, perfect
from contest import Contest, Run, accuracy
from hope_clocks import slowdown, slowed_costs
from hope_here import pairs
from hope_tables import Row, Tables, all_tried, by_requests, head, source_of
from slow_device import slowed

from coexec.costs.base import CostModel
from coexec.engines.detect import usable_cores
from coexec.engines.names import cpu_name, without_engine
from coexec.engines.opened import OpenDevice
from coexec.planners.methods.splitting.shares import FINE_STEPS
from coexec.report.energy import measured_energy
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import ratio
from coexec.settings import Settings

MODELS = ("vgg16", "yolov2", "resnet34", "squeezenet", "inception_v3")
CASES: Mapping[str, tuple[str, float]] = {
    "cpp": ("cpp", 1.0),
    "clusters": ("onnxruntime", 1.0),
    "half": ("onnxruntime", 1 / 2),
    "third": ("onnxruntime", 1 / 3),
}
"""By name: the engine of the second core, and the speed of the first core as a share of its full
speed."""
FIRST, SECOND, WIDE = "first alone", "second alone", "wide"


def rows(models: Sequence[str], cases: Sequence[str], options: Any) -> Iterator[list[Row]]:
    """The rows of each model and case, as soon as they are measured; none without two cores."""
    for case in cases:
        engine, share = CASES[case]
        for platform, names in pairs([engine]).items():
            label = platform if share == 1 else f"{platform}, {names[0]} at {share:.0%}"
            for model in models:
                compare = partial(_compare, label, names, model, share, options)
                yield all_tried(head(label, model, "-"), f"{model} on {label}", compare)


def _compare(label: str, names: Sequence[str], model: str, share: float, options: Any) -> list[Row]:
    work = PlanningContext(
        source_of(model), Settings(names, cache=options.cache, fresh=options.fresh)
    )
    wide_name = cpu_name(sorted(usable_cores()[:2]))
    wide = PlanningContext(source_of(model), Settings([wide_name], cache=options.cache))
    with ExitStack() as stack:
        cost, devices, factor = _slowed(stack, work, share)
        contest = stack.enter_context(Contest(label, model, work, cost=cost, devices=devices))
        for each, device in zip((FIRST, SECOND), names, strict=True):
            contest.planned(each, "single", device=without_engine(device))
        for each, (planner, options_of_planner) in dividing().items():
            # The steps of codl's default, so that all planners have equally fine shares.
            contest.planned(each, planner, **options_of_planner, steps=FINE_STEPS)
        contest.of_another(WIDE, wide, wide.plan("single"))
        session = work.user_model.onnx_runtime(threads=1)
        expected = session.run(None, dict(contest.feeds))
        outputs = [output.name for output in session.get_outputs()]
        contest.noted(partial(_difference, dict(zip(outputs, expected, strict=True))))
        contest.noted(_energy)
        return [row | {"slowdown": factor} for row in contest.timed(options.rounds)]


def _slowed(
    stack: ExitStack, work: PlanningContext, share: float
) -> tuple[CostModel, Sequence[OpenDevice], float]:
    """Costs and devices with the first device at ``share`` of its speed, and the measured factor by
    which its times grow."""
    cost, first = work.measured[0], work.devices[0].engine
    if share == 1:
        return cost, work.devices, 1.0
    slow = stack.enter_context(slowed(first, share, "stretch"))
    factor = slowdown(work, slow)
    return slowed_costs(cost, slow.place, factor), (OpenDevice.of(slow), *work.devices[1:]), factor


def _difference(expected: Mapping[str, Any], run: Run) -> Row:
    """The largest difference to ONNX Runtime's output, relative to the largest output."""
    actual = run()
    off = [
        np.abs(actual[key] - value).max(initial=0.0) / max(np.abs(value).max(initial=0.0), 1e-30)
        for key, value in expected.items()
    ]
    return {"difference": float(max(off))}


def _energy(run: Run) -> Row:
    measured = measured_energy(run)
    return {"energy_j": measured.energy_j, "energy_unknown": measured.energy_unknown}


def tables(found: Sequence[Row]) -> Tables:
    """For each case the performance of codl, and the accuracy of its prediction."""
    for platform in dict.fromkeys(row["platform"] for row in found):
        own = [row for row in found if row["platform"] == platform]
        for requests, timed in by_requests(own):
            here = f"{platform} {requests}"
            yield f"{here}, ms, medians of all in turns", latencies(timed)
            yield f"{here}: codl beside perfect division, and time over codl's", _reached(timed)
        yield f"{platform}, simulated / measured in a loop", accuracy(own)
        yield f"{platform}, MB moved, and largest difference to the whole model", _moved(own)
    yield "joules of an inference", _joules(found)
    yield "simulated against measured in a loop, plans that divide tasks", _errors(found)


def _reached(found: Sequence[Row]) -> list[Row]:
    table = []
    for (_, model), own in by_case(found).items():
        if not own.keys() >= {FIRST, SECOND, OURS}:
            continue
        ours_s = own[OURS]["rounds_s"]
        best_s = perfect(own[FIRST]["rounds_s"], own[SECOND]["rounds_s"])
        cells: Row = {
            "model": model,
            "first, times slower": f"{own[OURS]['slowdown']:.2f}",
            "perfect, ms": f"{1e3 * statistics.median(best_s):.2f}",
        }
        for label in (*DIVIDED, MULAYER):
            if label in own:
                cells[f"{label}, share of it"] = f"{ratio(best_s, own[label]['rounds_s']):.2f}"
        for label in (MULAYER, FIRST, SECOND, WIDE):
            if label in own:
                cells[label] = f"{ratio(own[label]['rounds_s'], ours_s):.2f}"
        table.append(cells)
    return table


def _moved(found: Sequence[Row]) -> list[Row]:
    table = []
    for (_, model), own in by_case(found).items():
        for label, row in own.items():
            if row.get("divided"):
                table.append(
                    {
                        "model": model,
                        "planner": label,
                        "MB": f"{row['moved_bytes'] / 1e6:.2f}",
                        "difference": f"{row['difference']:.1e}",
                    }
                )
    return table


def _joules(found: Sequence[Row]) -> list[Row]:
    """Energy of each planner's plan; one row with the reason if the machine has no counters."""
    unknown = {row["energy_unknown"] for row in found if row.get("energy_unknown")}
    if unknown:
        return [{"left out": reason} for reason in sorted(unknown)]
    return [
        {
            "platform": platform,
            "model": model,
            **{label: f"{row['energy_j']:.2f}" for label, row in own.items()},
        }
        for (platform, model), own in by_case(found).items()
    ]


def _errors(found: Sequence[Row]) -> list[Row]:
    """The median of |simulated / measured - 1|, for each case and over all cases."""
    errors: dict[str, list[float]] = {}
    for row in found:
        if row.get("divided") and row["loop_rounds_s"]:
            off = abs(row["simulated_s"] / statistics.median(row["loop_rounds_s"]) - 1)
            for where in (row["platform"], "all"):
                errors.setdefault(where, []).append(off)
    return [
        {
            "devices": where,
            "plans": str(len(own)),
            "largest": f"{max(own):.0%}",
            "median error": f"{statistics.median(own):.0%}",
        }
        for where, own in errors.items()
    ]
