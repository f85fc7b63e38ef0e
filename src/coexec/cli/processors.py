"""The table of engines, and remarks on them, of `coexec devices` and `coexec doctor`."""

from collections.abc import Sequence

from rich.table import Table

from coexec.cli.console import show
from coexec.engines.registry import Driven


def engine_table(processors: Sequence[Driven]) -> Table:
    """A row for each engine of each processor."""
    rows = (
        (
            driven.name,
            engine,
            "yes" if processor.unusable is None else "no",
            processor.driver,
            ", ".join(processor.precisions),
            ", ".join(f"{what} {value}" for what, value in processor.facts.items()),
        )
        for driven in processors
        for engine, processor in driven.by.items()
    )
    return show(rows, ("device", "engine", "usable", "driver", "computes in", "facts"))


def remarks(processors: Sequence[Driven]) -> list[str]:
    """Lines of text: why engines are unusable, and their notes."""
    return [
        f"{driven.name}/{engine}: {text}"
        for driven in processors
        for engine, processor in driven.by.items()
        for text in (processor.unusable, *processor.notes)
        if text is not None
    ]
