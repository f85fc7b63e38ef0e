"""`coexec devices`: the processors of this machine, and the engines on each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coexec.cli.options import SettingOptions, verb
from coexec.cli.verbs import VerbOutput

if TYPE_CHECKING:
    from coexec.engines.registry import Driven
    from coexec.hardware.hardware import Device


@dataclass(frozen=True)
class Devices:
    """The processors of this machine."""

    clusters: "Sequence[Device]"
    """CPU clusters that are devices by default."""
    processors: "Sequence[Driven]"
    """Processors, each with what its engines say of it."""
    broken: Mapping[str, str]
    """By engine that cannot be used at all, the reason."""


@verb(Devices, "engine_options", "fresh")
def command(options: SettingOptions) -> VerbOutput:
    """List this machine's processors and the engines that compute on them. cpu:0-3 may be used in
    parts: cpu:0-1,cpu:2-3. --fresh tries all engines again."""
    from coexec.engines.names import default_names
    from coexec.engines.registry import broken, check_options, describe, processors

    check_options(options.settings().engine_options)
    clusters = [describe(name) for name in default_names()]
    of = options.settings()
    listed = processors(fresh=of.fresh, options=of.engine_options)
    found = Devices(clusters, listed, broken(of.engine_options))
    return VerbOutput(found, _text(found))


def _text(found: Devices) -> Iterator[Any]:
    from coexec.cli.console import show
    from coexec.cli.processors import engine_table, remarks
    from coexec.units import format_bytes

    rows: list[tuple[Any, ...]] = []
    for device in found.clusters:
        hertz, size_bytes = device.max_frequency_hz, device.engine.memory_bytes
        frequency = f"{hertz / 1e9:.2f} GHz" if hertz else "not told"
        memory = format_bytes(size_bytes) if size_bytes else "not told"
        rows.append((device.name, len(device.cores), frequency, memory, device.processor))
    for driven in found.processors:
        if driven.name != "cpu":
            memory = next(iter(driven.by.values())).facts.get("memory", "not told")
            rows.append((driven.name, "", "", memory, driven.title))
    yield show(rows, ("device", "cores", "max. frequency", "memory", "processor"))
    yield engine_table(found.processors)
    yield from remarks(found.processors)
    yield from found.broken.values()
    further = [e for d in found.processors if d.name == "cpu" for e in d.usable][1:]
    if further and found.clusters:
        name = f"{found.clusters[0].name}/{further[0]}"
        yield f"A device computes with its first engine; another is named: --devices {name}"
