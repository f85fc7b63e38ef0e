"""The tables of `coexec devices`."""

from collections.abc import Iterable

from rich.table import Table

from coexec.engines.registry import Driven
from coexec.hardware.hardware import Device
from coexec.units import format_bytes

__all__ = ["engine_table", "processor_table", "remarks"]


def processor_table(clusters: Iterable[Device], processors: Iterable[Driven]) -> Table:
    table = Table("device", "cores", "max. frequency", "memory", "processor", box=None)
    for d in clusters:
        hertz = f"{d.max_frequency_hz / 1e9:.2f} GHz" if d.max_frequency_hz else "not told"
        size = d.engine.memory_bytes
        memory = format_bytes(size) if size else "not told"
        table.add_row(d.name, str(len(d.cores)), hertz, memory, d.processor)
    for driven in (d for d in processors if d.name != "cpu"):
        facts = next(iter(driven.by.values())).facts
        table.add_row(driven.name, "", "", facts.get("memory", "not told"), driven.title)
    return table


def engine_table(processors: Iterable[Driven]) -> Table:
    table = Table("device", "engine", "usable", box=None)
    for column in ("driver", "facts"):  # long words, which a narrow terminal must not cut off
        table.add_column(column, overflow="fold")
    for driven in processors:
        for engine, processor in driven.by.items():
            facts = ", ".join(f"{what} {value}" for what, value in processor.facts.items())
            usable = "yes" if processor.unusable is None else "no"
            table.add_row(driven.name, engine, usable, processor.driver, facts)
    return table


def remarks(processors: Iterable[Driven]) -> list[str]:
    """Lines of text: why engines are unusable, and their notes."""
    texts = (
        (driven.name, engine, text)
        for driven in processors
        for engine, processor in driven.by.items()
        for text in (processor.unusable, *processor.notes)
    )
    return [f"{name}/{engine}: {text}" for name, engine, text in texts if text is not None]
