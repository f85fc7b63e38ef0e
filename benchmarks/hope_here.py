"""HOPE's tables on this machine: each planner on two cores, as two clusters and as CPU and GPU.

The engine cpp on a CPU core represents the GPU: another engine. For each model and
pair all rivals run in turns: each device alone, every planner, "auto", ONNX Runtime and OpenVINO
with all cores; at 30 requests a second and in a loop. Goals: on nasnet_large and pnasnet_large
"auto" is at least 1.75 times faster than one core and faster than both engines; on every model
"auto" takes at most 1.02 times as long as the best single device.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from contest import Contest, accuracy
from hope_tables import (
    AUTO,
    PLANNED,
    Row,
    Tables,
    all_tried,
    beside_the_paper,
    by_requests,
    head,
    in_ms,
    normalised,
    source_of,
)

from coexec.engines.detect import usable_cores
from coexec.engines.names import cpu_name, without_engine
from coexec.engines.registry import describe
from coexec.selection.chooser import Chooser
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.race import ratio
from coexec.settings import Settings

Pair = tuple[str, str]


ENGINES = ("onnxruntime", "cpp")
"""Engines of the second core."""


def pairs(engines: Sequence[str]) -> dict[str, Pair]:
    """Pairs of devices by name: two cores with ONNX Runtime; cpp on the second core. Empty if
    the machine has fewer than two cores."""
    cores = usable_cores()
    if len(cores) < 2:
        return {}
    first, second = (f"cpu:{core}" for core in cores[:2])
    pair_of_engine = {"onnxruntime": (first, second), "cpp": (first, f"{second}/cpp")}
    return {"+".join(pair_of_engine[engine]): pair_of_engine[engine] for engine in engines}


def rows(models: Sequence[str], planners: Sequence[str], options: Any) -> Iterator[list[Row]]:
    """The rows of each model on each pair, as soon as they are measured."""
    for platform, pair in pairs(options.pairs).items():
        for model in models:
            compare = partial(_compare, platform, pair, model, planners, options)
            yield all_tried(head(platform, model, "-"), f"{model} on {platform}", compare)


def _compare(
    platform: str, pair: Pair, model: str, planners: Sequence[str], options: Any
) -> list[Row]:
    choice, fresh = None, options.fresh
    if AUTO in planners:
        choice = Chooser(source_of(model), Settings(pair, cache=options.cache, fresh=fresh)).make()
        fresh = False  # this call has already measured everything
    work = PlanningContext(source_of(model), Settings(pair, cache=options.cache, fresh=fresh))
    with Contest(platform, model, work, limit_s=options.time_limit) as contest:
        for device in pair:
            contest.planned(device, "single", device=without_engine(device))
        if pair == tuple(map(without_engine, pair)):
            wide = cpu_name(sorted(core for d in pair for core in describe(d).cores))
            one = PlanningContext(source_of(model), Settings([wide], cache=options.cache))
            contest.of_another(wide, one, one.plan("single"))
        for planner in planners:
            if planner in PLANNED:
                contest.planned(planner)
        if choice is not None:
            contest.of_another(AUTO, choice.work, choice.plan, note=_described(choice))
        contest.engines(threads=2)
        return contest.timed(options.rounds)


def _described(choice: Prepared) -> str:
    chosen = choice.candidates[0]
    return f"{chosen.planner} on {'+'.join(chosen.devices)}"


def tables(found: Sequence[Row]) -> Tables:
    """For each pair the figures of the paper's Fig. 4, the comparison with auto, and the accuracy
    of predictions."""
    for platform in dict.fromkeys(row["platform"] for row in found):
        own = [row for row in found if row["platform"] == platform]
        unit = platform.split("+")[1]
        for requests, timed in by_requests(own):
            here = f"{platform} {requests}"
            yield f"{here}, ms, medians of all in turns", in_ms(timed)
            yield f"{here}, the same over {unit} alone", normalised(timed, lambda _, u=unit: u)
            yield f"{here}, latency saved, %: measured / paper's phones", beside_the_paper(timed)
            yield f"{here}, time over that of auto, by round", _auto(timed)
        yield f"{platform}, simulated / measured in a loop", accuracy(own)


def _auto(found: Sequence[Row]) -> list[Row]:
    """Time of each single device, of the best of them, and of other engines over auto's time."""
    by_model: dict[str, dict[str, Row]] = {}
    for row in found:
        if row["rounds_s"]:
            by_model.setdefault(row["model"], {})[row["planner"]] = row
    table = []
    for model, own in by_model.items():
        if AUTO not in own:
            continue
        auto_s = own[AUTO]["rounds_s"]
        cells = {"model": model, "auto is": own[AUTO]["note"]}
        rivals = {n: r["rounds_s"] for n, r in own.items() if n not in (*PLANNED, AUTO)}
        cells |= {name: ratio(rounds_s, auto_s) for name, rounds_s in rivals.items()}
        alone = [rounds_s for name, rounds_s in rivals.items() if ":" in name]
        cells["auto / best device"] = max(ratio(auto_s, rounds_s) for rounds_s in alone)
        table.append(cells)
    return table
