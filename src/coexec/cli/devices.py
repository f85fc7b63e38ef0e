"""`coexec devices`: the processors of this machine, as device names."""

from dataclasses import asdict

from rich.table import Table

from coexec.cli.common import DebugOpt, JsonOpt, out, print_json
from coexec.devices.registry import default_names, describe
from coexec.units import format_bytes


def command(json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """List this machine's processors. cpu:0-3 may be used in parts: cpu:0-1,cpu:2-3."""
    found = [describe(name) for name in default_names()]
    if json:
        print_json({"devices": [asdict(d) for d in found]})
        return
    table = Table("device", "cores", "max. frequency", "memory", "processor", "engine", box=None)
    for d in found:
        hertz = f"{d.max_frequency_hz / 1e9:.2f} GHz" if d.max_frequency_hz else "not told"
        memory = format_bytes(d.memory_bytes) if d.memory_bytes else "not told"
        table.add_row(d.name, str(len(d.cores)), hertz, memory, d.processor, d.engine)
    out.print(table)
