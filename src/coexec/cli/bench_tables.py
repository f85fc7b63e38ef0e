"""The tables of `coexec bench`, and its verdict."""

from pathlib import Path
from typing import Any

from rich.table import Table

from coexec.cli.console import out
from coexec.cli.gantt import draw
from coexec.report.bound import LowerBound
from coexec.report.standings import Standings
from coexec.rules import current_rules
from coexec.runtime.recorder import RealRecorder
from coexec.selection.decision import Requests
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import REQUESTS
from coexec.selection.ranking import is_clearly_faster
from coexec.units import format_bytes, format_joules, format_seconds

__all__ = ["bench_facts", "gain_in_words", "print_bench"]


def bench_facts(
    work: PlanningContext, standings: Standings, bound: LowerBound | None, worst: float | None
) -> dict[str, Any]:
    """Facts of all rows for the JSON document."""
    return {
        "model": work.model.graph.name,
        "base": standings.base,
        "rows": [standings.facts(row) for row in standings.rows],
        "bound_s": None if bound is None else bound.seconds,
        "bound_devices": None if bound is None else bound.devices,
        "disturbed_turns": standings.outcome.disturbed,
        "difference": worst,
    }


def print_bench(
    work: PlanningContext,
    standings: Standings,
    bound: LowerBound | None,
    recorder: RealRecorder | None,
    trace: Path | None,
) -> None:
    """Print the tables of all rows."""
    out.print(f"{work.model.graph.name} on {', '.join(work.names)}")
    for figure, words in REQUESTS.items():
        out.print(f"\n{words} ({figure})")
        out.print(_times(standings, figure))
    out.print(f"\nratio: p50 over that of {standings.base}; requests/s: the mean")
    out.print(_costs(standings))
    if bound is not None:
        out.print(f"bound: {bound}")
    if standings.same_as:
        out.print("A = B: both are the same plan, which was measured once")
    if disturbed := standings.outcome.disturbed:
        out.print(f"{disturbed} turns began while other threads of this process were busy")
    if recorder is not None:
        print(draw(recorder.trace()))
    if trace is not None:
        out.print(f"trace: {trace}, open it at ui.perfetto.dev")


def gain_in_words(standings: Standings, plan: str) -> str:
    """Sentence about the time of row ``plan`` relative to the base and to the fastest single
    device: medians at 30 requests a second."""
    p50_s = {row.name: standings.facts(row)["paced_s"] for row in standings.rows}
    alone = [row.name for row in standings.rows if row.name != plan and not row.is_base]
    baselines = [standings.base, *([min(alone, key=p50_s.__getitem__)] if alone else [])]
    shares = {name: p50_s[plan] / p50_s[name] for name in baselines}
    each = [f"{share:.2f} of the time of {name}" for name, share in shares.items()]
    each[0] += f" ({_seconds(p50_s[plan])} a request in place of {_seconds(p50_s[standings.base])})"
    comparison = " and ".join(each)
    gains = [
        name
        for name in baselines
        if is_clearly_faster(standings.rounds_s(plan, name), current_rules())
    ]
    if standings.base not in gains:
        end = f"no gain over {standings.base}; coexec optimize tries other ways"
    elif len(gains) == len(shares):
        end = "that is a gain"
    else:
        end = f"that is a gain over {standings.base}, and none over {baselines[1]}"
    return f"{plan} takes {comparison}: {end}"


def _times(standings: Standings, figure: Requests) -> Table:
    """Table of percentiles of a request, with a row for each row of the race."""
    in_loop = figure == "loop"
    table = Table("", "p50", "p90", "p99", "ratio", *(["requests/s"] if in_loop else []), box=None)
    table.columns[0].overflow = "fold"
    for row in standings.rows:
        facts = standings.facts(row)
        cells = [_seconds(facts[f"{figure}{which}_s"]) for which in ("", "_p90", "_p99")]
        cells.append(f"{facts[f'{figure}_ratio']:.2f}")
        same = f" = {facts['same_as']}" if facts["same_as"] else ""
        per_s = [f"{facts['requests_per_s']:.1f}"] if in_loop else []
        table.add_row(row.name + same, *cells, *per_s)
    return table


def _costs(standings: Standings) -> Table:
    """Table of other figures: prediction, start, memory, and energy if it is known."""
    has_energy = any(row.energy.energy_j is not None for row in standings.rows)
    energy = ["energy"] if has_energy else []
    table = Table("", "predicted", "init", "warm-up", "peak memory", *energy, box=None)
    table.columns[0].overflow = "fold"
    for row in standings.rows:
        facts = standings.facts(row)
        cells = [_seconds(facts[key]) for key in ("predicted_s", "init_s", "warm_up_s")]
        cells.append("not known" if row.peak_bytes is None else format_bytes(row.peak_bytes))
        if has_energy:
            joules = row.energy.energy_j
            cells.append("" if joules is None else format_joules(joules))
        table.add_row(row.name, *cells)
    return table


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)
