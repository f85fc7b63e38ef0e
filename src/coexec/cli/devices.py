"""`coexec devices`: the processors of this machine, and the engines on each."""

from collections.abc import Iterable
from dataclasses import asdict

from rich.table import Table

from coexec.cli.common import DebugOpt, FreshOpt, JsonOpt, print_json
from coexec.cli.console import out
from coexec.engines.names import default_names
from coexec.engines.registry import Driven, broken, describe, processors
from coexec.system.hardware import Device
from coexec.units import format_bytes


def command(json: JsonOpt = False, fresh: FreshOpt = False, debug: DebugOpt = False) -> None:
    """List this machine's processors and the engines that compute on them. cpu:0-3 may be used in
    parts: cpu:0-1,cpu:2-3. --fresh tries all engines again."""
    clusters = [describe(name) for name in default_names()]
    found = processors(fresh=fresh)
    not_imported = broken()
    if json:
        print_json({"clusters": [asdict(d) for d in clusters],
                    "processors": [asdict(driven) for driven in found],
                    "broken": not_imported})  # fmt: skip
        return
    out.print(_processors(clusters, found))
    out.print(_engines(found))
    for text in (*_remarks(found), *not_imported.values()):
        out.print(text)
    further = [e for d in found if d.name == "cpu" for e in d.usable][1:]
    if further and clusters:
        name = f"{clusters[0].name}/{further[0]}"
        out.print(f"A device computes with its first engine; another is named: --devices {name}")


def _processors(clusters: Iterable[Device], found: Iterable[Driven]) -> Table:
    table = Table("device", "cores", "max. frequency", "memory", "processor", box=None)
    for d in clusters:
        hertz = f"{d.max_frequency_hz / 1e9:.2f} GHz" if d.max_frequency_hz else "not told"
        size = d.engines[0].memory_bytes
        memory = format_bytes(size) if size else "not told"
        table.add_row(d.name, str(len(d.cores)), hertz, memory, d.processor)
    for driven in (d for d in found if d.name != "cpu"):
        facts = next(iter(driven.by.values())).facts
        table.add_row(driven.name, "", "", facts.get("memory", "not told"), driven.title)
    return table


def _engines(found: Iterable[Driven]) -> Table:
    table = Table("device", "engine", "usable", box=None)
    for column in ("driver", "facts"):  # long words, which a narrow terminal must not cut off
        table.add_column(column, overflow="fold")
    for driven in found:
        for engine, processor in driven.by.items():
            facts = ", ".join(f"{what} {value}" for what, value in processor.facts.items())
            usable = "yes" if processor.unusable is None else "no"
            table.add_row(driven.name, engine, usable, processor.driver, facts)
    return table


def _remarks(found: Iterable[Driven]) -> list[str]:
    """Why engines are unusable, and what else they say."""
    said = ((driven.name, engine, text) for driven in found
            for engine, processor in driven.by.items()
            for text in (processor.unusable, *processor.notes))  # fmt: skip
    return [f"{name}/{engine}: {text}" for name, engine, text in said if text is not None]
